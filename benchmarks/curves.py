"""Compares loss curves: computes how much sooner one curve reaches another's final loss, and plots all curves."""

from itertools import pairwise
from pathlib import Path
from textwrap import fill

from fixedbert.support.figures import PAGE, new_figure

Point = dict[str, float]
Curve = list[Point]
AXES = {"seconds": ("minutes of training", 60), "flops": ("floating-point operations of the model (TFLOP)", 1e12)}


def cost_to_reach(loss: float, curve: Curve, axis: str) -> float | None:
    """Returns the interpolated seconds or FLOPs at which a curve first reaches a loss, or None if it never does."""
    for before, after in pairwise(curve):
        if after["loss"] <= loss:
            fraction = (before["loss"] - loss) / (before["loss"] - after["loss"])
            return before[axis] + fraction * (after[axis] - before[axis])
    return None


def ratio(baseline: Curve, curve: Curve, axis: str) -> float | None:
    """
    Returns the cost at which `baseline` reaches its final loss divided by the cost at which `curve` reaches that loss.

    The result is None if `curve` never reaches the loss.
    """
    cost = cost_to_reach(baseline[-1]["loss"], curve, axis)
    return baseline[-1][axis] / cost if cost else None


def draw(curves: dict[str, list[Curve]], labels: dict[str, dict[str, str]], level: float, title: str, file: Path):
    """
    Plots the loss against training time and against FLOPs.

    Args:
        curves: For each side, one curve per seed. The first side is the baseline.
        labels: For each axis, the text to append to the names in the legend.
        level: Loss at which to draw a dotted horizontal line.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with new_figure(PAGE, 4 + 0.2 * len(curves), file) as figure:
        for panel, (axis, (label, unit)) in zip(figure.subplots(1, 2, sharey=True), AXES.items(), strict=True):
            for number, (name, seeds) in enumerate(curves.items()):
                color = f"C{number - 1}" if number else "black"
                for seed, points in enumerate(seeds):
                    trained = [(point[axis] / unit, point["loss"]) for point in points if point[axis] > 0]
                    legend = None if seed else f"{name}{labels[axis].get(name, '')}"
                    panel.plot(*zip(*trained, strict=True), ".-", color=color, label=legend)
            panel.axhline(level, color="black", linewidth=1, linestyle=":")
            panel.set(xlabel=label, xscale="log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.grid()
            title_of_ratios = f"ratio at the final loss of {next(iter(curves))}"
            panel.legend(title=title_of_ratios, loc="upper center", bbox_to_anchor=(0.5, -0.15))
        figure.axes[0].set_ylabel("masked-LM loss on held-out text (nats)")
        figure.suptitle(fill(title, 90))
