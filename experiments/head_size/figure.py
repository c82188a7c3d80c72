"""Predictions of theory in the figures of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.study.registry import METRICS
from experiments.study.report import Report
from experiments.study.report_files import escaped
from experiments.study.shape_results import ShapeResult

from .thresholds import predicted_by_theory, results_of_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("relative_error", "recalled", "memorised")  # metrics with predictions


def plot_theory(panel: Axes, report: Report, metric: str, field: str):
    """Add the predictions for each series, and levels such as the goal, to a panel."""
    for number, (series, shapes) in enumerate(report.series.items()):
        shown = [one for one in shapes if one[field] is not None and one.estimate(metric).values]
        if not shown:
            continue
        name, color = escaped(series), f"C{number}"
        if metric == "error" and field == "attention_head_size":
            plot_floors(panel, name, shown, color)
        if metric in MEASURES:
            threshold, order = predicted_by_theory(shown, field)
            for value, style, text in ((threshold, ":", "predicted"), (order, (0, (1, 5)), "an order of")):
                if value is not None:
                    panel.axvline(value, color=color, linestyle=style, label=f"{name}: {text} {value:g}")
        if metric == "memorised":
            predicted = [(shape[field], results_of_task([shape]).get("predicted")) for shape in shown]
            known = [(size, count) for size, count in predicted if count is not None]
            label = f"{name}: heads x min(n, size)"
            panel.plot(
                [size for size, _ in known], [count for _, count in known], "--", color=color, linewidth=1, label=label
            )
    if metric in MEASURES:
        plot_levels(panel, report.shapes, metric)


def plot_levels(panel: Axes, shapes: list[ShapeResult], metric: str):
    """Draw the level of guessing, the goal and the maximum of a metric."""
    factor = METRICS[metric].factor
    tasks = [results_of_task([shape]) for shape in shapes]
    nulls, goals = ({task[name] for task in tasks if task.get(name) is not None} for name in ("null", "goal"))
    for number, null in enumerate(sorted(nulls)):
        panel.axhline(factor * null, color="black", linewidth=1, label=None if number else "guessing")
    for number, goal in enumerate(sorted(goals)):
        label = None if number else f"goal: {factor * goal:g}"
        panel.axhline(factor * goal, color="black", linewidth=1, linestyle="--", label=label)
    if metric == "recalled":
        panel.axhline(factor, color="grey", linewidth=1, label="maximum")


def plot_floors(panel: Axes, name: str, shapes: list[ShapeResult], color: str):
    """Draw the least error found for dense patterns and the size at which it is zero; log2 n for permutations."""
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
