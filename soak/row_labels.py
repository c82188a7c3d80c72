"""Kinds of labels in a column or several columns, and what they mean."""

import random
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from fixedbert.tasks.labels import MULTI, REGRESSION, SINGLE

NAMES = (
    ("yes", "no"), ("positive", "negative", "neutral"), ("É", "è", "ü"), ("B-PER", "I-PER", "O"), (".", ","),
    ("n/a", "null", "None"), ("日本", "中国"), ("x" * 70, "y" * 70), ("A1", "B2", "C3"), ("01", "02", "10"),
    ("1:2", "3:4"), ("2024-01-01", "2024-01-02"), ("nan", "deu", "eng"), ("true", "false"), ("1E1", "A1"),
    ("1e", "2e"), ("e1", "e2"), ("e\u0301", "a\u0301"), ("1%", "2%"), ("1/2", "3/4"), ("A", "a"), ("1.2.3", "1.2.4"),
    ("a\x0bb", "c\u2028d"), ("+", "-"), ("a b", "a,b", 'a"b'),
)  # fmt: skip
FLAGS = ((0, 1), (True, False), ("0", "1"), ("True", "False"), (0.0, 1.0), ("0.0", "1.0"), ("true", "false"))


class LabelKind(NamedTuple):
    """
    A kind of labels in one column.

    Attributes:
        draw: Returns the values for a number of rows.
        problem_type: What they mean; None if they must be refused unless `do_regression` is set.
        typed: Whether only formats with numbers and lists can contain them.
        fixed: Whether they must be refused whatever `do_regression` is.
    """

    draw: Callable[[random.Random, int], list]
    problem_type: str | None
    typed: bool = False
    fixed: bool = False


def each(values: tuple, rng: random.Random, count: int) -> list:
    """Draws `count` of the values, so that each occurs."""
    drawn = [*values, *rng.choices(values, k=max(0, count - len(values)))][:count]
    rng.shuffle(drawn)
    return drawn


def of(*choices: tuple) -> Callable[[random.Random, int], list]:
    """Returns a function that draws labels from one of several sets."""
    return lambda rng, count: each(rng.choice(choices), rng, count)


def scores(rng: random.Random, count: int) -> list:
    drawn = [round(rng.uniform(-3, 5), rng.choice((1, 2, 4))) for _ in range(count)]
    drawn[rng.randrange(count)] = rng.choice((0.5, 2.25, 1e-5))
    return [rng.choice((value, value, abs(round(value)))) for value in drawn] if rng.random() < 0.2 else drawn


def lists_of_names(rng: random.Random, count: int) -> list:
    names = [*rng.choice(NAMES)]
    return [names[:1], names[1:2], *(rng.sample(names, rng.randint(0, len(names))) for _ in range(count))][:count]


def lists_of_numbers(rng: random.Random, count: int) -> list:
    return [[0], [1], *(rng.sample([0, 1, 2], rng.randint(0, 3)) for _ in range(count))][:count]


def codes(rng: random.Random, count: int) -> list:
    return [f"{number % 9 + 1}E{number // 9 % 9 + 1}" for number in range(count)]


KINDS = {
    "names": LabelKind(of(*NAMES), SINGLE),
    "integers": LabelKind(of((0, 1), (0, 1, 2), (9, 10, 200), (-2, 2), (1, 2, 3, 4)), SINGLE),
    "booleans": LabelKind(of((True, False)), SINGLE),
    "padded": LabelKind(of((" yes", "yes", "no "), ("a ", "a", "b")), SINGLE),
    "scores": LabelKind(scores, REGRESSION),
    "lists of names": LabelKind(lists_of_names, MULTI, typed=True),
    "lists of numbers": LabelKind(lists_of_numbers, MULTI, typed=True),
    "whole floats": LabelKind(of((0.0, 1.0), (1.0, 2.0, 3.0), (0.0, 5.0)), None),
    "codes": LabelKind(of(("1E1", "1E2", "2E1"), ("1e0", "2e0"), ("0E1", "1E1", "5E3")), None),
    "many codes": LabelKind(codes, None),
    "commas": LabelKind(of(("1,5", "2,0", "3,25"), ("0,5", "1"), ("1.000,5", "2,5"), ("1,234.5", "0.5")), None),
    "lists of scores": LabelKind(lambda rng, count: ([[0.5, 1.5], [2.0]] * count)[:count], None, True, True),
    "different": LabelKind(lambda rng, count: [f"a{number}" for number in range(count)], SINGLE),
    "gaps": LabelKind(
        of(("0.5", "nan", "1.25"), ("1", "inf", "2"), ("1.5", "-Infinity"), ("1", "N/A", "2"), ("0.5", "?")),
        None,
        fixed=True,
    ),
    "texts and numbers": LabelKind(of(("0.5", "good"), ("1.5", "\u22121.5", "2"), ("1.0", "beta")), None),
    "spellings": LabelKind(of(("true", "True", "False"), ("TRUE", "true", "false")), SINGLE),
    "types": LabelKind(of((True, 1, 0)), SINGLE, typed=True),
}  # fmt: skip


class DrawnLabels:
    """The labels of a case: their columns, values and meaning. `columns` has several names for 0 or 1 in each."""

    def __init__(self, rng: random.Random):
        self.name = rng.choice([*KINDS, "flags", "flags", "names", "integers", "scores"])
        self.kind = KINDS.get(self.name)
        self.columns = ("l1", "l2", "l 3")[: rng.randint(2, 3)] if self.kind is None else (rng.choice(("label", "y")),)
        self.flags = rng.choice(FLAGS)
        is_fixed = self.kind is not None and self.kind.fixed
        self.do_regression = None if is_fixed else rng.choice((None, None, None, True, False))
        self.typed = self.kind is not None and self.kind.typed
        self.first: list = []  # the values in the first file

    @property
    def problem_type(self) -> str | None:
        """What the labels mean, or None if they must be refused."""
        if self.kind is None or (self.typed and self.kind.problem_type != SINGLE):
            kept = MULTI if self.kind is None else self.kind.problem_type
            return None if self.do_regression else kept
        if self.do_regression is None:
            return self.kind.problem_type
        return REGRESSION if self.do_regression else SINGLE

    def draw(self, rng: random.Random, count: int) -> list[tuple]:
        """Returns the values of all columns for each row. All but the first file can spell labels in another way."""
        if self.kind is None:
            return [tuple(rng.choice(self.flags) for _ in self.columns) for _ in range(count)]
        if not self.first:
            self.first = self.kind.draw(rng, count)
            return [(value,) for value in self.first]
        values = rng.choices(self.first, k=count)
        spell = {"integers": float, "booleans": lambda value: str(value).lower()}.get(self.name)
        if spell and self.problem_type == SINGLE and rng.random() < 0.5:
            values = [spell(value) for value in values]
        return [(value,) for value in values]

    def label(self, values: tuple) -> object:
        """Returns the label for the values in a row. Raises ValueError if it is not a score."""
        if self.kind is None:
            flags = [str(value).lower() in ("1", "1.0", "true") for value in values]
            return [column for column, flag in zip(self.columns, flags, strict=True) if flag]
        if self.problem_type == REGRESSION:
            return float(values[0])
        if isinstance(values[0], list):
            return [spelled(value) for value in values[0]]
        name = spelled(values[0])
        names = [spelled(value) for value in self.first]
        plain = " ".join(name.lower().removesuffix(".0").split())
        same = (first for first in names if " ".join(first.lower().split()) == plain)
        return name if name in names else next(same, name)

    def may_be_refused(self) -> bool:
        """Returns True if the rows of the first file are unusual, so that a refusal is right, too."""
        if self.kind is None or self.typed:
            return self.name == "lists of numbers" or (self.typed and self.do_regression is not None)
        no_numbers = ("names", "padded", "booleans", "texts and numbers", "different", "spellings")
        if self.do_regression and self.name in no_numbers:
            return True
        return self.problem_type == SINGLE and self.name in ("scores", "different")


def spelled(value: object) -> str:
    return unicodedata.normalize("NFC", str(value)).strip()
