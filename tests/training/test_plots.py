"""Plots of training runs."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fixedbert.fine_tuning.sweep import Summary
from fixedbert.support.figures import new_figure
from fixedbert.training.plots import draw_glue, draw_pretraining, draw_squad, draw_sweep

PRETRAINING = [
    {"loss": 7 - n / 9, "mlm_accuracy": n / 50, "learning_rate": 1e-4, "num_input_tokens_seen": 1000 * n, "step": n}
    for n in range(5)
]
HELD_OUT = {"eval_loss": 7.1, "eval_mlm_loss": 6.4, "eval_nsp_loss": 0.7, "eval_mlm_accuracy": 0.1, "eval_f1": None}
FINE_TUNING = [{"loss": 0.7, "step": 1}, {"eval_loss": 0.6, "eval_matthews_correlation": -0.1, "step": 2}]
LABELS, PREDICTIONS = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


@pytest.fixture
def panels(monkeypatch):
    """The axes of the figures that are saved, each with its labels of lines and bars."""
    saved = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: (saved.extend(figure.axes), original(figure, file)))
    return saved


def legends(panels) -> list[list[str]]:
    texts = [panel.get_legend().get_texts() if panel.get_legend() else [] for panel in panels]
    return [[text.get_text() for text in one] for one in texts]


def test_pretraining(tmp_path, panels):
    """Guards: losses, accuracies and learning rate, with held-out and next-sentence results if there are any."""
    draw_pretraining(PRETRAINING, "mlm", "title", tmp_path / "a.png")
    draw_pretraining([*PRETRAINING, HELD_OUT | {"num_input_tokens_seen": 4000}], "mlm", "title", tmp_path / "b.png")
    (steps, values) = panels[0].lines[0].get_data()
    assert list(steps) == [n / 1000 for n in range(5)] and list(values) == [7 - n / 9 for n in range(5)]
    assert "held out, next sentence" in legends(panels)[3] and "held out, next sentence" not in legends(panels)[0]


@pytest.mark.parametrize("labels", [["yes", "no"], []])
def test_glue(tmp_path, panels, labels):
    """Guards: losses, metrics, and predictions against labels, for classes and for scores."""
    draw_glue(FINE_TUNING, "rte", [("validation", LABELS, PREDICTIONS)], labels, tmp_path / "a.png")
    assert legends(panels)[:2] == [["training", "validation"], ["matthews_correlation"]]
    assert panels[1].get_ylim()[0] < 0 and panels[2].get_title() == "validation, 4 examples"
    assert [text.get_text() for text in panels[2].texts] == (["1", "2", "0", "1"] if labels else [])
    if labels:  # rows are true labels; colors are shares of a row
        assert np.allclose(panels[2].images[0].get_array(), [[1 / 3, 2 / 3], [0, 1]])


def test_squad(tmp_path, panels):
    """Guards: null odds of answerable and unanswerable questions with the threshold, for SQuAD 2.0 only."""
    odds = {"a": -3.0, "b": 2.0, "c": 4.0}
    draw_squad(FINE_TUNING, odds, {"a": ["x"], "b": [], "c": []}, 1.5, tmp_path / "a.png")
    assert legends(panels)[2] == ["answerable (1)", "unanswerable (2)", "threshold 1.50"]
    draw_squad(FINE_TUNING, {}, {}, 0.0, tmp_path / "b.png")
    assert len(panels) == 5


def test_sweep(tmp_path, panels):
    """Guards: every seed of every task and setting is a dot."""
    summaries = [Summary("rte", {"learning_rate": rate}, "accuracy", [0.5, 0.7, 0.6], True) for rate in (2e-5, 5e-5)]
    draw_sweep(summaries, tmp_path / "a.png")
    assert [list(line.get_ydata()) for line in panels[0].lines] == [[0.5, 0.7, 0.6]] * 2
    assert panels[0].get_xticklabels()[1].get_text() == "rte\naccuracy\n5e-05"


def test_runs_do_not_need_matplotlib(tmp_path, monkeypatch, caplog):
    """Guards: without matplotlib a run only logs a warning."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    draw_pretraining(PRETRAINING, "mlm", "title", tmp_path / "a.png")
    assert not list(tmp_path.iterdir()) and "matplotlib is not installed" in caplog.text


def test_style(tmp_path):
    """Guards: figures have the project's colors and resolution, and the user's settings don't change."""
    settings = ("axes.prop_cycle", "savefig.dpi", "figure.constrained_layout.use")
    before = [matplotlib.rcParams[name] for name in settings]
    with new_figure(2, 1, tmp_path / "figure.png") as figure:
        (line,) = figure.subplots().plot([1, 2])
    assert line.get_color() == "#3f90da" and figure.get_layout_engine() is not None
    with Image.open(tmp_path / "figure.png") as image:
        assert image.size == (384, 192)
    assert [matplotlib.rcParams[name] for name in settings] == before
