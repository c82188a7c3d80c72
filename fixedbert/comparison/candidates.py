"""The models that are compared, in the runtimes in which they run, with their predictions and latencies."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch.nn.functional import pad
from tqdm.auto import tqdm

from ..exporting.export import write_onnx
from ..exporting.graphs import GRAPHS, ExportedModel, graph_predictions, load_exported
from ..exporting.openvino_graphs import CALIBRATION_ROWS
from ..loading.loaded_model import LoadedModel
from ..loading.weights import FILES, report_float32
from ..support.errors import InputError
from ..support.files import error_reason
from ..tasks.predictions import WORDS, Batch, Predictions
from ..tasks.rows import Features
from ..tasks.task_heads import Task
from .report import RANDOM, ROUNDS, ComparedModel
from .runtimes import REFERENCE, TORCH, is_slow, stored_runtime, torch_runtime

MAX_SPREAD, MAX_ROUNDS = 0.03, 6  # rounds are added up to this number, while speedups differ by more than this
PAUSE = 0.003  # seconds to wait before each call, until the threads of the previous call have stopped spinning


@dataclass
class Candidate:
    """A model in one runtime, with its predictions and latencies for each batch."""

    source: str  # directory or Hub id
    model: LoadedModel | ExportedModel
    task: Task
    predict: Callable[[Batch], list[Predictions]]
    result: ComparedModel
    features: list[Features] = field(default_factory=list)  # tokens for each row
    predictions: dict[str, list[list[Predictions]]] = field(default_factory=dict)  # for batches of each kind, in order
    seconds: dict[str, float] = field(default_factory=dict)  # for all random batches, and for single rows
    order: list[int] | None = None  # of the outputs, so that the classes have the same order in all models
    is_shrunk: bool = False  # by the search for a version within a tolerance
    calibration_rows: int = CALIBRATION_ROWS  # the first rows, on which OpenVINO's int8 graph is calibrated

    @property
    def runtime(self) -> str:
        return self.result.runtime

    def batch(self, rows: Iterable[int]) -> Batch:
        """Returns a padded batch with the rows at these indices."""
        names = self.model.tokenizer.model_input_names
        windows = [{name: x[name] for name in names if name in x} for row in rows for x in self.features[row]]
        return dict(self.model.tokenizer.pad(windows, return_tensors="pt"))

    def timed(self, rows: Iterable[int]) -> tuple[list[Predictions], float]:
        """Returns the predictions for the rows with these indices, and the seconds that the predictions took."""
        batch = self.batch(rows)
        time.sleep(PAUSE)
        begin = time.perf_counter()
        predictions = self.predict(batch)
        seconds = time.perf_counter() - begin
        if self.order:
            predictions = [replace(each, values=each.values[:, self.order]) for each in predictions]
        return predictions, seconds

    @torch.inference_mode()
    def predict_all(self, batch_size: int):
        """Stores the predictions for all rows, in batches of `batch_size`."""
        count = len(self.features)
        batches = [range(begin, min(begin + batch_size, count)) for begin in range(0, count, batch_size)]
        self.predictions[RANDOM] = [self.timed(batch)[0] for batch in batches]

    def outputs(self, kind: str = RANDOM) -> list[Predictions]:
        """Returns the predictions for all rows. Start and end logits are padded to the length of the longest batch."""
        joined = []
        for parts in zip(*self.predictions[kind], strict=True):
            tensors, width = [part.values for part in parts], max(part.values.shape[1] for part in parts)
            padded = [pad(x, (0, width - x.shape[1]), value=torch.finfo(x.dtype).min) for x in tensors]
            joined.append(replace(parts[0], values=torch.cat(padded)))
        return joined

    def outputs_for(self, rows: Iterable[int]) -> list[Predictions]:
        """Returns the predictions for the rows with these indices, in random batches."""
        per_token = self.model.head == WORDS
        sizes = [sum(len(x["input_ids"]) if per_token else 1 for x in windows) for windows in self.features]
        selected = []
        for outputs in self.outputs():
            by_row = outputs.values.split(sizes)
            selected.append(replace(outputs, values=torch.cat([by_row[row] for row in rows])))
        return selected

    @property
    def calibration(self) -> list[Batch]:
        """The rows on which OpenVINO's int8 graph is calibrated, as batches of one row."""
        return [self.batch([row]) for row in range(min(self.calibration_rows, len(self.features)))]


class Race(NamedTuple):
    """The predictions and speeds of several candidates on the same batches."""

    predictions: list[list[list[Predictions]]]  # for each candidate and batch
    seconds: np.ndarray  # (candidates,), for all batches
    spread: float  # the largest relative difference of a candidate's speedups in two halves of the rounds


def race(candidates: list[Candidate], batches: Sequence[Sequence[int]], title: str, minimum: int = ROUNDS) -> Race:
    """
    Runs all candidates on batches of rows, in rounds, in another random order for each batch.

    The fastest run of each batch counts. Therefore, neither the first run counts, in which a runtime prepares for the
    shape of the batch, nor one that another process slows down. There are at least `minimum` rounds, and more while
    the two halves of the rounds differ.
    """
    predictions: list[list[list[Predictions]]] = [[[] for _ in batches] for _ in candidates]
    rounds: list[np.ndarray] = []
    order, generator, difference = [*range(len(candidates))], random.Random(0), inf
    with tqdm(desc=title, unit="batch", total=minimum * len(batches)) as progress:
        while len(rounds) < minimum or (difference > MAX_SPREAD and len(rounds) < MAX_ROUNDS):
            seconds = np.zeros((len(candidates), len(batches)))
            for number, rows in enumerate(batches):
                generator.shuffle(order)
                for index in order:
                    predictions[index][number], seconds[index, number] = candidates[index].timed(rows)
                progress.update()
            rounds.append(seconds)
            difference = spread(np.stack(rounds))
    return Race(predictions, np.min(rounds, axis=0).sum(axis=1), difference)


def spread(seconds: np.ndarray) -> float:
    """
    Returns the largest relative difference of speedups in even and odd rounds, without the first one.

    `seconds` has shape (rounds, candidates, batches). The speedups are relative to the first candidate.
    """
    if len(seconds) < ROUNDS:
        return inf
    even, odd = (seconds[begin::2].min(axis=0).sum(axis=1) for begin in (1, 2))
    return float(np.abs(np.log((even / even[0]) / (odd / odd[0]))).max())


def load_candidates(source: str, name: str, **hub_options) -> list[Candidate]:
    """
    Loads a model from a directory or the Hub.

    Args:
        name: Name of the model for the report.

    Returns:
        The PyTorch model in float32 with padding, or for a directory that contains only exported graphs, the graphs.
        Graphs in bfloat16 are omitted if this machine does not support it.
    """
    directory = Path(source)
    stored = [runtime for runtime, graph in GRAPHS.items() if (directory / graph.file).is_file()]
    if not stored or any((directory / file).is_file() for file in FILES):
        loaded = LoadedModel.load(source, **hub_options)
        report_float32(source, loaded.model)
        if stored:
            PartialState().print(f"{source}: ignoring the graphs in this directory, because it also contains weights")
        task = Task.of(loaded.head, loaded.config, source, loaded.pooling is not None)
        predict, megabytes = torch_runtime(loaded, TORCH[REFERENCE])
        return [Candidate(source, loaded, task, predict, ComparedModel(name, REFERENCE, megabytes))]
    exported = load_exported(directory, [runtime for runtime in stored if not is_slow(runtime)])
    task = Task.of(exported.head, exported.config, source, exported.has_embeddings)
    candidates = []
    for runtime, graph in exported.graphs.items():
        result = ComparedModel(name, runtime, GRAPHS[runtime].megabytes(directory))
        predict = partial(graph_predictions, graph, exported.head, exported.config)
        candidates.append(Candidate(source, exported, task, predict, result))
    return candidates


def shrunk_candidate(first: Candidate, directory: Path) -> Candidate:
    """Returns the shrunk version of a model in `directory`, in the PyTorch runtime for which it was shrunk."""
    loaded = LoadedModel.load(directory)
    runtime = stored_runtime(loaded)
    predict, megabytes = torch_runtime(loaded, TORCH[runtime])
    result = ComparedModel(directory.name, runtime, megabytes, truncated=first.result.truncated)
    shrunk = replace(first, source=str(directory), model=loaded, is_shrunk=True)
    return replace(shrunk, predict=predict, result=result, predictions={})


def build_candidates(
    reference: Candidate, names: Iterable[str], is_required: bool, directory: Path
) -> tuple[list[Candidate], list[str]]:
    """
    Returns a candidate for each runtime that this machine and the model support, and notes about skipped runtimes.

    Args:
        reference: The model in padded float32 PyTorch, with its features.
        names: Names of the runtimes.
        is_required: Whether a runtime that is not installed raises InputError.
        directory: New directory for graphs.
    """
    built, skipped = [], dict[str, list[str]]()  # maps reasons to runtimes

    @cache
    def trace() -> Exception | None:
        """Writes the ONNX graph from which all others are made. Returns the error if this fails."""
        assert isinstance(reference.model, LoadedModel)
        try:
            write_onnx(reference.model, directory)
        except Exception as error:  # torch raises exceptions of any type, and so do the runtimes
            return error
        return None

    for name in names:
        if is_slow(name):
            skipped.setdefault("bfloat16 is slow on this processor", []).append(name)
            continue
        try:
            built.append(reference if name == reference.runtime else build(reference, name, directory, trace))
        except Exception as error:
            if is_required and isinstance(error, InputError):
                raise InputError(f"{reference.result.label}: {error}", "runtime") from error
            skipped.setdefault(error_reason(error), []).append(name)
    return built, [f"{', '.join(names)}: skipped ({reason})" for reason, names in skipped.items()]


def build(reference: Candidate, name: str, directory: Path, trace: Callable[[], Exception | None]) -> Candidate:
    """
    Builds a candidate for a runtime and tests it on one row.

    The runtimes of graphs call `trace`, which writes the ONNX graph to `directory` once and returns the error if this
    failed. They make their own graphs from it.
    """
    loaded = reference.model
    assert isinstance(loaded, LoadedModel)
    if name in TORCH:
        predict, megabytes = torch_runtime(loaded, TORCH[name])
    else:
        runtime = GRAPHS[name]
        runtime.check_packages()
        if error := trace():
            raise error
        runtime.write(directory, reference.calibration)
        predict = partial(graph_predictions, runtime.load(directory), loaded.head, loaded.config)
        megabytes = runtime.megabytes(directory)
    result = ComparedModel(reference.result.name, name, megabytes, truncated=reference.result.truncated)
    candidate = replace(reference, predict=predict, result=result, predictions={}, seconds={})
    candidate.timed([0])
    return candidate
