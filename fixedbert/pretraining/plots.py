"""The plot of a pretraining run, pretraining.png."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"held out": "C1", "held out, tokens": "C2", "held out, next sentence": "C3"}  # the same in all panels


def draw_pretraining(log_history: list[dict], task: str, title: str, file: str | Path):
    """
    Plots losses, accuracies and the learning rate against the number of non-padding tokens seen in training. Without
    matplotlib, only logs a warning.

    Args:
        log_history: The log of the run, from `log_history` in Trainer's state.
        task: "mlm" or "clm".
    """
    if find_spec("matplotlib") is None:
        logging.getLogger(__name__).warning("matplotlib is not installed, so no figure is drawn")
        return
    losses = {"loss": "training", "eval_loss": "held out"}
    accuracies = {f"{task}_accuracy": "training, tokens", f"eval_{task}_accuracy": "held out, tokens"}
    if any("eval_nsp_loss" in entry for entry in log_history):
        losses |= {f"eval_{task}_loss": "held out, tokens", "eval_nsp_loss": "held out, next sentence"}
        accuracies["eval_nsp_accuracy"] = "held out, next sentence"
    panels = (
        ("loss", "cross-entropy (nats)", 1, losses),
        ("accuracy", "correct predictions (%)", 100, accuracies),
        ("learning rate", "learning rate (1e-4)", 1e4, {"learning_rate": "training"}),
    )
    with new_figure(13, 4, file) as figure:
        figure.suptitle(title)
        for panel, (title, unit, factor, curves) in zip(figure.subplots(1, 3), panels, strict=True):
            draw_curves(panel, log_history, curves, factor)
            panel.set(title=title, ylabel=unit, xlabel="non-padding tokens (millions)")
            panel.xaxis.set_major_formatter(lambda tokens, _: f"{tokens / 1e6:g}")


def draw_curves(panel: Axes, log_history: list[dict], curves: dict[str, str], factor: float):
    """Plots logged values, times `factor`, with markers for evaluations. `curves` maps names in the log to labels."""
    for name, label in curves.items():
        entries = [entry for entry in log_history if entry.get(name) is not None and "num_input_tokens_seen" in entry]
        x, y = [entry["num_input_tokens_seen"] for entry in entries], [factor * entry[name] for entry in entries]
        style = "o-" if name.startswith("eval_") or len(entries) == 1 else "-"
        panel.plot(x, y, style, color=COLORS.get(label), label=label)
    panel.set(xlim=(0, None), ylim=(0, None))
    panel.legend()
