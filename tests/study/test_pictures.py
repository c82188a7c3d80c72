"""The pictures of a study's report."""

import pytest
from helpers.study_records import RECORDS, curve, with_curves

from experiments.study.report import make_report
from experiments.study.report_files import bounds, curves_figure, metrics_figure, sideways
from experiments.study.shape_results import Estimate


def test_axis_of_differences():
    """Guards: zero, seeds and intervals are on the axis, and the interval of two seeds that disagree is cut."""
    low, high = bounds([Estimate({1: 1.0, 2: 1.1, 3: 0.9})])
    assert low == pytest.approx(-0.05 * 1.248414) and high == pytest.approx(1.05 * 1.248414)
    assert bounds([Estimate({1: 0.0, 2: 1.0})]) == (pytest.approx(-1.15), pytest.approx(2.15))  # not to 6.85
    assert bounds([Estimate({1: 0.0})])[0] < bounds([Estimate({1: 0.0})])[1]


def test_picture_of_curves():
    """Guards: a panel for each series, a line with its band for each pair, and none of a single seed."""
    whole, low = curve(5, 4, 3, 2, 1), curve(4, 3, 2, 1, 0.5)
    panels = curves_figure(make_report(with_curves({2: [whole, whole], 4: [whole, whole], 8: [low, low]}))).axes
    assert len(panels) == 1 and panels[0].get_xscale() == "log" and len(panels[0].collections) == 2
    drawn = [line for line in panels[0].lines if line.get_marker() == "o"]
    assert [line.get_label() for line in drawn] == ["heads 2 (2 seeds)", "heads 4 (2 seeds)"]
    assert list(drawn[0].get_xdata()) == [100, 200, 480, 700, 1000] and list(drawn[0].get_ydata()) == [1, 1, 1, 1, 0.5]
    (panel,) = curves_figure(make_report(with_curves({2: [whole], 4: [low]}))).axes
    assert len(panel.collections) == 0 and panel.lines[0].get_markerfacecolor() == "none"


def test_series_do_not_cover_each_other():
    """Guards: series at one place are drawn beside each other, in their order, and not as far as the next place."""
    names = [f"series {number}" for number in range(14)]
    places = sideways([*((name, 2) for name in names), ("series 3", 3), ("series 3", 32), ("series 5", 32)])
    at_two = [places[name, 2] for name in names]
    assert len(set(at_two)) == 14 and at_two == sorted(at_two) and at_two[0] * at_two[-1] == pytest.approx(4)
    assert at_two[-1] < places["series 3", 3] == 3 and places["series 3", 32] < 32 < places["series 5", 32]
    assert sideways([("a", 1000), ("b", 1001), ("a", 1000)])["b", 1001] > 1001  # parameters made equal: one place
    assert sideways([("a", 4)]) == {("a", 4): 4}


def test_equal_parameters_are_one_place():
    """Guards: shapes with as many parameters are moved sideways by little beside what the axis shows."""
    low, high = metrics_figure(make_report(RECORDS)).axes[1].get_xlim()
    assert low < 104_000 / 1.5 and high > 104_000 * 1.5
