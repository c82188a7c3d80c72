"""The models that are compared: PyTorch models and ONNX graphs, with their predictions and times."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import normalize, pad
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..conversion.checkpoints import read_config
from ..data.tokenizers import check_vocab_size, load_tokenizer
from ..fine_tuning.distillation import Batch, Predictions, span_predictions
from ..fine_tuning.labels import default_names
from ..publishing.export import EMBEDDING, GRAPH, QUANTIZED, session_of
from ..publishing.sentence_models import read_text_settings
from ..shrinking.predictions import LoadedModel, head_name, kind_of_logits
from ..shrinking.report import short_name
from ..support.errors import InputError, require_package
from ..support.files import reading

PAUSE = 0.003  # seconds before each call, until the threads of the previous call have stopped spinning
GRAPHS = {GRAPH: "float32", QUANTIZED: "int8"}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# The task heads that can be compared. An encoder, whose head is "", needs pooling.
WORDS, QUESTIONS, TEXTS = "TokenClassification", "QuestionAnswering", "SequenceClassification"
Features = list[dict]  # tokens for a row: one dictionary, or one for each window of a question


class OnnxModel:
    """An ONNX graph that is called in the same way as the PyTorch model from which it was exported."""

    def __init__(self, file: Path):
        with reading(file, "export the model again"):
            self.session = session_of(file, torch.get_num_threads())
        self.inputs = {node.name for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput:
        outputs = self.session.run(None, {name: x.numpy() for name, x in inputs.items() if name in self.inputs})
        return ModelOutput(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))


@dataclass
class Candidate:
    """
    A PyTorch model or ONNX graph to compare, with its predictions and times for each batch.

    Args:
        source: directory or Hub id, and for an ONNX graph the precision.
        name: short name for the report.
        head: the task head, such as "SequenceClassification". "" for an embedding model.
        task: description of the predictions. Only models with the same task can be compared.
        predict: function that returns the predictions for a batch.
        prompt: text that precedes each text.
        features: tokens for each row.
        truncated: number of rows that were truncated.
    """

    source: str
    name: str
    head: str
    task: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    predict: Callable[[Batch], list[Predictions]]
    prompt: str = ""
    features: list[Features] = field(default_factory=list)
    truncated: int = 0
    predictions: list[list[Predictions]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    single_seconds: list[float] = field(default_factory=list)

    def timed(self, rows: range) -> tuple[list[Predictions], float]:
        """Returns the predictions for the rows with these indices, and the elapsed seconds without tokenization."""
        names = self.tokenizer.model_input_names
        windows = [{name: x[name] for name in names if name in x} for row in rows for x in self.features[row]]
        batch = dict(self.tokenizer.pad(windows, return_tensors="pt"))
        time.sleep(PAUSE)
        begin = time.perf_counter()
        predictions = self.predict(batch)
        return predictions, time.perf_counter() - begin

    @property
    def outputs(self) -> list[Predictions]:
        """The predictions for all rows. Start and end logits are padded to the length of the longest batch."""
        joined = []
        for parts in zip(*self.predictions, strict=True):
            tensors, width = [part.values for part in parts], max(part.values.shape[1] for part in parts)
            padded = [pad(x, (0, width - x.shape[1]), value=torch.finfo(x.dtype).min) for x in tensors]
            joined.append(Predictions(torch.cat(padded), parts[0].kind))
        return joined


def load_candidates(source: str, **hub_options) -> list[Candidate]:
    """Loads the model from a directory or the Hub, and every ONNX graph in the directory."""
    graphs = {Path(source) / graph: name for graph, name in GRAPHS.items() if (Path(source) / graph).is_file()}
    name, candidates = short_name(source), []
    if not graphs or any((Path(source) / weights).is_file() for weights in WEIGHTS):
        loaded = LoadedModel.load(source, **hub_options)
        model = loaded.model.float()
        head = head_name(model)
        task = task_of(head, model.config, source, loaded.pooling is not None)
        predict = partial(loaded.predict, model)
        candidates.append(Candidate(source, name, head, task, model.config, loaded.tokenizer, predict, loaded.prompt))
    if graphs:
        require_package("onnxruntime", "onnx")
        config, tokenizer = read_config(source), load_tokenizer(source, trust_remote_code=False)
        check_vocab_size(tokenizer, config.vocab_size, source)
        settings = read_text_settings(Path(source))
        settings.apply(tokenizer)
        head = (config.architectures or [""])[0].partition("For")[2]
    for file, precision in graphs.items():
        graph = OnnxModel(file)
        task = task_of(head, config, source, EMBEDDING in graph.outputs)
        predict = partial(onnx_predictions, graph, head, config)
        names = (f"{source}, {precision}", f"{name}, {precision}")
        candidates.append(Candidate(*names, head, task, config, tokenizer, predict, settings.prompt))
    return candidates


def onnx_predictions(graph: OnnxModel, head: str, config: PreTrainedConfig, batch: Batch) -> list[Predictions]:
    """Returns the predictions of an ONNX graph for a batch, as `LoadedModel.predict` does for a PyTorch model."""
    outputs = graph(**batch)
    if head == QUESTIONS:
        return span_predictions(outputs, batch["attention_mask"])
    if head == WORDS:
        return [Predictions(outputs["logits"][batch["attention_mask"].bool()], "classes")]
    if head == TEXTS:
        return [Predictions(outputs["logits"], kind_of_logits(config))]
    return [Predictions(normalize(outputs[EMBEDDING], dim=-1), "embeddings")]


def task_of(head: str, config: PreTrainedConfig, source: str, has_embeddings: bool) -> str:
    """
    Returns a description of the model's predictions, which is also used in error messages.

    Raises:
        InputError: If the model makes other predictions than for texts, words or questions.
    """
    if head == "" and has_embeddings:
        return f"embeddings of size {config.hidden_size}"
    names = ", ".join(default_names(config))
    if head == WORDS:
        return f"classes {names} for words"
    if head == QUESTIONS:
        return "answers to questions"
    if head != TEXTS:
        raise InputError(
            f"{source}: only models for classification, regression, token classification, question answering and "
            "sentence embeddings can be compared."
        )
    kind = kind_of_logits(config)
    return f"{config.num_labels} numbers" if kind == "numbers" else f"{kind} {names}"


def check_same_task(candidates: list[Candidate]):
    """Raises InputError if the models have different tasks."""
    first = candidates[0]
    for model in candidates:
        if model.task != first.task:
            raise InputError(f"{model.source} predicts {model.task}, but {first.source} predicts {first.task}.")
