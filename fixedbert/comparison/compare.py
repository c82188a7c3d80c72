"""
Models side by side on rows of one's own: how fast each is, and how its answers differ from the first one's.

All run on the CPU with the same number of threads, and take turns, batch after batch.
"""

import csv
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize
from tqdm.auto import tqdm
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..conversion.auxiliary_files import auxiliary_directory
from ..conversion.checkpoints import load_bert, read_config
from ..data.corpora import Corpus, CorpusReader
from ..data.tokenizers import check_vocab_size, encode, load_tokenizer
from ..fine_tuning.glue import GlueEvaluation
from ..fine_tuning.labels import align_labels, default_names, shorten
from ..fine_tuning.texts import RowSource, TextData, encode_labels, load_files
from ..publishing.export import EMBEDDING, GRAPH, QUANTIZED, session_of
from ..publishing.pooling import read_pooling
from ..shrinking.calibration import LONGEST, TABLES
from ..shrinking.latency import machine_name
from ..shrinking.predictions import (
    ONE_ANSWER_A_ROW,
    Answers,
    Batch,
    Comparison,
    answering,
    answers_text,
    classes,
    comparison,
    head_in,
    kind_of,
)
from ..shrinking.report import shown
from ..support.errors import InputError, require_package
from ..support.files import new_directory, reading, to_json

RESULTS, CHANGED = "comparison.json", "changed.tsv"
ALONE = 64  # rows that are timed one at a time
REST = 0.003  # seconds before a call, in which the threads of the call before stop waiting for more work
GRAPHS = {GRAPH: "float32", QUANTIZED: "int8"}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class GraphModel:
    """A graph of ONNX, called as the model that it was exported from."""

    def __init__(self, file: Path, config: PreTrainedConfig):
        self.config, self.session = config, session_of(file, torch.get_num_threads())
        self.inputs = {given.name for given in self.session.get_inputs()}
        self.outputs = [given.name for given in self.session.get_outputs()]

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput:
        outputs = self.session.run(None, {name: x.numpy() for name, x in inputs.items() if name in self.inputs})
        return ModelOutput(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))


@dataclass
class Running:
    """
    A model while it is compared: what it has answered, batch by batch, and the seconds that it took.

    Args:
        task: what it answers, in words: models of one task can be compared.
        ask: gives the answers to a batch.
    """

    place: str
    name: str
    task: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    ask: Callable[[Batch], list[Answers]]
    answers: list[list[Answers]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    seconds_alone: list[float] = field(default_factory=list)

    def timed(self, texts: list[tuple[str, ...]], length: int) -> tuple[list[Answers], float]:
        """The answers to some rows, and the seconds that they took, without the tokenizer's."""
        columns = map(list, zip(*texts, strict=True))
        options = {"truncation": True, "max_length": length, "padding": True, "return_tensors": "pt"}
        batch = dict(encode(self.tokenizer, *columns, **options))
        time.sleep(REST)
        begin = time.perf_counter()
        answers = self.ask(batch)
        return answers, time.perf_counter() - begin

    @property
    def values(self) -> torch.Tensor:
        """The answers to all rows, (rows, C)."""
        return torch.cat([answers.values for batch in self.answers for answers in batch])


@dataclass(frozen=True)
class Side:
    """
    A model beside the first one.

    Args:
        name: its directory or Hub id; of a graph also its precision.
        rows_per_second: in batches, and one row at a time.
        times_as_fast: as the first one, likewise: the median of the ratios.
        scores: by name of metric, where the rows have labels.
        lost, gained: rows that only the first model, or only this one, has right; None without classes to be right.
        answers: how far they are from the first model's; None for itself.
    """

    name: str
    rows_per_second: tuple[float, float]
    times_as_fast: tuple[float, float]
    scores: dict[str, float]
    lost: int | None
    gained: int | None
    answers: Comparison | None


@dataclass(frozen=True, repr=False)
class SideBySide:
    """
    What `compare` found.

    Args:
        file, rows, drawn_from: what the models were compared on: all rows, or some drawn at random from so many.
        batch_size: rows in a batch.
        machine: where.
        sides: the models, the first one first.
        folder: where the numbers and the changed rows are, if anywhere.
    """

    file: str
    rows: int
    drawn_from: int
    batch_size: int
    machine: str
    sides: list[Side]
    folder: str = ""

    def __repr__(self) -> str:
        return f"SideBySide({[side.name for side in self.sides]}, rows={self.rows})"

    def __str__(self) -> str:
        return side_by_side_text(self)


def compare(  # noqa: PLR0913  the options of the command
    models: list[str | Path],
    validation_file: str | Path,
    text_column_names: str | None = None,
    label_column_name: str | None = None,
    max_seq_length: int | None = None,
    max_samples: int = 1000,
    batch_size: int = 32,
    output_dir: str | Path | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
) -> SideBySide:
    """
    Compare models on rows of one's own: speed, right answers, and answers that are not the first model's.

    Args:
        models: directories or Hub ids of classifiers, regressions or embedding models: first the original, then others
            of its task. In a directory with graphs of ONNX each graph is one more.
        validation_file: rows of their task, with or without labels, best not trained on.
        text_column_names: columns with the texts, such as "premise,hypothesis".
        label_column_name: column with the labels; by default "label", if there is one.
        max_seq_length: tokens of a row, at most; by default as many as all models take, at most 512.
        max_samples: rows, in a random order, as they come to a service.
        batch_size: rows at once.
        output_dir: a new directory for all numbers, and for the rows to which any model gives another class.
        cache_dir, token: for models on the Hub.

    Returns:
        The comparison, which can be printed.

    Raises:
        InputError: models that cannot be compared, or rows that cannot be used.
    """
    for name, count in (("max_samples", max_samples), ("batch_size", batch_size)):
        if count < 1:
            raise InputError(f"{count}: must be at least 1.", name)
    runs = [run for place in models for run in running(str(place), cache_dir=cache_dir, token=token)]
    check_runs(runs)
    file, first = Path(validation_file), runs[0]
    texts, labels, evaluation = read(file, first, text_column_names, label_column_name)
    count = len(texts)
    order = random.Random(0).sample(range(count), min(count, max_samples))
    texts = [texts[place] for place in order]
    labels = None if labels is None else labels[order]
    measure(runs, texts, length_of(runs, max_seq_length), batch_size)
    sides = [side_of(run, first, labels, evaluation) for run in runs]
    if evaluation is not None and sides[0].scores:
        sides[0] = side_of(first, first, labels, evaluation)  # the last that was scored
    found = SideBySide(str(validation_file), len(texts), count, batch_size, machine_name(), sides)
    if output_dir is None:
        return found
    with new_directory(output_dir) as folder:
        found = replace(found, folder=str(output_dir))
        (folder / RESULTS).write_text(to_json(asdict(found), indent=1) + "\n")
        if first.answers[0][0].kind == "classes":
            names = default_names(first.config)
            with (folder / CHANGED).open("w", newline="", encoding="utf-8") as table:
                csv.writer(table, delimiter="\t").writerows(changed_rows(runs, texts, labels, names))
    return found


def running(place: str, **hub_options) -> list[Running]:
    """The model in a directory or on the Hub, and each graph of ONNX in the directory."""
    graphs = {Path(place) / graph: name for graph, name in GRAPHS.items() if (Path(place) / graph).is_file()}
    runs = []
    if not graphs or any((Path(place) / name).is_file() for name in WEIGHTS):
        model, beside = load_bert(place, **hub_options).float().eval(), auxiliary_directory(place, **hub_options)
        tokenizer, pooling = load_tokenizer(str(beside), trust_remote_code=False), read_pooling(beside)
        check_vocab_size(tokenizer, model.config.vocab_size, place)
        task, ask = task_of(head_in(model), model.config, place, pooling is not None), answering(model, pooling)
        runs.append(Running(place, shown(place), task, model.config, tokenizer, partial(ask, model)))
    if graphs:
        require_package("onnxruntime", "onnx")
        config, tokenizer = read_config(place), load_tokenizer(place, trust_remote_code=False)
        check_vocab_size(tokenizer, config.vocab_size, place)
        head = (config.architectures or [""])[0].partition("For")[2]
    for file, precision in graphs.items():
        with reading(file, "export the model again"):
            graph = GraphModel(file, config)
        task = task_of(head, config, place, EMBEDDING in graph.outputs)
        answers = partial(classes if head else embedded, graph)
        name = f"{shown(place)}, {precision}"
        runs.append(Running(f"{place}, {precision}", name, task, config, tokenizer, answers))
    return runs


def embedded(graph: GraphModel, batch: Batch) -> list[Answers]:
    """The embedding of each text that a graph gives, of length one."""
    return [Answers(normalize(graph(**batch)[EMBEDDING], dim=-1), "embeddings")]


def task_of(head: str, config: PreTrainedConfig, place: str, embeds: bool) -> str:
    """What a model answers, in words; refused where that is not one answer to a row."""
    if head not in ONE_ANSWER_A_ROW or not (head or embeds):
        raise InputError(
            f"{place}: it gives no classes, numbers or embeddings of sentence-transformers, which can be compared; "
            "other models are evaluated by fixedbert squad and pretrain."
        )
    if head == "":
        return f"embeddings of {config.hidden_size}"
    kind = kind_of(config)
    return f"{config.num_labels} numbers" if kind == "numbers" else f"{kind} {shorten(default_names(config))}"


def check_runs(runs: list[Running]):
    """Refuse models of several tasks. Two of one name get their whole paths."""
    for run in runs[1:]:
        if run.task != runs[0].task:
            raise InputError(
                f"{run.place}: it answers with {run.task}, and {runs[0].place} with {runs[0].task}: only models of "
                "one task can be compared."
            )
    names = Counter(run.name for run in runs)
    for run in runs:
        run.name = run.place if names[run.name] > 1 else run.name


def length_of(runs: list[Running], given: int | None) -> int:
    """Tokens of a row, at most, that all models take."""
    longest = min(run.config.max_position_embeddings for run in runs)
    length = min(LONGEST, longest) if given is None else given
    if not 3 <= length <= longest:
        raise InputError(f"{length}: the models take 3 to {longest} tokens.", "max_seq_length")
    return length


def read(
    file: Path, first: Running, text_columns: str | None, label_column: str | None
) -> tuple[list[tuple[str, ...]], np.ndarray | None, GlueEvaluation | None]:
    """
    Texts, and where the file has labels of the model's classes, or numbers, these with what scores them. For
    embeddings each text is a row of its own.
    """
    columns, label = None if text_columns is None else tuple(text_columns.split(",")), label_column or "label"
    if file.suffix not in TABLES:
        for name, value in (("text_column_names", text_columns), ("label_column_name", label_column)):
            if value is not None:
                raise InputError(f"is for a table; {file} has a text in each line.", name)
        lines = CorpusReader(Corpus(str(file), document_boundary="line"))
        return [(line,) for line in lines if isinstance(line, str) and line.strip()], None, None
    there = RowSource.from_file(file).columns
    if label_column is not None and label_column not in there:
        raise InputError(f"{file}: no column {label_column!r}; there are {shorten([*there])}.", "label_column_name")
    kind = "embeddings" if first.task.startswith("embeddings") else kind_of(first.config)
    scored = label in there and kind in ("classes", "numbers")
    options: dict[str, Any] = {"text_columns": columns, "label_column": label}
    given = load_files({"validation" if scored else "test": str(file)}, do_regression=kind == "numbers", **options)
    if not scored:
        texts = texts_of(given, "test")
        return [(text,) for row in texts for text in row] if kind == "embeddings" else texts, None, None
    label_ids, _ = align_labels(given.labels, first.config, train=False)
    labels = np.array(encode_labels(given.splits["validation"]["label"], label_ids))
    class_names = default_names(first.config) if kind == "classes" else []
    return texts_of(given, "validation"), labels, GlueEvaluation(None, class_names)


def texts_of(data: TextData, split: str) -> list[tuple[str, ...]]:
    rows = data.splits[split]
    names = [name for name in ("sentence1", "sentence2") if name in rows.column_names]
    return list(zip(*(rows[name] for name in names), strict=True))


@torch.inference_mode()
def measure(runs: list[Running], texts: list[tuple[str, ...]], length: int, batch_size: int):
    """Let the models answer and take their time, in turns, in a random order for each batch."""
    batches = [texts[begin : begin + batch_size] for begin in range(0, len(texts), batch_size)]
    single = [[row] for row in texts[:ALONE]]
    for run in runs:  # not counted: the first call allocates
        run.timed(batches[0], length)
        run.timed(single[0], length)
    turns = random.Random(0)
    for number, batch in enumerate(tqdm([*batches, *single], "comparing", unit="batch")):
        for run in turns.sample(runs, len(runs)):
            answers, seconds = run.timed(batch, length)
            if number < len(batches):
                run.answers.append(answers)
                run.seconds.append(seconds)
            else:
                run.seconds_alone.append(seconds)


def side_of(run: Running, first: Running, labels: np.ndarray | None, evaluation: GlueEvaluation | None) -> Side:
    rows, scores, lost, gained = len(run.values), {}, None, None
    if labels is not None and evaluation is not None:
        scores = evaluation(EvalPrediction(predictions=run.values.numpy(), label_ids=labels))
        if evaluation.class_names:
            mine, theirs = (one.values.argmax(-1).numpy() == labels for one in (first, run))
            lost, gained = int((mine & ~theirs).sum()), int((~mine & theirs).sum())
    found = None if run is first else comparison(zip(first.answers, run.answers, strict=True), rows)
    speed = rows / sum(run.seconds), len(run.seconds_alone) / sum(run.seconds_alone)
    times = times_as_fast(first.seconds, run.seconds), times_as_fast(first.seconds_alone, run.seconds_alone)
    return Side(run.name, speed, times, scores, lost, gained, found)


def times_as_fast(before: list[float], after: list[float]) -> float:
    return median(one / other for one, other in zip(before, after, strict=True))


def changed_rows(
    runs: list[Running], texts: list[tuple[str, ...]], labels: np.ndarray | None, names: list[str]
) -> list[list[str]]:
    """A table of the rows to which any model gives another class than the first: texts, label, classes."""
    chosen = torch.stack([run.values.argmax(-1) for run in runs], dim=1)  # (rows, models)
    table = [[*(f"text {place}" for place in range(1, 1 + len(texts[0]))), "label", *(run.name for run in runs)]]
    for place in torch.nonzero((chosen != chosen[:, :1]).any(dim=1)).flatten().tolist():
        label = "" if labels is None else names[int(labels[place])]
        table.append([*texts[place], label, *(names[number] for number in chosen[place].tolist())])
    return table


def side_by_side_text(found: SideBySide) -> str:
    """A table with a line for each model, and what its columns are."""
    metrics = list(found.sides[0].scores)
    drawn = f"{found.rows:,} of {found.drawn_from:,}" if found.rows < found.drawn_from else f"{found.rows:,}"
    counted, compared = found.sides[0].lost is not None, [side.answers for side in found.sides if side.answers]
    one = any(answers.classes_given == 1 for answers in compared)
    sorts = any(answers.kind == "classes" for answers in compared)
    head = [
        "",
        "rows/s",
        "times",
        "alone: rows/s",
        "times",
        *metrics,
        *(["lost", "gained"] if counted else []),
        "answers",
    ]
    lines = [head]
    for side in found.sides:
        speeds = [
            text
            for rows, times in zip(side.rows_per_second, side.times_as_fast, strict=True)
            for text in (f"{rows:,.0f}" if rows >= 100 else f"{rows:.3g}", f"{times:.2f}")
        ]
        flips = [str(side.lost), str(side.gained)] if counted else []
        answers = "" if side.answers is None else answers_text(side.answers)
        lines.append([side.name, *speeds, *(f"{side.scores[name]:.4f}" for name in metrics), *flips, answers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(justified(line, widths)).rstrip() for line in lines]
    right = "; lost, gained: rows that the first model alone, or this one alone, has right" if counted else ""
    return "\n".join([
        f"{drawn} rows of {found.file}, on {found.machine}",
        "",
        *texts,
        "",
        f"rows/s: in batches of {found.batch_size} in a random order, padded to the longest, without the tokenizer",
        f"alone: {min(found.rows, ALONE)} of them; times: as fast as the first model, the median{right}",
        "answers: those of the batches, compared with the first model's",
        *(["The first model gives one answer to all rows: that others give it too says nothing."] if one else []),
        *([f"rows with another class are in {found.folder}/{CHANGED}"] if found.folder and sorts else []),
    ])  # fmt: skip


def justified(line: list[str], widths: list[int]) -> list[str]:
    """Names and answers to the left, numbers to the right."""
    sides: list[Callable[..., str]] = [str.ljust, *[str.rjust] * (len(line) - 2), str.ljust]
    return [side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)]
