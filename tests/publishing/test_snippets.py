"""Tests that the code in model cards returns what the library returns that made the model."""

import numpy as np
import pytest
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import MEAN, SHAPE, save, save_sentence_model
from helpers.tiny_models import bert_of
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

from fixedbert import convert
from fixedbert.exporting.export import export

LONG = "the cat sat " * 1000  # as in `run_snippet`
TEXTS, PAIRS = [LONG, "A second text."], [("One text.", LONG), ("One text.", "A second text.")]
CLS = {"embedding_dimension": 32, "pooling_mode": "cls"}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
HEADS = {"tagger": "ForTokenClassification", "questions": "ForQuestionAnswering"}
FIELDS = {
    "classes": {"id2label": {0: "good", 1: "bad", 2: "mixed"}},
    "several labels": {"num_labels": 3, "problem_type": "multi_label_classification", "label_threshold": 0.3},
    "pairs": {"num_labels": 3, "text_column_names": ["premise", "hypothesis"]},
    "scores": {"num_labels": 1},
    "sigmoid": {"num_labels": 1},
    "identity": {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    "tanh": {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
    "tagger": {"id2label": dict(enumerate(TAGS))},
}
RERANKERS = ("sigmoid", "identity", "tanh")
KINDS = [*FIELDS, "questions", "mean, normalized", "cls"]


def labels_of(rows: list) -> list[list[tuple]]:
    """Returns the labels and rounded probabilities from a pipeline or the code for a graph, in alphabetical order."""
    rows = [[(x["label"], x["score"]) for x in row] if isinstance(row, list) else [*row.items()] for row in rows]
    return [sorted((label, pytest.approx(score, abs=1e-5)) for label, score in row) for row in rows]


def entities_of(rows: list[list[dict]]) -> list[list[tuple]]:
    """Returns the entities from a pipeline as in the code for a graph."""
    pairs = zip(TEXTS, rows, strict=True)
    return [[(x["entity_group"], text[x["start"] : x["end"]]) for x in row] for text, row in pairs]


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    """The kind of a model, the directory of the original, in which `fixed` is the converted model."""
    directory, kind = tmp_path_factory.mktemp("model"), request.param
    source = directory / "original"
    shape = {"num_hidden_layers": 1, **SHAPE, "max_position_embeddings": 41, **FIELDS.get(kind, {})}
    if kind in ("mean, normalized", "cls"):
        modules = ["Pooling"] + ["Normalize"] * (kind != "cls")
        save_sentence_model(bert_of("Model", **shape), source, *modules, pooling=CLS if kind == "cls" else MEAN)
    else:
        save(bert_of(HEADS.get(kind, "ForSequenceClassification"), **shape), source, model_max_length=41)
    if kind == "sigmoid":
        sentence_transformers = pytest.importorskip("sentence_transformers")
        sentence_transformers.CrossEncoder(str(source), device="cpu").save_pretrained(str(source))
    convert(source, directory / "fixed", attention_head_size=9)
    return kind, directory


def expected_from(kind: str, source) -> list:
    """Returns what the library that made the model returns for the texts in a card."""
    if kind in RERANKERS:
        return pytest.importorskip("sentence_transformers").CrossEncoder(source, device="cpu").predict(PAIRS)
    if kind in ("mean, normalized", "cls"):
        return pytest.importorskip("sentence_transformers").SentenceTransformer(source, device="cpu").encode(TEXTS)
    if kind == "tagger":
        rows = pipeline("token-classification", source, aggregation_strategy="first")(TEXTS)
        return [
            [(x["entity_group"], text[x["start"] : x["end"]]) for x in row]
            for text, row in zip(TEXTS, rows, strict=True)
        ]
    if kind == "questions":
        return best_answer("Who?", LONG, source)
    texts = [{"text": one, "text_pair": other} for one, other in PAIRS] if kind == "pairs" else TEXTS
    options = {"function_to_apply": "none"} if kind == "scores" else {}
    return pipeline("text-classification", source, top_k=None)(texts, truncation=True, **options)


def best_answer(question: str, context: str, source: str) -> str:
    """Returns the span of at most 30 tokens with the highest sum of logits among all windows."""
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForQuestionAnswering.from_pretrained(source)
    options = {"truncation": "only_second", "max_length": 41, "stride": 20, "return_overflowing_tokens": True}
    windows = tokenizer(question, context, return_offsets_mapping=True, padding=True, return_tensors="pt", **options)
    outputs = model(**{name: windows[name] for name in tokenizer.model_input_names})
    spans = []
    for row, (starts, ends) in enumerate(zip(outputs.start_logits.tolist(), outputs.end_logits.tolist(), strict=True)):
        inside = [i for i, part in enumerate(windows.sequence_ids(row)) if part == 1]
        offsets = windows["offset_mapping"][row].tolist()
        pairs = [(start, end) for start in inside for end in inside if start <= end < start + 30]
        spans += [(starts[start] + ends[end], context[offsets[start][0] : offsets[end][1]]) for start, end in pairs]
    return max(spans)[1]


@pytest.mark.usefixtures("trace_once")
@pytest.mark.parametrize("format", ["torch", "onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_code_returns_what_the_original_returns(model, format, monkeypatch):
    """The code in the card of a converted or exported model returns what its library returns for the original."""
    kind, directory = model
    name = "fixed"
    if format != "torch":
        pytest.importorskip(format)
        name = format
        export(directory / "fixed", directory / format, runtime=format)
    variables = run_snippet(directory / name / "README.md", monkeypatch, directory)
    expected = expected_from(kind, str(directory / "original"))
    if kind in RERANKERS:
        assert variables["scores"] == pytest.approx(expected, abs=1e-5)
    elif kind in ("mean, normalized", "cls"):
        assert np.abs(variables["embeddings"] - expected).max() < 1e-5
    elif kind == "questions":
        assert variables["answer"] == expected != ""
    elif kind == "tagger":
        rows = variables["entities"]
        if format == "torch":
            rows = [
                [(x["entity_group"], text[x["start"] : x["end"]]) for x in row]
                for text, row in zip(TEXTS, rows, strict=True)
            ]
        assert rows == expected and any(rows)
    elif kind == "scores":
        scores = [x["score"] for (x,) in variables["predictions"]] if format == "torch" else variables["scores"]
        assert scores == pytest.approx([x["score"] for (x,) in expected], abs=1e-5)
    else:
        if kind == "several labels":
            expected = [[x for x in row if x["score"] >= 0.3] for row in expected]
        assert labels_of(variables["predictions"]) == labels_of(expected)
