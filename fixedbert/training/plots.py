"""Plots of training runs: pretraining.png, glue.png, squad.png, and results.png for a sweep of fine-tuning runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..support.figures import new_figure, skip_without_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_METRICS = ("loss", "runtime", "samples", "per_second", "epoch", "total", "thresh", "dtype")
NOT_DRAWN = ("eval_mse", "eval_mae", "Ans", "best")  # in other units, for some questions, or at the best threshold
COLORS = {"held out": "C1", "held out, tokens": "C2", "held out, next sentence": "C3"}  # the same in all panels
MAX_COUNTED_CLASSES = 12  # a confusion matrix with more classes shows no numbers


def is_metric(name: str) -> bool:
    """Returns True if `name`, from Trainer's log, is an evaluation metric and not a loss, count, time or threshold."""
    return name.startswith("eval_") and not any(part in name for part in NOT_METRICS)


@skip_without_matplotlib
def draw_pretraining(log_history: list[dict], task: str, title: str, file: str | Path):
    """
    Plots losses, accuracies and the learning rate against the number of non-padding tokens seen in training.

    Args:
        log_history: The log of the run, from `log_history` in Trainer's state.
        task: "mlm" or "clm".
    """
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
            draw_curves(panel, log_history, curves, factor, against="num_input_tokens_seen")
            panel.set(title=title, ylabel=unit, xlabel="non-padding tokens (millions)")
            panel.xaxis.set_major_formatter(lambda tokens, _: f"{tokens / 1e6:g}")


@skip_without_matplotlib
def draw_glue(
    log_history: list[dict],
    title: str,
    splits: list[tuple[str, np.ndarray, np.ndarray]],
    labels: list[str],
    file: str | Path,
):
    """
    Plots losses and metrics against training steps, and predictions against labels in one panel per split.

    Args:
        splits: (name, labels, predictions) for each split. The arrays have shape (N,) for N examples, or (N, C) if
            an example can have several of C labels.
        labels: Names of the classes, or an empty list for regression.
    """
    with new_figure(4.4 * (2 + len(splits)), 4, file) as figure:
        figure.suptitle(title)
        loss, metrics, *panels = figure.subplots(1, 2 + len(splits))
        draw_log(log_history, loss, metrics)
        for panel, (split, expected, predicted) in zip(panels, splits, strict=True):
            if labels and expected.ndim == 1:
                draw_confusion_matrix(panel, expected, predicted, labels)
            elif labels:
                correct = 2 * (expected * predicted).sum(axis=0)
                panel.barh(labels, correct / np.maximum((expected + predicted).sum(axis=0), 1))
                panel.set(xlabel="F1", xlim=(0, 1), ylabel="label")
            else:
                panel.plot(expected, predicted, ".", markersize=3, alpha=0.4)
                panel.set(xlabel="score", ylabel="predicted score")
            panel.set_title(f"{split.replace('_', ' ')}, {len(expected):,} examples")


@skip_without_matplotlib
def draw_squad(
    log_history: list[dict],
    null_odds: dict[str, float],
    answers: dict[str, list[str]],
    threshold: float,
    file: str | Path,
):
    """
    Plots losses and metrics against training steps and, for SQuAD 2.0, a histogram of the null odds.

    Args:
        null_odds: Maps question ids to the score for "no answer" minus the best answer's score. Empty for SQuAD 1.1.
        answers: Maps question ids to lists of correct answers. An unanswerable question has an empty list.
        threshold: A question whose null odds exceed this value is predicted to be unanswerable.
    """
    count = 3 if null_odds else 2
    with new_figure(4.4 * count, 4, file) as figure:
        loss, metrics, *panels = figure.subplots(1, count)
        draw_log(log_history, loss, metrics, scale=1)
        for panel in panels:
            odds = np.array(list(null_odds.values()))
            answerable = np.array([bool(answers[question]) for question in null_odds])
            low, high = np.percentile(odds, (0.5, 99.5))
            bins = np.linspace(low, high, 60).tolist()
            for mask, label in ((answerable, "answerable"), (~answerable, "unanswerable")):
                panel.hist(odds[mask], bins, alpha=0.6, label=f"{label} ({mask.sum():,})")
            panel.axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.2f}")
            panel.set(title="no answer above the threshold", xlabel="null odds", ylabel="questions")
            panel.legend()


@skip_without_matplotlib
def draw_sweep(tasks: dict[str, dict[str, list[float]]], file: str | Path):
    """Plots the first metric of each task as a dot for each seed, and the medians over seeds as lines."""
    with new_figure(max(5, len(tasks) + 2), 4.6, file) as figure:
        axes = figure.subplots()
        for x, metrics in enumerate(tasks.values()):
            values = next(iter(metrics.values()))
            axes.plot([x] * len(values), values, "o", color="C0", alpha=0.6)
            axes.hlines(np.median(values), x - 0.3, x + 0.3, color="black")
        names = [f"{task}\n{next(iter(metrics))}" for task, metrics in tasks.items()]
        axes.set_xticks(range(len(tasks)), names, fontsize="small")
        axes.set(title="dots: seeds; lines: medians", xlabel="task", ylabel="main metric")
        axes.grid(axis="y")


def draw_log(log_history: list[dict], loss: Axes, metrics: Axes, scale: float = 100):
    """
    Draws losses in the panel `loss`, and metrics times `scale` in the panel `metrics`, against training steps.

    If there is only one evaluation, its metrics are drawn as bars.
    """
    draw_curves(loss, log_history, {"loss": "training", "eval_loss": "validation"})
    loss.set(title="loss", xlabel="step", ylabel="loss")
    names = [name for name in dict.fromkeys(name for entry in log_history for name in entry) if is_metric(name)]
    drawn = {name: name.removeprefix("eval_") for name in names if not any(part in name for part in NOT_DRAWN)}
    values = {name: [entry[name] for entry in log_history if entry.get(name) is not None] for name in drawn}
    metrics.set(title="validation")
    if all(len(one) == 1 for one in values.values()):
        metrics.barh([*drawn.values()], [scale * values[name][0] for name in drawn])
        metrics.set(xlabel="metric (%)", xlim=(min(0, metrics.get_xlim()[0]), 102))
        metrics.invert_yaxis()  # the first metric is at the top
    else:
        draw_curves(metrics, log_history, drawn, scale)
        metrics.set(xlabel="step", ylabel="metric (%)", ylim=(None, 102))


def draw_curves(
    panel: Axes, log_history: list[dict], curves: dict[str, str], factor: float = 1, against: str = "step"
):
    """Plots logged values, times `factor`, with markers for evaluations. `curves` maps names in the log to labels."""
    for name, label in curves.items():
        entries = [entry for entry in log_history if entry.get(name) is not None and against in entry]
        x, y = [entry[against] for entry in entries], [factor * entry[name] for entry in entries]
        style = "o-" if name.startswith("eval_") or len(entries) == 1 else "-"
        panel.plot(x, y, style, color=COLORS.get(label), label=label)
    panel.set(xlim=(0, None), ylim=(min(0, panel.get_ylim()[0]), None))  # a correlation can be negative
    panel.legend()


def draw_confusion_matrix(panel: Axes, expected: np.ndarray, predicted: np.ndarray, labels: list[str]):
    """Draws a confusion matrix. Each row is divided by the number of examples with this true label."""
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    matrix = confusion_matrix(expected, predicted, labels=range(len(labels)), normalize="true")
    show_numbers = len(labels) <= MAX_COUNTED_CLASSES
    display = ConfusionMatrixDisplay(matrix, display_labels=labels)
    display.plot(include_values=show_numbers, xticks_rotation=20, cmap="Blues", colorbar=False, ax=panel)
