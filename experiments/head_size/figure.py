"""Theoretical predictions in the figures of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.study.registry import METRICS
from experiments.study.report import Report
from experiments.study.shape_results import ShapeResult

from .thresholds import predictions, task_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED_METRICS = ("relative_error", "recalled", "memorised")


def plot_theory(panel: Axes, report: Report, metric: str, field: str):
    """Adds the predictions for each series to a panel, and horizontal lines such as the goal."""
    for index, (series, shapes) in enumerate(report.series.items()):
        shown = [shape for shape in shapes if shape[field] is not None and shape.estimate(metric).values]
        if not shown:
            continue
        name, color = series, f"C{index}"
        if metric == "error" and field == "attention_head_size":
            plot_floors(panel, name, shown, color)
        if metric in PREDICTED_METRICS:
            threshold, order = predictions(shown, field)
            for value, style, text in ((threshold, ":", "predicted"), (order, (0, (1, 5)), "an order of")):
                if value is not None:
                    panel.axvline(value, color=color, linestyle=style, label=f"{name}: {text} {value:g}")
        if metric == "memorised":
            sizes, counts = zip(*((shape[field], task_results([shape])["predicted"]) for shape in shown), strict=True)
            panel.plot(sizes, counts, "--", color=color, linewidth=1, label=f"{name}: heads x min(n, size)")
    if metric in PREDICTED_METRICS:
        plot_levels(panel, report.shapes, metric)


def plot_levels(panel: Axes, shapes: list[ShapeResult], metric: str):
    """Draws the values of a metric for guessing, the goal and the maximum."""
    factor = METRICS[metric].factor
    tasks = [task_results([shape]) for shape in shapes]
    nulls, goals = ({task[name] for task in tasks if task.get(name) is not None} for name in ("null", "goal"))
    for index, null in enumerate(sorted(nulls)):
        panel.axhline(factor * null, color="black", linewidth=1, label=None if index else "guessing")
    for index, goal in enumerate(sorted(goals)):
        label = None if index else f"goal: {factor * goal:g}"
        panel.axhline(factor * goal, color="black", linewidth=1, linestyle="--", label=label)
    if metric == "recalled":
        panel.axhline(factor, color="grey", linewidth=1, label="maximum")


def plot_floors(panel: Axes, name: str, shapes: list[ShapeResult], color: str):
    """Draws the lowest known error for dense patterns and the size where it becomes zero; log2 n for permutations."""
    floors = {
        shape["attention_head_size"]: shape.estimate("floor").mean for shape in shapes if "floor" in shape.metrics
    }
    above = {size: floor for size, floor in floors.items() if floor > 0}
    if above:
        label = f"{name}: least error found"
        panel.plot(list(above), list(above.values()), "-", color=color, linewidth=1, label=label)
    if len(above) < len(floors):
        zero = min(floors.keys() - above.keys())
        panel.axvline(zero, color=color, linestyle=":", label=f"{name}: zero in theory from here on")
    if shapes[0]["objective"] == "sparse":
        length = shapes[0]["max_seq_length"]
        panel.axvline(np.log2(length), color=color, linestyle=":", label=f"{name}: log2 n; this order suffices")
