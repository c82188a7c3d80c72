"""Texts and pairs of texts with labels or scores: GLUE, and csv, tsv, jsonl and parquet files of one's own."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import InputError
from ..files import write_whole
from .features import prepare_features
from .hub import load_from_hub
from .rows import Rows, as_float, read_rows, rows_of_dataset, usable_rows, without_problems

LABELLED = {"train": "train.tsv", "validation": "dev.tsv"}
INFERENCE = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask:
    """
    A task of GLUE (Wang et al., 2018), or one like it: on the Hub, in the original download, and in a submission.

    Its metrics are in METRICS of fixedbert/metrics/glue.py.

    Args:
        folder: of the download.
        texts: columns of the texts on the Hub.
        labels: names in the order of their numbers, as on the Hub; none for a regression.
        file_texts: columns of the texts in the tsv files.
        label: column of the label in the tsv files.
        header: columns of the files that have no header line.
        numbered: whether files and submissions have the numbers of the labels and not their names.
        files: of the download, by split of the Hub; for labelled splits the first of the evaluated ones is the main.
        submissions: files of a submission, by split of the Hub.
        dataset_name: of the Hub.
        dataset_config_name: its configuration; by default the name of the task.

    Raises:
        ValueError: the fields do not fit one another.
    """

    folder: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    file_texts: tuple[str, ...]
    label: str = "label"
    header: tuple[str, ...] | None = None
    numbered: bool = False
    files: dict[str, str] = field(default_factory=lambda: {**LABELLED, "test": "test.tsv"})
    submissions: dict[str, str] | None = None
    dataset_name: str = "nyu-mll/glue"
    dataset_config_name: str | None = None

    def __post_init__(self):
        if len(self.texts) not in (1, 2) or len(self.texts) != len(self.file_texts):
            raise ValueError(f"{self.folder}: texts and file_texts: name one or two columns, as many in both.")
        if len(self.labels) == 1:
            raise ValueError(f"{self.folder}: labels: name two or more, or none for a regression.")
        if absent := [split for split in self.files if split.startswith("test") and not self.submission(split)]:
            raise ValueError(f"{self.folder}: submissions: name the file for {absent[0]}.")

    def submission(self, split: str) -> str:
        return (self.submissions or {"test": f"{self.folder}.tsv"}).get(split, "")


TASKS = {
    "cola": GlueTask(
        "CoLA",
        texts=("sentence",),
        labels=("unacceptable", "acceptable"),
        file_texts=("sentence",),
        header=("source", "label", "mark", "sentence"),
        numbered=True,
    ),
    "sst2": GlueTask(
        "SST-2", texts=("sentence",), labels=("negative", "positive"), file_texts=("sentence",), numbered=True
    ),
    "mrpc": GlueTask(
        "MRPC",
        texts=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        file_texts=("#1 String", "#2 String"),
        label="Quality",
        numbered=True,
    ),
    "stsb": GlueTask(
        "STS-B", texts=("sentence1", "sentence2"), labels=(), file_texts=("sentence1", "sentence2"), label="score"
    ),
    "qqp": GlueTask(
        "QQP",
        texts=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        file_texts=("question1", "question2"),
        label="is_duplicate",
        numbered=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        texts=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        file_texts=("sentence1", "sentence2"),
        label="gold_label",
        files={
            "train": "train.tsv",
            "validation_matched": "dev_matched.tsv",
            "validation_mismatched": "dev_mismatched.tsv",
            "test_matched": "test_matched.tsv",
            "test_mismatched": "test_mismatched.tsv",
        },
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    "qnli": GlueTask("QNLI", texts=("question", "sentence"), labels=INFERENCE, file_texts=("question", "sentence")),
    "rte": GlueTask("RTE", texts=("sentence1", "sentence2"), labels=INFERENCE, file_texts=("sentence1", "sentence2")),
    "wnli": GlueTask(
        "WNLI",
        texts=("sentence1", "sentence2"),
        labels=tuple(reversed(INFERENCE)),
        file_texts=("sentence1", "sentence2"),
        numbered=True,
    ),
    # The diagnostics: to be predicted by a model of MNLI.
    "ax": GlueTask(
        "AX",
        texts=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        file_texts=("sentence1", "sentence2"),
        files={"test": "diagnostic.tsv"},
    ),
}


@dataclass
class TextData:
    """
    Splits with the columns sentence1, sentence2 (for pairs) and label: a position in `labels`, or for a regression,
    which has no labels, a number. Test splits have no label but an `index`. Without a labelled split `labels` is None.
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """The splits for "train", "validation" or "test", the main one first."""
        return {split: data for split, data in self.splits.items() if split.split("_")[0] == kind}

    def numbered_as(self, labels: list[str]) -> "TextData":
        """The same rows with the label numbers of a model that has `labels`, perhaps in capitals."""
        number = numbers_among(labels, self.labels or [])

        def renumber(data: datasets.Dataset) -> datasets.Dataset:
            if "label" not in data.column_names:
                return data
            return data.remove_columns("label").add_column("label", [number[label] for label in data["label"]])

        return TextData(labels, {split: renumber(data) for split, data in self.splits.items()})


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
    labels = [str(number) for number in range(len(task.labels))] if task.numbered else list(task.labels)
    if data_dir is None:
        config = task.dataset_config_name or name
        hub = load_from_hub(task.dataset_name, config, **hub_options)
        sources = {
            split: (rows_of_dataset(hub[split], f"{task.dataset_name}, {config}, {split}"), task.texts)
            for split in files
        }
        labels, label = list(task.labels), "label"
    else:
        folder = Path(data_dir)
        names = (task.folder, "diagnostic") if name == "ax" else (task.folder,)  # the download has both
        folder = next((folder / inner for inner in names if (folder / inner).is_dir()), folder)
        sources = {}
        for split, file in files.items():
            header = task.header if split != "test" else None
            sources[split] = (read_rows(folder / file, header), task.file_texts)
        label = task.label
    splits = {}
    for split, (rows, texts) in sources.items():
        column = None if split.startswith("test") else label
        # QQP has lines that are too short, which the Hub's copy leaves out too.
        rows = usable_rows(rows, texts, column, skip_bad_rows, short_rows=data_dir is not None, empty_texts=True)
        splits[split] = make_split(rows, texts, column, labels, skip_bad_rows)
    return TextData(list(task.labels), splits)


def load_files(
    files: dict[str, str], do_regression: bool | None = None, skip_bad_rows: bool = False, **columns
) -> TextData:
    """
    Texts from files of one's own, by split: train, validation, test.

    If labels are numbers with fractions, this is a regression. Else labels are those of the training file (or, without
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
    """The same as `load_files` from a data set of the Hub."""
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
        for column in (*(text_columns or ()), *filter(None, [label_of[split]])):
            if column not in rows.columns:
                argument = "--label_column_name" if column == label_column else "--text_column_names"
                raise InputError(
                    f"{rows.name}: no column {column!r}; there are {', '.join(rows.columns)}; name the right one with "
                    f"{argument}."
                )
    texts = text_columns or next(iter(sources.values())).text_columns(label_column)
    rows_of = {split: usable_rows(rows, texts, label_of[split], skip_bad_rows) for split, rows in sources.items()}
    labels = None
    labelled = rows_of.get("train") or rows_of.get("validation")
    if labelled is not None:
        values = labelled.columns[label_column]
        if do_regression is None:
            do_regression = is_regression(labelled.name, values)
            if do_regression:
                PartialState().print(
                    f"{labelled.name}: the labels are numbers with fractions, so this is a regression; with "
                    "--do_regression false they are classes"
                )
        labels = [] if do_regression else sorted(set(values), key=by_number)
        if len(labels) == 1 and "train" in sources:
            raise InputError(f"{labelled.name}: all labels are {labels[0]!r}; there is nothing to learn from them.")
    splits = {
        split: make_split(rows, texts, label_of[split], labels or [], skip_bad_rows) for split, rows in rows_of.items()
    }
    return TextData(labels, splits)


def is_regression(name: str, values: list[str]) -> bool:
    """
    Whether labels are numbers, some of them with a fraction.

    Raises:
        InputError: some labels are words, others numbers with fractions.
    """
    if not any(as_float(value) is not None and re.search(r"[.eEnN]", value) for value in values):
        return False
    word = next((value for value in values if as_float(value) is None), None)
    if word is not None:
        raise InputError(
            f"{name}: the label {word!r} is a word, but others are numbers with fractions; say --do_regression true "
            "or false."
        )
    return True


def by_number(label: str) -> tuple:
    """The order of labels: numbers by value, names after them by letter."""
    number = as_float(label)
    return (number is None, number or 0.0, label)


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
        problems = {n: problem_of_label(value, labels) for n, value in enumerate(rows.of(label)[0])}
        rows = without_problems(rows, {n: problem for n, problem in problems.items() if problem}, skip_bad_rows)
    split = {f"sentence{place}": column for place, column in enumerate(rows.of(*texts), start=1)}
    if label:
        number_of = {name: number for number, name in enumerate(labels)}
        split["label"] = [number_of[value] if labels else float(value) for value in rows.columns[label]]
    else:
        split["index"] = [str(value) for value in rows.columns.get("index", range(len(rows)))]
    return datasets.Dataset.from_dict(split)


def problem_of_label(value: str, labels: list[str]) -> str | None:
    """What is wrong with a label, which has to be one of `labels` or, if there are none, a number."""
    number = as_float(value)
    if not labels:
        return None if number is not None and math.isfinite(number) else f"the label {value!r} is not a finite number"
    if value in labels:
        return None
    kind = "a fraction, not a class" if number is not None and not number.is_integer() else "unknown"
    return f"the label {value!r} is {kind}; there are {', '.join(labels)}"


def with_labels_of_model(data: TextData, config: PreTrainedConfig, train: bool) -> tuple[TextData, bool]:
    """
    The data with the label numbers of a model, and whether the model needs a new head because its own is for other
    labels. Writes the labels into the configuration.

    Raises:
        InputError: the head is for other labels, and there is no training.
    """
    known, labels = labels_of_model(config), data.labels
    new_head = False
    if labels is None:
        if known is None:
            raise InputError("the labels are unknown: give a model that was fine-tuned, or --train_file.")
        data = TextData(known, data.splits)
    elif known and labels and {label.lower() for label in labels} <= {label.lower() for label in known}:
        data = data.numbered_as(known)
    elif known is not None and known != labels:
        old, new = ", ".join(known) or "a number", ", ".join(labels) or "a number"
        if not train:
            raise InputError(f"the model's labels are {old}, and those of the data {new}.")
        PartialState().print(f"the model's head, for {old}, is replaced by a new one, for {new}")
        new_head = True
    names = data.labels or ["LABEL_0"]
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    config.problem_type = "single_label_classification" if data.labels else "regression"
    return data, new_head


def numbers_among(known: list[str], labels: list[str]) -> list[int]:
    """The number of each of `labels` among the `known` ones, which can have them in capitals."""
    names = known if set(labels) <= set(known) else [name.lower() for name in known]
    return [names.index(label if label in names else label.lower()) for label in labels]


def labels_of_model(config: PreTrainedConfig) -> list[str] | None:
    """The labels of a model, in the order of their numbers: none for a regression, None if they have no names."""
    if config.problem_type == "regression":
        return []
    names = [name for _, name in sorted((config.id2label or {}).items())]
    return None if names[0] == "LABEL_0" else names  # transformers' default name


def write_predictions(
    folder: str, task: str | None, split: str, rows: datasets.Dataset, labels: list[str], predictions: np.ndarray
):
    """
    Write a file with the columns index and prediction: that of a GLUE submission, or predict_results.txt.

    Args:
        labels: of the model; empty for a regression.
        predictions: numbers of labels, or scores, (rows,).
    """
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    written = [labels[int(number)] for number in predictions] if labels else [f"{score:.3f}" for score in predictions]
    if task and labels:  # a model can have the names in capitals
        written = [name.lower() for name in written]
    if task and TASKS[task].numbered:
        written = [str(TASKS[task].labels.index(name)) for name in written]
    file = TASKS[task].submission(split) if task else "predict_results.txt"
    lines = [f"{index}\t{prediction}\n" for index, prediction in zip(rows["index"], written, strict=True)]
    write_whole(Path(folder, file), "index\tprediction\n" + "".join(lines))


def tokenize(batch: dict, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> dict:
    texts = [batch[name] for name in ("sentence1", "sentence2") if name in batch]
    tokens = tokenizer(*texts, max_length=max_seq_length, truncation=True, return_attention_mask=False)
    cut = [bool(encoding.overflowing) for encoding in tokens.encodings]
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
