"""Functions that load texts with labels or scores from GLUE, the Hub or files, and tokenize them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from sklearn.model_selection import train_test_split
from transformers import PreTrainedTokenizerBase

from ..data.glue import TASKS
from ..data.readers import TOO_FEW, DataFile, FileRow, check_columns, load_from_hub, text_problem
from ..data.tokenizers import encode
from ..support.errors import InputError
from .examples import SAMPLE_SEED, make_features, report_bad_rows, sample_rows, sampled_indices
from .label_columns import LabelFormat
from .labels import REGRESSION, SINGLE

# Text columns that are recognized without `text_column_names`.
KNOWN_TEXT_COLUMNS = {columns for task in TASKS.values() for columns in (task.texts, task.file_texts)} | {("text",)}


@dataclass
class TextData:
    """
    Data for text classification or regression.

    Each split has the columns `sentence1`, `sentence2` (only for text pairs), `label` (not in test splits; a name, a
    list of names, a score or a list of scores), `row` (the position in the file, from 0), and `ids` (in test splits)
    or, for GLUE, `index`.

    Attributes:
        labels: label names. For regression, the names of the targets, or an empty list for a single one. None if no
            split has labels.
        splits: a dataset for each split, such as "train" or "validation_mismatched".
        problem_type: the `problem_type` of a model for this data. None if no split has labels.
        text_columns: names of the text columns in the file or dataset.
        skipped: for each split, the columns `row` and `ids` of the invalid rows.
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]
    problem_type: str | None = None
    text_columns: tuple[str, ...] = ()
    skipped: dict[str, list[dict]] = field(default_factory=dict)

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """Returns the "train", "validation" or "test" splits. For MNLI, the matched split comes first."""
        return {split: rows for split, rows in self.splits.items() if split.split("_")[0] == kind}


@dataclass(frozen=True)
class Columns:
    """
    The columns of a file or dataset to read.

    Args:
        texts: one or two text columns.
        labels: the label columns. Empty to read no labels.
        ids: columns that identify the rows.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def check(self, source: str, available: list[str]):
        """Raises InputError if a column does not exist."""
        options = {"text_column_names": self.texts, "label_column_name": self.labels, "id_column_name": self.ids}
        check_columns({name: option for option, names in options.items() for name in names}, available, source)


@dataclass(frozen=True)
class ReadingOptions:
    """
    Options for reading the splits of a dataset.

    Args:
        text_columns: names of one or two columns. By default, names used by GLUE are recognized.
        expected_columns: the text columns on which the model was trained, which are used if they exist.
        label_columns: names of the label columns, which are ignored in the test split.
        id_columns: names of the columns that identify the rows of the test split.
        labels: the format of the labels. By default, it is inferred from the first split, usually the training split.
        do_regression: True if labels are scores. By default, floats are scores, as in transformers' run_glue.py.
        skip_bad_rows: skip and print invalid rows instead of raising InputError.
        max_samples: number of rows to draw for "train", "validation" and "test". By default, all rows are read.
        seed: seed for drawing rows and for the validation split.
        validation_percentage: percentage of the training rows that become the validation split.
        official: accept empty texts and skip rows with too few fields, like the version of GLUE on the Hub.
    """

    text_columns: tuple[str, ...] | None = None
    expected_columns: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ("label",)
    id_columns: tuple[str, ...] = ()
    labels: LabelFormat | None = None
    do_regression: bool | None = None
    skip_bad_rows: bool = False
    max_samples: Mapping[str, int | None] = field(default_factory=dict)
    seed: int = SAMPLE_SEED
    validation_percentage: int | None = None
    official: bool = False


class RowSource:
    """The rows of a file or dataset. Messages contain its `name`, and the `unit` of its rows: "line" or "row"."""

    def __init__(self, name: str, rows: Iterator[FileRow], unit: str = "row"):
        first = next(rows, None)
        if first is None:
            raise InputError(f"{name} contains no rows.")
        self.name, self.columns, self.rows, self.unit = name, [*first.values], chain([first], rows), unit
        self.skipped: list[dict] = []  # the columns `row` and `ids` of invalid rows

    @classmethod
    def from_file(cls, path: Path, **options) -> "RowSource":
        """Opens a file. `options` are fields of DataFile."""
        file = DataFile(path, **options)
        source = cls(str(path), file.rows())
        source.unit = file.unit  # the reader sets it when it reads the first row
        return source

    def text_columns(self, expected: tuple[str, ...] = ()) -> tuple[str, ...]:
        """
        Returns the `expected` columns, on which a model was trained, if they exist, or else those known from GLUE.

        Raises:
            InputError: If the columns are unknown or ambiguous.
        """
        if expected and {*expected} <= {*self.columns}:
            return expected
        known = [names for names in KNOWN_TEXT_COLUMNS if {*names} <= {*self.columns}]
        known = [names for names in known if not any({*names} < {*others} for others in known)]
        if len(known) != 1:
            columns = ", ".join(self.columns)
            raise InputError(f"must be set for {self.name}; available columns: {columns}.", "text_column_names")
        return known[0]

    def read(
        self, columns: Columns, options: ReadingOptions, labels: LabelFormat | None, count: int | None
    ) -> tuple[datasets.Dataset, LabelFormat | None]:
        """
        Reads and validates rows, and returns a split for TextData and the format of its labels.

        `labels` is None if the format must be inferred. `count` rows are drawn at random, or all if it is None.
        """
        columns.check(self.name, self.columns)
        rows = [row for row in enumerate(self.rows) if not (options.official and row[1].problem == TOO_FEW)]
        if columns.labels and labels is None:
            raw = [tuple(map(row.values.get, columns.labels)) for _, row in rows if not row.problem]
            labels = LabelFormat.infer(raw, columns.labels, options.do_regression, self.name)
        kept, bad_rows = [], {}
        for index in sampled_indices(len(rows), count, options.seed):
            position, (number, values, problem) = rows[index]
            entry: dict[str, Any] = {"row": position}
            if columns.ids:
                entry["ids"] = ["" if values.get(name) is None else str(values[name]) for name in columns.ids]
            try:
                check_row(values, problem, columns.texts, options.official)
                texts = {f"sentence{n}": values[column] for n, column in enumerate(columns.texts, start=1)}
                if columns.labels and labels:
                    entry["label"] = labels.parse([values.get(column) for column in columns.labels])
            except ValueError as error:
                bad_rows[f"{self.unit} {number}"] = str(error)
                self.skipped.append(entry)
                continue
            if options.official:
                entry["index"] = str(values.get("index", values.get("idx", position)))
            kept.append(texts | entry)
        report_bad_rows(self.name, bad_rows, options.skip_bad_rows)
        if not kept:
            raise InputError(f"{self.name} contains no valid rows.")
        return datasets.Dataset.from_list(kept), labels


def dataset_rows(data: datasets.Dataset) -> Iterator[FileRow]:
    """Yields the rows of a dataset. Label ids become label names, or None for -1, which stands for a missing label."""

    def name_of(kind, value):
        if isinstance(kind, datasets.List) and isinstance(kind.feature, datasets.ClassLabel):
            return None if value is None else [name_of(kind.feature, item) for item in value]
        return None if value is None or value < 0 else kind.int2str(value)

    classes = {
        name: kind
        for name, kind in data.features.items()
        if isinstance(getattr(kind, "feature", kind), datasets.ClassLabel)
    }
    number = 0
    for batch in data.iter(1000):
        for name, kind in classes.items():
            batch[name] = [name_of(kind, value) for value in batch[name]]
        for values in zip(*batch.values(), strict=True):
            yield FileRow(number, dict(zip(batch, values, strict=True)))
            number += 1


def check_row(values: dict, problem: str | None, texts: tuple[str, ...], empty_allowed: bool):
    """Raises ValueError if a text is missing or invalid, or if the reader found a `problem`."""
    if problem:
        raise ValueError(problem)
    for column in texts:
        text = values.get(column)
        if problem := text_problem(text, repr(column)):
            raise ValueError(problem)
        if text is None or not (text.strip() or empty_allowed):
            raise ValueError(f"{column!r} is empty")


def load_task(
    name: str,
    data_dir: str | None = None,
    kinds: tuple[str, ...] = ("train", "validation"),
    skip_bad_rows: bool = False,
    hub_options: Mapping[str, Any] | None = None,
    **options,
) -> TextData:
    """
    Loads a GLUE task.

    Args:
        name: a key in TASKS.
        data_dir: directory with the original GLUE download. By default, the task is loaded from the Hub.
        kinds: kinds of splits to load: "train", "validation" and "test".
        skip_bad_rows: skip and print invalid rows instead of raising InputError.
        hub_options: `cache_dir` and `token` for downloads from the Hub.
        options: `max_samples` and `seed`, as in ReadingOptions.

    Raises:
        InputError: If the task is unknown or lacks a split, a file is not found, or a row is invalid.
    """
    if name not in TASKS:
        raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}.")
    task = TASKS[name]
    files = {split: file for split, file in task.files.items() if split.split("_")[0] in kinds}
    if absent := set(kinds) - {split.split("_")[0] for split in files}:
        raise InputError(f"the GLUE task {name} has no {' and no '.join(sorted(absent))} split.")
    texts, label_column, label_names = task.texts, "label", {label: label for label in task.labels}
    if data_dir is None:
        config = task.dataset_config_name or name
        hub = load_from_hub(task.dataset_name, config, **(hub_options or {}))
        origin = f"{task.dataset_name}, {config}"
        sources = {split: RowSource(f"{origin}, {split}", dataset_rows(hub[split])) for split in files}
    else:
        directories = (Path(data_dir, task.folder), Path(data_dir, "diagnostic"))
        directory = next((path for path in directories if path.is_dir()), Path(data_dir))
        headers = {split: None if split == "test" else task.header for split in files}
        sources = {
            split: RowSource.from_file(directory / file, header=headers[split], raw=True)
            for split, file in files.items()
        }
        texts, label_column = task.file_texts, task.label
        if task.numbered:
            label_names = {str(number): label for number, label in enumerate(task.labels)}
    labels = LabelFormat(SINGLE if label_names else REGRESSION, label_names)
    columns: dict[str, Any] = {"text_columns": texts, "label_columns": (label_column,), "labels": labels}
    data = read_splits(sources, ReadingOptions(**columns, skip_bad_rows=skip_bad_rows, official=True, **options))
    data.text_columns = task.texts
    return data


def load_files(files: Mapping[str, str], **options) -> TextData:
    """Loads one file per split ("train", "validation", "test"). `options` are the fields of ReadingOptions."""
    sources = {split: RowSource.from_file(Path(file)) for split, file in files.items()}
    return read_splits(sources, ReadingOptions(**options))


def read_splits(sources: dict[str, RowSource], options: ReadingOptions = ReadingOptions()) -> TextData:
    """Reads all splits. The sorted labels in the first split, usually the training split, become the label names."""
    texts = options.text_columns or next(iter(sources.values())).text_columns(options.expected_columns)
    limits, labels, data = options.max_samples, options.labels, TextData(None, {}, None, texts)
    for split, source in sources.items():
        kind = split.split("_")[0]
        columns = Columns(texts, ids=options.id_columns) if kind == "test" else Columns(texts, options.label_columns)
        divided = kind == "train" and options.validation_percentage is not None
        rows, labels = source.read(columns, options, labels, None if divided else limits.get(kind))
        parts = {split: rows}
        if divided:
            stratify = rows["label"][:] if labels and labels.problem_type == SINGLE else None
            parts = split_rows(rows, options.validation_percentage or 0, options.seed, stratify)
            parts = {
                part: sample_rows(half, limits[part], options.seed) for part, half in parts.items() if part in limits
            }
        for part, part_rows in parts.items():
            if columns.labels and labels:
                labels.report(f"{source.name}, {part}" if divided else source.name, part_rows["label"][:], part)
        data.splits |= parts
        data.skipped[split] = source.skipped
    if labels is not None:
        data.problem_type, data.labels = labels.problem_type, [*dict.fromkeys(labels.names.values())]
    return data


def split_rows(
    rows: datasets.Dataset, percentage: int, seed: int, labels: list[str] | None
) -> dict[str, datasets.Dataset]:
    """
    Splits rows at random into "train" and "validation".

    Args:
        percentage: percentage of the rows for validation.
        labels: if given, both parts have the same fraction of each label. Labels that occur once stay in training.
    """
    counts = Counter(labels or ())
    common = [index for index in range(len(rows)) if labels is None or counts[labels[index]] > 1]
    stratify = None if labels is None else [labels[index] for index in common]
    try:
        _, validation = train_test_split(common, test_size=percentage / 100, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise InputError(
            f"{percentage} is too small or too large for {len(rows):,} rows.", "validation_split_percentage"
        ) from error
    held_out = {*validation}
    train = [index for index in range(len(rows)) if index not in held_out]
    return {"train": rows.select(train), "validation": rows.select(sorted(validation))}


def tokenize(
    batch: dict, indices: list[int], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, stride: int | None = None
) -> dict:
    """Tokenizes a batch of rows. Called by `make_features`."""
    texts = [batch[name] for name in ("sentence1", "sentence2") if name in batch]
    windows = {} if stride is None else {"stride": stride, "return_overflowing_tokens": True}
    options = {"truncation": True, "return_attention_mask": False, **windows}
    features = encode(tokenizer, *texts, max_length=max_seq_length, **options)
    rows = features.pop("overflow_to_sample_mapping", range(len(indices)))
    return {
        **features,
        "length": [len(ids) for ids in features["input_ids"]],
        "example": [indices[row] for row in rows],
        "truncated": [stride is None and bool(encoding.overflowing) for encoding in features.encodings or ()],
    }


def text_features(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    labels: np.ndarray | None = None,
    stride: int | None = None,
    **options,
) -> datasets.Dataset:
    """
    Tokenizes a split of TextData as [CLS] sentence1 [SEP] sentence2 [SEP], without padding.

    Sequences that exceed `max_seq_length` are truncated at the end of the longer sentence. With a `stride`, they are
    split into windows that overlap by this number of tokens instead. The column `example` contains the index of the
    row. `labels` (rows, ...) come from `encode_labels`, and `options` are passed to `make_features`.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length, "stride": stride}
    features = make_features(rows, tokenize, settings, **options)
    if labels is None:
        return features
    return features.add_column("label", labels[features["example"][:]].tolist())
