"""Plots of training runs."""

import sys

import pytest
from matplotlib.figure import Figure

from fixedbert.training.plots import draw_fine_tuning, draw_pretraining

FINE_TUNING = [{"loss": 0.7, "step": 1}, {"eval_loss": 0.6, "eval_matthews_correlation": -0.1, "step": 2}]


@pytest.fixture
def panels(monkeypatch):
    """A list of the axes of all figures that the test saves."""
    saved = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: (saved.extend(figure.axes), original(figure, file)))
    return saved


def test_fine_tuning(tmp_path, panels):
    """The figure shows losses and metrics, which can be negative, as curves, or as bars after one evaluation."""
    draw_fine_tuning([*FINE_TUNING, *FINE_TUNING], "rte", tmp_path / "a.png")
    legends = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in panels]
    assert legends == [["training", "validation"], ["matthews_correlation"]] and panels[1].get_ylim()[0] < 0
    draw_fine_tuning(FINE_TUNING, "rte", tmp_path / "b.png")
    assert [bar.get_width() for bar in panels[3].patches] == [-10] and panels[3].get_xlim()[0] <= -10


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Without matplotlib, a run only logs a warning."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_pretraining(FINE_TUNING, "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text
