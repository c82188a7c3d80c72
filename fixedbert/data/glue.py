"""Pairs of sentences to classify: GLUE tasks, and csv, tsv or jsonl files of one's own."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets

from ..errors import InputError
from .hub import load_from_hub


@dataclass(frozen=True)
class GlueTask:
    """How a task of GLUE is laid out on the Hub and in the original download."""

    hub_config: str
    folder: str
    labels: tuple[str, ...]
    columns: tuple[str, str]  # on the Hub
    file_columns: tuple[str, str, str]  # two texts and the label, in the tsv files
    train_file: str
    validation_files: dict[str, str]  # by split of the Hub, in the order of reporting


TASKS = {
    "mnli": GlueTask(
        hub_config="mnli",
        folder="MNLI",
        labels=("entailment", "neutral", "contradiction"),
        columns=("premise", "hypothesis"),
        file_columns=("sentence1", "sentence2", "gold_label"),
        train_file="train.tsv",
        validation_files={"validation_matched": "dev_matched.tsv", "validation_mismatched": "dev_mismatched.tsv"},
    ),
}


@dataclass
class SentencePairs:
    """Splits with the columns sentence1, sentence2 and label (a number: a place in `labels`)."""

    labels: list[str]
    train: datasets.Dataset | None
    validation: dict[str, datasets.Dataset]  # the first one is the main one

    def numbered_as(self, labels: list[str]) -> "SentencePairs":
        """The same pairs with the label numbers of a model that knows `labels`, at least those that occur here."""
        number = [labels.index(label) for label in self.labels]

        def renumber(data):
            return data.remove_columns("label").add_column("label", [number[label] for label in data["label"]])

        return SentencePairs(
            labels,
            None if self.train is None else renumber(self.train),
            {split: renumber(data) for split, data in self.validation.items()},
        )


def load_task(name: str, data_dir: str | None = None, **hub_options) -> SentencePairs:
    """
    A GLUE task from a folder in the layout of the original download, or else from the Hub (nyu-mll/glue).

    Raises:
        InputError: no such task or file; a missing column or unknown label, with file and line.
    """
    if name not in TASKS:
        raise InputError(f"--task_name {name}: no such task; there are {', '.join(TASKS)}.")
    task = TASKS[name]
    if data_dir is None:
        splits = load_from_hub("nyu-mll/glue", task.hub_config, **hub_options)
        rename = dict(zip(task.columns, ("sentence1", "sentence2"), strict=True))
        splits = {split: data.rename_columns(rename) for split, data in splits.items()}
        return SentencePairs(
            list(task.labels), splits["train"], {split: splits[split] for split in task.validation_files}
        )
    folder = Path(data_dir)
    if (folder / task.folder).is_dir():
        folder = folder / task.folder
    files = {"train": task.train_file, **task.validation_files}
    if not (folder / task.train_file).exists():  # to evaluate it is not needed
        del files["train"]
    splits = {split: read_pairs(folder / file, task.file_columns) for split, file in files.items()}
    return as_sentence_pairs(splits, list(task.labels))


def load_files(train_file: str | None, validation_file: str | None) -> SentencePairs:
    """
    Pairs from files of one's own. The label is the column "label"; the texts are "sentence1" and "sentence2", or else
    the first two other columns. The labels are those of the training file (without one, of the other), sorted.
    """
    files = {"train": train_file, "validation": validation_file}
    return as_sentence_pairs({split: read_pairs(Path(file)) for split, file in files.items() if file})


@dataclass
class Pair:
    place: str
    sentence1: str
    sentence2: str
    label: str


def read_pairs(file: Path, columns: tuple[str, str, str] | None = None) -> list[Pair]:
    pairs = []
    for place, row in read_rows(file):
        if columns is None:
            texts = [column for column in row if column not in ("label", "idx", "id", "index")]
            columns = ("sentence1", "sentence2") if {"sentence1", "sentence2"} <= row.keys() else tuple(texts[:2])
            columns += ("label",)
        if None in row:  # where csv puts what has no column
            raise InputError(f"{place}: more fields than the header has columns.")
        absent = [column for column in columns if row.get(column) is None]
        if absent or len(columns) < 3:
            raise InputError(
                f"{place}: no {' and no '.join(map(repr, absent)) or 'second text'} in a row with the columns "
                f"{', '.join(column for column in row if column)}; each row needs two texts and a label."
            )
        pairs.append(Pair(place, *(str(row[column]) for column in columns)))
    if not pairs:
        raise InputError(f"{file}: no rows.")
    return pairs


def read_rows(file: Path) -> Iterator[tuple[str, dict]]:
    """Rows of a csv (quoted as usual), tsv (never quoted, as in GLUE) or jsonl file, each with its place."""
    if file.suffix not in (".csv", ".tsv", ".jsonl", ".json"):
        raise InputError(f"{file}: not one of the formats that can be read: .csv, .tsv, .jsonl.")
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            if file.suffix in (".csv", ".tsv"):
                dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if file.suffix == ".tsv" else {}
                reader = csv.DictReader(lines, **dialect)
                for row in reader:
                    yield f"{file}, line {reader.line_num}", row
            else:
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    place = f"{file}, line {number}"
                    try:
                        row = json.loads(line)
                    except json.JSONDecodeError as error:
                        raise InputError(f"{place}: not JSON ({error}).") from error
                    if not isinstance(row, dict):
                        raise InputError(f"{place}: not a JSON object.")
                    yield place, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: {error}") from error


def as_sentence_pairs(splits: dict[str, list[Pair]], labels: list[str] | None = None) -> SentencePairs:
    if labels is None:
        labels = sorted({pair.label for pair in splits.get("train") or splits["validation"]})
    number = {label: index for index, label in enumerate(labels)}
    data = {}
    for split, pairs in splits.items():
        for pair in pairs:
            if pair.label not in number:
                raise InputError(f"{pair.place}: unknown label {pair.label!r}; there are {', '.join(labels)}.")
        data[split] = datasets.Dataset.from_dict(
            {
                "sentence1": [pair.sentence1 for pair in pairs],
                "sentence2": [pair.sentence2 for pair in pairs],
                "label": [number[pair.label] for pair in pairs],
            }
        )
    return SentencePairs(labels, data.pop("train", None), data)
