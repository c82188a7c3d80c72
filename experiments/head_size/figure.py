"""What theory says of a metric, drawn beside what was found."""

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

MEASURES = ("relative_error", "recalled", "memorised")  # theory says something about them


def plot_theory(panel: Axes, report: Report, metric: str, field: str):
    """Theory and levels, of every series."""
    for number, (series, shapes) in enumerate(report.series.items()):
        shown = [one for one in shapes if one[field] is not None and one.estimate(metric).values]
        plot_predictions(panel, escaped(series), shown, metric, field, f"C{number}")
    if metric in MEASURES:
        plot_levels(panel, report.shapes, metric)


def plot_predictions(panel: Axes, name: str, shapes: list[ShapeResult], metric: str, field: str, color: str):
    """What theory says of a series: its threshold, a prediction for each shape, or the least errors of patterns."""
    if not shapes:
        return
    threshold, order = predicted_by_theory(shapes, field)
    if metric == "error" and field == "attention_head_size":
        plot_floors(panel, name, shapes, color)
    if metric in MEASURES and threshold is not None:
        panel.axvline(threshold, color=color, linestyle=":", label=f"{name}: predicted {threshold:g}")
    if metric in MEASURES and order is not None:
        panel.axvline(order, color=color, linestyle=(0, (1, 5)), label=f"{name}: an order of {order:g}")
    if metric == "memorised":
        predicted = [(shape[field], results_of_task([shape]).get("predicted")) for shape in shapes]
        known = [(place, amount) for place, amount in predicted if amount is not None]
        if known:
            label = f"{name}: heads x min(n, size)"
            panel.plot(*zip(*known, strict=True), "--", color=color, linewidth=1, label=label)


def plot_levels(panel: Axes, shapes: list[ShapeResult], metric: str):
    """Null lines, the goal and, where the axis has room for it, the ceiling of a measure."""
    factor = METRICS[metric].factor
    tasks = [results_of_task([shape]) for shape in shapes]
    nulls, goals = ({task[name] for task in tasks if task.get(name) is not None} for name in ("null", "goal"))
    for number, null in enumerate(sorted(nulls)):
        panel.axhline(factor * null, color="black", linewidth=1, label=None if number else "null: by guessing")
    for number, goal in enumerate(sorted(goals)):
        label = f"goal: {factor * goal:g}" + ("" if metric == "recalled" else "; the ceiling, 0, is below")
        panel.axhline(factor * goal, color="black", linewidth=1, linestyle="--", label=None if number else label)
    if metric == "recalled":
        panel.axhline(factor, color="grey", linewidth=1, label="ceiling")


def plot_floors(panel: Axes, name: str, shapes: list[ShapeResult], color: str):
    """The least errors found for dense patterns, and where theory has zero; log2 n for sparse ones."""
    floors = {
        shape["attention_head_size"]: shape.estimate("floor").mean for shape in shapes if "floor" in shape.metrics
    }
    above = {size: floor for size, floor in floors.items() if floor > 0}
    if above:
        label = f"{name}: least error found"
        panel.plot(list(above), list(above.values()), "-", color=color, linewidth=1, label=label)
    if len(above) < len(floors):
        zero = min(floors.keys() - above.keys())
        panel.axvline(zero, color=color, linestyle=":", label=f"{name}: from here on zero by theory")
    if shapes[0]["objective"] == "sparse":
        length = shapes[0]["max_seq_length"]
        panel.axvline(np.log2(length), color=color, linestyle=":", label=f"{name}: log2 n; that order is enough")
