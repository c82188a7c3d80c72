"""Functions that read labels, sets of labels or scores from columns of a dataset, and compute class weights."""

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from accelerate import PartialState
from sklearn.preprocessing import MultiLabelBinarizer
from transformers import PreTrainedConfig

from ..data.file_formats import text_problem
from ..support.errors import InputError
from .labels import MULTI, REGRESSION, SINGLE, default_names, problem_type_of, shorten

MISSING = (-1, -100)  # Hugging Face datasets and transformers use these ids for missing labels
# The usual learning rates are made for targets near unit scale, such as those of STS-B (0 to 5).
MAX_MEAN, MIN_DEVIATION, MAX_DEVIATION = 10.0, 0.1, 10.0


@dataclass(frozen=True)
class LabelFormat:
    """
    The meaning of the values in the label columns of a dataset.

    Args:
        problem_type: As in transformers: one label, any number of labels, or scores for each text.
        names: Maps each value in the data to its label name. Empty for regression.
    """

    problem_type: str
    names: Mapping[str, str]

    @classmethod
    def infer(
        cls, rows: Collection[tuple], columns: tuple[str, ...], do_regression: bool | None, source: str
    ) -> "LabelFormat":
        """
        Infers the format from the values in the label columns of all `rows`.

        A single column contains one label, a list of labels, or a score for each text. Several columns contain 0 or 1
        for each label. By default, floats are scores, as in transformers' run_glue.py. Raises InputError, which names
        the `source`, if the values are ambiguous.
        """
        values = [value for row in rows for value in row if not is_missing(value)]
        strings = {str(value) for value in values if not isinstance(value, list)}
        # Floats, as pandas would parse them: all are numbers, and at least one has a decimal point or an exponent.
        are_floats = all(math.isfinite(as_float(text)) for text in strings) and any({*".eE"} & {*t} for t in strings)
        scores = do_regression or (do_regression is None and are_floats)
        if len(columns) > 1:
            flags = {flag_of(value) for value in values if not is_placeholder(value)}
            if do_regression or (do_regression is None and not flags <= {0, 1}):
                raise InputError(
                    f"{source}: the columns {', '.join(columns)} must contain 0 or 1 for each label; for regression, "
                    "train one model per column."
                )
            return cls(MULTI, {column: column for column in columns})
        lists = [value for value in values if isinstance(value, list)]
        items = [*chain(*lists)]
        if lists and (do_regression or any(isinstance(item, float) for item in items)):
            raise InputError(f"{source}: the labels are lists of scores; for regression, use one number per text.")
        if scores:
            return cls(REGRESSION, {})
        labels = {normalized(value) for value in (items if lists else strings) if not is_placeholder(value)}
        names = sorted(labels, key=label_sort_key)
        check_label_names(names, len(values), source)
        return cls(MULTI if lists else SINGLE, {name: name for name in names})

    def parse(self, values: Sequence) -> str | float | list:
        """Converts the values in a row's label columns to labels or scores. Raises ValueError if one is invalid."""
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
        if not isinstance(value, str | int | float):
            raise ValueError("the label is neither a string nor a number")
        if problem := text_problem(str(value), "the label"):
            raise ValueError(problem)
        name = normalized(value)
        if name in self.names:
            return self.names[name]
        if is_placeholder(value):
            raise ValueError(f"the label {name} stands for a missing label; if it is a class, rename it")
        raise ValueError(f"unknown label {value!r}; available labels: {shorten(self.names)}")

    def report(self, source: str, labels: Sequence, split: str):
        """Prints how many rows have each label. Raises InputError if the "train" split has fewer than two labels."""
        if self.problem_type == REGRESSION:
            return PartialState().print(f"{source}: {len(labels):,} rows with scores (regression)")
        counts = Counter(chain(*labels) if self.problem_type == MULTI else labels)
        names = dict.fromkeys(self.names.values())
        if split == "train" and len(names if self.problem_type == MULTI else counts) < 2:  # MULTI: a row can have none
            only = ", ".join(map(repr, counts)) or "empty lists"
            raise InputError(f"{source}: training needs at least two different labels; the rows contain only {only}.")
        if self.problem_type == SINGLE and len(counts) == 1:
            PartialState().print(f"{source}: all rows have the same label, so the metrics say little about the model")
        PartialState().print(f"{source}: labels {shorten(f'{name!r} ({counts[name]:,})' for name in names)}")


def check_label_names(names: list[str], rows: int, source: str):
    """Raises InputError if the strings in a label column are unlikely to be class names."""
    others = [name for name in names if not math.isfinite(as_float(name))]  # names that are not numbers
    if 0 < len(others) < len(names) and all(name.lower().strip("+-") in ("nan", "inf", "infinity") for name in others):
        raise InputError(f"{source}: the label {others[0]!r} is not a finite number; leave missing labels empty.")
    if (rows >= 5 and len(names) == rows) or (rows >= 20 and len(names) > 0.9 * rows):
        raise InputError(
            f"{source}: {rows:,} rows have {len(names):,} different labels, such as {shorten(names[:1])}; set "
            "`label_column_name`, or `do_regression` if they are scores."
        )


def is_missing(value: object) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def is_placeholder(value: object) -> bool:
    """Returns True if the value is missing, or a number that stands for a missing label."""
    return is_missing(value) or as_float(value) in MISSING


def flag_of(value: object) -> float:
    """Converts a value to a float: "True" or "False", as written by pandas, to 1 or 0, and non-numeric text to NaN."""
    return {"true": 1.0, "false": 0.0}.get(str(value).strip().lower(), as_float(value))


def normalized(value: object) -> str:
    """Returns a label as a string in which equal characters have equal code points (NFC)."""
    return unicodedata.normalize("NFC", str(value))


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


def encode_labels(labels: Sequence, label_ids: Mapping[str, int], config: PreTrainedConfig) -> np.ndarray:
    """
    Converts labels to the array on which a model is trained. `label_ids` maps label names to the model's label ids.

    If examples have one label, the array contains label ids (examples,). If they can have several labels, it contains
    multi-hot labels (examples, labels). Scores have shape (examples,).
    """
    problem_type = problem_type_of(config)
    if problem_type == SINGLE:
        return np.array([label_ids[name] for name in labels])
    if problem_type == MULTI:
        binarizer = MultiLabelBinarizer(classes=range(len(config.id2label or {})))
        return binarizer.fit_transform([[label_ids[name] for name in names] for names in labels]).astype(np.float32)
    return np.array(labels, dtype=np.float64)


def warn_of_scale(scores: np.ndarray):
    """Prints the mean and deviation of training targets that are so far from unit scale that training may fail."""
    mean, deviation = scores.mean(), scores.std()
    if abs(mean) > MAX_MEAN or not MIN_DEVIATION <= deviation <= MAX_DEVIATION:
        PartialState().print(
            f"the scores have mean {mean:.4g} and standard deviation {deviation:.4g}; for a useful model, rescale "
            f"them to a mean within ±{MAX_MEAN:g} and a standard deviation of {MIN_DEVIATION:g} to {MAX_DEVIATION:g}"
        )


def read_class_weights(text: str, labels: np.ndarray, config: PreTrainedConfig) -> dict[str, float]:
    """
    Returns the weight of each class and prints the weights.

    `text` is "balanced", or one number per class, separated by commas. Balanced weights are inversely proportional to
    the number of rows in each class, and their average over the rows is 1, as in scikit-learn. `labels` (rows,) are
    the label ids in the training data, and `config` contains the names of the classes.

    Raises InputError if the model does not predict one label per text, or the weights are invalid.
    """
    names = default_names(config)
    if config.problem_type != SINGLE:
        raise InputError("requires data with one label per text.", "class_weights")
    if text == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        weights = np.array([as_float(part) for part in text.split(",")])
        if len(weights) != len(names) or not (np.isfinite(weights) & (weights > 0)).all():
            raise InputError(
                f"{text!r}: must be balanced, or {len(names)} positive numbers for {shorten(names)}.", "class_weights"
            )
    result = dict(zip(names, weights.tolist(), strict=True))
    PartialState().print(f"class weights: {shorten(f'{name} {weight:.4g}' for name, weight in result.items())}")
    return result
