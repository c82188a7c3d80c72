"""Texts and pairs of texts with labels or scores: GLUE, and csv, tsv, jsonl and parquet files of one's own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.encoding import encode
from ..data.glue import TASKS
from ..data.hub import load_from_hub
from ..support.errors import InputError
from .features import prepare_features
from .labels import (
    NAMED,
    by_number,
    check_forms,
    default_names,
    enumerated,
    flag_columns,
    is_regression,
    is_whole,
    labels_of_model,
    numbers_among,
    other_labels,
    problem_of_label,
    same_names,
    with_whole_numbers,
)
from .rows import Rows, read_rows, rows_of_dataset, usable_rows, without_problems


@dataclass
class TextData:
    """
    Splits with the columns sentence1, sentence2 (for pairs) and label: a position in `labels`, or for a regression,
    which has no labels, a number. Test splits have no label but an `index`. Without a labelled split `labels` is None.
    `assumed` has the names that the data gives to the labels of a model without names, in an order that is a guess.
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]
    assumed: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """The splits for "train", "validation" or "test", the main one first."""
        return {split: data for split, data in self.splits.items() if split.split("_")[0] == kind}

    def renumbered(self, labels: list[str], number: list[int], assumed: Sequence[str] = ()) -> "TextData":
        """These rows with other labels; label i becomes `number[i]`."""
        splits = dict(self.splits)
        for split, data in splits.items():
            if "label" in data.column_names:
                column = [number[label] for label in data["label"]]
                splits[split] = data.remove_columns("label").add_column("label", column)
        return TextData(labels, splits, [*assumed])


def load_task(
    name: str,
    data_dir: str | None = None,
    kinds: tuple[str, ...] = ("train", "validation"),
    skip_bad_rows: bool = False,
    **hub_options,
) -> TextData:
    """
    A GLUE task from a folder in the layout of the original download, or else from the Hub (nyu-mll/glue).

    Args:
        name: a key of TASKS.
        kinds: which of "train", "validation" and "test" to read.

    Raises:
        InputError: no such task or file; a missing column or an unknown label, with file and line.
    """
    if name not in TASKS:
        raise InputError(f"{name}: no such task; there are {', '.join(TASKS)}.", "task_name")
    task = TASKS[name]
    files = {split: file for split, file in task.files.items() if split.split("_")[0] in kinds}
    absent = set(kinds) - {split.split("_")[0] for split in files}
    if absent:
        raise InputError(f"{name} has no rows for {' and '.join(sorted(absent))}: it is to be predicted.", "task_name")
    if data_dir is None:
        config = task.dataset_config_name or name
        hub = load_from_hub(task.dataset_name, config, **hub_options)
        sources = {split: rows_of_dataset(hub[split], f"{task.dataset_name}, {config}, {split}") for split in files}
        texts, label, labels = task.texts, "label", list(task.labels)
    else:
        names = (task.folder, "diagnostic") if name == "ax" else (task.folder,)  # the download has both
        folder = next((found for inner in names if (found := Path(data_dir, inner)).is_dir()), Path(data_dir))
        sources = {
            split: read_rows(folder / file, task.header if split != "test" else None) for split, file in files.items()
        }
        texts, label, labels = task.file_texts, task.label, list(task.labels)
        if task.numbered:
            labels = list(map(str, range(len(labels))))
    splits = {}
    for split, rows in sources.items():
        column = None if split.startswith("test") else label
        # QQP has lines that are too short, which the Hub's copy leaves out too.
        rows = usable_rows(rows, texts, column, skip_bad_rows, short_rows=data_dir is not None, empty_texts=True)
        splits[split] = make_split(rows, texts, column, labels, skip_bad_rows)
    return reported(TextData(list(task.labels), splits), sources)


def load_files(
    files: dict[str, str], do_regression: bool | None = None, skip_bad_rows: bool = False, **columns
) -> TextData:
    """
    Texts from files of one's own, by split: train, validation, test.

    If labels are numbers with fractions, this is a regression. Else the labels are the training file's (or, without
    one, of the validation file), sorted.

    Args:
        do_regression: whether this is a regression; by default the labels decide.
        skip_bad_rows: leave out rows that cannot be used, and print which.
        text_columns: one or two columns; by default "sentence1" and "sentence2", or else the first two that are
            neither label nor number, or the only one.
        label_column: by default "label".
    """
    sources = {split: read_rows(Path(file)) for split, file in files.items()}
    return own_texts(sources, do_regression, skip_bad_rows, **columns)


def load_dataset(
    name: str,
    config: str | None,
    kinds: tuple[str, ...],
    do_regression: bool | None = None,
    skip_bad_rows: bool = False,
    text_columns: tuple[str, ...] | None = None,
    label_column: str = "label",
    **hub_options,
) -> TextData:
    """Like `load_files`, from a data set of the Hub."""
    hub = load_from_hub(name, config, **hub_options)
    absent = [kind for kind in kinds if kind not in hub]
    if absent:
        raise InputError(f"{name}: it has no split {absent[0]}; there are {', '.join(hub)}.", "dataset_name")
    sources = {kind: rows_of_dataset(hub[kind], f"{name}, {kind}") for kind in kinds}
    return own_texts(sources, do_regression, skip_bad_rows, text_columns, label_column)


def own_texts(
    sources: dict[str, Rows],
    do_regression: bool | None,
    skip_bad_rows: bool,
    text_columns: tuple[str, ...] | None = None,
    label_column: str = "label",
) -> TextData:
    label_of = {split: None if split == "test" else label_column for split in sources}
    for split, rows in sources.items():
        rows.check(text_columns or (), "; name the right one with `text_column_names`")
        if label_of[split]:
            flags = flag_columns(rows)
            several = f"; the columns {enumerated(flags)} are several labels of a row, of which to train on one"
            remedy = "; name the right one with `label_column_name`"
            rows.check([label_column], (several if len(flags) > 1 else "") + remedy)
    texts = text_columns or next(iter(sources.values())).text_columns(label_column)
    rows_of = {split: usable_rows(rows, texts, label_of[split], skip_bad_rows) for split, rows in sources.items()}
    labels = None
    first = next((split for split in ("train", "validation") if split in rows_of), None)
    if first is not None:
        name, values = rows_of[first].name, rows_of[first].columns[label_column]
        if do_regression is None:
            do_regression = is_regression(name, values, first == "train")
        if not do_regression and all(map(is_whole, values)):
            for split in filter(label_of.get, sources):
                rows_of[split] = with_whole_numbers(rows_of[split], label_column)
            values = rows_of[first].columns[label_column]
        labels = [] if do_regression else sorted(set(values), key=by_number)
        check_forms(name, labels)
        if len(labels) == 1 and first == "train":
            raise InputError(f"{name}: all labels are {labels[0]!r}; there is nothing to learn from them.")
    splits = {
        split: make_split(rows, texts, label_of[split], labels or [], skip_bad_rows) for split, rows in rows_of.items()
    }
    return reported(TextData(labels, splits), rows_of)


def reported(data: TextData, sources: dict[str, Rows]) -> TextData:
    """The data. Prints the classes and their rows, or the range of scores, in the first split that has labels."""
    split = next((split for split, rows in data.splits.items() if "label" in rows.column_names), None)
    if split is not None:
        values, name = data.splits[split]["label"][:], sources[split].name
        if data.labels:
            rows = Counter(values)
            counts = [f"{label!r} {rows[number]:,}" for number, label in enumerate(data.labels)]
            PartialState().print(f"{len(counts):,} classes in {name}: {enumerated(counts)}")
        else:
            PartialState().print(f"{len(values):,} numbers in {name}, from {min(values):g} to {max(values):g}")
    return data


def make_split(
    rows: Rows, texts: tuple[str, ...], label: str | None, labels: list[str], skip_bad_rows: bool = False
) -> datasets.Dataset:
    """
    Usable rows as a split of TextData.

    Args:
        texts: columns of the texts.
        label: column of the label, or None.
        labels: as in the rows, in the order of their numbers; empty for a regression.

    Raises:
        InputError: a label is not among them, without `skip_bad_rows`.
    """
    if label:
        problems = {n: problem_of_label(value, labels) for n, value in enumerate(rows.columns[label])}
        rows = without_problems(rows, {n: problem for n, problem in problems.items() if problem}, skip_bad_rows)
    split = {f"sentence{place}": rows.columns[column] for place, column in enumerate(texts, start=1)}
    if label:
        number_of = {name: number for number, name in enumerate(labels)}
        split["label"] = [number_of[value] if labels else float(value) for value in rows.columns[label]]
    else:
        split["index"] = [str(value) for value in rows.columns.get("index", range(len(rows)))]
    return datasets.Dataset.from_dict(split)


def with_labels_of_model(data: TextData, config: PreTrainedConfig, train: bool) -> tuple[TextData, bool]:
    """
    The data with the label numbers of a model, and whether the model needs a new head because its own is for other
    labels. Writes the labels into the configuration, if these are known.

    Raises:
        InputError: the head is for other labels, and there is no training.
    """
    known, labels, new_head = labels_of_model(config), data.labels, False
    has_head = any("SequenceClassification" in name for name in config.architectures or ())
    if known is None and not train and has_head:
        return with_unnamed_labels(data, default_names(config)), False
    if labels is None:
        if known is None:
            raise InputError("the labels are unknown: give a model that was fine-tuned, or `train_file`.")
        data = TextData(known, data.splits)
    elif known and labels and same_names(labels, known):
        numbers = numbers_among(known, labels)
        data = data.renumbered(known, numbers)
        if known != labels:
            names = [
                f"{one!r} is its {number}, {known[number]!r}" for one, number in zip(labels, numbers, strict=True)
            ]
            PartialState().print(f"the labels of the data are those of the model by name: {enumerated(names)}")
    elif known is not None and known != labels:
        if not train:
            raise other_labels(known, labels)
        old, new = (enumerated(names) or "a number" for names in (known, labels))
        PartialState().print(f"the model's head, for {old}, is replaced by a new one, for {new}")
        new_head = True
    names = data.labels or ["LABEL_0"]
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    config.problem_type = "single_label_classification" if data.labels else "regression"
    vars(config).pop(NAMED, None)
    if data.labels and labels_of_model(config) is None:
        setattr(config, NAMED, True)
    return data, new_head


def with_unnamed_labels(data: TextData, own: list[str]) -> TextData:
    """
    The data for a model whose labels have no names but `own`, LABEL_0 and so on: in `assumed` is what they are taken
    to mean. Prints it.

    Raises:
        InputError: the data has more labels, or numbers to predict.
    """
    labels, of_model = data.labels, f"the model's labels have no names but {enumerated(own)}"
    if labels is None:
        PartialState().print(f"{of_model}, which are written as predictions")
        return TextData(own, data.splits)
    if not labels or len(labels) > len(own):
        raise other_labels(own, labels)
    if same_names(labels, own):
        return data.renumbered(own, numbers_among(own, labels))
    as_numbers = all(label.isdecimal() and int(label) < len(own) for label in labels)
    meant = {int(label) if as_numbers else place: label for place, label in enumerate(labels)}  # by the model's number
    names = [f"{own[number]} = {label!r}" for number, label in meant.items()]
    written = "; predictions are written as the model's own names" if data.of_kind("test") else ""
    PartialState().print(
        f"{of_model}: their order is unknown, and was taken to be that of the data ({enumerated(names)}); with the "
        f"right names in id2label of its config.json this is not needed{written}"
    )
    return data.renumbered(own, [*meant], [meant.get(number, name) for number, name in enumerate(own)])


def tokenize(batch: dict, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> dict:
    texts = [batch[name] for name in ("sentence1", "sentence2") if name in batch]
    tokens = encode(tokenizer, *texts, max_length=max_seq_length, truncation=True, return_attention_mask=False)
    cut = [bool(encoding.overflowing) for encoding in tokens.encodings or []]
    return {**tokens, "length": [len(ids) for ids in tokens["input_ids"]], "cut": cut}


def text_features(
    data: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, **options
) -> datasets.Dataset:
    """
    A split of TextData as token ids, without padding: [CLS] sentence1 [SEP], and for pairs sentence2 [SEP], cut to
    `max_seq_length` at the end of the longer one.
    """
    settings = {"tokenizer": tokenizer, "max_seq_length": max_seq_length}
    return prepare_features(data, tokenize, settings, keep=("label",), **options)
