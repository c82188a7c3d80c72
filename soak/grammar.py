"""Hypothesis draws what has a grammar: JSON values, table cells, columns of labels, names of fields."""

import math

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

HALF_PAIR = "\ud83d"
ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\ufeff",
    "\r\n",
    '"',
    "\t",
    HALF_PAIR,
    "NaN",
    "None",
    "false",
    "[SEP]",
    "../..",
    "x" * 200_000,
]
ODD_NUMBERS = [0, -1, 2**31, 2**63, 10**400, -0.0, 1e308, math.inf, math.nan]

texts = st.one_of(st.text(max_size=30), st.sampled_from(ODD_TEXTS))
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from(ODD_NUMBERS))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
containers = st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars | st.lists(scalars), max_size=3)
json_values = scalars | scalars | containers
words = st.sampled_from(["yes", "no", "maybe"])
whole = st.integers(0, 3).map(str)
fractions = st.floats(0, 5, width=16).map(lambda value: f"{value:.2f}")
LABELS = {  # by what a column of labels has: the strategy of a cell
    "words": words,
    "whole numbers": whole,
    "fractions": fractions,
    "fractions and a word": fractions,
    "fractions and a missing one": fractions,
    "words and lists": words | st.just('["yes", "no"]'),
    "numbers that are none": st.sampled_from(["nan", "inf", "-inf", "1e400", "0.5"]),
    "row numbers": whole,
}


def label_column(rows: int):
    """(kind, a text for each row)."""

    def finished(kind: str, cells: list[str]) -> tuple[str, list[str]]:
        if kind.startswith("fractions and"):
            cells[len(cells) // 2] = "" if "missing" in kind else "high"
        return kind, [str(number) for number in range(rows)] if kind == "row numbers" else cells

    return st.sampled_from(sorted(LABELS)).flatmap(
        lambda kind: st.lists(LABELS[kind], min_size=rows, max_size=rows).map(lambda cells: finished(kind, cells))
    )


def drawn(strategy, number: int):
    """The value that a seed gives; Hypothesis begins with the simplest ones, so that the sixth is taken."""
    found = []

    @seed(number)
    @settings(
        max_examples=6, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def collect(value):
        found.append(value)

    collect()
    return found[-1]


def type_of(value: object) -> str:
    """The type of a JSON value, with the values that break most kept apart."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "no finite number"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "half a surrogate pair" if any(0xD800 <= ord(letter) < 0xE000 for letter in value) else "text"
    return "a list" if isinstance(value, list) else "an object"
