"""The labels of a dataset, from the values in its columns to the outputs of a model and back."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Number
from typing import Any

import numpy as np
from accelerate import PartialState
from sklearn.preprocessing import MultiLabelBinarizer
from transformers import PreTrainedConfig

from ..data.file_formats import text_problem
from ..support.errors import InputError

MAX_LISTED, MAX_CHARACTERS = 20, 300  # maximum number of labels or rows in a message, and of characters for each
# The values of `problem_type`, as in transformers: one label, any number of labels, or a score for each text.
SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MAX_CLASSES = 20  # up to this many different whole numbers can be classes, even if they are written as floats
NOT_NUMBERS = ("nan", "inf", "infinity", "na", "n/a", "none", "null", "?", "")  # in a column of numbers, not classes
MISSING = (-1, -100)  # Hugging Face datasets and transformers use these ids for missing labels
# The usual learning rates are made for targets near unit scale, such as those of STS-B (0 to 5).
MAX_MEAN, MIN_DEVIATION, MAX_DEVIATION = 10.0, 0.1, 10.0


@dataclass
class Labels:
    """
    The labels of a dataset: how they are read from its columns, and which output of a model predicts each.

    Args:
        problem_type: As in transformers: one label, any number of labels, or a score for each text.
        names: Maps each value in the data to its label name. Empty for regression.
        columns: The columns that contain the labels.

    Attributes:
        outputs: The label names of the model, in the order of its outputs. Set by `match` and `align`.
        ids: Maps each label name to the index of the output that predicts it. Set by `match` and `align`.
    """

    problem_type: str
    names: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ("label",)

    def __post_init__(self):
        self.outputs: list[str] = []
        self.ids: dict[str, int] = {}

    @classmethod
    def infer(
        cls, rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...], do_regression: bool | None, source: str
    ) -> "Labels":
        """
        Infers the labels from the values in the label columns of all `rows`.

        A single column contains one label, a list of labels, or a score for each text. Several columns contain 0 or 1
        for each label. By default, floats are scores, as in transformers' run_glue.py, unless they are few whole
        numbers. Raises InputError, which names the `source`, if the values are ambiguous.
        """
        given = [value for row in rows for value in map(row.get, columns) if not is_missing(value)]
        values = [value for value in given if isinstance(value, list) or not label_problem(value)]
        strings = {str(value) for value in values if not isinstance(value, list)}
        # Floats, as pandas would parse them: all are numbers, and at least one has a decimal point or an exponent.
        are_floats = all(math.isfinite(as_float(text)) for text in strings) and any({*".eE"} & {*t} for t in strings)
        scores = do_regression or (do_regression is None and are_floats)
        if len(columns) > 1:
            if do_regression:
                raise InputError(f"{source}: there are {len(columns)} label columns; train one model for each score.")
            return cls(MULTI, {column: column for column in columns}, columns)
        lists = [value for value in values if isinstance(value, list)]
        items = [*chain(*lists)]
        if lists and (do_regression or any(isinstance(item, float) for item in items)):
            raise InputError(f"{source}: the labels are lists of scores; for regression, use one number per text.")
        if do_regression is None and not lists:
            check_scores(sorted(strings, key=label_sort_key), are_floats, source)
        if scores:
            return cls(REGRESSION, {}, columns)
        found = [
            value for value in (items if lists else strings) if not (is_placeholder(value) or label_problem(value))
        ]
        names = sorted({*map(normalized, found)}, key=label_sort_key)
        if do_regression is None:
            check_gaps(names, source)
        return cls(MULTI if lists else SINGLE, {name: name for name in names}, columns)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "Labels":
        """Returns the labels that a model predicts, for data without labels."""
        known, problem_type = known_names(config), problem_type_of(config)
        if known is None:
            raise InputError("neither the data nor the model has labels; use a fine-tuned model, or set `train_file`.")
        if problem_type == REGRESSION and known:
            raise InputError(f"the model predicts {len(known)} scores per text; use a model with a single score.")
        labels = cls(problem_type, {name: name for name in known})
        labels.match(known)
        return labels

    @property
    def classes(self) -> list[str]:
        """The label names in the data. Empty for regression."""
        return [*dict.fromkeys(self.names.values())]

    # Reading

    def parse(self, row: Mapping[str, Any]) -> str | float | list[str]:
        """Converts the values in a row's label columns to labels or a score. Raises ValueError if one is invalid."""
        values = [row.get(column) for column in self.columns]
        if any(is_missing(value) for value in values):
            raise ValueError("the label is missing")
        if self.problem_type == REGRESSION:
            score = as_float(values[0])
            if not math.isfinite(score):
                raise ValueError(f"the label {str(values[0])!r} is not a finite number")
            return score
        if self.problem_type == SINGLE:
            return self.name_of(values[0])
        if len(values) == 1 and isinstance(values[0], list):
            names = [self.name_of(value) for value in values[0]]
            if len({*names}) < len(names):
                raise ValueError(
                    "the list contains duplicate labels; if its items are 0 or 1, use a separate column for each label"
                )
            return names
        flags = [flag_of(value) for value in values]
        if len(values) != len(self.names) or not {*flags} <= {0, 1}:
            raise ValueError(f"the labels {', '.join(map(str, values))!r} are not all 0 or 1")
        return [name for name, flag in zip(self.names, flags, strict=True) if flag]

    def name_of(self, value: object) -> str:
        if is_missing(value):
            raise ValueError("the label is missing")
        if problem := label_problem(value):
            raise ValueError(problem)
        if (name := normalized(value)) in self.names:
            return self.names[name]
        if similar := match_names([name], [*self.names]):  # such as "False" for the class "false"
            return [*self.names.values()][similar[0]]
        if is_placeholder(value):
            raise ValueError(f"the label {name} stands for a missing label; if it is a class, rename it")
        raise ValueError(f"unknown label {value!r}; available labels: {shorten(self.names)}")

    def report(self, source: str, labels: Sequence, split: str):
        """Prints how many rows have each label. Raises InputError if the "train" split has fewer than two labels."""
        if split != "train" and self.problem_type != MULTI and len({*labels}) == 1:
            PartialState().print(f"{source}: all rows have the same label, so the metrics say little about the model")
        if self.problem_type == REGRESSION:
            kind = "scores (regression)" if split == "train" else "labels 0 or 1" if {*labels} <= {0, 1} else "scores"
            PartialState().print(f"{source}: {len(labels):,} rows with {kind}")
            if split == "train":
                warn_of_scale(np.array(labels))
            return
        counts = Counter(chain(*labels) if self.problem_type == MULTI else labels)
        classes = self.classes
        different = classes if self.problem_type == MULTI else counts  # MULTI: a row can have none
        if split == "train" and len(different) < 2:
            only = ", ".join(map(repr, counts)) or "empty lists"
            raise InputError(f"{source}: training needs at least two different labels; the rows contain only {only}.")
        PartialState().print(f"{source}: labels {shorten(f'{name!r} ({counts[name]:,})' for name in classes)}")

    # Matching with a model

    def match(self, outputs: list[str]) -> bool:
        """Matches the labels with a model's `outputs` by name. Returns False if the model lacks a label."""
        matched = match_names(self.classes, outputs)
        if matched is not None:
            self.outputs, self.ids = outputs, dict(zip(self.classes, matched, strict=True))
        return matched is not None

    def align(self, config: PreTrainedConfig, train: bool = False) -> bool:
        """
        Matches the labels with a model's labels by name. Also writes the label names to the model's `config`.

        Returns True if the model's head must be replaced, because it was trained for different labels or a different
        problem type. Unless the model will be trained, this raises InputError.
        """
        check_label_ids(config)
        known, own_type = known_names(config), problem_type_of(config)
        new_head = self.problem_type != own_type and (is_fine_tuned(config) or config.problem_type is not None)
        may_match = self.classes or self.problem_type == MULTI  # no text may have a label
        if new_head or not (known and may_match and self.match(known)):
            new_head = new_head or (known is not None and known != self.classes)
            theirs, ours = describe(known or [], own_type), describe(self.classes, self.problem_type)
            if new_head and not train:
                raise InputError(
                    f"the model predicts {theirs}, but the data contain {ours}; use data with the same labels, "
                    "correct id2label in the model's config.json, or fine-tune the model on data with these labels."
                )
            if new_head:
                PartialState().print(f"replacing the model's head for {theirs} with a new head for {ours}")
            self.match(self.classes)
        config.id2label = dict(enumerate(self.outputs or ["LABEL_0"]))
        config.label2id = {name: number for number, name in config.id2label.items()}
        config.problem_type = self.problem_type  # type: ignore[assignment]
        return new_head

    def encode(self, labels: Sequence) -> np.ndarray:
        """
        Converts labels to the array on which a model is trained.

        If texts have one label, the array contains label ids (texts,). If they can have several labels, it contains
        multi-hot labels (texts, labels). Scores have shape (texts,).
        """
        if self.problem_type == SINGLE:
            return np.array([self.ids[name] for name in labels])
        if self.problem_type == MULTI:
            binarizer = MultiLabelBinarizer(classes=range(len(self.outputs)))
            return binarizer.fit_transform([[self.ids[name] for name in row] for row in labels]).astype(np.float32)
        return np.array(labels, dtype=np.float64)

    def decode(self, predictions: np.ndarray) -> list[str]:
        """Returns the names of predicted labels, in the format of `encode`. Several names are joined by commas."""
        if self.problem_type == SINGLE:
            return [self.outputs[label] for label in predictions]
        return [", ".join(self.outputs[label] for label in np.flatnonzero(flags)) for flags in predictions]

    def class_weights(self, text: str, label_ids: np.ndarray) -> dict[str, float]:
        """
        Returns the weight of each class and prints the weights.

        `text` is "balanced", or one number per class, separated by commas. Balanced weights are inversely
        proportional to the number of rows in each class, and their average over the rows is 1, as in scikit-learn.
        `label_ids` (rows,) are those of the training data.
        """
        if self.problem_type != SINGLE:
            several = self.problem_type == MULTI
            remedy = "to predict rare labels more often, lower `threshold`" if several else "leave it out"
            raise InputError(f"requires data with one label per text; {remedy}.", "class_weights")
        if text == "balanced":
            counts = np.bincount(label_ids, minlength=len(self.outputs))
            weights = len(label_ids) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        else:
            weights = np.array([as_float(part) for part in text.split(",")])
            if len(weights) != len(self.outputs) or not (np.isfinite(weights) & (weights > 0)).all():
                numbers = f"{len(self.outputs)} positive numbers for {shorten(self.outputs)}"
                raise InputError(f"{text!r}: must be balanced, or {numbers}.", "class_weights")
        result = dict(zip(self.outputs, weights.tolist(), strict=True))
        PartialState().print(f"class weights: {shorten(f'{name} {weight:.4g}' for name, weight in result.items())}")
        return result


# Values in the data


def check_gaps(names: list[str], source: str):
    """Raises InputError if all labels are numbers except for texts that stand for a missing number."""
    others = [name for name in names if not math.isfinite(as_float(name))]
    if 0 < len(others) < len(names) and all(name.lower().strip("+-") in NOT_NUMBERS for name in others):
        raise InputError(
            f"{source}: the label {others[0]!r} is not a finite number; leave missing labels empty, or set "
            "`do_regression` to false if they are different classes."
        )


def check_scores(strings: list[str], are_floats: bool, source: str):
    """
    Raises InputError if labels can be scores and classes: few different whole numbers with a decimal point, codes such
    as 1E2, decimal numbers next to other texts, or numbers with commas.
    """
    decimals = [text for text in strings if "." in text and math.isfinite(as_float(text))]
    others = [text for text in strings if not math.isfinite(as_float(text))]
    are_whole = all(as_float(text).is_integer() for text in strings) and len(strings) <= MAX_CLASSES
    have_commas = any("," in text for text in strings) and all(re.fullmatch(r"[+-]?\d[\d.,]*", x) for x in strings)
    if (are_floats and (are_whole or not decimals)) or (decimals and others) or have_commas:
        shown = [*others, *decimals] if decimals and others else strings
        raise InputError(
            f"{source}: the labels {shorten(shown)} can be scores or classes; set `do_regression` to false for "
            "classes, or to true for scores, which need decimal points."
        )


def warn_of_scale(scores: np.ndarray):
    """Prints the mean and deviation of training targets that are so far from unit scale that training may fail."""
    mean, deviation = scores.mean(), scores.std()
    if abs(mean) > MAX_MEAN or not MIN_DEVIATION <= deviation <= MAX_DEVIATION:
        PartialState().print(
            f"the scores have mean {mean:.4g} and standard deviation {deviation:.4g}; for a useful model, rescale "
            f"them to a mean within ±{MAX_MEAN:g} and a standard deviation of {MIN_DEVIATION:g} to {MAX_DEVIATION:g}"
        )


def label_problem(value: object) -> str | None:
    """Returns the reason why `value`, which is not missing, is no label, or None if it is valid."""
    if not isinstance(value, str | Number):
        return f"the label {str(value)[:MAX_CHARACTERS]!r} is neither a string nor a number"
    return text_problem(str(value), "the label") or (
        "the label contains a NUL character" if "\0" in str(value) else None
    )


def is_missing(value: object) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def is_placeholder(value: object) -> bool:
    """Returns True if the value is missing, or a number that stands for a missing label."""
    return is_missing(value) or as_float(value) in MISSING


def flag_of(value: object) -> float:
    """Converts a value to a float. "True" and "False", which pandas writes, become 1 and 0; other text becomes NaN."""
    return {"true": 1.0, "false": 0.0}.get(str(value).strip().lower(), as_float(value))


def normalized(value: object) -> str:
    """Returns a label as a string without outer spaces, in which equal characters have equal code points (NFC)."""
    return unicodedata.normalize("NFC", str(value)).strip()


def as_float(label: object) -> float:
    """Returns the label as a float, or NaN if it is not a number."""
    try:
        return float(label)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def label_sort_key(label: str) -> tuple:
    """Sort key that orders numbers by value, followed by all other labels in alphabetical order."""
    number = as_float(label)
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)


# Labels of a model


def problem_type_of(config: PreTrainedConfig) -> str:
    """Returns the model's `problem_type`. By default, this is regression for a single output, as in transformers."""
    return config.problem_type or (REGRESSION if config.num_labels == 1 else SINGLE)


def is_fine_tuned(config: PreTrainedConfig) -> bool:
    return any("SequenceClass" in name for name in config.architectures or ())


def default_names(config: PreTrainedConfig) -> list[str]:
    """Returns the label names in id2label, ordered by label id."""
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def known_names(config: PreTrainedConfig) -> list[str] | None:
    """Returns the label names of a model: an empty list for a single score, None if it was not trained for labels."""
    names = default_names(config)
    if len(names) == 1 and problem_type_of(config) == REGRESSION:
        return []
    return None if is_unnamed(names) and not is_fine_tuned(config) else names


def check_label_ids(config: PreTrainedConfig):
    """Raises InputError if id2label and label2id contradict each other."""
    names, ids = default_names(config), config.label2id or {}
    if {*names} == {*ids} and any(int(ids[name]) != number for number, name in enumerate(names)):
        raise InputError(
            f"id2label and label2id in the model's config.json assign different ids to {shorten(names)}; correct "
            "one of these two fields."
        )


def match_names(names: list[str], known: list[str]) -> list[int] | None:
    """
    Returns each name's index in `known`, or None if a name is missing.

    Unless all names match exactly, ignores case and differences in the spaces, hyphens or underscores between words.
    The numbers 0, 1, ... match transformers' default names LABEL_0, LABEL_1, ...
    """
    numbers = [str(number) for number in range(len(known))]
    for ours, theirs in (
        (names, known),
        ([*map(simplified, names)], [*map(simplified, known)]),
        (names, numbers if is_unnamed(known) else []),
    ):
        if {*ours} <= {*theirs} and len({*ours}) == len(ours) and len({*theirs}) == len(theirs):
            return [theirs.index(name) for name in ours]
    return None


def simplified(name: str) -> str:
    whole = re.sub(r"^(-?\d+)\.0+$", r"\1", name.strip())  # as pandas writes integers in a column with gaps
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", whole).casefold()


def is_unnamed(names: list[str]) -> bool:
    """Returns True if the names are transformers' defaults: LABEL_0, LABEL_1, ..."""
    return all(re.fullmatch(rf"label[ _-]?{number}", name, re.IGNORECASE) for number, name in enumerate(names))


# Messages


def describe(names: list[str], problem_type: str) -> str:
    """Returns a description of the labels for messages, such as "one label per text (no, yes)"."""
    kind = {SINGLE: "one label per text", MULTI: "several labels per text", REGRESSION: "scores"}[problem_type]
    return f"{kind} ({shorten(names)})" if names else kind


def shorten(names: Iterable[str], separator: str = ", ") -> str:
    """Joins names for a message. If there are many, lists the first ones and the number of the others."""
    names = [name[:MAX_CHARACTERS] for name in names]
    more = [f"and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
    return separator.join([*names[:MAX_LISTED], *more])
