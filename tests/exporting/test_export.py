"""Tests that ONNX graphs have the same outputs as the model, and the files and names that other libraries expect."""

import json
import signal
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from helpers import ROOT
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import MEAN, SHAPE, TEXTS, save, save_sentence_model
from helpers.tiny_models import HEADS, UNEQUAL, D, bert_of, model_of
from transformers import AutoConfig, AutoTokenizer

from fixedbert.exporting import export as exporting
from fixedbert.exporting import graphs
from fixedbert.exporting.export import export
from fixedbert.exporting.onnx_graphs import OUTPUTS, Graph, OnnxModel
from fixedbert.exporting.openvino_graphs import OpenVinoModel, quantize_openvino
from fixedbert.loading.sentence_models import MODES, read_pooling
from fixedbert.support.errors import InputError

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def outputs_of(folder, inputs, file="onnx/model.onnx") -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(folder / file)
    names = [x.name for x in session.get_outputs()]
    outputs = session.run(names, {x.name: inputs[x.name].numpy() for x in session.get_inputs()})
    return {name: torch.from_numpy(x) for name, x in zip(names, outputs, strict=True)}


def tokens_of(folder, texts=TEXTS):
    return AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")


@pytest.mark.slow
@pytest.mark.parametrize("head", [head for head in HEADS if head != "ForMultipleChoice"])
def test_every_task_head(head, tmp_path, monkeypatch):
    """Each task head's graph has optimum's input and output names and the same outputs as the model on new batches."""
    model = model_of(head, unpad_inputs=True, num_hidden_layers=1, **SHAPE).eval()
    save(model, tmp_path / "model")
    export(tmp_path / "model", tmp_path / "graph", int8=head == "ForPreTraining")
    inputs = tokens_of(tmp_path / "graph")
    axes = ["batch_size", "sequence_length"]
    session = onnxruntime.InferenceSession(tmp_path / "graph/onnx/model.onnx")
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (head != "LMHeadModel")
    assert [(x.name, x.shape) for x in session.get_inputs()] == [(name, axes) for name in names]
    outputs = outputs_of(tmp_path / "graph", inputs)
    assert tuple(outputs) == OUTPUTS.get(head, ("logits",))
    with torch.no_grad():
        expected = model(**inputs)
    for name, output in outputs.items():
        assert torch.allclose(output, expected[name], rtol=1e-4, atol=1e-4), name
    if head == "ForPreTraining":
        assert list(outputs_of(tmp_path / "graph", inputs, "onnx/model_quantized.onnx")) == list(outputs)
    assert outputs.keys() <= run_snippet(tmp_path / "graph/README.md", monkeypatch, tmp_path).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {"num_hidden_layers": 1, "head_embedding": "mul", "value_head_size": 7},
        {"num_hidden_layers": 1, "qk_norm": True, "attn_implementation": "eager"},
        {"is_decoder": True, **UNEQUAL},
    ],
    ids=["head embeddings", "qk_norm", "decoder"],
)
def test_every_attention(shape, tmp_path):
    """All types of attention are exported correctly, for various batch sizes and lengths."""
    model = model_of("Model", **SHAPE, **shape).eval()
    save(model, tmp_path / "model")
    export(tmp_path / "model", tmp_path / "graph")
    tokens = tokens_of(tmp_path / "graph")
    for rows, length in ((4, 14), (3, 9), (1, 1)):  # servers start with a batch of one token
        inputs = {name: x[:rows, :length] for name, x in tokens.items()}
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
        output = outputs_of(tmp_path / "graph", inputs)["last_hidden_state"]
        assert torch.allclose(output, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """Directory of a sentence-transformers model with unequal heads and empty sublayers, and its exported graphs."""
    folder = tmp_path_factory.mktemp("sentences")
    empty = {"num_hidden_layers": 2, "layer_attention_heads": [0, 5], "intermediate_size": [11, 0]}
    model = model_of("Model", value_head_size=9, **SHAPE, **empty)
    save_sentence_model(model, folder / "model", "Pooling", "Normalize")
    export(folder / "model", folder / "graph", int8=True)
    return folder


def test_sentence_embeddings(sentences):
    """onnxruntime computes the same embeddings as sentence-transformers, with and without padding."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(sentences / "model"), device="cpu").encode(TEXTS)
    for texts, rows in ((TEXTS, expected), (TEXTS[1:2], expected[1:2])):
        embeddings = outputs_of(sentences / "graph", tokens_of(sentences / "graph", texts))["sentence_embedding"]
        assert torch.allclose(embeddings, torch.from_numpy(rows), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [OnnxModel, partial(OpenVinoModel, precision="f32")], ids=["onnx", "openvino"])
def test_only_embeddings_are_returned(sentences, kind):
    """Hidden states, which other libraries need, are in the graph, but only the embeddings are returned by default."""
    pytest.importorskip("openvino")
    file = sentences / "graph/onnx/model.onnx"
    inputs, outputs = tokens_of(sentences / "graph"), outputs_of(sentences / "graph", tokens_of(sentences / "graph"))
    assert [*outputs] == ["last_hidden_state", "sentence_embedding"]
    for options, names in (({}, ["sentence_embedding"]), ({"whole": True}, [*outputs])):
        returned = kind(file, **options)(**inputs)
        assert [*returned] == names
        for name in names:
            assert torch.allclose(returned[name], outputs[name], atol=1e-4)


def test_int8(sentences):
    """The int8 graph multiplies in int8 and computes nearly the same embeddings. Threads do not spin after a run."""
    files = [sentences / "graph/onnx" / name for name in ("model.onnx", "model_quantized.onnx")]
    assert sorted(files[0].parent.iterdir()) == sorted(files)  # no intermediate files
    inputs = tokens_of(sentences / "graph", TEXTS[:1])
    exact, quantized = (outputs_of(sentences / "graph/onnx", inputs, file.name) for file in files)
    cosine = torch.cosine_similarity(exact["sentence_embedding"], quantized["sentence_embedding"])
    assert 0.98 < float(cosine) < 1
    onnx = pytest.importorskip("onnx")
    kinds = [node.op_type for node in onnx.load(files[1]).graph.node]
    assert kinds.count("MatMulInteger") == 2 + 4  # in two layers; matrix products without weights are not quantized
    options = OnnxModel(files[1]).session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_files_for_optimum_and_servers(sentences):
    """The directory has the files and fields that optimum and sentence-transformers read."""
    graph = sentences / "graph"
    config = AutoConfig.from_pretrained(graph)
    assert type(config) is transformers.BertConfig and config.architectures == ["BertModel"]
    assert (config.hidden_size, config.max_position_embeddings, config.pad_token_id) == (D, 23, 0)
    for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"):
        assert (graph / name).is_file(), name
    assert json.loads((graph / "1_Pooling/config.json").read_text()) == MEAN
    assert str(ROOT).encode() not in (graph / "onnx/model.onnx").read_bytes(), "a local path"
    card = (graph / "README.md").read_text()
    assert "- onnx\n" in card and "custom_code" not in card and "run one text at a time" in card


@pytest.mark.parametrize("mode", MODES)
def test_pooling_modes(mode, tmp_path):
    """Each pooling mode gives the same embeddings as in sentence-transformers."""
    reference = pytest.importorskip("sentence_transformers.models").Pooling(D, mode)
    pooling = {"embedding_dimension": D, "pooling_mode": mode}
    save_sentence_model(model_of("Model", **SHAPE), tmp_path, "Pooling", pooling=pooling)
    pooling = read_pooling(tmp_path)
    states = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(0))
    right = torch.tensor([7, 1, 4])[:, None] > torch.arange(7)
    for mask in (right.long(), right.flip(1).long()):
        expected = reference({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
        assert torch.allclose(pooling(states, mask), expected, rtol=0, atol=1e-6)
        pooling.normalize = True
        embeddings = pooling(states.bfloat16(), mask)
        assert torch.allclose(embeddings.norm(dim=1), torch.ones(3), rtol=0, atol=1e-6)
        pooling.normalize = False


@pytest.mark.parametrize(
    "family, longest", [("Roberta", 13 - 2), pytest.param("DistilBert", 13, marks=pytest.mark.slow)]
)
def test_other_families(family, longest, tmp_path, monkeypatch):
    """A DistilBERT, without token types, and a RoBERTa, whose positions begin after its padding id, are exported."""
    shape = {"num_hidden_layers": 1, "vocab_size": SHAPE["vocab_size"]}
    model = bert_of("ForSequenceClassification", family, **shape)
    save(model, tmp_path / "model", model_max_length=512)
    export(tmp_path / "model", tmp_path / "graph")
    variables = run_snippet(tmp_path / "graph/README.md", monkeypatch, tmp_path)
    ids, mask = (torch.from_numpy(variables["batch"][name]) for name in ("input_ids", "attention_mask"))
    assert ids.shape == (2, longest) and f"max_length={longest}" in (tmp_path / "graph/README.md").read_text()
    assert torch.allclose(torch.from_numpy(variables["logits"]), model(ids, mask).logits, rtol=0, atol=1e-4)


def test_large_graphs(tmp_path, monkeypatch):
    """Weights above a limit are in a second file, which is counted, and from which the int8 graph is made."""
    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 1000)
    save(model_of("ForSequenceClassification", num_hidden_layers=1, **SHAPE), tmp_path / "model")
    summary = export(tmp_path / "model", tmp_path / "graph", int8=True)
    files = {file.name: file.stat().st_size for file in (tmp_path / "graph/onnx").iterdir()}
    assert files.keys() == {"model.onnx", "model.onnx.data", "model_quantized.onnx"}
    sizes = (files["model.onnx"] + files["model.onnx.data"], files["model_quantized.onnx"])
    assert all(f"{size / 1e6:.1f} MB" in summary for size in sizes) and sizes[0] > 60_000
    graphs = [f"onnx/{name}" for name in files if name.endswith(".onnx")]
    exact, quantized = (
        outputs_of(tmp_path / "graph", tokens_of(tmp_path / "graph"), name)["logits"] for name in graphs
    )
    assert 0 < float((exact - quantized).abs().max()) < 0.5


def test_multiple_choice_is_refused(tmp_path):
    """A model that reads several texts at once cannot be exported, and the error says so."""
    save(model_of("ForMultipleChoice", num_hidden_layers=1, **SHAPE), tmp_path / "model")
    with pytest.raises(InputError, match="multiple-choice models cannot be exported"):
        export(tmp_path / "model", tmp_path / "graph")


def test_incorrect_graph_is_not_written(tmp_path, monkeypatch):
    """If the graph's outputs differ from the model's or are NaN, export raises an error and leaves no directory."""
    save(model_of("Model", **SHAPE), tmp_path / "model")
    monkeypatch.setattr(exporting, "trace", lambda graph, batch, file: file.touch())
    monkeypatch.setattr(Graph, "forward", lambda *_, **__: [torch.zeros(1)])
    for offset in (torch.tensor([1e-3]), torch.tensor([torch.nan])):
        monkeypatch.setattr(graphs, "OnnxModel", lambda *_, x=offset: lambda **_: {"last_hidden_state": x})
        with pytest.raises(InputError, match="outputs differ from the model's"):
            export(tmp_path / "model", tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
@pytest.mark.usefixtures("same_signals")
def test_openvino(tmp_path, monkeypatch):
    """OpenVINO's graphs run as the model card describes, and match the model. Signals work after they are deleted."""
    for package in ("openvino", "nncf", "sentence_transformers"):
        pytest.importorskip(package)
    model = model_of("ForSequenceClassification", num_hidden_layers=1, value_head_size=9, **SHAPE).eval()
    save(model, tmp_path / "model")
    (tmp_path / "rows.txt").write_text("".join(f"the cat sat on {number}\n" for number in range(40)))
    summary = export(
        tmp_path / "model", tmp_path / "graph", int8=True, runtime="openvino", train_file=tmp_path / "rows.txt"
    )
    assert "openvino_model.xml" in summary and "openvino_model_qint8_quantized.xml" in summary
    files = sorted(path.relative_to(tmp_path / "graph").as_posix() for path in (tmp_path / "graph").rglob("*.xml"))
    assert files == ["openvino/openvino_model.xml", "openvino/openvino_model_qint8_quantized.xml"]
    assert not (tmp_path / "graph" / "onnx").exists()
    variables = run_snippet(tmp_path / "graph" / "README.md", monkeypatch, tmp_path)
    batch = {name: torch.from_numpy(x) for name, x in variables["batch"].items() if name != "token_type_ids"}
    expected = model(**batch).logits
    assert np.abs(variables["logits"] - expected.detach().numpy()).max() < 0.5 * expected.abs().max()  # int8
    graph = OpenVinoModel(tmp_path / "graph" / files[0], "f32")
    ids = tokens_of(tmp_path / "graph")
    assert torch.allclose(graph(**ids)["logits"], model(ids["input_ids"], ids["attention_mask"]).logits, atol=1e-5)
    del variables, graph  # the order of creation, in which two Cores would leave an invalid stack for signal handlers
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.raise_signal(signal.SIGTERM)


def test_too_few_calibration_rows(sentences, tmp_path):
    """Too few calibration rows raise InputError."""
    pytest.importorskip("nncf")
    with pytest.raises(InputError, match="at least 32 calibration rows, but there are 0"):
        quantize_openvino(sentences / "graph/onnx/model.onnx", tmp_path / "int8.xml", [])
