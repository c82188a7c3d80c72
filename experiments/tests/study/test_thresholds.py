"""Thresholds in the records of synthetic tasks: knees, agreement with predictions, and the text of reports."""

from dataclasses import replace

import pytest
from helpers import ROOT

from experiments.study.records import read_records
from experiments.study.report import make_report
from experiments.study.thresholds import KNEE, SUFFICES, TRANSITION, Growth, Threshold, fit_growth, thresholds_of
from experiments.tests.study_records import text_of


def test_knee():
    """Fits recover the knee or exponent of exact data, and a knee must fit clearly better than a power law."""
    sizes = [1, 2, 4, 8, 16, 32]

    def growth(amounts):
        return fit_growth(sizes, amounts)

    knee = growth([90 * min(size, 7) for size in sizes])
    assert knee.has_knee and knee.knee == pytest.approx(7, rel=0.02) and knee.power_residual > 0.2
    for power in (0, 0.5, 1):
        law = growth([90 * size**power for size in sizes])
        assert not law.has_knee and (law.exponent, law.power_residual) == pytest.approx((power, 0), abs=1e-12)
    assert Growth(8, 0.06, 0.5, 0.1).has_knee and not Growth(8, 0.08, 0.5, 0.1).has_knee  # ratios 0.36, 0.64


@pytest.mark.parametrize(
    "claim, measured, largest_miss, agrees",
    [
        (SUFFICES, 8, 4, True),
        (SUFFICES, 2, None, True),
        (SUFFICES, 16, 8, False),
        (SUFFICES, None, 16, False),
        (SUFFICES, 16, 4, None),  # 8 was not tried
        (SUFFICES, None, 4, None),
        (TRANSITION, 8, 6, True),
        (TRANSITION, 12, 6, True),  # 8 was not tried
        (TRANSITION, 6, 4, False),
        (TRANSITION, 12, 8, False),
        (TRANSITION, None, 8, False),
        (TRANSITION, 8, None, None),
        (TRANSITION, None, 6, None),
        (KNEE, 5.4, None, True),
        (KNEE, 5.3, None, False),
        (KNEE, None, None, False),
    ],
)
def test_agreement(claim, measured, largest_miss, agrees):
    """Each kind of prediction has its own rule for agreement: upper bounds, transitions and knees."""
    growth = Growth(5.4, 0.06, 0.5, 0.1) if claim == KNEE else None
    assert Threshold("a", claim, 8, None, measured, largest_miss, growth=growth).agrees is agrees
    assert Threshold("a", claim, None, 8, measured, largest_miss, growth=growth).agrees is None
    assert Threshold("a", KNEE, 8, None, None).agrees is None  # too few shapes
    assert Threshold("a", KNEE, 8, None, None, growth=growth, largest=12).agrees is None  # a knee may lie beyond


LINES = {
    "extremes": "8 tokens: predicted 4, measured 4, agrees; 9 of these runs did not converge",
    "recall": "1 head: predicted 2, measured 2, agrees; 3 of these runs did not converge",
    "memorise": "2 heads, n = 8: predicted 8, measured 6.01, agrees; residuals of 0.064, and of 0.12 for a power law "
    "with exponent 0.52; 12 of these runs did not converge",
}


@pytest.mark.parametrize("name", LINES)
def test_recorded_thresholds(name):
    """Reports state the predicted and measured thresholds, and the number of runs that did not converge."""
    assert f"\n- {LINES[name]}\n" in text_of(ROOT / f"experiments/head_size/records/{name}.jsonl")


def test_predictions_apply_to_one_axis():
    """A predicted number of heads is not compared with head sizes."""
    records = read_records([ROOT / "experiments/head_size/records/extremes.jsonl"])
    series = make_report([replace(record, axis="attention_head_size") for record in records]).series
    assert {one.predicted for one in thresholds_of(series, "num_attention_heads")} == {4}
    assert {one.predicted for one in thresholds_of(series, "attention_head_size")} == {None}
