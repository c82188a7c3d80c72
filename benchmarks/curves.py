"""Loss curves: the ratio at which one reaches the final loss of another, and their figure."""

from itertools import pairwise
from pathlib import Path
from textwrap import fill

from fixedbert.support.figures import PAGE, new_figure

Point = dict[str, float]
Curve = list[Point]
AXES = {"seconds": ("minutes of training", 60), "flops": ("operations of the model (TFLOP)", 1e12)}


def where(curve: Curve, loss: float, axis: str) -> float | None:
    """Returns where a curve first reaches a loss, interpolated linearly; None if it does not."""
    for before, after in pairwise(curve):
        if after["loss"] <= loss:
            share = (before["loss"] - loss) / (before["loss"] - after["loss"])
            return before[axis] + share * (after[axis] - before[axis])
    return None


def ratio(slower: Curve, curve: Curve, axis: str) -> float | None:
    """Returns how many times as much `slower` takes to its final loss as `curve`; None if that does not reach it."""
    found = where(curve, slower[-1]["loss"], axis)
    return slower[-1][axis] / found if found else None


def draw(curves: dict[str, list[Curve]], labels: dict[str, dict[str, str]], level: float, title: str, file: Path):
    """
    Draws loss against time and against operations.

    Args:
        curves: one curve per seed for each side; all are compared with the first side.
        labels: text to add to the names, for each axis.
        level: loss of a dotted line.
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
