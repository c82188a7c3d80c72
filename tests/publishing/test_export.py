"""Graphs of ONNX: they compute what the model computes, and libraries find what they look for in the directory."""

import json
import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from helpers import ROOT
from helpers.tiny_checkpoints import SHAPE, TEXTS, save
from helpers.tiny_models import HEADS, UNEQUAL, D, model_of
from transformers import AutoConfig, AutoTokenizer

from fixedbert.publishing import export as onnx_export
from fixedbert.publishing.export import export_onnx
from fixedbert.publishing.pooling import MODES, SentencePooling, read_pooling
from fixedbert.support import errors
from fixedbert.support.errors import InputError
from fixedbert_cli import main

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# As earlier versions of sentence-transformers wrote it; text-embeddings-inference wants all of these fields.
MEAN = {"word_embedding_dimension": D, "pooling_mode_mean_tokens": True}
MEAN |= {f"pooling_mode_{mode}": False for mode in ("cls_token", "max_tokens", "mean_sqrt_len_tokens")}


def save_sentence_model(folder, *kinds, pooling=MEAN, **changes):
    """A sentence-transformers model of the given modules after the encoder."""
    save(model_of("Model", **SHAPE, **changes), folder)
    modules = []
    for number, kind in enumerate(["Transformer", *kinds]):
        path = f"{number}_{kind}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        (folder / path).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 17}')


def outputs_of(folder, inputs, file="onnx/model.onnx") -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(folder / file)
    names = [x.name for x in session.get_outputs()]
    found = session.run(names, {x.name: inputs[x.name].numpy() for x in session.get_inputs()})
    return {name: torch.from_numpy(x) for name, x in zip(names, found, strict=True)}


def tokens_of(folder, texts=TEXTS):
    return AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_head(head, tmp_path):
    """Guards: the graph of each head has optimum's names and gives its outputs for other batches, in int8 too."""
    model = model_of(head, unpad_inputs=True, **SHAPE, **UNEQUAL).eval()
    save(model, tmp_path / "model")
    done = export_onnx(tmp_path / "model", tmp_path / "graph", int8=True)
    assert ("without a cache" in done) == (head == "LMHeadModel")
    inputs = tokens_of(tmp_path / "graph")
    axes = ["batch_size", "sequence_length"]
    if head == "ForMultipleChoice":
        inputs = {name: x.unflatten(0, (1, 4)) for name, x in inputs.items()}
        axes.insert(1, "num_choices")
    session = onnxruntime.InferenceSession(tmp_path / "graph/onnx/model.onnx")
    given = ["input_ids", "attention_mask"] + ["token_type_ids"] * (head != "LMHeadModel")
    assert [(x.name, x.type, x.shape) for x in session.get_inputs()] == [
        (name, "tensor(int64)", axes) for name in given
    ]
    names = {
        "Model": ["last_hidden_state"],
        "ForPreTraining": ["prediction_logits", "seq_relationship_logits"],
        "ForQuestionAnswering": ["start_logits", "end_logits"],
    }.get(head, ["logits"])
    found = outputs_of(tmp_path / "graph", inputs)
    assert list(found) == names
    with torch.no_grad():
        expected = model(**inputs)
    for name in names:
        assert torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-4), name
    assert list(outputs_of(tmp_path / "graph", inputs, "onnx/model_quantized.onnx")) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {"head_embedding": "add"},
        {"head_embedding": "mul", "value_head_size": 7},
        {"qk_norm": True, "attn_implementation": "eager"},
        {"is_decoder": True, **UNEQUAL},
        {"num_hidden_layers": 3, "layer_attention_heads": [5, 0, 3], "intermediate_size": [0, 11, 37]},
        {"num_hidden_layers": 3, "layer_attention_heads": [0, 0, 0], "intermediate_size": 0},
    ],
    ids=["added embeddings", "multiplied embeddings", "qk_norm", "decoder", "empty sublayers", "no sublayers"],
)
def test_every_attention(shape, tmp_path):
    """Guards: shared projections, normalised queries and keys, and a causal mask are in the graph, on odd batches."""
    model = model_of("Model", **SHAPE, **shape).eval()
    save(model, tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "graph")
    tokens = tokens_of(tmp_path / "graph")
    for rows, length in ((4, 14), (3, 9), (1, 5), (1, 1)):  # the last is what servers begin with
        inputs = {name: x[:rows, :length] for name, x in tokens.items()}
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
        found = outputs_of(tmp_path / "graph", inputs)["last_hidden_state"]
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A sentence-transformers model with unequal heads, some of its sublayers empty, and its exported directory."""
    folder = tmp_path_factory.mktemp("sentences")
    empty = {"layer_attention_heads": [2, 0, 5], "intermediate_size": [37, 11, 0]}
    save_sentence_model(folder / "model", "Pooling", "Normalize", **UNEQUAL | empty)
    (folder / "done").write_text(export_onnx(folder / "model", folder / "graph", int8=True))
    return folder


def test_sentence_embeddings(sentences):
    """Guards: plain onnxruntime gives the embeddings of sentence-transformers, whatever the padding."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(sentences / "model"), device="cpu").encode(TEXTS)
    found = outputs_of(sentences / "graph", tokens_of(sentences / "graph"))
    assert list(found) == ["last_hidden_state", "sentence_embedding"]
    assert torch.allclose(found["sentence_embedding"], torch.from_numpy(expected), rtol=0, atol=1e-5)
    for row, text in enumerate(TEXTS):
        (alone,) = outputs_of(sentences / "graph", tokens_of(sentences / "graph", [text]))["sentence_embedding"]
        assert torch.allclose(alone, torch.from_numpy(expected[row]), rtol=0, atol=1e-5)


def test_int8(sentences):
    """Guards: the second graph has the same names, a third of the size or less, and nearly the same embeddings."""
    files = [sentences / "graph/onnx" / name for name in ("model.onnx", "model_quantized.onnx")]
    assert sorted(files[0].parent.iterdir()) == sorted(files)  # nothing of the way there is left
    inputs = tokens_of(sentences / "graph", TEXTS[:1])
    exact, found = (outputs_of(sentences / "graph/onnx", inputs, file.name) for file in files)
    assert list(found) == list(exact)
    cosine = torch.cosine_similarity(exact["sentence_embedding"], found["sentence_embedding"])
    assert 0.98 < float(cosine) < 1
    onnx = pytest.importorskip("onnx")
    kinds = [node.op_type for node in onnx.load(files[1]).graph.node]
    assert kinds.count("MatMulInteger") == 6 + 2 + 4  # of three layers; the products of the attention have no weights
    assert "cosine of outputs at least 0.9" in (sentences / "done").read_text()


def test_int8_of_a_classifier(tmp_path):
    """Guards: a head on the pooled token is quantized too: its matrix, of another shape transposed, is transposed."""
    model = model_of("ForSequenceClassification", num_labels=3, num_hidden_layers=1, **SHAPE).eval()
    save(model, tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "graph", int8=True)
    inputs = tokens_of(tmp_path / "graph", TEXTS[:1])
    with torch.no_grad():
        logits = model(**inputs).logits
    found = outputs_of(tmp_path / "graph", inputs, "onnx/model_quantized.onnx")["logits"]
    assert 0 < (found - logits).abs().max() < 0.1 * logits.abs().max()


def test_what_optimum_and_the_servers_read(sentences):
    """
    Guards: the conditions of libraries that are not installed here.

    optimum (ORTModel.from_pretrained) and sentence-transformers (backend="onnx") open config.json without remote code,
    search for model.onnx, at best in onnx/, feed token_type_ids of zeros where it is an input, and read
    last_hidden_state. text-embeddings-inference parses architectures, max_position_embeddings and pad_token_id of
    config.json, tokenizer.json and 1_Pooling/config.json, takes model.onnx or onnx/model.onnx, and reads
    sentence_embedding or last_hidden_state.
    """
    graph = sentences / "graph"
    text = (graph / "config.json").read_text()
    config = AutoConfig.from_pretrained(graph)
    assert type(config) is transformers.BertConfig and config.architectures == ["BertModel"]
    assert "auto_map" not in text and not list(graph.glob("*.py"))
    assert (config.hidden_size, config.max_position_embeddings, config.pad_token_id) == (D, 23, 0)
    onnx_files = sorted(file.relative_to(graph).as_posix() for file in graph.rglob("*.onnx*"))
    assert onnx_files == ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    for name in onnx_files:  # no paths of this machine
        graph_bytes = (graph / name).read_bytes()
        assert str(ROOT).encode() not in graph_bytes and b"publishing/export.py" not in graph_bytes, name
    for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"):
        assert (graph / name).is_file(), name
    assert json.loads((graph / "1_Pooling/config.json").read_text()) == MEAN
    card = (graph / "README.md").read_text()
    assert 'backend="onnx"' in card and "- onnx\n" in card and "custom_code" not in card


def test_sentence_transformers_finds_the_graph(sentences):
    """Guards: sentence-transformers does not export again, but takes model.onnx, or the file that is named."""
    utils = pytest.importorskip("sentence_transformers.backend.utils")
    for given, file in (({}, "model.onnx"), ({"file_name": "model_quantized.onnx"}, "model_quantized.onnx")):
        export, options = utils.backend_should_export(
            sentences / "graph", True, dict(given), "model.onnx", "*.onnx", "ONNX"
        )
        assert not export and options == {"subfolder": "onnx", "file_name": file}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_pooling(mode):
    """Guards: each mode gives what sentence-transformers gives, with padding on the right and on the left."""
    pooling = pytest.importorskip("sentence_transformers.models").Pooling(D, mode)
    states = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(0))
    right = torch.tensor([7, 1, 4])[:, None] > torch.arange(7)
    for mask in (right.long(), right.flip(1).long()):
        expected = pooling({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
        found = SentencePooling([mode], normalize=False)(states, mask)
        assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    both = SentencePooling([mode, "cls"], normalize=True)(states, right.long())
    assert both.shape == (3, 2 * D) and torch.allclose(both.norm(dim=-1), torch.ones(3))


def test_pooling_of_later_versions(tmp_path):
    """Guards: the single field of later sentence-transformers, with one mode or several, is read too."""
    for modes in ("lasttoken", ["max", "cls"]):
        folder = tmp_path / str(len(modes))
        save_sentence_model(folder, "Pooling", pooling={"embedding_dimension": D, "pooling_mode": modes})
        pooling = read_pooling(folder)
        assert pooling.modes == ([modes] if isinstance(modes, str) else modes) and not pooling.normalize
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["Pooling", "Dense"], MEAN, "modules.json: has Transformer, Pooling, Dense; only Transformer, Pooling and"),
        (
            ["Pooling"],
            {"pooling_mode_weightedmean_tokens": True},
            "pooling by 'weightedmean' cannot be exported, only",
        ),
        (["Pooling"], {"pooling_mode": 5}, "pooling by 5 cannot be exported, only"),
        (["Pooling"], MEAN | {"include_prompt": False}, "with include_prompt=false pooling needs the length of a"),
    ],
    ids=["a layer after it", "a mode", "no mode", "prompts"],
)
def test_refused_sentence_models(kinds, pooling, message, tmp_path):
    """Guards: what a graph would leave out is refused, and nothing is written."""
    save_sentence_model(tmp_path / "model", *kinds, pooling=pooling)
    with pytest.raises(InputError, match=message):
        export_onnx(tmp_path / "model", tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_refusals(tmp_path, monkeypatch):
    """Guards: a file that is too large and a tokenizer of another model are one sentence each."""
    for changes, head, message in [
        ({"vocab_size": 50}, "Model", r"the tokenizer has 69 tokens and the model 50: not its own"),
    ]:
        folder = tmp_path / head
        save(model_of(head, **SHAPE | changes), folder)
        with pytest.raises(InputError, match=message):
            export_onnx(folder, tmp_path / "graph")
    save(model_of("ForMaskedLM", **SHAPE), tmp_path / "masked")
    (tmp_path / "masked" / "modules.json").write_text("[]")
    with pytest.raises(InputError, match=r"while its weights have another head \(ForMaskedLM\)"):
        export_onnx(tmp_path / "masked", tmp_path / "graph")
    save(model_of("Model", **SHAPE), tmp_path / "large")
    monkeypatch.setattr(onnx_export, "LARGEST_FILE", 10_000)
    with pytest.raises(InputError, match="large: 0.00 GB of weights in float32; a file of ONNX has room for 2.14"):
        export_onnx(tmp_path / "large", tmp_path / "graph")
    assert not list(tmp_path.glob("graph*"))


def test_cosine_of_single_numbers():
    """Guards: of outputs of one number the cosine is over the texts: by itself each is 1, however wrong it is."""
    padded, right = [torch.ones(3, 1)], [[torch.tensor([[3.0]])], [torch.tensor([[4.0]])]]
    wrong = [[torch.tensor([[4.0]])], [torch.tensor([[3.0]])]]
    assert onnx_export.lowest_cosine([padded, *right], [padded, *wrong]) == pytest.approx(24 / 25)
    states = [[torch.eye(9)[None, :1]], [torch.eye(9)[None, :2]]]
    turned = [states[0], [torch.eye(9)[None, [0, 2]]]]
    assert onnx_export.lowest_cosine(states, turned) == pytest.approx(1 / 2)


def test_types_that_the_model_does_not_have(tmp_path):
    """Guards: a tokenizer's types of segments are no input of a graph whose model has a single type."""
    model = model_of("Model", **SHAPE, type_vocab_size=1)
    save(model, tmp_path / "model")
    graph = onnx_export.Graph(model, "Model", None)
    for batch in onnx_export.texts_for(graph, AutoTokenizer.from_pretrained(tmp_path / "model")):
        assert list(batch) == ["input_ids", "attention_mask"]


def test_distilbert_is_exported(tmp_path):
    """Guards: a DistilBERT becomes a graph with its answers, though it has neither BERT's settings nor segments."""
    config = transformers.DistilBertConfig(
        vocab_size=SHAPE["vocab_size"], dim=32, n_layers=2, n_heads=4, hidden_dim=37
    )
    model = transformers.DistilBertForSequenceClassification(config).eval()
    save(model, tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "graph")
    inputs = tokens_of(tmp_path / "graph")
    expected = model(inputs["input_ids"], inputs["attention_mask"]).logits
    assert (outputs_of(tmp_path / "graph", inputs)["logits"] - expected).abs().max() <= 1e-5


def test_missing_packages(tmp_path, monkeypatch):
    """Guards: without the extra the command says how to install it."""
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'onnxruntime is not installed: pip install onnxruntime, or "\.\[onnx\]"'):
        main(["export", "model", "--output_dir", str(tmp_path / "graph"), "--int8"])


def test_a_wrong_graph_is_not_written(tmp_path, monkeypatch):
    """Guards: where outputs differ, or are not a number, the command fails and leaves no directory."""
    save(model_of("Model", **SHAPE), tmp_path / "model")
    monkeypatch.setattr(onnx_export, "trace", lambda *_: None)
    for wrong in (1e-3, torch.nan):
        monkeypatch.setattr(onnx_export, "run", lambda file, batches, wrong=wrong: [[torch.full((1,), wrong)]])
        monkeypatch.setattr(onnx_export.Graph, "forward", lambda *_, **__: [torch.zeros(1)])
        monkeypatch.setattr(onnx_export, "TEXTS", onnx_export.TEXTS[:1])
        monkeypatch.setattr(onnx_export, "texts_for", lambda *_: [{}])
        with pytest.raises(InputError, match=f"outputs differ from the model's by {wrong:.2g}, more than 0.0001"):
            export_onnx(tmp_path / "model", tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_threads_export_and_others_are_heard(tmp_path, caplog):
    """Guards: exports in two threads work, silence nobody else meanwhile, and leave all logs and filters as before."""
    save(model_of("ForSequenceClassification", **SHAPE, num_hidden_layers=1), tmp_path / "model")
    levels = (logging.root.manager.disable, logging.getLogger("torch.onnx").level)
    before, done, sent = [*warnings.filters], threading.Event(), []

    def others():
        while not done.wait(0.05):
            sent.append(f"note {len(sent)}")
            logging.getLogger("mine").warning(sent[-1])

    speaking = threading.Thread(target=others)
    speaking.start()
    with ThreadPoolExecutor(2) as pool:
        given = [(tmp_path / "model", tmp_path / name) for name in ("one", "two")]
        found = [*pool.map(lambda places: export_onnx(*places), given)]
    done.set()
    speaking.join()
    assert found[0] == found[1] and (tmp_path / "one" / "onnx" / "model.onnx").is_file()
    assert sent and [record.getMessage() for record in caplog.records if record.name == "mine"] == sent
    assert not [record for record in caplog.records if record.name.startswith("torch.onnx")]
    assert levels == (logging.root.manager.disable, logging.getLogger("torch.onnx").level)
    assert warnings.filters == before
