"""The report of a comparison."""

import pytest

from fixedbert.comparison.report import RANDOM, SINGLE, ComparedModel, Comparison, may_be_chance

SPEEDS = dict.fromkeys((RANDOM, SINGLE), 1.5)


def compared(name: str, lost: int, gained: int) -> ComparedModel:
    numbers = {"scores": {"accuracy": 0.5}, "lost": lost, "gained": gained}
    return ComparedModel(name, "torch", 91.0, rows_per_second=SPEEDS, speedup=SPEEDS, **numbers)


def test_table_in_text_and_notebooks():
    """Text and notebooks show the same table, whose numbers are right-aligned, and name differences due to chance."""
    models = [compared("original", 0, 0), compared("close", 18, 13), compared("worse", 40, 10)]
    settings = {"file": "dev.csv", "rows": 872, "available": 872, "batch_size": 32, "max_seq_length": 128}
    result = Comparison(**settings, machine="CPU", models=models, item="row", notes=[], advice="", folder="")
    _, _, header, *lines = str(result).splitlines()
    assert header == "          rows/s  speedup  single  MB  accuracy  lost  gained  predictions"
    assert lines[:2] == [
        "original     1.5     1.50    1.50  91    0.5000     0       0",
        "close        1.5     1.50    1.50  91    0.5000    18      13",
    ]
    assert lines[-1] == "lost and gained may differ by chance (sign test, p > 0.05): close"
    page = result._repr_markdown_().splitlines()
    assert page[3] == "| --- | --- | --- | --- | --- | --- | --- | --- | --- |  "
    assert page[5] == "| close | 1.5 | 1.50 | 1.50 | 91 | 0.5000 | 18 | 13 |  |  " and page[-1] == lines[-1]


@pytest.mark.parametrize(
    "lost, gained, expected",
    [(18, 13, True), (40, 10, False), (5, 0, True), (0, 6, False), (0, 0, False), (None, None, False)],
)
def test_sign_test(lost, gained, expected):
    """The p-value of five losses without a gain is 2 / 2**5 = 0.06. Equal numbers show no difference."""
    assert may_be_chance(lost, gained) == expected
