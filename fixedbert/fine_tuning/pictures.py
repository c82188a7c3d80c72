"""Pictures of fine-tuning: losses and metrics against steps, confusion matrices, all runs of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..support.figures import new_figure, skip_without_matplotlib
from .trainer import FineTuningTrainer, is_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@skip_without_matplotlib
def draw_glue(
    trainer: FineTuningTrainer, title: str, splits: list[tuple[str, np.ndarray, np.ndarray]], labels: list[str]
):
    """
    Draw glue.png beside the results: curves, and for each split the predictions against the labels.

    Args:
        splits: name, labels and predictions, (examples,) both.
        labels: names of the classes; none for a regression.
    """
    count = 2 + len(splits)
    with new_figure(4.4 * count, 4, trainer.args.directory / "glue.png") as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, count)
        plot_log(trainer, axes[0], axes[1])
        for panel, (split, right, predicted) in zip(axes[2:], splits, strict=True):
            if labels:
                draw_confusion(panel, right, predicted, labels)
            else:
                panel.plot(right, predicted, ".", markersize=3, alpha=0.4)
                panel.set(xlabel="right score", ylabel="predicted score")
            panel.set_title(f"{split.replace('_', ' ')}, {len(right):,} examples")


@skip_without_matplotlib
def draw_squad(
    trainer: FineTuningTrainer,
    title: str,
    null_odds: dict[str, float],
    answers: dict[str, list[str]],
    threshold: float,
):
    """Draw squad.png beside the results: curves, and for SQuAD 2.0 the null odds with and without an answer."""
    count = 3 if null_odds else 2
    with new_figure(4.4 * count, 4, trainer.args.directory / "squad.png") as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, count)
        plot_log(trainer, axes[0], axes[1], scale=1)
        if null_odds:
            odds = np.array(list(null_odds.values()))
            answered = np.array([bool(answers[question]) for question in null_odds])
            least, most = np.percentile(odds, (0.5, 99.5))
            bins = np.linspace(least, most, 60).tolist()
            for where, label in ((answered, "has an answer"), (~answered, "has none")):
                axes[2].hist(odds[where], bins, alpha=0.6, label=f"{label} ({where.sum():,})")
            axes[2].axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.2f}")
            axes[2].set(title="no answer above the threshold", xlabel="logits of [CLS] above those of the best span",
                        ylabel="questions")  # fmt: skip
            axes[2].legend()


def plot_log(trainer: FineTuningTrainer, loss: Axes, metrics: Axes, scale: float = 100):
    """Plot the log of a run: losses, and metrics in per cent, against steps."""
    log = trainer.state.log_history

    def points(name):
        entries = [entry for entry in log if entry.get(name) is not None]  # null: not finite
        return [entry["step"] for entry in entries], [entry[name] for entry in entries]

    for name, style, label in (("loss", "-", "training"), ("eval_loss", "o-", "validation")):
        if points(name)[0]:
            loss.plot(*points(name), style, label=label)
    loss.set(title="loss", xlabel="step", ylabel="loss", xlim=(0, None), ylim=(0, None))
    names = dict.fromkeys(name for entry in log for name in entry if name.startswith("eval_"))
    for name in names:
        if is_metric(name) and name != "eval_mse" and "Ans" not in name and "best" not in name:
            steps, values = points(name)
            metrics.plot(steps, [scale * value for value in values], "o-", label=name.removeprefix("eval_"))
    bottom = min(0, metrics.get_ylim()[0])  # a correlation can be negative
    metrics.set(title="validation", xlabel="step", ylabel="metric (%)", xlim=(0, None), ylim=(bottom, 102))
    for panel in (loss, metrics):
        if panel.get_legend_handles_labels()[0]:
            panel.legend()


def draw_confusion(panel: Axes, right: np.ndarray, predicted: np.ndarray, labels: list[str]):
    """Draw a confusion matrix: shares of each class, with the number of examples in every field."""
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(counts, (right.astype(int), predicted.astype(int)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(labels))
    panel.set(xlabel="predicted", ylabel="right")
    panel.set_xticks(ticks, labels, rotation=20, ha="right")
    panel.set_yticks(ticks, labels)
    if len(labels) <= 12:
        for row in ticks:
            for column in ticks:
                color = "white" if shares[row, column] > 0.5 else "black"
                panel.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color)


@skip_without_matplotlib
def draw_sweep(summaries: list, file: Path):
    """Draw the main metric of every run as a dot and the median as a line, by task and point of the grid."""
    with new_figure(max(5, 1.0 * len(summaries) + 2), 4.6, file) as figure:
        axes = figure.subplots()
        for place, summary in enumerate(summaries):
            axes.plot([place] * len(summary.values), summary.values, "o", color="C0", alpha=0.6)
            axes.hlines(np.median(summary.values), place - 0.3, place + 0.3, color="black")
        names = [
            "\n".join([s.task, s.metric.replace("_", " "), *map("{:g}".format, s.settings.values())])
            for s in summaries
        ]
        axes.set_xticks(range(len(summaries)), names, rotation=90 if len(summaries) > 12 else 0, fontsize="small")
        axes.set(title="dots: seeds; lines: medians", xlabel="task and settings", ylabel="main metric")
        axes.grid(axis="y")
