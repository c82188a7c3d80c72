"""Plots of training runs."""

import sys

from fixedbert.training.plots import draw_pretraining


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Without matplotlib, a run only logs a warning."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_pretraining([{"loss": 0.7, "step": 1}], "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text
