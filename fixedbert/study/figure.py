"""report.png: every metric against the study's axis, and against parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .records import AXES, COUNTED, METRICS
from .report import FLOOR, Report, ShapeResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_figure(report: Report, file: Path):
    """A row of panels for each metric."""
    from matplotlib.figure import Figure

    metrics, axis = report.compared_metrics, report.axis
    is_synthetic = metrics == ["error"]
    fields = [axis] if is_synthetic or axis == COUNTED else [axis, COUNTED]
    figure = Figure(figsize=(6.5 * len(fields), 4.4 * len(metrics) + 0.3), layout="constrained")
    panels = figure.subplots(len(metrics), len(fields), squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, field in zip(row, fields, strict=True):
            plot_metric(panel, report.series, metric, field)
    title = f"study {report.study}" + (f", scale {report.scale}" if report.scale else "")
    figure.suptitle(title + ("" if is_synthetic else "; mean over seeds, bars: 95 % interval"))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(file, dpi=110)


def plot_metric(panel: Axes, series: dict[str, list[ShapeResult]], metric: str, field: str):
    from matplotlib.ticker import NullLocator

    for number, (name, shapes) in enumerate(series.items()):
        color = f"C{number}"
        shown = [shape for shape in shapes if metric in shape.metrics and shape.estimate(metric).values]
        estimates = [(shape[field], shape.estimate(metric)) for shape in shown]
        if metric == "error":  # on a logarithmic axis an interval may reach below zero
            dots = [(value, error) for value, estimate in estimates for error in estimate.values]
            panel.plot(*zip(*dots, strict=True), "o", color=color, alpha=0.5, label=f"{name}: a dot for each seed")
            plot_theory(panel, name, shown, color)
        else:
            values, means = [value for value, _ in estimates], [estimate.mean for _, estimate in estimates]
            halves = [estimate.half_interval for _, estimate in estimates]  # nan, of one seed, draws no bar
            panel.errorbar(values, means, halves, fmt="o-", capsize=3, color=color, label=name)
    if metric == "error":
        panel.set_yscale("log")
    panel.set_xscale("log")
    if field != COUNTED:
        ticks = sorted({shape[field] for shapes in series.values() for shape in shapes})
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(METRICS[metric].label)
    panel.grid(alpha=0.3)


def plot_theory(panel: Axes, name: str, shapes: list[ShapeResult], color: str):
    """Of dense patterns the least errors found, and from where on theory has zero; log2 n for the sparse ones."""
    floors = {shape["attention_head_size"]: shape.estimate(FLOOR).mean for shape in shapes if FLOOR in shape.metrics}
    above = {size: floor for size, floor in floors.items() if floor > 0}
    if above:
        label = f"{name}: least error found"
        panel.plot(list(above), list(above.values()), "-", color=color, linewidth=1, label=label)
    if len(above) < len(floors):
        zero = min(floors.keys() - above.keys())
        panel.axvline(zero, color=color, linestyle=":", label=f"{name}: from here on zero by theory")
    if shapes and shapes[0]["objective"] == "sparse":
        length = shapes[0]["max_seq_length"]
        panel.axvline(np.log2(length), color=color, linestyle=":", label=f"{name}: log2 n; that order is enough")
