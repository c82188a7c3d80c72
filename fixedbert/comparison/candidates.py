"""The models that are compared and the runtimes in which they run, with their predictions and latencies."""

import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import pad
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.tokenizers import check_vocab_size, load_tokenizer
from ..exporting.export import EMBEDDING, GRAPH, export, graph_size
from ..exporting.openvino_graphs import CALIBRATION_ROWS, convert_to_openvino, quantize_openvino
from ..loading.loaded_model import LoadedModel, head_name
from ..loading.sentence_models import TextSettings, read_text_settings
from ..loading.weights import FILES, report_float32
from ..options import CompareOptions
from ..shrinking.report import short_name
from ..support.errors import InputError
from ..support.files import error_reason, reading
from ..support.machine import has_bf16
from ..tasks.labels import default_names
from ..tasks.predictions import QUESTIONS, TEXTS, WORDS, Batch, Predictions, kind_of_logits
from ..tasks.rows import Features
from .runtimes import GRAPHS, REFERENCE, TORCH, graph_predictions, torch_runtime

PAUSE = 0.003  # seconds to wait before each call, until the threads of the previous call have stopped spinning


@dataclass
class Candidate:
    """A model in one runtime, with its predictions and latencies for each batch."""

    source: str  # directory or Hub id
    name: str  # short name of the model for the report
    runtime: str  # one of RUNTIMES
    head: str  # the task head, such as "SequenceClassification"; "" for an embedding model
    task: str  # description of the predictions; only models with the same task can be compared
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    predict: Callable[[Batch], list[Predictions]]
    settings: TextSettings  # how a sentence-transformers model tokenizes texts
    megabytes: float  # size of the weights or the graph
    features: list[Features] = field(default_factory=list)  # tokens for each row
    truncated: int = 0  # number of rows that were truncated
    predictions: list[list[Predictions]] = field(default_factory=list)  # for each random batch
    seconds: dict[str, list[float]] = field(default_factory=dict)  # for random batches, sorted batches and single rows

    @property
    def label(self) -> str:
        """The name of the model, and the runtime if it is not padded float32 PyTorch."""
        return self.name if self.runtime == REFERENCE else f"{self.name}, {self.runtime}"

    def batch(self, rows: Iterable[int]) -> Batch:
        """Returns a padded batch with the rows at these indices."""
        names = self.tokenizer.model_input_names
        windows = [{name: x[name] for name in names if name in x} for row in rows for x in self.features[row]]
        return dict(self.tokenizer.pad(windows, return_tensors="pt"))

    def timed(self, rows: Iterable[int]) -> tuple[list[Predictions], float]:
        """Returns the predictions for the rows with these indices, and the seconds that the predictions took."""
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


def load_model(source: str, **hub_options) -> tuple[LoadedModel | None, list[Candidate]]:
    """
    Loads a model from a directory or the Hub.

    Returns:
        The PyTorch model (None if the directory contains only exported graphs), and a list of candidates: the PyTorch
        model in float32 with padding, if it exists, and the graphs.
    """
    graphs = load_graphs(source)
    if graphs and not any((Path(source) / file).is_file() for file in FILES):
        return None, graphs
    loaded = LoadedModel.load(source, **hub_options)
    report_float32(source, loaded.model)
    head, config = head_name(loaded.model), loaded.model.config
    task = task_of(head, config, source, loaded.pooling is not None)
    predict, megabytes = torch_runtime(loaded, TORCH[REFERENCE])
    rest = (head, task, config, loaded.tokenizer, predict, loaded.settings, megabytes)
    return loaded, [Candidate(source, short_name(source), REFERENCE, *rest), *graphs]


def load_graphs(source: str) -> list[Candidate]:
    """Loads the exported graphs in a directory, except those in bfloat16 if this machine does not support it."""
    files = {name: Path(source) / runtime.file for name, runtime in GRAPHS.items()}
    names = [name for name, file in files.items() if file.is_file() and ("bf16" not in name or has_bf16(use_cpu=True))]
    if not names:
        return []
    with reading(Path(source) / "config.json", "export the model again"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    tokenizer = load_tokenizer(source, trust_remote_code=False)
    check_vocab_size(tokenizer, config.vocab_size, source)
    settings = read_text_settings(Path(source))
    settings.apply(tokenizer)
    head = (config.architectures or [""])[0].partition("For")[2]
    candidates = []
    for name in names:
        with reading(files[name], "export the model again"):
            graph = GRAPHS[name].load(files[name])
        task = task_of(head, config, source, EMBEDDING in graph.outputs)
        predict = partial(graph_predictions, graph, head, config)
        rest = (head, task, config, tokenizer, predict, settings, graph_size(files[name]))
        candidates.append(Candidate(source, short_name(source), name, *rest))
    return candidates


def task_of(head: str, config: PreTrainedConfig, source: str, has_embeddings: bool) -> str:
    """
    Returns a description of the model's predictions, such as "classes no, yes". Only models with the same description
    can be compared. Raises InputError if the task head is not supported.
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


def build_candidates(
    reference: Candidate, loaded: LoadedModel, names: list[str], options: CompareOptions, directory: Path
) -> tuple[list[Candidate], list[str]]:
    """
    Returns a candidate for each runtime that this machine and the model support, and notes about skipped runtimes.

    Args:
        reference: The model in padded float32 PyTorch, with its features.
        loaded: The model and its tokenizer.
        names: Names of the runtimes.
        options: The options of `compare`. If they name runtimes, one that is not installed raises InputError.
        directory: New directory for exported graphs.
    """
    built, notes, is_required = [], [], options.runtime is not None
    hub_options = {name: getattr(options, name) for name in ("model_revision", "cache_dir", "token")}
    try:
        if GRAPHS.keys() & {*names}:
            with redirect_stdout(None):  # `load_model` has printed the dtype
                export(reference.source, directory, int8=True, **hub_options)
    except Exception as error:  # torch and onnx raise exceptions of any type
        if is_required and isinstance(error, InputError):
            raise
        notes += [f"{name}: skipped ({error_reason(error)})" for name in names if name in GRAPHS]
        names = [name for name in names if name in TORCH]
    for name in names:
        if "bf16" in name and not has_bf16(use_cpu=True):
            notes.append(f"{name}: skipped (bfloat16 is slow on this processor)")
            continue
        try:
            built.append(reference if name == REFERENCE else build(reference, loaded, name, directory))
        except Exception as error:  # runtimes reject graphs with exceptions of any type
            if is_required and isinstance(error, InputError):
                raise
            notes.append(f"{name}: skipped ({error_reason(error)})")
    return built, notes


def build(reference: Candidate, loaded: LoadedModel, name: str, directory: Path) -> Candidate:
    """Builds a candidate for a runtime and tests it on one row. `directory` contains the exported ONNX graphs."""
    if name in TORCH:
        predict, megabytes = torch_runtime(loaded, TORCH[name])
    else:
        file = directory / GRAPHS[name].file
        if not file.exists() and name == "openvino-int8":
            rows = range(min(CALIBRATION_ROWS, len(reference.features)))
            quantize_openvino(directory / GRAPH, file, (reference.batch([row]) for row in rows))
        elif not file.exists():
            convert_to_openvino(directory / GRAPH, file)
        predict = partial(graph_predictions, GRAPHS[name].load(file), reference.head, reference.config)
        megabytes = graph_size(file)
    candidate = replace(reference, runtime=name, predict=predict, megabytes=megabytes, predictions=[], seconds={})
    candidate.timed([0])
    return candidate
