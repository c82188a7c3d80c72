"""Tests that sentence-transformers opens, runs and trains what fixedbert writes, as it does with the original."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from datasets import Dataset
from helpers.tiny_checkpoints import MEAN, SHAPE, TEXTS, save, save_sentence_model, write_texts
from helpers.tiny_models import bert_of
from huggingface_hub import ModelCard
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from fixedbert import convert, shrink
from fixedbert.exporting.export import export
from fixedbert.exporting.onnx_graphs import OnnxModel
from fixedbert.exporting.openvino_graphs import OpenVinoModel
from fixedbert.loading.checkpoints import load_bert
from fixedbert.publishing.push import write_card
from fixedbert.tasks.texts import text_features

sentence_transformers = pytest.importorskip("sentence_transformers")
losses = pytest.importorskip("sentence_transformers.losses")
PAIRS = [(TEXTS[0], text) for text in TEXTS]
IDENTITY = "torch.nn.modules.linear.Identity"
OTHER = {"other_library": {"levels": [1, {"deep": None}], "name": "x"}}
RERANKERS = {
    "version 6": {},
    "version 4": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}},
    "version 2": {"sbert_ce_default_activation_function": IDENTITY},
}
KINDS = ["embeddings", "embeddings of version 2", *(f"reranker of {version}" for version in RERANKERS)]


@pytest.fixture(scope="module", params=KINDS)
def source(request, tmp_path_factory) -> Path:
    """Directory of an embedding model or a reranker, as several versions of sentence-transformers saved them."""
    folder, (kind, _, version) = tmp_path_factory.mktemp("model") / "source", request.param.partition(" of ")
    shape = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **SHAPE, **OTHER}
    if kind == "reranker":
        save(bert_of("ForSequenceClassification", num_labels=1, **shape, **RERANKERS[version]), folder)
        if version == "version 6":
            model = sentence_transformers.CrossEncoder(str(folder), device="cpu", activation_fn=nn.Tanh())
            model.save_pretrained(str(folder))
        return folder
    save_sentence_model(bert_of("Model", **shape), folder, "Pooling", "Normalize", pooling=MEAN)
    if not version:
        sentence_transformers.SentenceTransformer(str(folder), device="cpu").save_pretrained(str(folder))
        return folder
    (folder / "0_Transformer").mkdir()
    for file in [file for file in folder.iterdir() if file.is_file() and file.name != "modules.json"]:
        file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def is_reranker(source: Path) -> bool:
    return not (source / "1_Pooling").exists()


def opened(source: Path, **options):
    kind = "CrossEncoder" if is_reranker(source) else "SentenceTransformer"
    return getattr(sentence_transformers, kind)(str(source), device="cpu", **options)


def scores(source: Path, **options) -> np.ndarray:
    model = opened(source, **options)
    return model.predict(PAIRS) if is_reranker(source) else model.encode(TEXTS)


def check_metadata(source: Path, output: Path):
    """Checks the unknown fields of config.json and the model card."""
    config = json.loads((output / "config.json").read_text())
    assert config["other_library"] == OTHER["other_library"]
    card = ModelCard.load(output / "README.md").data
    task = "text-ranking" if is_reranker(source) else "sentence-similarity"
    assert (card.library_name, card.pipeline_tag) == ("sentence-transformers", task)


@pytest.mark.parametrize("options", [{}, {"unpad_inputs": True}, {"bert": True}], ids=["padded", "unpadded", "bert"])
def test_converted_models(source, options, tmp_path):
    """A converted model gives the same scores, and the first training step has the same loss."""
    convert(source, tmp_path / "new", **({} if "bert" in options else {"attention_head_size": 9, **options}))
    if "bert" in options:
        convert(tmp_path / "new", tmp_path / "stock", bert=True)
    folder = tmp_path / ("stock" if "bert" in options else "new")
    assert np.abs(scores(folder) - scores(source)).max() < 1e-5
    check_metadata(source, folder)
    assert first_loss(folder, tmp_path) == pytest.approx(first_loss(source, tmp_path), abs=1e-5)


def first_loss(source: Path, output: Path) -> float:
    """Returns the loss of the first training step."""
    model, texts = opened(source), {"query": ["the cat", "the dog", "who"], "text": ["cat sat", "dog ran .", "where"]}
    arguments: dict = {"output_dir": str(output / "run"), "max_steps": 1, "logging_steps": 1, "report_to": "none"}
    arguments |= {"use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    if is_reranker(source):
        kind, loss = "CrossEncoder", sentence_transformers.cross_encoder.losses.BinaryCrossEntropyLoss(model)
        texts["label"] = [1.0, 0.0, 1.0]
    else:
        kind, loss = "SentenceTransformer", losses.MultipleNegativesRankingLoss(model)
    arguments = getattr(sentence_transformers, f"{kind}TrainingArguments")(**arguments)
    trainer = getattr(sentence_transformers, f"{kind}Trainer")(
        model=model, args=arguments, train_dataset=Dataset.from_dict(texts), loss=loss
    )
    trainer.train()
    return trainer.state.log_history[0]["loss"]


def test_shrunk_models(source, tmp_path):
    """A shrunk model keeps the pooling, the activation and unknown fields. `push` writes the same metadata."""
    data = write_texts(tmp_path)
    shrink(source, tmp_path / "new", train_file=data / ("pairs.csv" if is_reranker(source) else "rows.txt"),
           intermediate_size=36, max_train_samples=64)  # fmt: skip
    assert np.abs(scores(tmp_path / "new") - scores(source)).max() < 0.2
    check_metadata(source, tmp_path / "new")
    (tmp_path / "new" / "README.md").unlink()
    write_card(tmp_path / "new" / "README.md", load_bert(tmp_path / "new"), "me/new", None)
    check_metadata(source, tmp_path / "new")


def test_prompts_of_rerankers(tmp_path):
    """A reranker's prompt precedes only the first text of a pair."""
    save(bert_of("ForSequenceClassification", num_labels=1, **SHAPE), tmp_path)
    model = opened(tmp_path)
    rows = Dataset.from_dict({"sentence1": ["the cat"], "sentence2": ["dog ran"]})
    features = text_features(rows, model.tokenizer, 23, prompt="who of ")
    assert (
        features["input_ids"][:] == model.preprocess([("the cat", "dog ran")], prompt="who of ")["input_ids"].tolist()
    )


class Optimum(nn.Module):
    """Stands for the classes of optimum, which needs an older transformers: opens the file that it is told to open."""

    def __init__(self, graph, config):
        super().__init__()
        self.graph, self.config, self._save_pretrained = graph, config, None

    @classmethod
    def from_pretrained(cls, folder, config, export, subfolder, file_name, ov_config=None, **_):
        assert not export
        file = Path(folder, subfolder, file_name)
        if ov_config is None:
            return cls(OnnxModel(file, whole=True), config)
        return cls(OpenVinoModel(file, ov_config["INFERENCE_PRECISION_HINT"], whole=True), config)

    def forward(self, input_ids, attention_mask, token_type_ids, **_):
        outputs = self.graph(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        if "logits" in outputs:
            return SequenceClassifierOutput(logits=outputs["logits"])
        return BaseModelOutput(outputs["last_hidden_state"])


@pytest.mark.usefixtures("trace_once")
@pytest.mark.parametrize("backend", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_exported_models(source, backend, tmp_path, monkeypatch):
    """sentence-transformers finds the graph and computes the same scores with it."""
    for package in ("onnxruntime", "onnxscript", backend):
        pytest.importorskip(package)
    names = ("FeatureExtraction", "SequenceClassification", "MaskedLM", "CausalLM")
    for name, prefix in (("optimum.onnxruntime", "ORT"), ("optimum.intel.openvino", "OV")):
        module = ModuleType(name)
        vars(module).update({f"{prefix}ModelFor{head}": Optimum for head in names})
        vars(module).update(ONNX_WEIGHTS_NAME="model.onnx", OV_XML_FILE_NAME="openvino_model.xml")
        monkeypatch.setitem(sys.modules, name, module)
    export(source, tmp_path / "graph", runtime=backend)
    options = {"model_kwargs": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}} if backend == "openvino" else {}
    assert np.abs(scores(tmp_path / "graph", backend=backend, **options) - scores(source)).max() < 1e-5
    check_metadata(source, tmp_path / "graph")
