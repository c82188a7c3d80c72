"""Plots of training runs: pretraining.png, glue.png and squad.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..support.figures import new_figure, skip_without_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_METRICS = ("loss", "runtime", "samples", "per_second", "epoch", "total", "thresh", "dtype")
NOT_DRAWN = ("eval_mse", "eval_mae", "Ans", "best")  # in other units, for some questions, or at the best threshold
COLORS = {"held out": "C1", "held out, tokens": "C2", "held out, next sentence": "C3"}  # the same in all panels


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
def draw_fine_tuning(log_history: list[dict], title: str, file: str | Path, scale: float = 100):
    """
    Plots losses, and metrics times `scale`, against training steps.

    If there is only one evaluation, its metrics are drawn as bars.
    """
    with new_figure(8.8, 4, file) as figure:
        figure.suptitle(title)
        loss, metrics = figure.subplots(1, 2)
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
