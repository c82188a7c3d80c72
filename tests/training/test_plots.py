"""Plots of training runs."""

import sys

from fixedbert.training.plots import draw_pretraining

FINE_TUNING = [{"loss": 0.7, "step": 1}, {"eval_loss": 0.6, "eval_matthews_correlation": -0.1, "step": 2}]


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Without matplotlib, a run only logs a warning."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_pretraining(FINE_TUNING, "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text
