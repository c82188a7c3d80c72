"""Texts and pairs of texts with labels or scores: GLUE, and csv, tsv, jsonl and parquet files of one's own."""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import InputError
from ..files import write_whole
from .encoding import encode
from .features import prepare_features
from .hub import load_from_hub
from .rows import Rows, as_float, read_rows, rows_of_dataset, usable_rows, without_problems

LABELLED = {"train": "train.tsv", "validation": "dev.tsv"}
INFERENCE = ("entailment", "not_entailment")
NAMED = "labels_are_names"  # in a configuration: somebody named the labels LABEL_0 and so on, as transformers would
TRUTH = {"true": 1.0, "false": 0.0}  # as numbers of JSON and of pandas
LONGEST_NAME = 100  # characters of a label in a message


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
    `assumed` has the names that the data gives to the labels of a model without names, in an order that is a guess.
    """

    labels: list[str] | None
    splits: dict[str, datasets.Dataset]
    assumed: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> dict[str, datasets.Dataset]:
        """The splits for "train", "validation" or "test", the main one first."""
        return {split: data for split, data in self.splits.items() if split.split("_")[0] == kind}

    def numbered_as(self, labels: list[str]) -> "TextData":
        """These rows with the label numbers of a model whose names are `labels`, perhaps written in another way."""
        return self.renumbered(labels, numbers_among(labels, self.labels or []))

    def renumbered(self, labels: list[str], number: list[int]) -> "TextData":
        """These rows with other labels; label i becomes `number[i]`."""

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
    print_labels(
        data := TextData(list(task.labels), splits), {split: rows.name for split, (rows, _) in sources.items()}
    )
    return data


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
        for column in (*(text_columns or ()), *filter(None, [label_of[split]])):
            if column not in rows.columns:
                argument = "`label_column_name`" if column == label_column else "`text_column_names`"
                if column == label_column:
                    check_one_column(rows)
                raise InputError(
                    f"{rows.name}: no column {column!r}; there are {', '.join(rows.columns)}; name the right one with "
                    f"{argument}."
                )
    texts = text_columns or next(iter(sources.values())).text_columns(label_column)
    rows_of = {split: usable_rows(rows, texts, label_of[split], skip_bad_rows) for split, rows in sources.items()}
    labels = None
    first = next((split for split in ("train", "validation") if split in rows_of), None)
    if first is not None:
        name, values = rows_of[first].name, rows_of[first].columns[label_column]
        if do_regression is None:
            do_regression = is_regression(name, values, first == "train")
        if not do_regression and all(map(is_whole, values)):
            rows_of |= {
                split: with_whole_numbers(rows, label_column) for split, rows in rows_of.items() if split != "test"
            }
            values = rows_of[first].columns[label_column]
        labels = [] if do_regression else sorted(set(values), key=by_number)
        check_forms(name, labels)
        if len(labels) == 1 and first == "train":
            raise InputError(f"{name}: all labels are {labels[0]!r}; there is nothing to learn from them.")
    splits = {
        split: make_split(rows, texts, label_of[split], labels or [], skip_bad_rows) for split, rows in rows_of.items()
    }
    print_labels(data := TextData(labels, splits), {split: rows.name for split, rows in rows_of.items()})
    return data


def check_one_column(rows: Rows):
    """
    Raises:
        InputError: several columns hold 0 and 1 alone, or true and false.
    """
    flags = [
        name
        for name, values in rows.columns.items()
        if {str(value).strip().casefold().removesuffix(".0") for value in values} <= {"0", "1", "true", "false"}
    ]
    if len(flags) > 1:
        raise InputError(
            f"{rows.name}: the columns {listed(flags)} are several labels of a row: train on one at a time, with "
            "`label_column_name`."
        )


def print_labels(data: TextData, names: dict[str, str]):
    """Print the classes and their rows, or the range of scores, in the first split that has labels."""
    split = next((split for split, rows in data.splits.items() if "label" in rows.column_names), None)
    if split is None or data.labels is None:
        return
    values = data.splits[split]["label"][:]
    if data.labels:
        rows = Counter(values)
        counts = [f"{label!r} {rows[number]:,}" for number, label in enumerate(data.labels)]
        PartialState().print(f"{len(counts):,} classes in {names[split]}: {listed(counts)}")
    else:
        PartialState().print(f"{len(values):,} numbers in {names[split]}, from {min(values):g} to {max(values):g}")


def check_single(name: str, values: list[str]):
    """
    Raises:
        InputError: labels are percentages, have decimal commas, or are several in one.
    """
    remedy = "; where these are classes as they stand, say `do_regression` false"
    labels = list(dict.fromkeys(values))
    for label in labels:
        if re.fullmatch(r"\s*[-+]?\d+([.,]\d+)?\s*[%％‰]\s*", label):
            raise InputError(f"{name}: the label {label!r} is a percentage: write the number alone{remedy}.")
        if re.fullmatch(r"\s*[-+]?[\d.]*\d,\d+\s*", label):
            raise InputError(
                f"{name}: the label {label!r} has a comma: write numbers with a point, and one label in a row{remedy}."
            )
    for separator in ";|,/":
        parts = {label: {part.strip() for part in label.split(separator)} for label in labels}
        uses = Counter(part for found in parts.values() for part in found)
        for label, found in parts.items():
            if len(found) > 1 and all(part and uses[part] > 1 for part in found):
                raise InputError(
                    f"{name}: the label {label!r} is several labels, and a row has one: make a column of yes and no "
                    f"for each, and train on one at a time with `label_column_name`{remedy}."
                )


def check_repeated(name: str, values: list[str]):
    """
    Raises:
        InputError: nearly all of more than a few labels are different.
    """
    rows, different = len(values), len(set(values))
    if (rows >= 5 and different == rows) or (rows >= 20 and different > 0.9 * rows):
        raise InputError(
            f"{name}: {rows:,} rows have {different:,} different labels, such as {values[0][:LONGEST_NAME]!r}: name "
            "the column of the labels with `label_column_name`; numbers to predict need `do_regression` true, and "
            "classes as they stand `do_regression` false."
        )


def check_forms(name: str, labels: list[str]):
    """
    Raises:
        InputError: two labels differ only in blanks, case, width or composed accents, or are the same number.
    """
    forms: dict[object, str] = {}
    for label in labels:
        number = TRUTH.get(label.strip().casefold(), as_float(label))
        visible = "".join(one for one in unicodedata.normalize("NFKC", label) if unicodedata.category(one) != "Cf")
        form = " ".join(visible.casefold().split())
        same = forms.setdefault(form if number is None or not math.isfinite(number) else number, label)
        if same != label:
            raise InputError(
                f"{name}: the labels {same!r} and {label!r} differ only in blanks, case, width or form: write them "
                "in one way or, where they are two classes, give one of them another name."
            )


def is_whole(label: str) -> bool:
    """Whether a label is a whole number, perhaps as a float: 1, 1.0, 1e0."""
    number = as_float(label)
    return number is not None and number.is_integer() and abs(number) < 2**53


def with_whole_numbers(rows: Rows, column: str) -> Rows:
    """The rows with labels such as 1.0, as pandas writes them, as the classes 1 and so on. Prints that."""
    values = rows.columns[column]
    whole = [str(int(float(one))) if is_whole(one) and re.search("[.eE]", one) else one for one in values]
    changed = next((number for number, value in enumerate(values) if value != whole[number]), None)
    if changed is None:
        return rows
    PartialState().print(
        f"{rows.name}: the labels are whole numbers, so they are classes: {values[changed]} is {whole[changed]}; with "
        "--do_regression true they are numbers to predict"
    )
    return replace(rows, columns={**rows.columns, column: whole})


def is_regression(name: str, values: list[str], train: bool) -> bool:
    """
    Whether labels are numbers, some of them with a fraction. Prints if they are.

    Raises:
        InputError: some labels are words, others numbers with a point; or they are neither classes nor numbers
            (`check_single`, and to `train` on also `check_repeated`).
    """
    check_single(name, values)
    if has_fractions(name, values):
        PartialState().print(
            f"{name}: the labels are numbers with fractions, so this is a regression; with --do_regression false they "
            "are classes"
        )
        return True
    if train:
        check_repeated(name, values)
    return False


def has_fractions(name: str, values: list[str]) -> bool:
    if not any(as_float(value) is not None and re.search(r"[.eEnN]", value) for value in values):
        return False
    word = next((value for value in values if as_float(value) is None), None)
    if word is not None:
        raise InputError(
            f"{name}: the label {word!r} is a word, but others are numbers with fractions; say `do_regression` true "
            "or false."
        )
    return not all(map(is_whole, values))


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
    labels. Writes the labels into the configuration, if these are known.

    Raises:
        InputError: the head is for other labels, and there is no training.
    """
    known, labels = labels_of_model(config), data.labels
    if known is None and not train and can_classify(config):
        return with_unnamed_labels(data, default_names(config)), False
    new_head = False
    if labels is None:
        if known is None:
            raise InputError("the labels are unknown: give a model that was fine-tuned, or `train_file`.")
        data = TextData(known, data.splits)
    elif known and labels and {plain(label) for label in labels} <= {plain(label) for label in known}:
        data = data.numbered_as(known)
        if known != labels:
            names = [f"{label!r} is its {number}, {known[number]!r}" for label, number in by_name(labels, known)]
            PartialState().print(f"the labels of the data are those of the model by name: {listed(names)}")
    elif known is not None and known != labels:
        if not train:
            raise other_labels(known, labels)
        old, new = (listed(names) or "a number" for names in (known, labels))
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
    labels, of_model = data.labels, f"the model's labels have no names but {listed(own)}"
    if labels is None:
        PartialState().print(f"{of_model}, which are written as predictions")
        return TextData(own, data.splits)
    if not labels or len(labels) > len(own):
        raise other_labels(own, labels)
    if {plain(label) for label in labels} <= {plain(name) for name in own}:
        return data.numbered_as(own)
    numbers = list(range(len(labels)))
    if all(label.isdecimal() and int(label) < len(own) for label in labels):
        numbers = [int(label) for label in labels]
    assumed = list(own)
    for number, label in zip(numbers, labels, strict=True):
        assumed[number] = label
    names = [f"{own[number]} = {label!r}" for number, label in zip(numbers, labels, strict=True)]
    written = "; predictions are written as the model's own names" if data.of_kind("test") else ""
    PartialState().print(
        f"{of_model}: their order is unknown, and was taken to be that of the data ({listed(names)}); with the right "
        f"names in id2label of its config.json this is not needed{written}"
    )
    return TextData(own, data.renumbered(own, numbers).splits, assumed)


def other_labels(known: list[str], labels: list[str]) -> InputError:
    old, new = (listed(names) or "a number" for names in (known, labels))
    return InputError(
        f"the model's labels are {old}, and those of the data {new}; give data with the labels of the model, or train "
        "a new head with `do_train`."
    )


def listed(names: list[str], most: int = 20) -> str:
    """The first names, and how many more there are."""
    more = [f"and {len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*(name[:LONGEST_NAME] for name in names[:most]), *more])


def plain(name: str) -> str:
    """A name without what people write in different ways: case, width, and _, - or a blank between words."""
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", unicodedata.normalize("NFKC", name).strip()).casefold()


def by_name(labels: list[str], known: list[str]) -> list[tuple[str, int]]:
    return list(zip(labels, numbers_among(known, labels), strict=True))


def numbers_among(known: list[str], labels: list[str]) -> list[int]:
    """The number of each of `labels` among the `known` ones, which can be written in another way (`plain`)."""
    if set(labels) <= set(known):
        return [known.index(label) for label in labels]
    names = [plain(name) for name in known]
    return [names.index(plain(label)) for label in labels]


def labels_of_model(config: PreTrainedConfig) -> list[str] | None:
    """
    The labels of a model, in the order of their numbers: none for a regression, None if they have no names.

    Raises:
        InputError: id2label and label2id give them different numbers.
    """
    names, others = default_names(config), {name: int(number) for name, number in (config.label2id or {}).items()}
    if config.problem_type == "regression":
        return []
    if set(names) == set(others) and any(others[name] != number for number, name in enumerate(names)):
        raise InputError(
            f"the model's config.json numbers the labels {listed(names)} in one way in id2label and in another way in "
            "label2id: correct one of the two."
        )
    if is_named(names) or getattr(config, NAMED, False):
        return names
    if len(names) == 1:
        return []
    named = sorted(others, key=lambda name: others[name])  # the only place where some models have them
    return named if is_named(named) and [others[name] for name in named] == list(range(len(names))) else None


def is_named(names: list[str]) -> bool:
    """Whether these are not just LABEL_0 and so on, as transformers calls labels without names."""
    numbered = [re.fullmatch(r"label[ _-]?(\d+)", name, re.IGNORECASE) for name in names]
    return not all(match and int(match[1]) == number for number, match in enumerate(numbered))


def default_names(config: PreTrainedConfig) -> list[str]:
    """What the configuration calls the labels, by number: LABEL_0 and so on if nobody named them."""
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def can_classify(config: PreTrainedConfig) -> bool:
    """Whether the configuration names a model with a head for classes or scores."""
    return any("SequenceClassification" in name for name in config.architectures or ())


def write_predictions(
    folder: str, task: str | None, split: str, rows: datasets.Dataset, labels: list[str], predictions: np.ndarray
):
    """
    Write a file with the columns index and prediction: a GLUE submission's, or predict_results.txt.

    Args:
        labels: of the model; empty for a regression.
        predictions: numbers of labels, or scores, (rows,).
    """
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    names = names_of_task(task, labels) if task else labels
    written = [names[int(number)] for number in predictions] if labels else [f"{score:.3f}" for score in predictions]
    file = TASKS[task].submission(split) if task else "predict_results.txt"
    rows_of_file = [(one_field(index), one_field(name)) for index, name in zip(rows["index"], written, strict=True)]
    if rows_of_file != list(zip(rows["index"], written, strict=True)):
        PartialState().print(f"{file}: tabs and ends of lines in labels or indices are written as \\t, \\n and \\r")
    lines = [f"{index}\t{prediction}\n" for index, prediction in rows_of_file]
    write_whole(Path(folder, file), "index\tprediction\n" + "".join(lines))


def names_of_task(task: str, labels: list[str]) -> list[str]:
    """What a submission has for a model's labels: the task's names or numbers; the model's own where these differ."""
    names = [plain(name) for name in TASKS[task].labels]
    if not {plain(label) for label in labels} <= set(names):
        return labels
    numbers = [names.index(plain(label)) for label in labels]
    return [str(number) if TASKS[task].numbered else TASKS[task].labels[number] for number in numbers]


def one_field(text: str) -> str:
    """A text as one field of a file with tabs."""
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


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
