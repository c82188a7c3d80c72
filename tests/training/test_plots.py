"""Plots of training runs."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from fixedbert.training.plots import draw_glue, draw_pretraining

FINE_TUNING = [{"loss": 0.7, "step": 1}, {"eval_loss": 0.6, "eval_matthews_correlation": -0.1, "step": 2}]
LABELS, PREDICTIONS = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


@pytest.fixture
def panels(monkeypatch):
    """A list of the axes of all figures that the test saves."""
    saved = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: (saved.extend(figure.axes), original(figure, file)))
    return saved


@pytest.mark.parametrize("labels", [["yes", "no"], []])
def test_glue(tmp_path, panels, labels):
    """The GLUE plot shows losses and metrics, and a confusion matrix for classes or a scatter plot for scores."""
    draw_glue([*FINE_TUNING, *FINE_TUNING], "rte", [("validation", LABELS, PREDICTIONS)], labels, tmp_path / "a.png")
    legends = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in panels[:2]]
    assert legends == [["training", "validation"], ["matthews_correlation"]]
    assert panels[1].get_ylim()[0] < 0 and panels[2].get_title() == "validation, 4 examples"
    if labels:  # each row contains the fractions for one true label
        assert np.allclose(panels[2].images[0].get_array(), [[1 / 3, 2 / 3], [0, 1]])


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Without matplotlib, a run only logs a warning."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_pretraining(FINE_TUNING, "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text
