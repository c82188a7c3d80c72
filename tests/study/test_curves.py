"""Learning curves in the report of a study: which runs are compared, where, and how they are judged."""

import pytest
from helpers.study_records import RECORDS, curve, report, with_curves, write

from experiments.study.report import CurveDifference, make_report
from experiments.study.report_files import curves_figure
from experiments.study.report_text import limits_of
from experiments.study.shape_results import Estimate


def test_curves_are_exact(tmp_path):
    """Guards: differences against tokens, their change from half of the training and what it is called, by hand."""
    records = with_curves(
        {
            2: [curve(5, 4, 3.5, 3.2, 3), curve(5.5, 4, 3.725, 3.2, 3.125)],
            4: [curve(4, 3.75, 3, 3.1, 2.875), [[101, 4.5], *curve(0, 3, 3.125, 3, 3)[1:]]],
        }
    )
    (along,) = make_report(records).curves
    assert (along.from_value, along.to_value) == (4, 2)  # less the largest
    assert list(along.differences) == [100, 200, 480, 700, 1000]
    assert along.differences[100].by_seed == {1: 1.0, 2: 1.0}  # 101 tokens are the same evaluation
    assert along.decay_from is None and (along.middle, along.judged) == (480, [100, 200, 480, 700, 1000])
    assert along.change.by_seed == {1: pytest.approx(0.125 - 0.5), 2: pytest.approx(0.125 - 0.6)}
    assert along.trend == "within the spread"  # -0.425 with 12.706205 * 0.05
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "differences seed by seed; changes are from half of the training to its end, or" in text
    values = "+1 ± 0 at 100 tokens, +0.55 ± 0.64 at 480 tokens, +0.125 ± 0 at 1,000 tokens"
    assert (
        f"- standard, heads 4 to 2: {values}; change from 480 to 1,000 tokens -0.425 ± 0.64, within the spread\n"
        in text
    )
    assert "- The learning rate falls between evaluations: none but the last is the end of a run" in text
    assert (tmp_path / "out" / "curves.png").exists()


def test_curves_that_not_all_runs_have(tmp_path):
    """Guards: evaluations, seeds and shapes without a counterpart, diverged runs, and old records are left out."""
    whole, short = curve(5, 4, 3, 2, 1), curve(5, 4, 3, 2, 1)[1:3]
    records = with_curves({2: [whole, whole, whole], 4: [whole, short, None], 8: [None, None, None]})
    (along,) = make_report(records).curves
    assert {tokens: list(one.by_seed) for tokens, one in along.differences.items()} == {200: [1, 2], 480: [1, 2]}
    assert (along.middle, along.judged) == (200, [200, 480])
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "heads 4 to 2: +0 ± 0 at 200 tokens, +0 ± 0 at 480 tokens; change" in text
    records[1]["results"] = {"loss": None}
    assert list(make_report(records).curves[0].differences) == [100, 200, 480, 700, 1000]
    assert make_report(with_curves({2: [whole], 4: [short[:1]]})).curves == []
    assert make_report(RECORDS).curves == []
    wide = [{**one, "curve": whole} for one in RECORDS if one["series"] == "wide" or one["point"] == 1]
    (between,) = make_report(wide).curves
    assert (between.from_series, between.from_value, between.to_series, between.to_value) == ("standard", 4, "wide", 8)


def test_curves_are_judged_before_the_learning_rate_falls(tmp_path):
    """Guards: where the rate is constant and then falls, the change is one of the constant part, by hand; and what the
    fall adds to one shape more than to the other is in the end alone."""
    records = with_curves({2: [curve(5, 4, 3.5, 3, 2), curve(5, 4, 3.5, 3, 2.5)], 4: [curve(4, 3, 3, 2.5, 2)] * 2})
    records = [{**record, "decay_from": 700 + record["seed"]} for record in records]
    (along,) = make_report(records).curves
    assert (along.decay_from, along.middle, along.judged) == (700, 480, [100, 200, 480, 700])
    assert along.change.by_seed == {1: 0.0, 2: 0.0} and along.trend == "within the spread"
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    values = "+1 ± 0 at 100 tokens, +0.5 ± 0 at 480 tokens, +0.5 ± 0 at 700 tokens, +0.25 ± 3.2 at 1,000 tokens"
    assert f"{values}; change from 480 to 700 tokens +0 ± 0, within the spread\n" in text
    assert "- Changes along a run are those before the learning rate falls" in text
    assert "The learning rate falls between" not in text
    lines_drawn = curves_figure(make_report(records)).axes[0].lines
    assert [list(line.get_xdata()) for line in lines_drawn if line.get_linestyle() == ":"] == [[700, 700]]
    constant = make_report([{**record, "decay_from": 1000} for record in records])  # to the end
    assert constant.curves[0].judged == [100, 200, 480, 700, 1000]
    assert not any("learning rate falls" in limit for limit in limits_of(constant))
    alone = [{**record, "decay_from": 100} for record in records]  # a single evaluation before
    assert make_report(alone).curves[0].judged == [100, 200, 480, 700, 1000]


def test_curves_of_different_schedules():
    """Guards: no difference is taken where the rate of one run falls and that of the other does not, or where both
    fall in runs of different lengths."""
    whole = curve(5, 4, 3, 2, 1)
    longer = [*whole, [2000, 0.5]]
    for early, late, other, expected in (
        (200, 700, whole, [100, 200, 1000]),
        (200, 700, longer, [100, 200]),
        (None, 700, whole, None),  # the end alone
        (None, None, longer, None),
        (None, None, [*whole[:-1], [1005, 1]], [100, 200, 480, 700, 1005]),
    ):
        records = with_curves({2: [whole, whole], 4: [other, other]})
        found = make_report([{**one, "decay_from": late if one["point"] else early} for one in records]).curves
        assert [list(one.differences) for one in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "middle, last, trend",
    [
        ([0.4, 0.5], [0.2, 0.3], "closing"),
        ([-0.4, -0.5], [-0.2, -0.3], "closing"),
        ([0.4, 0.5], [0.6, 0.7], "growing"),
        ([-0.4, -0.5], [-0.6, -0.7], "growing"),
        ([0.4, 0.5], [-0.6, -0.5], "reversing"),
        ([0.4, 0.5], [-0.2, -0.1], "closing"),
        ([0.4, 0.5], [0.2, 0.5], "within the spread"),
        ([0.4], [0.2], None),
    ],
)
def test_trend(middle, last, trend):
    """Guards: the one rule for closing, growing, reversing and neither, for both signs."""
    both = {500: Estimate(dict(enumerate(middle))), 1000: Estimate(dict(enumerate(last)))}
    assert CurveDifference("a", 2, "a", 4, both).trend == trend
