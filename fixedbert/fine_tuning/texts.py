"""
Single texts and text pairs with class labels or scores, read from GLUE, the Hub, or csv, tsv, json, jsonl and parquet
files into `datasets.Dataset`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import datasets
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.glue import TASKS
from ..data.readers import TOO_FEW, DataFile, FileRow, load_from_hub, text_problem
from ..data.tokenizers import encode
from ..support.errors import InputError
from .examples import make_features, report_bad_rows
from .labels import shorten

# Text columns that need no `text_column_names`.
KNOWN_TEXT_COLUMNS = {columns for task in TASKS.values() for columns in (task.texts, task.file_texts)} | {("text",)}


@dataclass
class TextData:
    """
    Rows for text classification or regression.

    Attributes:
        labels: class names; empty for a regression, None if no split has labels.
        splits: datasets with the columns `sentence1`, `sentence2` (pairs only), `label` (a class name or a score; not
            in test splits), `row` (the line or row number in the file) and `index` (the file's own `index` column, or
            the position of the row).
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """Returns the splits for "train", "validation" or "test", the main one first."""
        return {split: rows for split, rows in self.splits.items() if split.split("_")[0] == kind}


class RowSource:
    """The rows of a file or of one split of a dataset, with the names that error messages use."""

    def __init__(self, name: str, rows: Iterator[FileRow], file: DataFile | None = None):
        first = next(rows, None)
        if first is None:
            raise InputError(f"{name}: no rows.")
        self.name, self.columns, self.rows = name, [*first.values], chain([first], rows)
        self.unit = file.unit if file else "row"

    @classmethod
    def from_file(cls, path: Path, header: tuple[str, ...] | None = None) -> "RowSource":
        """`header` names the columns of a csv or tsv file that has no header line."""
        file = DataFile(path, header=header)
        return cls(str(path), file.rows(), file)

    def text_columns(self) -> tuple[str, ...]:
        """Returns those of KNOWN_TEXT_COLUMNS that the source has. There must be exactly one such set of columns."""
        known = [names for names in KNOWN_TEXT_COLUMNS if {*names} <= {*self.columns}]
        known = [names for names in known if not any({*names} < {*others} for others in known)]
        if len(known) != 1:
            listed = ", ".join(self.columns)
            raise InputError(f"{self.name}: name the text columns; there are {listed}.", "text_column_names")
        return known[0]

    def read(
        self,
        texts: tuple[str, ...],
        label: str | None,
        label_names: Mapping[str, str] | None = None,
        skip_bad_rows: bool = False,
        max_samples: int | None = None,
        official: bool = False,
    ) -> datasets.Dataset:
        """
        Reads and validates the first `max_samples` rows.

        Args:
            texts: one or two text columns.
            label: the label column, or None to read no labels.
            label_names: the class name for each label in the source; empty for a regression, None if unknown.
            skip_bad_rows: skip rows that cannot be used, and print which.
            official: accept empty texts, and skip rows with too few fields, as in the Hub's copy of GLUE.
        """
        for name in (*texts, *([label] if label else [])):
            if name not in self.columns:
                option = "label_column_name" if name == label else "text_column_names"
                raise InputError(f"{self.name}: no column {name!r}; there are {', '.join(self.columns)}.", option)
        convert = str if label_names is None else label_names.__getitem__ if label_names else float
        rows, bad_rows = [], {}
        for position, (number, values, problem) in enumerate(islice(self.rows, max_samples)):
            if official and problem == TOO_FEW:
                continue
            problem = problem or problem_in_texts(values, texts, official)
            if label:
                problem = problem or problem_in_label(values.get(label), label_names)
            if problem:
                bad_rows[f"{self.unit} {number}"] = problem
                continue
            row = {f"sentence{place}": values[column] for place, column in enumerate(texts, start=1)}
            if label:
                row["label"] = convert(str(values[label]))
            rows.append(row | {"row": number, "index": str(values.get("index", position))})
        report_bad_rows(self.name, bad_rows, skip_bad_rows)
        if not rows:
            raise InputError(f"{self.name}: no rows.")
        return datasets.Dataset.from_list(rows)


def dataset_rows(data: datasets.Dataset) -> Iterator[FileRow]:
    """Yields the rows of a dataset from the Hub, with class names as labels, and None for the -1 in test sets."""
    classes = {name: kind for name, kind in data.features.items() if isinstance(kind, datasets.ClassLabel)}
    number = 0
    for batch in data.iter(1000):
        for name, kind in classes.items():
            batch[name] = [None if value is None or value < 0 else kind.int2str(value) for value in batch[name]]
        if "idx" in batch:
            batch["index"] = batch.pop("idx")
        for values in zip(*batch.values(), strict=True):
            yield FileRow(number, dict(zip(batch, values, strict=True)))
            number += 1


def problem_in_texts(values: dict, columns: tuple[str, ...], empty_allowed: bool) -> str | None:
    """Returns what is wrong with the texts of a row, or None."""
    for column in columns:
        text = values.get(column)
        if problem := text_problem(text, repr(column)):
            return problem
        if text is None or not (text.strip() or empty_allowed):
            return f"{column!r} is empty"
    return None


def problem_in_label(value: object, label_names: Mapping[str, str] | None) -> str | None:
    """Returns what is wrong with a label, or None. `label_names` are as for `RowSource.read`."""
    if value is None or value != value or not str(value).strip():
        return "no label"
    if not isinstance(value, str | int | float):
        return "the label is neither a string nor a number"
    if label_names == {} and not math.isfinite(as_float(str(value))):
        return f"the label {value!r} is not a finite number"
    if label_names and str(value) not in label_names:
        return f"unknown label {value!r}; the labels are {shorten([*label_names])}"
    return text_problem(str(value), "the label")


def as_float(label: str) -> float:
    """Returns NaN if the label is not a number."""
    try:
        return float(label)
    except ValueError:
        return math.nan


def load_task(
    name: str,
    data_dir: str | None = None,
    kinds: tuple[str, ...] = ("train", "validation"),
    skip_bad_rows: bool = False,
    max_samples: Mapping[str, int | None] | None = None,
    **hub_options,
) -> TextData:
    """
    Loads a GLUE task from a directory in the layout of the original download, or from the Hub (nyu-mll/glue).

    `name` is a key of TASKS, `kinds` are some of "train", "validation" and "test", and `max_samples` limits the rows
    of each kind. Raises InputError if the task or a file does not exist, or a row cannot be used.
    """
    if name not in TASKS:
        raise InputError(f"{name}: no such task; the tasks are {', '.join(TASKS)}.", "task_name")
    task = TASKS[name]
    files = {split: file for split, file in task.files.items() if split.split("_")[0] in kinds}
    if absent := set(kinds) - {split.split("_")[0] for split in files}:
        raise InputError(f"{name} has no {' and no '.join(sorted(absent))} split.", "task_name")
    texts, label, label_names = task.texts, "label", {label: label for label in task.labels}
    if data_dir is None:
        config = task.dataset_config_name or name
        hub = load_from_hub(task.dataset_name, config, **hub_options)
        sources = {
            split: RowSource(f"{task.dataset_name}, {config}, {split}", dataset_rows(hub[split])) for split in files
        }
    else:
        places = [path for path in (Path(data_dir, task.folder), Path(data_dir, "diagnostic")) if path.is_dir()]
        directory = places[0] if places else Path(data_dir)
        headers = {split: None if split == "test" else task.header for split in files}
        sources = {split: RowSource.from_file(directory / file, headers[split]) for split, file in files.items()}
        texts, label = task.file_texts, task.label
        if task.numbered:
            label_names = {str(number): label for number, label in enumerate(task.labels)}
    splits = {}
    for split, source in sources.items():
        kind, limits = split.split("_")[0], max_samples or {}
        label_column = None if kind == "test" else label
        splits[split] = source.read(texts, label_column, label_names, skip_bad_rows, limits.get(kind), official=True)
    return TextData([*task.labels], splits)


def load_files(files: Mapping[str, str], **options) -> TextData:
    """Loads the user's files, given by split (train, validation, test), with the arguments of `read_splits`."""
    return read_splits({split: RowSource.from_file(Path(file)) for split, file in files.items()}, **options)


def load_dataset(name: str, config: str | None, kinds: tuple[str, ...], hub_options: dict, **options) -> TextData:
    """Loads a dataset from the Hub, with the arguments of `read_splits`."""
    hub = load_from_hub(name, config, **hub_options)
    if absent := [kind for kind in kinds if kind not in hub]:
        raise InputError(f"{name}: no split {absent[0]}; there are {', '.join(hub)}.", "dataset_name")
    return read_splits({kind: RowSource(f"{name}, {kind}", dataset_rows(hub[kind])) for kind in kinds}, **options)


def read_splits(
    sources: dict[str, RowSource],
    do_regression: bool | None = None,
    skip_bad_rows: bool = False,
    text_columns: tuple[str, ...] | None = None,
    label_column: str = "label",
    max_samples: Mapping[str, int | None] | None = None,
) -> TextData:
    """
    Reads splits whose labels are not known in advance. The classes are the sorted labels of the training split, or of
    the validation split if there is no training.

    Args:
        do_regression: True if the labels are scores; by default, if they are floats, as in transformers' run_glue.py.
        skip_bad_rows: skip rows that cannot be used, and print which.
        text_columns: one or two columns; by default those in KNOWN_TEXT_COLUMNS.
        label_column: not needed in the test split.
        max_samples: the maximum number of rows for each split.

    Raises:
        InputError: a file, column or row cannot be used, or all training labels are the same.
    """
    texts = text_columns or next(iter(sources.values())).text_columns()
    label_names: dict[str, str] | None = {} if do_regression else None
    splits = {}
    for split, source in sources.items():
        label = None if split == "test" else label_column
        rows = source.read(texts, label, label_names, skip_bad_rows, (max_samples or {}).get(split))
        if label and label_names is None:
            counts = Counter(rows["label"])
            if do_regression is None and are_floats(counts):
                rows, label_names = rows.cast_column("label", datasets.Value("float64")), {}
            else:
                label_names = {name: name for name in sorted(counts, key=numerically)}
            if len(label_names) == 1 and split == "train":
                raise InputError(f"{source.name}: all labels are {rows['label'][0]!r}, so there is nothing to learn.")
            classes = [f"{name!r} ({counts[name]:,})" for name in label_names]
            PartialState().print(f"{source.name}: labels {shorten(classes) or 'are floats, so this is a regression'}")
        splits[split] = rows
    return TextData(None if label_names is None else [*label_names], splits)


def are_floats(labels: Collection[str]) -> bool:
    """Returns True if pandas would read a column with these labels as floats."""
    return all(math.isfinite(as_float(label)) for label in labels) and any(set(".eE") & {*label} for label in labels)


def numerically(label: str) -> tuple:
    """Sorting key: numbers by value, then other labels alphabetically."""
    number = as_float(label)
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)


def tokenize(
    batch: dict, _: list[int], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, label_ids: Mapping[str, int]
) -> dict:
    texts = [batch[name] for name in ("sentence1", "sentence2") if name in batch]
    features = encode(tokenizer, *texts, max_length=max_seq_length, truncation=True, return_attention_mask=False)
    columns = {**features, "length": [len(ids) for ids in features["input_ids"]]}
    if "label" in batch:
        columns["label"] = encode_labels(batch["label"], label_ids)
    return columns


def encode_labels(labels: Sequence, label_ids: Mapping[str, int]) -> list:
    """Returns the number of each class name, or the scores themselves in a regression."""
    return [label_ids[name] for name in labels] if label_ids else [*labels]


def text_features(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    label_ids: Mapping[str, int] | None = None,
    **options,
) -> datasets.Dataset:
    """
    Tokenizes a split of TextData without padding: [CLS] sentence1 [SEP], and for pairs sentence2 [SEP], truncated to
    `max_seq_length` at the end of the longer sentence. `label_ids` are from `align_labels`, `options` are for
    `make_features`.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length, "label_ids": label_ids or {}}
    return make_features(rows, tokenize, settings, **options)
