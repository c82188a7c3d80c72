"""Texts with labels or scores: loads them from GLUE, the Hub or files, tokenizes them, and scores predictions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from transformers import PreTrainedTokenizerBase

from ..data.file_formats import TOO_FEW, FileRow, load_from_hub, text_problem
from ..options import GlueDataOptions
from ..support.errors import InputError
from .examples import SAMPLE_SEED, drawn, make_features, max_samples, sample_rows, warn_of_overlap
from .glue import TASKS
from .labels import REGRESSION, SINGLE, Labels, is_missing
from .reading import RowSource, data_sources, dataset_rows, valid_rows
from .rows import split_names

# Text columns that are recognized without `text_column_names`.
KNOWN_TEXT_COLUMNS = {columns for task in TASKS.values() for columns in (task.texts, task.file_texts)} | {("text",)}


@dataclass
class TextData:
    """
    Data for text classification or regression.

    The splits, such as "train" or "validation_mismatched", have the columns `sentence1`, `sentence2` (only for text
    pairs), `label` (not in test splits; a name, a list of names, or a score), `row` (the 0-based index in the file),
    and for GLUE, `index`.
    """

    labels: Labels | None  # None if no split has labels
    text_columns: tuple[str, ...]  # names in the file or dataset
    splits: dict[str, datasets.Dataset] = field(default_factory=dict)
    skipped: dict[str, list[int]] = field(default_factory=dict)  # positions of the invalid rows in each split

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """Returns the splits of one kind: "train", "validation" or "test". For MNLI, the matched split comes first."""
        return {split: rows for split, rows in self.splits.items() if kind_of(split) == kind}


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading the splits of a dataset."""

    text_columns: tuple[str, ...] = ()  # one or two; by default, names used by GLUE are recognized
    expected_columns: tuple[str, ...] = ()  # text columns that the model was trained on; used if they exist
    label_columns: tuple[str, ...] = ("label",)  # ignored in the test split
    labels: Labels | None = None  # those of a GLUE task; by default, inferred from the first split, usually training
    do_regression: bool | None = None  # True if labels are scores; by default, floats are scores, as in run_glue.py
    skip_bad_rows: bool = False  # print and skip invalid rows instead of raising InputError
    max_samples: Mapping[str, int | None] = field(default_factory=dict)  # rows to draw for each kind of split
    seed: int = SAMPLE_SEED  # for drawing rows and for the validation split
    validation_percentage: int | None = None  # percentage of the training rows that become the validation split
    group_column: str | None = None  # rows with equal values stay in one split, or belong to one query

    @property
    def official(self) -> bool:
        """Whether the rows are GLUE's, which have empty texts and, in its files, rows with too few fields."""
        return self.labels is not None


def kind_of(split: str) -> str:
    """Returns "train", "validation" or "test" for a split such as "validation_mismatched"."""
    return split.split("_")[0]


def load_task(
    name: str,
    data_dir: str | None = None,
    kinds: tuple[str, ...] = ("train", "validation"),
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
    files = {split: file for split, file in task.files.items() if kind_of(split) in kinds}
    if absent := set(kinds) - {kind_of(split) for split in files}:
        raise InputError(f"the GLUE task {name} has no {' and no '.join(sorted(absent))} split.")
    texts, label_column, values = task.texts, "label", task.labels
    sources = {}
    if data_dir is None:
        hub = load_from_hub(task.dataset_name, name, **(hub_options or {}))
        for split in files:
            sources[split] = RowSource(f"{task.dataset_name}, {name}, {split}", dataset_rows(hub[split]))
    else:
        texts, label_column = task.file_texts, task.label
        values = tuple(map(str, range(len(task.labels)))) if task.numbered else task.labels
        candidates = (Path(data_dir, task.folder), Path(data_dir, "diagnostic"))
        directory = next((path for path in candidates if path.is_dir()), Path(data_dir))
        for split, file in files.items():
            header = None if split == "test" else task.header
            sources[split] = RowSource.from_file(directory / file, header=header, raw=True)
    names = dict(zip(values, task.labels, strict=True))
    labels = Labels(SINGLE if names else REGRESSION, names, (label_column,))
    data = read_splits(sources, ReadingOptions(text_columns=texts, labels=labels, **options))
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
    options: dict[str, Any] = {
        "max_samples": {kind: max_samples(arguments, kind) for kind in kinds},
        "seed": seed,
        "skip_bad_rows": arguments.skip_bad_rows,
    }
    if task:
        return load_task(task, arguments.data_dir, kinds, hub_options, **options)
    if arguments.validation_split_percentage and "validation" in kinds:  # its rows come from the training data
        kinds = ("train", *(kind for kind in kinds if kind == "test"))
    names = {kind: arguments.validation_split_name if kind == "validation" else kind for kind in kinds}
    return read_splits(
        data_sources(arguments, names, **hub_options),
        ReadingOptions(
            text_columns=split_names(arguments.text_column_names),
            expected_columns=expected_columns,
            label_columns=split_names(arguments.label_column_name),
            do_regression=arguments.do_regression,
            validation_percentage=arguments.validation_split_percentage,
            group_column=arguments.group_column_name,
            **options,
        ),
    )


def load_files(files: Mapping[str, str], **options) -> TextData:
    """Loads one file per split ("train", "validation", "test"). `options` are the fields of ReadingOptions."""
    sources = {split: RowSource.from_file(file) for split, file in files.items()}
    return read_splits(sources, ReadingOptions(**options))


def read_splits(sources: dict[str, RowSource], options: ReadingOptions = ReadingOptions()) -> TextData:
    """Reads all splits. The sorted labels in the first split, usually the training split, become the label names."""
    first = next(iter(sources.values()))
    data = TextData(options.labels, options.text_columns or find_text_columns(first, options.expected_columns))
    for split, source in sources.items():
        divided = split == "train" and options.validation_percentage is not None
        count = None if divided else options.max_samples.get(kind_of(split))
        parts = {split: read_split(source, split, data, options, count)}
        if divided:
            parts = split_rows(source.name, parts[split], options, data)
        for part, rows in parts.items():
            if data.labels and "label" in rows.column_names:
                data.labels.report(f"{source.name}, {part}" if divided else source.name, rows["label"][:], part)
        data.splits |= parts
    return data


def read_split(
    source: RowSource, split: str, data: TextData, options: ReadingOptions, count: int | None
) -> datasets.Dataset:
    """
    Reads and validates `count` rows, drawn at random, or all rows.

    Adds the inferred labels and the skipped rows to `data`.
    """
    is_test = kind_of(split) == "test"
    label_columns = () if is_test else options.labels.columns if options.labels else options.label_columns
    divided = options.validation_percentage is not None
    group = options.group_column if split == "train" or not divided else None
    named: dict[str, Sequence[str]] = {"label_column_name": label_columns}
    named["group_column_name" if divided else "query_column_name"] = [group] if group else []
    source.check_columns(text_column_names=data.text_columns, **named)
    if both := {*data.text_columns} & {*label_columns}:
        raise InputError(f"{source.name}: {both.pop()} contains the labels; set `text_column_names` to other columns.")
    rows = [row for row in source.numbered_rows() if not (options.official and row[1].problem == TOO_FEW)]
    if label_columns and data.labels is None:
        values = [row.values for _, row in rows if not row.problem]
        data.labels = Labels.infer(values, label_columns, options.do_regression, source.name)

    def parse(row: FileRow) -> dict:
        if row.problem:
            raise ValueError(row.problem)
        check_texts(row.values, data.text_columns, options.official)
        parsed = {f"sentence{n}": row.values[column] for n, column in enumerate(data.text_columns, start=1)}
        parsed["row"] = row.position
        if group:
            if is_missing(value := row.values.get(group)):
                raise ValueError(f"{group!r} is empty")
            parsed["group"] = str(value)
        if label_columns and data.labels:
            parsed["label"] = data.labels.parse(row.values)
        if options.official:
            parsed["index"] = str(row.values.get("index", row.values.get("idx", row.position)))
        return parsed

    chosen = drawn(rows, count, options.seed, (lambda row: str(row[1].values.get(group))) if group else None)
    valid, skipped = valid_rows(source.name, chosen, parse, options.skip_bad_rows)
    data.skipped[split] = [row.position for row in skipped]
    return datasets.Dataset.from_list(valid)


def find_text_columns(source: RowSource, expected: tuple[str, ...] = ()) -> tuple[str, ...]:
    """
    Returns the `expected` columns of the model's training data if they exist, or else prints and returns those known
    from GLUE.

    Raises InputError if the columns are unknown or ambiguous.
    """
    if expected and {*expected} <= {*source.columns}:
        return expected
    known = [names for names in KNOWN_TEXT_COLUMNS if {*names} <= {*source.columns}]
    known = [names for names in known if not any({*names} < {*others} for others in known)]
    if len(known) != 1:
        columns = ", ".join(source.columns)
        raise InputError(f"must be set for {source.name}; available columns: {columns}.", "text_column_names")
    if len(source.columns) > 1:
        PartialState().print(f"{source.name}: text columns: {', '.join(known[0])}")
    return known[0]


def check_text_columns(columns: tuple[str, ...], trained_on: tuple[str, ...]):
    """
    Compares the text columns with those that the model was trained on, and prints a message if the order differs.

    Raises InputError if a model for text pairs is applied to single texts or vice versa.
    """
    message = f"the text columns are {', '.join(columns)}, but the model was trained on {', '.join(trained_on)}"
    if trained_on and len(columns) != len(trained_on):
        raise InputError(f"{message}; use data with the same columns.")
    if columns != trained_on and {*columns} == {*trained_on}:
        PartialState().print(message)


def check_texts(values: dict, columns: tuple[str, ...], empty_allowed: bool):
    """Raises ValueError if a text in a row is missing or invalid."""
    for column in columns:
        text = values.get(column)
        if problem := text_problem(text, repr(column)):
            raise ValueError(problem)
        if text is None or not (text.strip() or empty_allowed):
            raise ValueError(f"{column!r} is empty")


def split_rows(
    source: str, rows: datasets.Dataset, options: ReadingOptions, data: TextData
) -> dict[str, datasets.Dataset]:
    """
    Splits rows at random into "train" and "validation", and draws rows from those that `max_samples` contains.

    If texts have one label, both parts have the same fraction of each label. Labels that occur once stay in training.
    If the rows have groups, whole groups are held out: this percentage of the groups.
    """
    percentage = options.validation_percentage or 0
    single = data.labels is not None and data.labels.problem_type == SINGLE
    names = rows["label"][:] if single else [""] * len(rows)
    groups = rows["group"][:] if options.group_column else None
    validation = held_out_rows(names, groups, percentage / 100, options.seed)
    if not validation:
        raise InputError(
            f"{percentage}: splitting {len(rows):,} rows leaves one split too small.", "validation_split_percentage"
        )
    training = sorted({*range(len(rows))} - {*validation})
    parts = {
        part: sample_rows(rows.select(indices), options.max_samples.get(part), options.seed)
        for part, indices in {"train": training, "validation": sorted(validation)}.items()
    }
    if len(data.text_columns) > 1:  # otherwise, rows with the same text are the same
        for name, column in zip(text_names(rows.column_names), data.text_columns, strict=True):
            where = f"{source}, {column!r} of the validation split"
            remedy = "`group_column_name` keeps such rows together"
            warn_of_overlap(where, parts["train"], parts["validation"], [name], remedy)
    return {part: parts[part] for part in parts if part in options.max_samples}


def held_out_rows(names: list[str], groups: list[str] | None, fraction: float, seed: int) -> list[int]:
    """
    Returns the rows of this fraction of the groups. Without groups, returns this fraction of the rows of each label,
    except labels that occur once. Returns [] if impossible.
    """
    counts = Counter(names)
    common = [index for index, name in enumerate(names) if counts[name] > 1]
    stratify = [names[index] for index in common] if len(counts) > 1 else None
    try:
        if groups is not None:
            splitter = GroupShuffleSplit(1, test_size=fraction, random_state=seed)
            return next(splitter.split(groups, groups=groups))[1].tolist()
        return train_test_split(common, test_size=fraction, random_state=seed, stratify=stratify)[1]
    except ValueError:
        return []


def tokenize(
    batch: dict,
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    stride: int | None = None,
    prompt: str = "",
) -> dict:
    """Tokenizes a batch of rows. Called by `make_features`."""
    # As in sentence-transformers, a prompt precedes only the first text of a pair.
    prompts = {"sentence1": prompt, "sentence2": ""}
    texts = [[prompts[name] + text for text in batch[name]] for name in text_names(batch)]
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
    prompt: str = "",
) -> datasets.Dataset:
    """
    Tokenizes a split of TextData as [CLS] sentence1 [SEP] sentence2 [SEP], without padding.

    Sequences that exceed `max_seq_length` are truncated at the end of the longer sentence. With a `stride`, they are
    instead split into windows that overlap by this number of tokens. The column `example` contains the index of the
    row. A `prompt` precedes each text, or the first of a pair. `labels` (rows, ...) come from `Labels.encode`.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length, "stride": stride, "prompt": prompt}
    features = make_features(rows, tokenize, settings)
    if labels is None:
        return features
    return features.add_column("label", labels[features["example"][:]].tolist())


def text_names(columns: Iterable[str]) -> list[str]:
    """Returns the names of the columns with texts or pairs of texts."""
    return [name for name in ("sentence1", "sentence2") if name in columns]
