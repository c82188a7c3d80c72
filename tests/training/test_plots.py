"""Plots of training runs."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from fixedbert.training.plots import draw_fine_tuning, draw_pretraining

LOG = [{"loss": 0.7, "step": 1}, {"eval_loss": 0.6, "eval_matthews_correlation": -0.1, "eval_mse": 9.0, "step": 2}]
LABELS, PREDICTIONS = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


@pytest.mark.parametrize("log, marker", [(LOG, "o"), ([*LOG, {"loss": 0.5, "step": 3}], "None")])
def test_fine_tuning(tmp_path, monkeypatch, log, marker):
    """The plot shows losses and metrics, with single points as markers, and a confusion matrix."""
    panels = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: (panels.extend(figure.axes), save(figure, file)))
    draw_fine_tuning(log, "rte", tmp_path / "a.png", [("validation", LABELS, PREDICTIONS)], ["yes", "no"])
    legends = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in panels[:2]]
    assert legends == [["training", "validation"], ["matthews_correlation"]]
    assert panels[0].lines[0].get_marker() == marker and panels[2].get_title() == "validation, 4 examples"
    assert np.allclose(panels[2].images[0].get_array(), [[1 / 3, 2 / 3], [0, 1]])  # a row for each true label


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Without matplotlib, a run only logs a warning."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_pretraining(LOG, "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text
