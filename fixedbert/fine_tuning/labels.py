"""
Labels of texts: what a column of labels is, and whose names and numbers a model and its data use.

What is wrong with a row's label is said here; `check_usable` of rows.py refuses the rows.
"""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import replace

from accelerate import PartialState
from transformers import PreTrainedConfig

from ..data.glue import TASKS
from ..support.errors import InputError
from .rows import Rows, as_float

SHOWN, LONGEST_NAME = 20, 100  # labels in a message, and characters of each
NAMED = "labels_are_names"  # in a configuration: somebody named the labels LABEL_0 and so on, as transformers would
TRUTH = {"true": 1.0, "false": 0.0}  # as numbers of JSON and of pandas


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


def flag_columns(rows: Rows) -> list[str]:
    """The columns that hold 0 and 1 alone, or true and false."""
    forms = {
        name: {str(one).strip().casefold().removesuffix(".0") for one in rows.columns[name]} for name in rows.columns
    }
    return [name for name, found in forms.items() if found <= {"0", "1", "true", "false"}]


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
        "`do_regression` true they are numbers to predict"
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
    word = next((value for value in values if as_float(value) is None), None)
    if any(as_float(value) is not None and re.search(r"[.eEnN]", value) for value in values):
        if word is not None:
            raise InputError(
                f"{name}: the label {word!r} is a word, but others are numbers with fractions; say `do_regression` "
                "true or false."
            )
        if not all(map(is_whole, values)):
            PartialState().print(
                f"{name}: the labels are numbers with fractions, so this is a regression; with `do_regression` false "
                "they are classes"
            )
            return True
    if train:
        check_repeated(name, values)
    return False


def by_number(label: str) -> tuple:
    """The order of labels: numbers by value, names after them by letter."""
    number = as_float(label)
    return (number is None, number or 0.0, label)


def problem_of_label(value: str, labels: list[str]) -> str | None:
    """What is wrong with a label, which has to be one of `labels` or, if there are none, a finite number."""
    number = as_float(value)
    if not labels and (number is None or not math.isfinite(number)):
        return f"the label {value!r} is not a finite number"
    if not labels or value in labels:
        return None
    kind = "a fraction, not a class" if number is not None and not number.is_integer() else "unknown"
    return f"the label {value!r} is {kind}; there are {', '.join(labels)}"


def other_labels(known: list[str], labels: list[str]) -> InputError:
    old, new = (enumerated(names) or "a number" for names in (known, labels))
    return InputError(
        f"the model's labels are {old}, and those of the data {new}; give data with the labels of the model, or train "
        "a new head with `do_train`."
    )


def enumerated(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*(name[:LONGEST_NAME] for name in names[:SHOWN]), *more])


def plain(name: str) -> str:
    """A name without what people write in different ways: case, width, and _, - or a blank between words."""
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", unicodedata.normalize("NFKC", name).strip()).casefold()


def same_names(labels: list[str], known: list[str]) -> bool:
    """Whether all labels are among the known ones, perhaps written in another way."""
    return {plain(label) for label in labels} <= {plain(name) for name in known}


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
            f"the model's config.json numbers the labels {enumerated(names)} in one way in id2label and in another "
            "way in label2id: correct one of the two."
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


def names_of_task(task: str, labels: list[str]) -> list[str]:
    """What a submission has for a model's labels: the task's names or numbers; the model's own where these differ."""
    names = list(TASKS[task].labels)
    if not same_names(labels, names):
        return labels
    return [str(number) if TASKS[task].numbered else names[number] for number in numbers_among(names, labels)]
