"""report.png: every metric against the study's axis, and against parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .records import AXES, COUNTED, METRICS
from .report import Report
from .shape_results import FLOOR, ShapeResult
from .synthetic import SYNTHETIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOGARITHMIC = ("error", "relative_error", "memorised", "steps_to_goal")
MEASURES = ("relative_error", "recalled", "memorised")  # of which theory says something


def save_figure(report: Report, file: Path):
    """A row of panels for each metric; of synthetic tasks, which have one axis, a panel for each."""
    from matplotlib.figure import Figure

    metrics, axis = report.compared_metrics, report.axis
    is_synthetic = all(shape["objective"] in SYNTHETIC for shapes in report.series.values() for shape in shapes)
    fields = [axis] if is_synthetic or axis == COUNTED else [axis, COUNTED]
    rows, columns = (1, len(metrics)) if is_synthetic else (len(metrics), len(fields))
    figure = Figure(figsize=(6.5 * columns, (5.4 if is_synthetic else 4.4) * rows + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=is_synthetic).reshape(len(metrics), len(fields))
    for row, metric in zip(panels, metrics, strict=True):
        for panel, field in zip(row, fields, strict=True):
            plot_metric(panel, report.series, metric, field)
    title = f"study {report.study}" + (f", scale {report.scale}" if report.scale else "")
    what = "a dot for each seed, hollow: not converged" if is_synthetic else "mean over seeds, bars: 95 % interval"
    figure.suptitle(f"{title}; {what}")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(file, dpi=110)


def plot_metric(panel: Axes, series: dict[str, list[ShapeResult]], metric: str, field: str):
    from matplotlib.ticker import NullLocator

    for number, (name, shapes) in enumerate(series.items()):
        color = f"C{number}"
        shown = [shape for shape in shapes if metric in shape.metrics and shape.estimate(metric).values]
        values, means = [shape[field] for shape in shown], [shape.estimate(metric).mean for shape in shown]
        if any(shape["objective"] in SYNTHETIC for shape in shown):  # an interval may reach below zero, off the axis
            plot_seeds(panel, shown, metric, field, color)
            if metric == "error":  # the floor is the line that the dots are to be compared to
                panel.plot([], [], "o", color=color, label=f"{name}: a dot for each seed")
            else:
                panel.plot(values, means, color=color, label=f"{name}: mean")
            plot_theory(panel, name, shown, metric, color)
        else:
            halves = [shape.estimate(metric).half_interval for shape in shown]  # nan, of one seed, draws no bar
            panel.errorbar(values, means, halves, fmt="o-", capsize=3, color=color, label=name)
    if metric in MEASURES:
        plot_levels(panel, [shape for shapes in series.values() for shape in shapes], metric)
    if metric in LOGARITHMIC:
        panel.set_yscale("log")
    panel.set_xscale("log")
    if field != COUNTED:
        ticks = sorted({shape[field] for shapes in series.values() for shape in shapes})
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(METRICS[metric].label)
    panel.grid(alpha=0.3)


def plot_seeds(panel: Axes, shapes: list[ShapeResult], metric: str, field: str, color: str):
    for shape in shapes:
        by_seed = shape.estimate(metric).by_seed
        for record in shape.records:
            if record["seed"] in by_seed:
                inside = "none" if record["results"].get("converged") == 0 else color
                panel.plot(shape[field], by_seed[record["seed"]], "o", color=color, markerfacecolor=inside, alpha=0.6)


def plot_theory(panel: Axes, name: str, shapes: list[ShapeResult], metric: str, color: str):
    """What theory says of a series: its threshold, a prediction for each shape, or the least errors of patterns."""
    if not shapes:
        return
    results = shapes[0]["results"]
    if metric == "error":
        plot_floors(panel, name, shapes, color)
    if metric in MEASURES and results.get("threshold") is not None:
        panel.axvline(
            results["threshold"], color=color, linestyle=":", label=f"{name}: predicted {results['threshold']:g}"
        )
    if metric in MEASURES and results.get("order") is not None:
        label = f"{name}: an order of {results['order']:g}"
        panel.axvline(results["order"], color=color, linestyle=(0, (1, 5)), label=label)
    if metric == "memorised" and "predicted" in results:
        sizes = [shape["attention_head_size"] for shape in shapes]
        predicted = [shape["results"]["predicted"] for shape in shapes]
        panel.plot(sizes, predicted, "--", color=color, linewidth=1, label=f"{name}: heads x min(n, size)")


def plot_levels(panel: Axes, shapes: list[ShapeResult], metric: str):
    """Null lines, the goal and, where the axis has room for it, the ceiling of a measure."""
    factor = METRICS[metric].factor
    nulls = {shape["results"].get("null") for shape in shapes} - {None}
    goals = {shape["results"].get("goal") for shape in shapes} - {None}
    for number, null in enumerate(sorted(nulls)):
        panel.axhline(factor * null, color="black", linewidth=1, label=None if number else "null: by guessing")
    for number, goal in enumerate(sorted(goals)):
        label = f"goal: {factor * goal:g}" + ("" if metric == "recalled" else "; the ceiling, 0, is below")
        panel.axhline(factor * goal, color="black", linewidth=1, linestyle="--", label=None if number else label)
    if metric == "recalled":
        panel.axhline(factor, color="grey", linewidth=1, label="ceiling")


def plot_floors(panel: Axes, name: str, shapes: list[ShapeResult], color: str):
    """Of dense patterns the least errors found, and from where on theory has zero; log2 n for the sparse ones."""
    floors = {shape["attention_head_size"]: shape.estimate(FLOOR).mean for shape in shapes if FLOOR in shape.metrics}
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
