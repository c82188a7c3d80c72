"""
Models side by side on rows of one's own: how fast each is, and how its answers differ from the first one's.

All run on the CPU with the same number of threads, and take turns, batch after batch.
"""

import csv
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..conversion.checkpoints import load_bert, read_config
from ..conversion.convert import files_beside
from ..data.encoding import encode
from ..data.tokenizers import check_size, load_tokenizer
from ..fine_tuning.glue import GlueEvaluation
from ..fine_tuning.labels import default_names
from ..fine_tuning.rows import read_rows
from ..fine_tuning.texts import load_files, with_labels_of_model
from ..publishing.export import GRAPH, OUTPUTS, QUANTIZED, session_of
from ..publishing.pooling import SentencePooling, read_pooling
from ..support.arguments import checked
from ..support.errors import InputError
from ..support.files import json_text, new_directory
from ..support.notebook import as_html
from .answers import Answering, Answers, Comparison, answering, answers_text, comparison, head_in
from .latency import machine_name
from .rows import TABLES, Rows
from .text import shown

RESULTS, CHANGED = "comparison.json", "changed.tsv"
ALONE = 64  # rows that are timed one at a time
HEADS = ("", "SequenceClassification")  # an embedding model, and one of classes or numbers


class GraphModel:
    """A graph of ONNX, asked as the model that it was exported from."""

    def __init__(self, file: Path, head: str, config: PreTrainedConfig):
        self.names, self.config = OUTPUTS["Model"] if head == "" else ("logits",), config
        self.session = session_of(file, torch.get_num_threads())
        self.inputs = {given.name for given in self.session.get_inputs()}

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput:
        outputs = self.session.run(self.names, {name: x.numpy() for name, x in inputs.items() if name in self.inputs})
        return ModelOutput(zip(self.names, map(torch.from_numpy, outputs), strict=True))


@dataclass
class Running:
    """A model while it is compared: what it has answered, batch by batch, and the seconds that it took."""

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    answers: list[list[Answers]] = field(default_factory=list)
    seconds: float = 0.0
    seconds_alone: float = 0.0

    def ask(self, texts: list[tuple[str, ...]], length: int, ask: Answering) -> tuple[list[Answers], float]:
        """The answers to some rows, and the seconds without the tokenizer's."""
        columns = map(list, zip(*texts, strict=True))
        options = {"truncation": True, "max_length": length, "padding": True, "return_tensors": "pt"}
        batch = dict(encode(self.tokenizer, *columns, **options))
        begin = time.perf_counter()
        answers = ask(self.model, batch)
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
        times_as_fast: as the first one, likewise.
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
        file, rows: what the models were compared on.
        batch_size: rows in a batch.
        machine: where.
        sides: the models, the first one first.
        folder: where the numbers and the changed rows are, if anywhere.
    """

    file: str
    rows: int
    batch_size: int
    machine: str
    sides: list[Side]
    folder: str = ""

    def __repr__(self) -> str:
        return f"SideBySide({[side.name for side in self.sides]}, rows={self.rows})"

    def __str__(self) -> str:
        return side_by_side_text(self)

    def _repr_html_(self) -> str:
        return as_html(str(self))


@checked
def compare(  # noqa: PLR0913  the options of the command
    models: list[str] | list[Path],
    validation_file: str,
    text_column_names: str | None = None,
    label_column_name: str = "label",
    max_seq_length: int | None = None,
    max_samples: int = 1000,
    batch_size: int = 32,
    output_dir: str | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
) -> SideBySide:
    """
    Compare models on rows of one's own: speed, right answers, and answers that are not the first model's.

    Args:
        models: directories or Hub ids of classifiers, regressions or embedding models: first the original, then others
            of the same labels. Of a directory with graphs of ONNX each graph is one.
        validation_file: rows of their task, with or without labels, best not trained on.
        text_column_names: columns with the texts, such as "premise,hypothesis".
        label_column_name: column with the labels, if there is one.
        max_seq_length: tokens of a row, at most; by default as many as the first model takes, at most 512.
        max_samples: rows, in a random order, as they come to a service.
        batch_size: rows at once.
        output_dir: a new directory for all numbers, and for the rows to which any model gives another class.
        cache_dir, token: for models on the Hub.

    Returns:
        The comparison, which can be printed.

    Raises:
        InputError: models that cannot be compared, or rows that cannot be used.
    """
    if output_dir is None:
        found, _ = side_by_side(
            models, validation_file, text_column_names, label_column_name, max_seq_length, max_samples, batch_size,
            cache_dir=cache_dir, token=token,
        )  # fmt: skip
        return found
    with new_directory(output_dir) as folder:
        found, changed = side_by_side(
            models, validation_file, text_column_names, label_column_name, max_seq_length, max_samples, batch_size,
            cache_dir=cache_dir, token=token,
        )  # fmt: skip
        found = SideBySide(**vars(found) | {"folder": output_dir})
        (folder / RESULTS).write_text(json_text(asdict(found), indent=1) + "\n")
        with (folder / CHANGED).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t").writerows(changed)
    return found


def side_by_side(
    models: list[str] | list[Path],
    validation_file: str,
    text_column_names: str | None,
    label_column_name: str,
    max_seq_length: int | None,
    max_samples: int,
    batch_size: int,
    **hub_options,
) -> tuple[SideBySide, list[list[str]]]:
    """The comparison, and a table of the rows with other classes."""
    if len(models) < 1:
        raise InputError("give the original, and what is compared with it.", "models")
    columns = None if text_column_names is None else tuple(text_column_names.split(","))
    rows = Rows(
        files=[validation_file], length=max_seq_length, most=max_samples, batch_size=batch_size, text_columns=columns
    )
    first, pooling = original(str(models[0]), **hub_options)
    runs = [first]
    for place in models[1:]:
        runs += others(str(place), first.model, **hub_options)
    length, ask = rows.length_for(first.model), answering(first.model, pooling)
    texts, labels, evaluation = read(rows, first.model, label_column_name, alone=pooling is not None)
    measure(runs, texts, length, batch_size, ask)
    sides = [side_of(run, first, len(texts), labels, evaluation) for run in runs]
    found = SideBySide(validation_file, len(texts), batch_size, machine_name(), sides)
    return found, changed_rows(runs, texts, labels)


def original(place: str, **hub_options) -> tuple[Running, SentencePooling | None]:
    """The first model, in torch, and how it pools sentences."""
    if (Path(place) / GRAPH).is_file():
        raise InputError(f"{place}: graphs of ONNX; the first of `models` is the one in torch.")
    run, pooling = in_torch(place, **hub_options)
    head = head_in(run.model)
    if head not in HEADS or (head == "" and pooling is None):
        raise InputError(
            f"{place}: a {type(run.model).__name__}; classifiers, regressions and embedding models of "
            "sentence-transformers can be compared. Others are evaluated by fixedbert glue, squad and pretrain."
        )
    return run, pooling


def in_torch(place: str, **hub_options) -> tuple[Running, SentencePooling | None]:
    model, beside = load_bert(place, **hub_options).float().eval(), files_beside(place, **hub_options)
    tokenizer = load_tokenizer(str(beside), trust_remote_code=False)
    check_size(tokenizer, model.config.vocab_size, place)
    return Running(shown(place), model, tokenizer), read_pooling(beside)


def others(place: str, first: PreTrainedModel, **hub_options) -> list[Running]:
    """A model to compare with the first, or the graphs in a directory."""
    head = head_in(first)
    if (Path(place) / GRAPH).is_file():
        config, tokenizer = read_config(place), load_tokenizer(place, trust_remote_code=False)
        found, names = (config.architectures or [""])[0].partition("For")[2], {GRAPH: "float32", QUANTIZED: "int8"}
        runs = [
            Running(f"{shown(place)}, {name}", GraphModel(file, head, config), tokenizer)
            for graph, name in names.items()
            if (file := Path(place) / graph).is_file()
        ]
    else:
        run, _ = in_torch(place, **hub_options)
        config, found, runs = run.model.config, head_in(run.model), [run]
    mine, theirs = ([head, *default_names(first.config)], [found, *default_names(config)])
    if mine != theirs:
        raise InputError(
            f"{place}: it answers with {', '.join(theirs) or 'embeddings'}, and the first model with "
            f"{', '.join(mine) or 'embeddings'}: only models of one task can be compared."
        )
    return runs


def read(
    rows: Rows, model: PreTrainedModel, label_column: str, alone: bool
) -> tuple[list[tuple[str, ...]], np.ndarray | None, GlueEvaluation | None]:
    """
    Texts in a random order, and where the file has labels of the model's classes, or numbers, these with what scores
    them. Each text is a row of its own where it is `alone`.
    """
    file, labels, evaluation = (rows.files or [""])[0], None, None
    several = model.config.problem_type == "multi_label_classification"
    if not (alone or several) and Path(file).suffix in TABLES and label_column in read_rows(Path(file)).columns:
        given = load_files({"validation": file}, text_columns=rows.text_columns, label_column=label_column)
        data, _ = with_labels_of_model(given, model.config, train=False)
        split = data.splits["validation"]
        names = [name for name in ("sentence1", "sentence2") if name in split.column_names]
        texts = list(zip(*(split[name] for name in names), strict=True))
        labels, evaluation = np.array(split["label"]), GlueEvaluation(None, data.labels or [], data.assumed)
    else:
        texts = [one for row in rows.raw_texts("validation") for one in ([(x,) for x in row] if alone else [row])]
    if not texts:
        raise InputError(f"{file}: no rows.")
    order = random.Random(rows.seed).sample(range(len(texts)), min(len(texts), rows.most))
    return [texts[place] for place in order], None if labels is None else labels[order], evaluation


@torch.inference_mode()
def measure(runs: list[Running], texts: list[tuple[str, ...]], length: int, batch_size: int, ask: Answering):
    """Let the models answer and take their time, in turns; the one that begins changes from batch to batch."""
    batches = [texts[begin : begin + batch_size] for begin in range(0, len(texts), batch_size)]
    single = [[row] for row in texts[:ALONE]]
    for run in runs:  # not counted: the first call allocates
        run.ask(batches[0], length, ask)
        run.ask(single[0], length, ask)
    for number, batch in enumerate(tqdm([*batches, *single], "comparing", unit="batch")):
        for run in runs[number % len(runs) :] + runs[: number % len(runs)]:
            answers, seconds = run.ask(batch, length, ask)
            if number < len(batches):
                run.answers.append(answers)
                run.seconds += seconds
            else:
                run.seconds_alone += seconds


def side_of(
    run: Running, first: Running, rows: int, labels: np.ndarray | None, evaluation: GlueEvaluation | None
) -> Side:
    scores: dict[str, float] = {}
    lost = gained = None
    if labels is not None and evaluation is not None:
        scores = evaluation(EvalPrediction(predictions=run.values.numpy(), label_ids=labels))
        if evaluation.labels:
            mine, theirs = (one.values.argmax(-1).numpy() == labels for one in (first, run))
            lost, gained = int((mine & ~theirs).sum()), int((~mine & theirs).sum())
    found = None if run is first else comparison(zip(first.answers, run.answers, strict=True), rows)
    times = (first.seconds / run.seconds, first.seconds_alone / run.seconds_alone)
    speed = (rows / run.seconds, min(rows, ALONE) / run.seconds_alone)
    return Side(run.name, speed, times, scores, lost, gained, found)


def changed_rows(runs: list[Running], texts: list[tuple[str, ...]], labels: np.ndarray | None) -> list[list[str]]:
    """A table of the rows to which any model gives another class than the first: texts, label, classes."""
    first = runs[0]
    kinds = {answers.kind for batch in first.answers for answers in batch}
    head = [*(f"text {place}" for place in range(1, 1 + len(texts[0]))), "label", *(run.name for run in runs)]
    if kinds != {"classes"}:
        return [head]
    names = default_names(first.model.config)
    classes = torch.stack([run.values.argmax(-1) for run in runs], dim=1)  # (rows, models)
    table = [head]
    for place in torch.nonzero((classes != classes[:, :1]).any(dim=1)).flatten().tolist():
        label = "" if labels is None else names[int(labels[place])]
        table.append([*texts[place], label, *(names[number] for number in classes[place].tolist())])
    return table


def side_by_side_text(found: SideBySide) -> str:
    """A table with a line for each model, and what its columns are."""
    metrics = list(found.sides[0].scores)
    counted = found.sides[0].lost is not None
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
        speeds = [f"{x:.3g}" for pair in zip(side.rows_per_second, side.times_as_fast, strict=True) for x in pair]
        flips = [str(side.lost), str(side.gained)] if counted else []
        answers = "" if side.answers is None else answers_text(side.answers)
        lines.append([side.name, *speeds, *(f"{side.scores[name]:.4f}" for name in metrics), *flips, answers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(justified(line, widths)).rstrip() for line in lines]
    right = "; lost, gained: rows that the first model alone, or this one alone, has right" if counted else ""
    return "\n".join([
        f"{found.rows:,} rows of {found.file}, on {found.machine}",
        "",
        *texts,
        "",
        f"rows/s: in batches of {found.batch_size}; alone: one row at a time; times: as fast as the first model"
        f"{right}; answers: compared with the first model's",
        *([f"rows with another class are in {found.folder}/{CHANGED}"] if found.folder and counted else []),
    ])  # fmt: skip


def justified(line: list[str], widths: list[int]) -> list[str]:
    """Names and answers to the left, numbers to the right."""
    sides: list[Callable[..., str]] = [str.ljust, *[str.rjust] * (len(line) - 2), str.ljust]
    return [side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)]
