"""Curves of losses: how much sooner one comes to the other's, and their picture."""

from itertools import pairwise
from pathlib import Path

LAST = 5  # points of the slower curve that give the range

Point = dict[str, float]
AXES = {"seconds": ("minutes of training", 60), "flops": ("operations of the model (TFLOP)", 1e12)}


def where(curve: list[Point], loss: float, axis: str) -> float | None:
    """Where on the axis a curve first comes to a loss, with straight lines between its points; None if nowhere."""
    for before, after in pairwise(curve):
        if after["loss"] <= loss:
            share = (before["loss"] - loss) / (before["loss"] - after["loss"])
            return before[axis] + share * (after[axis] - before[axis])
    return None


def ratios(slower: list[Point], curve: list[Point], axis: str) -> list[float]:
    """
    How many times as much the slower one takes to each of its last losses, its final one last. Empty where the other
    does not come to the final one.
    """
    if where(curve, slower[-1]["loss"], axis) is None:
        return []
    found = [(point[axis], where(curve, point["loss"], axis)) for point in slower[-LAST:]]
    return [theirs / ours for theirs, ours in found if ours]


def ratio_text(slower: list[Point], curve: list[Point], axis: str) -> str:
    """The ratio at the slower one's final loss, and the range over its last ones, as 3.1 (2.9-3.2)."""
    found = ratios(slower, curve, axis)
    return f"{found[-1]:.2f} ({min(found):.2f}-{max(found):.2f})" if found else "not reached"


def draw(curves: dict[str, list[Point]], reference: str, title: str, file: Path):
    """Loss against time and against operations; the dotted line is the reference's final loss."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    for panel, (axis, (label, unit)) in zip(figure.subplots(1, 2, sharey=True), AXES.items(), strict=True):
        for name, points in curves.items():
            trained = [(point[axis] / unit, point["loss"]) for point in points if point[axis] > 0]  # a log axis
            is_reference = name == reference
            text = "" if is_reference else f": {ratio_text(curves[reference], points, axis)}"
            panel.plot(*zip(*trained, strict=True), ".-", color="black" if is_reference else None, label=name + text)
        panel.axhline(curves[reference][-1]["loss"], color="black", linewidth=1, linestyle=":")
        panel.set(xlabel=label, xscale="log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
        title_of_ratios = f"ratio at the final loss of {reference} (range)"
        panel.legend(title=title_of_ratios, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    figure.axes[0].set_ylabel("masked-LM loss on held-out text (nats)")
    figure.suptitle(title)
    figure.savefig(file, dpi=110)
