"""Functions that load texts with labels or scores from GLUE, the Hub or files, and tokenize them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from sklearn.model_selection import train_test_split
from transformers import PreTrainedTokenizerBase

from ..data.file_formats import TOO_FEW, DataFile, FileRow, check_columns, load_from_hub, text_problem
from ..options import GlueDataOptions
from ..support.errors import InputError
from .columns import split_names
from .examples import (
    SAMPLE_SEED,
    data_sources,
    make_features,
    max_samples,
    report_bad_rows,
    sample_rows,
    sampled_indices,
)
from .glue import TASKS
from .label_columns import LabelFormat
from .labels import REGRESSION, SINGLE

# Text columns that are recognized without `text_column_names`.
KNOWN_TEXT_COLUMNS = {columns for task in TASKS.values() for columns in (task.texts, task.file_texts)} | {("text",)}


@dataclass
class TextData:
    """
    Data for text classification or regression.

    The splits, such as "train" or "validation_mismatched", have the columns `sentence1`, `sentence2` (only for text
    pairs), `label` (not in test splits; a name, a list of names, a score or a list of scores), `row` (the 0-based
    index in the file), and `ids` (in test splits) or, for GLUE, `index`.

    `labels` are the label names. They are empty for regression.
    """

    labels: list[str] | None  # None if no split has labels
    splits: dict[str, datasets.Dataset]
    problem_type: str | None = None  # of a model for this data; None if no split has labels
    text_columns: tuple[str, ...] = ()  # names in the file or dataset
    skipped: dict[str, list[dict]] = field(default_factory=dict)  # `row` and `ids` of the invalid rows in each split

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """Returns the splits of one kind: "train", "validation" or "test". For MNLI, the matched split comes first."""
        return {split: rows for split, rows in self.splits.items() if split.split("_")[0] == kind}


@dataclass(frozen=True)
class Columns:
    """The columns to read from a file or dataset."""

    texts: tuple[str, ...]  # one or two
    labels: tuple[str, ...] = ()  # empty to read no labels
    ids: tuple[str, ...] = ()  # identify the rows

    def check(self, source: str, available: list[str]):
        """Raises InputError if a column does not exist."""
        options = {"text_column_names": self.texts, "label_column_name": self.labels, "id_column_name": self.ids}
        check_columns({name: option for option, names in options.items() for name in names}, available, source)


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading the splits of a dataset."""

    text_columns: tuple[str, ...] | None = None  # one or two; by default, names used by GLUE are recognized
    expected_columns: tuple[str, ...] = ()  # text columns that the model was trained on; used if they exist
    label_columns: tuple[str, ...] = ("label",)  # ignored in the test split
    id_columns: tuple[str, ...] = ()  # identify the rows of the test split
    labels: LabelFormat | None = None  # by default, inferred from the first split, usually the training split
    do_regression: bool | None = None  # True if labels are scores; by default, floats are scores, as in run_glue.py
    skip_bad_rows: bool = False  # print and skip invalid rows instead of raising InputError
    max_samples: Mapping[str, int | None] = field(default_factory=dict)  # rows to draw for each kind of split
    seed: int = SAMPLE_SEED  # for drawing rows and for the validation split
    validation_percentage: int | None = None  # percentage of the training rows that become the validation split
    official: bool = False  # accept empty texts and skip rows with too few fields, like GLUE on the Hub


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
        Returns the `expected` columns of the model's training data if they exist, or else those known from GLUE.

        Raises InputError if the columns are unknown or ambiguous.
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
        Reads and validates rows, then returns a split for TextData and the format of its labels.

        `labels` is None if the format must be inferred. Draws `count` rows at random, or reads all if `count` is None.
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
                if problem:
                    raise ValueError(problem)
                check_texts(values, columns.texts, options.official)
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

    def decode(kind, value):
        if isinstance(value, list):
            return [decode(kind, item) for item in value]
        return None if value is None or value < 0 else kind.int2str(value)

    kinds = {name: getattr(feature, "feature", feature) for name, feature in data.features.items()}
    classes = {name: kind for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)}
    batches = data.iter(1000)
    rows = (dict(zip(batch, values, strict=True)) for batch in batches for values in zip(*batch.values(), strict=True))
    for number, row in enumerate(rows):
        yield FileRow(number, row | {name: decode(kind, row[name]) for name, kind in classes.items()})


def check_texts(values: dict, columns: tuple[str, ...], empty_allowed: bool):
    """Raises ValueError if a text in a row is missing or invalid."""
    for column in columns:
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
    Loads the splits in `kinds` ("train", "validation" and "test") of a GLUE task.

    `data_dir` is the directory with the original GLUE download. By default, the task is loaded from the Hub, with
    `cache_dir` and `token` in `hub_options`. `options` are fields of ReadingOptions, such as `max_samples`.

    Raises InputError if the task is unknown or lacks a split, a file is not found, or a row is invalid.
    """
    if name not in TASKS:
        raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}.")
    task = TASKS[name]
    files = {split: file for split, file in task.files.items() if split.split("_")[0] in kinds}
    if absent := set(kinds) - {split.split("_")[0] for split in files}:
        raise InputError(f"the GLUE task {name} has no {' and no '.join(sorted(absent))} split.")
    texts, label_column, ids = task.texts, "label", task.labels
    if data_dir is None:
        hub = load_from_hub(task.dataset_name, config := task.dataset_config_name or name, **(hub_options or {}))
        names = {split: f"{task.dataset_name}, {config}, {split}" for split in files}
        sources = {split: RowSource(names[split], dataset_rows(hub[split])) for split in files}
    else:
        texts, label_column = task.file_texts, task.label
        ids = tuple(map(str, range(len(task.labels)))) if task.numbered else task.labels
        candidates = (Path(data_dir, task.folder), Path(data_dir, "diagnostic"))
        directory = next((path for path in candidates if path.is_dir()), Path(data_dir))
        headers = {split: None if split == "test" else task.header for split in files}
        sources = {
            split: RowSource.from_file(directory / file, header=headers[split], raw=True)
            for split, file in files.items()
        }
    labels = LabelFormat(SINGLE if ids else REGRESSION, dict(zip(ids, task.labels, strict=True)))
    columns: dict[str, Any] = {"text_columns": texts, "label_columns": (label_column,), "labels": labels}
    data = read_splits(sources, ReadingOptions(**columns, skip_bad_rows=skip_bad_rows, official=True, **options))
    return replace(data, text_columns=task.texts)


def load_texts(
    task: str | None,
    arguments: GlueDataOptions,
    kinds: tuple[str, ...],
    seed: int = SAMPLE_SEED,
    expected_columns: tuple[str, ...] = (),
    **hub_options,
) -> TextData:
    """
    Loads the splits in `kinds` ("train", "validation", "test") from a GLUE task, a dataset on the Hub or files.

    `seed` selects the rows for `max_*_samples`. `expected_columns` are the text columns the model was trained on.
    """
    options: dict[str, Any] = {"max_samples": {kind: max_samples(arguments, kind) for kind in kinds}, "seed": seed}
    if task:
        return load_task(task, arguments.data_dir, kinds, arguments.skip_bad_rows, hub_options, **options)
    if arguments.validation_split_percentage and "validation" in kinds:  # its rows come from the training data
        kinds = ("train", *(kind for kind in kinds if kind == "test"))
    names = {kind: arguments.validation_split_name if kind == "validation" else kind for kind in kinds}
    sources = {
        kind: RowSource.from_file(Path(name)) if rows is None else RowSource(name, dataset_rows(rows))
        for kind, (name, rows) in data_sources(arguments, names, **hub_options).items()
    }
    return read_splits(
        sources,
        ReadingOptions(
            text_columns=split_names(arguments.text_column_names),
            expected_columns=expected_columns,
            label_columns=split_names(arguments.label_column_name),
            id_columns=split_names(arguments.id_column_name),
            do_regression=arguments.do_regression,
            skip_bad_rows=arguments.skip_bad_rows,
            validation_percentage=arguments.validation_split_percentage,
            **options,
        ),
    )


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
    Splits rows at random into "train" and "validation", which contains the given percentage of the rows.

    With `labels`, both parts have the same fraction of each label. Labels that occur once stay in training.
    """
    counts = Counter(labels or ())
    common = [index for index in range(len(rows)) if labels is None or counts[labels[index]] > 1]
    stratify = None if labels is None else [labels[index] for index in common]
    try:
        _, validation = train_test_split(common, test_size=percentage / 100, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise InputError(
            f"{percentage}: splitting {len(rows):,} rows leaves one split too small.", "validation_split_percentage"
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
    features = tokenizer(*texts, max_length=max_seq_length, **options)
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
    instead split into windows that overlap by this number of tokens. The column `example` contains the index of the
    row. `labels` (rows, ...) come from `encode_labels`, and `options` are passed to `make_features`.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length, "stride": stride}
    features = make_features(rows, tokenize, settings, **options)
    if labels is None:
        return features
    return features.add_column("label", labels[features["example"][:]].tolist())
