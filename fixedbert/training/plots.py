"""Plots of training runs: pretraining.png, glue.png and squad.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..support.figures import new_figure, skip_without_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_METRICS = ("loss", "runtime", "samples", "per_second", "epoch", "total", "thresh", "dtype")
NOT_DRAWN = ("_mse", "_mae", "Ans", "best")  # metrics in other units, and metrics for a part of the questions
MAX_COUNTED_CLASSES = 12  # a confusion matrix with more classes shows no numbers


def is_metric(name: str) -> bool:
    """Returns True if `name`, from Trainer's log, is an evaluation metric and not a loss, count, time or threshold."""
    is_correlation = name.startswith("eval_pearson")  # its name can end with the name of a target
    return is_correlation or (name.startswith("eval_") and not any(part in name for part in NOT_METRICS))


@skip_without_matplotlib
def draw_pretraining(log_history: list[dict], task: str, title: str, file: str | Path):
    """
    Plots losses, held-out accuracies and the learning rate against the number of non-padding tokens seen in training.

    Args:
        log_history: the log of the run, from `log_history` in Trainer's state.
        task: "mlm" or "clm".
    """
    panels = (
        ("cross-entropy (nats)", {"loss": "training", "eval_loss": "held out"}),
        ("accuracy", {f"eval_{task}_accuracy": "tokens", "eval_nsp_accuracy": "next sentence"}),
        ("learning rate", {"learning_rate": "training"}),
    )
    with new_figure(13, 4, file) as figure:
        figure.suptitle(title)
        for panel, (title, curves) in zip(figure.subplots(1, 3), panels, strict=True):
            draw_curves(panel, log_history, curves, against="num_input_tokens_seen")
            panel.set(title=title, xlabel="non-padding tokens")


@skip_without_matplotlib
def draw_fine_tuning(
    log_history: list[dict],
    title: str,
    file: str | Path,
    splits: list[tuple[str, np.ndarray, np.ndarray]],
    labels: list[str],
):
    """
    Plots losses and metrics against training steps, and a confusion matrix for each split.

    Args:
        splits: for each split, its name, the classes and the predicted classes of its N examples, both (N,).
        labels: names of the classes.
    """
    with new_figure(4.4 * (2 + len(splits)), 4, file) as figure:
        figure.suptitle(title)
        loss, metrics, *panels = figure.subplots(1, 2 + len(splits))
        names = [name for name in dict.fromkeys(name for entry in log_history for name in entry) if is_metric(name)]
        drawn = {name: name.removeprefix("eval_") for name in names if not any(part in name for part in NOT_DRAWN)}
        draw_curves(loss, log_history, {"loss": "training", "eval_loss": "validation"})
        draw_curves(metrics, log_history, drawn)
        loss.set(title="loss", xlabel="step")
        metrics.set(title="validation", xlabel="step")
        for panel, (split, expected, predicted) in zip(panels, splits, strict=True):
            draw_confusion_matrix(panel, expected, predicted, labels)
            panel.set_title(f"{split.replace('_', ' ')}, {len(expected):,} examples")


def draw_curves(panel: Axes, log_history: list[dict], curves: dict[str, str], against: str = "step"):
    """Draws the values in the log that `curves` maps to labels, with markers for evaluations and single points."""
    for name, label in curves.items():
        entries = [entry for entry in log_history if entry.get(name) is not None and against in entry]
        line = "o-" if name.startswith("eval_") or len(entries) == 1 else "-"
        if entries:
            panel.plot([entry[against] for entry in entries], [entry[name] for entry in entries], line, label=label)
            panel.legend()


def draw_confusion_matrix(panel: Axes, expected: np.ndarray, predicted: np.ndarray, labels: list[str]):
    """Draws a confusion matrix with fractions of the examples in each true class."""
    from sklearn.metrics import ConfusionMatrixDisplay

    ConfusionMatrixDisplay.from_predictions(
        expected,
        predicted,
        labels=[*range(len(labels))],
        display_labels=labels,
        normalize="true",
        include_values=len(labels) <= MAX_COUNTED_CLASSES,
        xticks_rotation=20,
        cmap="Blues",
        colorbar=False,
        ax=panel,
    )
