"""The pictures of fine-tuning: what is counted in them is what was predicted."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fixedbert.fine_tuning.pictures import draw_confusion, draw_sweep
from fixedbert.fine_tuning.sweep import Summary
from fixedbert.support.figures import new_figure


def test_confusion_matrix_counts_rows_by_right_label():
    """Guards: rows are right labels, columns predicted ones, shades the shares of a row."""
    axes = Figure().subplots()
    draw_confusion(axes, np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1]), ["yes", "no", "perhaps"])
    assert [text.get_text() for text in axes.texts] == ["1", "2", "0", "0", "1", "0", "0", "0", "0"]
    shares = axes.images[0].get_array()
    assert np.allclose(shares, [[1 / 3, 2 / 3, 0], [0, 1, 0], [0, 0, 0]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "right")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["yes", "no", "perhaps"]


def test_sweep_has_a_dot_for_every_run(tmp_path):
    """Guards: every seed of every task and setting is a dot, with names on the axis."""
    summaries = [Summary("rte", {"learning_rate": rate}, "accuracy", [0.5, 0.7, 0.6], True) for rate in (2e-5, 5e-5)]
    draw_sweep(summaries, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "0.6000    0.5000    0.7000      3" in summaries[0].line()


def test_figures_have_one_style(tmp_path):
    """Guards: figures are drawn with the project's colors and resolution; the user's own settings stay as they are."""
    settings = ("axes.prop_cycle", "savefig.dpi", "figure.constrained_layout.use")
    before = [matplotlib.rcParams[name] for name in settings]
    with new_figure(2, 1, tmp_path / "figure.png") as figure:
        (line,) = figure.subplots().plot([1, 2])
    assert line.get_color() == "#3f90da" and figure.get_layout_engine() is not None
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.size == (384, 192)
    assert [matplotlib.rcParams[name] for name in settings] == before
