"""Encoders of families that fixedbert cannot convert: `compare` and `export` open them as transformers does."""

import pytest
import torch
from helpers.outputs import configure
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import MEAN, TEXTS, WORDS, save, save_sentence_model
from helpers.tiny_models import bert_of
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

import fixedbert
from fixedbert.comparison.candidates import build_candidates, load_candidates
from fixedbert.comparison.runtimes import TORCH, torch_runtime
from fixedbert.exporting.export import export
from fixedbert.exporting.openvino_graphs import OpenVinoModel
from fixedbert.loading.families import FAMILIES, max_tokens
from fixedbert.loading.loaded_model import LoadedModel
from fixedbert.support.errors import InputError

TEXT, WORD, PLAIN = "ForSequenceClassification", "ForTokenClassification", "Model"
SHAPE = {"hidden_size": 30, "num_attention_heads": 5, "vocab_size": len(WORDS), "max_position_embeddings": 23}
LOCAL = {"local_attention": 4, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}  # attends to 2 tokens around
BUCKETS = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "share_att_key": True}
DEBERTA = {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0, "pad_token_id": 0}
SHAPES = {
    "ModernBert": LOCAL,
    "MPNet": {"max_position_embeddings": 25},
    "DebertaV2": BUCKETS | DEBERTA,
    "XLMRoberta": {"max_position_embeddings": 25},
    "Albert": {"embedding_size": 7, "num_hidden_groups": 3, "pad_token_id": 0},
}
AUTO = {TEXT: AutoModelForSequenceClassification, WORD: AutoModelForTokenClassification, PLAIN: AutoModel}
CASES = [(TEXT, family) for family in SHAPES] + [(WORD, "DebertaV2"), (WORD, "ModernBert"), (PLAIN, "MPNet")]
FAST = [(WORD, "ModernBert"), (PLAIN, "MPNet")]  # local attention, in which padding differs, and embeddings


def saved(head: str, family: str, directory):
    """Saves a model, in case of an encoder for sentence-transformers, and returns its directory."""
    model = bert_of(head, family, **SHAPE | SHAPES[family])
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (family == "Albert")
    if head == PLAIN:
        save_sentence_model(model, directory, "Pooling", pooling=MEAN, model_input_names=names)
        configure(directory, architectures=[f"{family}ForMaskedLM"])  # as in all-mpnet-base-v2
    else:
        save(model, directory, model_input_names=names)
    return directory


def expected(directory, head: str, batch, dtype=torch.float32) -> torch.Tensor:
    """Returns the predictions for a batch with transformers' own model: logits, or normalized means of its states."""
    model, mask = AUTO[head].from_pretrained(directory, dtype=dtype).eval(), batch["attention_mask"]
    with torch.no_grad():
        outputs = model(**batch)
    if head == PLAIN:
        states = outputs.last_hidden_state.float() * mask[..., None]
        return torch.nn.functional.normalize(states.sum(1) / mask.sum(1, keepdim=True), dim=-1)
    return (outputs.logits[mask.bool()] if head == WORD else outputs.logits).float()


@pytest.mark.parametrize("head, family", CASES)
@torch.inference_mode()
def test_outputs_equal_those_of_transformers(head, family, tmp_path):
    """Every family has transformers' outputs, bit for bit, in float32 and bfloat16, for batches with padding."""
    (reference,) = load_candidates(str(saved(head, family, tmp_path)), "x")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    batch = dict(tokenizer(TEXTS, TEXTS[::-1], padding=True, return_tensors="pt"))
    assert max_tokens(reference.model.config) == 23 and batch["attention_mask"].min() == 0
    for runtime, dtype in (("torch", torch.float32), ("torch-bf16", torch.bfloat16)):
        outputs, _ = torch_runtime(reference.model, TORCH[runtime])
        (predictions,) = outputs(batch)
        assert torch.equal(predictions.values, expected(tmp_path, head, batch, dtype)), runtime
    (predictions,) = reference.predict(batch)
    assert torch.equal(predictions.values, expected(tmp_path, head, batch))


@pytest.mark.parametrize(
    "head, family", [pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow) for case in CASES]
)
def test_graphs(head, family, tmp_path, monkeypatch):
    """onnxruntime and OpenVINO have transformers' outputs, the exported directory opens, and the code in it runs."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    model = saved(head, family, tmp_path / "model")
    export(model, tmp_path / "graph")
    (candidate,) = load_candidates(str(tmp_path / "graph"), "x")
    openvino = OpenVinoModel(tmp_path / "graph/onnx/model.onnx", "f32")
    for texts in (TEXTS, TEXTS[1:2]):
        batch = dict(AutoTokenizer.from_pretrained(tmp_path / "graph")(texts, padding=True, return_tensors="pt"))
        (predictions,) = candidate.predict(batch)
        assert torch.allclose(predictions.values, expected(model, head, batch), rtol=1e-4, atol=1e-4)
        (output,) = openvino(**batch).values()
        output = output[batch["attention_mask"].bool()] if head == WORD else output
        output = torch.nn.functional.normalize(output, dim=-1) if head == PLAIN else output
        assert torch.allclose(output, expected(model, head, batch), rtol=1e-4, atol=1e-4)
    variables = run_snippet(tmp_path / "graph/README.md", monkeypatch, tmp_path)
    assert len(variables["embeddings" if head == PLAIN else "logits"]) == 2
    assert variables["batch"]["input_ids"].shape == (2, 17 if head == PLAIN else 23)


@pytest.mark.parametrize("family", [family for family in SHAPES if family != "XLMRoberta"])
def test_only_convertible_families_run_without_padding(family, tmp_path):
    """convert and shrink name the families that they support, and compare skips PyTorch without padding."""
    model = saved(TEXT, family, tmp_path / "model")
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    for run in (
        lambda: fixedbert.convert(model, tmp_path / "out"),
        lambda: fixedbert.shrink(model, tmp_path / "out", train_file=tmp_path / "rows.txt", params=1),
    ):
        with pytest.raises(InputError, match=f"model: only models of type {', '.join(FAMILIES)} can be converted"):
            run()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "rows.txt"]
    (reference,) = load_candidates(str(model), "x")
    found, notes = build_candidates(reference, ["torch", "torch-unpadded"], False, tmp_path / "graphs")
    assert found == [reference] and len(notes) == 1
    assert notes[0].startswith("torch-unpadded: skipped (only models of type bert, roberta, ")
    with pytest.raises(InputError, match="`runtime` x: only models of type bert, "):
        build_candidates(reference, ["torch-unpadded"], True, tmp_path / "graphs")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"classifier.weight": None}, "weights are missing for 'classifier.weight'"),
        ({"model.layers.1.extra": torch.ones(3)}, "no parameters for 'model.layers.1.extra'"),
        ({"model.final_norm.weight": torch.full((30,), torch.nan)}, "model.final_norm.weight contains NaN"),
    ],
)
def test_damaged_weights(change, message, tmp_path):
    """Weights that are missing, unexpected or not finite are refused as in other families."""
    file = saved(TEXT, "ModernBert", tmp_path) / "model.safetensors"
    tensors = load_file(file) | change
    save_file({name: x for name, x in tensors.items() if x is not None}, file, {"format": "pt"})
    with pytest.raises(InputError, match=f"{tmp_path}: .*{message}"):
        LoadedModel.load(tmp_path)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"architectures": ["ModernBertForSpecies"]}, r"ModernBertForSpecies is not one of \*Model, \*ForPre"),
        ({"architectures": ["ModernBertForNextSentencePrediction"]}, "task head ForNextSentencePrediction for mo"),
        ({"model_type": "t5", "architectures": ["T5Model"], "max_position_embeddings": None}, "t5 models without max"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "no encoder of texts with the task head Model for vit"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights are not supported"),
    ],
)
def test_models_that_are_no_encoders(fields, message, tmp_path):
    """A model that is no encoder with a supported task head is refused in one sentence."""
    configure(saved(TEXT, "ModernBert", tmp_path), **fields)
    with pytest.raises(InputError, match=f"{tmp_path}: .*{message}"):
        LoadedModel.load(tmp_path)


def test_other_tensors_are_dropped(tmp_path, capsys):
    """Tensors of another task head, as in a pretrained DeBERTa, are dropped and listed."""
    file = saved(TEXT, "DebertaV2", tmp_path) / "model.safetensors"
    save_file(load_file(file) | {"lm_predictions.bias": torch.ones(3)}, file, {"format": "pt"})
    LoadedModel.load(tmp_path)
    printed = capsys.readouterr().out
    assert "not parameters of DebertaV2ForSequenceClassification: lm_predictions.bias." in printed


@pytest.mark.slow
def test_compare(tmp_path):
    """All runtimes but PyTorch without padding run, with int8 graphs, and the advice names transformers' class."""
    pytest.importorskip("nncf")
    (tmp_path / "rows.txt").write_text("".join(f"{text} {number}\n" for number in range(9) for text in TEXTS))
    model = saved(TEXT, "ModernBert", tmp_path / "model")
    result = fixedbert.compare([model], tmp_path / "rows.txt")
    names = {each.runtime for each in result.models}
    assert names - {"torch-bf16", "openvino-bf16"} == {
        "torch", "onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8",
    }  # fmt: skip
    exact = {each.runtime: each.fidelity for each in result.models if each.runtime in ("onnxruntime", "openvino")}
    assert {fidelity.agreement for fidelity in exact.values()} == {1}
    assert "fixedbert convert" not in result.advice
