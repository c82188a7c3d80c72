"""Functions that load texts with labels or scores from GLUE, the Hub or files, and tokenize them."""

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

# Text columns that are recognized without `text_column_names`.
KNOWN_TEXT_COLUMNS = {columns for task in TASKS.values() for columns in (task.texts, task.file_texts)} | {("text",)}


@dataclass
class TextData:
    """
    Data for text classification or regression.

    Each split has the columns `sentence1`, `sentence2` (only for text pairs), `label` (a name or a score, not in test
    splits), `row` (the line or row number in the file) and `index` (from the file, or else the position in the split).

    Attributes:
        labels: label names. Empty for regression, None if no split has labels.
        splits: a dataset for each split, such as "train" or "validation_mismatched".
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """Returns the "train", "validation" or "test" splits. For MNLI, the matched split comes first."""
        return {split: rows for split, rows in self.splits.items() if split.split("_")[0] == kind}


class RowSource:
    """The rows of a file or dataset. Messages contain its `name`, and the `unit` of its rows: "line" or "row"."""

    def __init__(self, name: str, rows: Iterator[FileRow], unit: str = "row"):
        first = next(rows, None)
        if first is None:
            raise InputError(f"{name} contains no rows.")
        self.name, self.columns, self.rows, self.unit = name, [*first.values], chain([first], rows), unit

    @classmethod
    def from_file(cls, path: Path, header: tuple[str, ...] | None = None) -> "RowSource":
        """Opens a file. `header` names the columns of a .csv or .tsv file without a header line."""
        file = DataFile(path, header=header)
        return cls(str(path), file.rows(), file.unit)

    def text_columns(self) -> tuple[str, ...]:
        """Returns the text columns if they are known from GLUE. Raises InputError for unknown or ambiguous columns."""
        known = [names for names in KNOWN_TEXT_COLUMNS if {*names} <= {*self.columns}]
        known = [names for names in known if not any({*names} < {*others} for others in known)]
        if len(known) != 1:
            columns = ", ".join(self.columns)
            raise InputError(f"must be set for {self.name}; available columns: {columns}.", "text_column_names")
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
        Reads and validates rows, and returns a split for TextData.

        Args:
            texts: names of one or two text columns.
            label: name of the label column, or None to read no labels.
            label_names: label name for each label in the source. Empty for regression, None to accept any label.
            skip_bad_rows: skip and print invalid rows instead of raising InputError.
            max_samples: maximum number of rows.
            official: accept empty texts and skip rows with too few fields, like the version of GLUE on the Hub.
        """
        for name in (*texts, *([label] if label else [])):
            if name not in self.columns:
                option = "label_column_name" if name == label else "text_column_names"
                columns = ", ".join(self.columns)
                raise InputError(f"{self.name} has no column {name!r} (`{option}`); available columns: {columns}.")
        convert = str if label_names is None else label_names.__getitem__ if label_names else float
        rows, bad_rows = [], {}
        for position, (number, values, problem) in enumerate(islice(self.rows, max_samples)):
            if official and problem == TOO_FEW:
                continue
            if problem := problem or problem_in(values, texts, label, label_names, official):
                bad_rows[f"{self.unit} {number}"] = problem
                continue
            row = {f"sentence{n}": values[column] for n, column in enumerate(texts, start=1)}
            if label:
                row["label"] = convert(str(values[label]))
            rows.append(row | {"row": number, "index": str(values.get("index", position))})
        report_bad_rows(self.name, bad_rows, skip_bad_rows)
        if not rows:
            raise InputError(f"{self.name} contains no valid rows.")
        return datasets.Dataset.from_list(rows)


def dataset_rows(data: datasets.Dataset) -> Iterator[FileRow]:
    """Yields the rows of a dataset. Label ids become label names, or None for -1, which stands for a missing label."""
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


def problem_in(
    values: dict, texts: tuple[str, ...], label: str | None, label_names: Mapping[str, str] | None, empty_allowed: bool
) -> str | None:
    """Returns a description of the problem if a row is invalid, or None. See `RowSource.read` for the arguments."""
    for column in texts:
        text = values.get(column)
        if problem := text_problem(text, repr(column)):
            return problem
        if text is None or not (text.strip() or empty_allowed):
            return f"{column!r} is empty"
    if label is None:
        return None
    value = values.get(label)
    if value is None or value != value or not str(value).strip():
        return "the label is missing"
    if not isinstance(value, str | int | float):
        return "the label is neither a string nor a number"
    if label_names == {} and not math.isfinite(as_float(str(value))):
        return f"the label {value!r} is not a finite number"
    if label_names and str(value) not in label_names:
        return f"unknown label {value!r}; available labels: {shorten(label_names)}"
    return text_problem(str(value), "the label")


def as_float(label: str) -> float:
    """Returns the label as a float, or NaN if it is not a number."""
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
    Loads a GLUE task.

    Args:
        name: a key in TASKS.
        data_dir: directory with the original GLUE download. By default, the task is loaded from the Hub.
        kinds: kinds of splits to load: "train", "validation" and "test".
        skip_bad_rows: skip and print invalid rows instead of raising InputError.
        max_samples: maximum number of rows for each of `kinds`.
        hub_options: `cache_dir` and `token` for downloads from the Hub.

    Raises:
        InputError: If the task is unknown or lacks a split, a file is not found, or a row is invalid.
    """
    if name not in TASKS:
        raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}.")
    task = TASKS[name]
    files = {split: file for split, file in task.files.items() if split.split("_")[0] in kinds}
    if absent := set(kinds) - {split.split("_")[0] for split in files}:
        raise InputError(f"the GLUE task {name} has no {' and no '.join(sorted(absent))} split.")
    texts, label, label_names = task.texts, "label", {label: label for label in task.labels}
    if data_dir is None:
        config = task.dataset_config_name or name
        hub = load_from_hub(task.dataset_name, config, **hub_options)
        origin = f"{task.dataset_name}, {config}"
        sources = {split: RowSource(f"{origin}, {split}", dataset_rows(hub[split])) for split in files}
    else:
        directories = (Path(data_dir, task.folder), Path(data_dir, "diagnostic"))
        directory = next((path for path in directories if path.is_dir()), Path(data_dir))
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
    """Loads one file per split ("train", "validation", "test"). `options` are passed to `read_splits`."""
    return read_splits({split: RowSource.from_file(Path(file)) for split, file in files.items()}, **options)


def load_dataset(name: str, config: str | None, kinds: tuple[str, ...], hub_options: dict, **options) -> TextData:
    """Loads the splits in `kinds` from a dataset on the Hub. `options` are passed to `read_splits`."""
    hub = load_from_hub(name, config, **hub_options)
    if absent := [kind for kind in kinds if kind not in hub]:
        raise InputError(f"{name} has no split {absent[0]!r}; available splits: {', '.join(hub)}.")
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
    Reads all splits. The sorted labels in the first split, usually the training split, become the label names.

    Args:
        do_regression: True if labels are scores. By default, floats are scores, as in transformers' run_glue.py.
        skip_bad_rows: skip and print invalid rows instead of raising InputError.
        text_columns: names of one or two columns. By default, names used by GLUE are recognized.
        label_column: name of the label column, which is ignored in the test split.
        max_samples: maximum number of rows for each split.
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
                label_names = {name: name for name in sorted(counts, key=label_sort_key)}
            if len(label_names) == 1 and split == "train":
                raise InputError(
                    f"{source.name}: training needs at least two different labels; all are {rows['label'][0]!r}."
                )
            classes = shorten(f"{name!r} ({counts[name]:,})" for name in label_names)
            labels = f"labels {classes}" if classes else "the labels are floats; treating the task as regression"
            PartialState().print(f"{source.name}: {labels}")
        splits[split] = rows
    return TextData(None if label_names is None else [*label_names], splits)


def are_floats(labels: Collection[str]) -> bool:
    """Returns True if pandas would parse these labels as floats instead of integers or strings."""
    return all(math.isfinite(as_float(label)) for label in labels) and any(set(".eE") & {*label} for label in labels)


def label_sort_key(label: str) -> tuple:
    """Sort key that orders numbers by value, followed by all other labels in alphabetical order."""
    number = as_float(label)
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)


def tokenize(
    batch: dict, _: list[int], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, label_ids: Mapping[str, int]
) -> dict:
    """Tokenizes a batch of rows. Called by `make_features`."""
    texts = [batch[name] for name in ("sentence1", "sentence2") if name in batch]
    features = encode(tokenizer, *texts, max_length=max_seq_length, truncation=True, return_attention_mask=False)
    columns = {**features, "length": [len(ids) for ids in features["input_ids"]]}
    if "label" in batch:
        columns["label"] = encode_labels(batch["label"], label_ids)
    return columns


def encode_labels(labels: Sequence, label_ids: Mapping[str, int]) -> list:
    """Returns label ids for label names. For regression, where `label_ids` is empty, returns the scores."""
    return [label_ids[name] for name in labels] if label_ids else [*labels]


def text_features(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    label_ids: Mapping[str, int] | None = None,
    **options,
) -> datasets.Dataset:
    """
    Tokenizes a split of TextData as [CLS] sentence1 [SEP] sentence2 [SEP], without padding.

    Sequences that exceed `max_seq_length` are truncated at the end of the longer sentence. `label_ids` come from
    `align_labels`, and `options` are passed to `make_features`.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length, "label_ids": label_ids or {}}
    return make_features(rows, tokenize, settings, **options)
