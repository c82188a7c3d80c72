"""The models that are compared and the ways in which they run, with their predictions and times."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import pad
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..conversion.checkpoints import read_config
from ..conversion.weights import FILES, report_float32
from ..data.tokenizers import check_vocab_size, load_tokenizer
from ..fine_tuning.distillation import Batch, Predictions
from ..fine_tuning.labels import default_names
from ..publishing.export import EMBEDDING, GRAPH, export, graph_size
from ..publishing.openvino_graphs import CALIBRATION_ROWS, convert_to_openvino, quantize_openvino
from ..publishing.sentence_models import TextSettings, read_text_settings
from ..shrinking.predictions import LoadedModel, head_name, kind_of_logits
from ..shrinking.report import short_name
from ..shrinking.serving import supports_bf16
from ..support.errors import InputError, require_package
from ..support.files import reading
from .runtimes import (
    GRAPHS,
    QUESTIONS,
    REFERENCE,
    TEXTS,
    TORCH,
    WORDS,
    graph_predictions,
    missing_package,
    torch_runtime,
)

PAUSE = 0.003  # seconds before each call, until the threads of the previous call have stopped spinning
Features = list[dict]  # tokens for a row: one dictionary, or one for each window of a question


@dataclass
class Candidate:
    """
    A model and the way in which it runs, with its predictions and times for each batch.

    Args:
        source: directory or Hub id.
        name: short name of the model for the report.
        runtime: the way in which the model runs, one of RUNTIMES.
        head: the task head, such as "SequenceClassification". "" for an embedding model.
        task: description of the predictions. Only models with the same task can be compared.
        predict: function that returns the predictions for a batch.
        settings: how a sentence-transformers model tokenizes texts.
        megabytes: size of the weights or the graph.
        features: tokens for each row.
        truncated: number of rows that were truncated.
        predictions: the predictions for each batch.
        seconds: the times for random batches, sorted batches and single rows.
    """

    source: str
    name: str
    runtime: str
    head: str
    task: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    predict: Callable[[Batch], list[Predictions]]
    settings: TextSettings = TextSettings()
    megabytes: float = 0.0
    features: list[Features] = field(default_factory=list)
    truncated: int = 0
    predictions: list[list[Predictions]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the model, and the runtime if it is not padded float32 PyTorch."""
        return self.name if self.runtime == REFERENCE else f"{self.name}, {self.runtime}"

    def batch(self, rows: Iterable[int]) -> Batch:
        """Returns a padded batch with the rows that have these indices."""
        names = self.tokenizer.model_input_names
        windows = [{name: x[name] for name in names if name in x} for row in rows for x in self.features[row]]
        return dict(self.tokenizer.pad(windows, return_tensors="pt"))

    def timed(self, rows: Iterable[int]) -> tuple[list[Predictions], float]:
        """Returns the predictions for the rows with these indices, and the elapsed seconds without tokenization."""
        batch = self.batch(rows)
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


@dataclass
class LoadedSource:
    """
    The candidates that were loaded from a directory or the Hub.

    Args:
        loaded: the PyTorch model, or None if the directory contains only exported graphs.
        candidates: the PyTorch model in float32 with padding, if there is one, and the exported graphs.
    """

    loaded: LoadedModel | None
    candidates: list[Candidate]


def load_model(source: str, **hub_options) -> LoadedSource:
    """Loads the model from a directory or the Hub, if it has weights, and the exported graphs in the directory."""
    directory = Path(source)
    is_exported = any((directory / runtime.file).is_file() for runtime in GRAPHS.values())
    if is_exported and not any((directory / weights).is_file() for weights in FILES):
        return LoadedSource(None, load_graphs(source))
    loaded = LoadedModel.load(source, **hub_options)
    report_float32(source, loaded.model)
    head, config = head_name(loaded.model), loaded.model.config
    task = task_of(head, config, source, loaded.pooling is not None)
    predict, megabytes = torch_runtime(loaded, TORCH[REFERENCE])
    rest = (head, task, config, loaded.tokenizer, predict, loaded.settings, megabytes)
    return LoadedSource(loaded, [Candidate(source, short_name(source), REFERENCE, *rest), *load_graphs(source)])


def load_graphs(source: str) -> list[Candidate]:
    """Loads the exported graphs in a directory."""
    files = {name: Path(source) / runtime.file for name, runtime in GRAPHS.items()}
    files = {name: file for name, file in files.items() if file.is_file() and ("bf16" not in name or supports_bf16())}
    if not files:
        return []
    config, tokenizer = read_config(source), load_tokenizer(source, trust_remote_code=False)
    check_vocab_size(tokenizer, config.vocab_size, source)
    settings = read_text_settings(Path(source))
    settings.apply(tokenizer)
    head = (config.architectures or [""])[0].partition("For")[2]
    candidates = []
    for name, file in files.items():
        require_package(GRAPHS[name].package, GRAPHS[name].extra)
        with reading(file, "export the model again"):
            graph = GRAPHS[name].load(file)
        task = task_of(head, config, source, EMBEDDING in graph.outputs)
        predict = partial(graph_predictions, graph, head, config)
        rest = (head, task, config, tokenizer, predict, settings, graph_size(file))
        candidates.append(Candidate(source, short_name(source), name, *rest))
    return candidates


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


@dataclass
class RuntimeBuilder:
    """
    Builds candidates that run a model in other ways than its reference, with the same tokens.

    Args:
        reference: the model in padded float32 PyTorch, with its features.
        loaded: the model and its tokenizer.
        directory: directory for temporary files.
        notes: messages about runtimes that were skipped.
        export_error: the exception with which the export has failed, if it has.
    """

    reference: Candidate
    loaded: LoadedModel
    directory: Path
    notes: list[str] = field(default_factory=list)
    export_error: Exception | None = None

    def candidates(self, names: Iterable[str], is_required: bool) -> list[Candidate]:
        """
        Returns a candidate for each runtime. Skips those that this machine or the model does not support, and adds a
        note for each of them.

        Raises:
            InputError: If `is_required` is True, and a runtime is not installed.
        """
        built: list[Candidate] = []
        for name in names:
            missing = missing_package(name)
            if missing:
                message = f'{name}: {missing} is not installed; run pip install "fixedbert[{GRAPHS[name].extra}]"'
                if is_required:
                    raise InputError(f"{message}.", "runtime")
                self.notes.append(message)
            elif "bf16" in name and not supports_bf16():
                self.notes.append(f"{name}: skipped, because bfloat16 is slow on this processor")
            else:
                built += self.build(name)
        return built

    def build(self, name: str) -> list[Candidate]:
        """Returns a list with one candidate, or an empty list if the runtime rejects the model."""
        if name == self.reference.runtime:
            return [self.reference]
        try:
            predict, megabytes = torch_runtime(self.loaded, TORCH[name]) if name in TORCH else self.graph(name)
            results: dict = {"predictions": [], "seconds": {}}
            candidate = replace(self.reference, runtime=name, predict=predict, megabytes=megabytes, **results)
            candidate.timed([0])
        except Exception as error:  # runtimes reject graphs with exceptions of any type
            reason, *_ = str(error).strip().split("\n")
            self.notes.append(f"{name}: skipped ({reason})")
            return []
        return [candidate]

    def graph(self, name: str) -> tuple[Callable[[Batch], list[Predictions]], float]:
        """Returns a function that predicts with a graph, and the size of the graph in megabytes."""
        file = self.graphs / GRAPHS[name].file
        if not file.exists() and name == "openvino-int8":
            rows = range(min(CALIBRATION_ROWS, len(self.reference.features)))
            quantize_openvino(self.graphs / GRAPH, file, (self.reference.batch([row]) for row in rows))
        elif not file.exists():
            convert_to_openvino(self.graphs / GRAPH, file)
        predict = partial(graph_predictions, GRAPHS[name].load(file), self.reference.head, self.reference.config)
        return predict, graph_size(file)

    @property
    def graphs(self) -> Path:
        """A directory with the exported ONNX graphs. Raises the same exception again if the export has failed."""
        directory = self.directory / "graphs"
        if self.export_error is not None:
            raise self.export_error
        if not directory.exists():
            try:
                export(self.reference.source, directory, int8=True)
            except Exception as error:
                self.export_error = error
                raise
        return directory
