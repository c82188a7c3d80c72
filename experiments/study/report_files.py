"""Writes the files of a report: report.md, a figure of all metrics, and a figure of differences during training."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from experiments.head_size.tasks import TASKS
from fixedbert.support.errors import error_context, require_package
from fixedbert.support.figures import PAGE, new_figure
from fixedbert.support.files import new_directory, write_atomically

from .metrics import METRICS
from .records import AXES, COUNTED, read_records
from .report import CurveDifference, Report, make_report
from .report_text import joined, report_markdown
from .shape_results import ShapeResult, is_unfinished
from .thresholds import predictions, task_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^Dv<>pP*Xdh8"
LINES = {  # what lines mean, by the name of the results of a synthetic task
    "threshold": "dotted: predicted threshold",
    "floor": "dashed: lowest error found by direct search",
    "predicted": "dashed: predicted",
    "null": "black: guessing",
    "goal": "black dashes: goal",
}
TICK_DISTANCE = 0.03  # minimum distance of labels on the horizontal axis, as a fraction of its length
STEP = 1.03  # factor between the horizontal positions of two series, so that equal values do not hide each other
ROW = 0.19  # height of a legend entry in inches


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Creates the report for the runs of a study and writes its files to the new directory `output_dir`.

    Args:
        files: The runs.jsonl files of one study, from one or more machines.

    Raises:
        InputError: If the files contain no runs, or runs from different studies.
    """
    require_package("matplotlib", "study")
    with new_directory(output_dir) as directory:
        records = read_records(files)
        with error_context(", ".join(map(str, files)) or "report"):
            report = make_report(records)
        write_report(report, directory)
    return report


def write_report(report: Report, directory: Path):
    """Writes report.md, report.png with all metrics, and curves.png if runs were evaluated during training."""
    if report.compared_metrics:
        draw_metrics(report, directory / "report.png")
    if report.curves:
        draw_curves(report, directory / "curves.png")
    write_atomically(directory / "report.md", report_markdown(report))


def title(report: Report, caption: str) -> str:
    """Returns a title that names the study and explains how to read the figure."""
    scale = f", scale {report.scale}" if report.scale else ""
    return fill(f"study {report.study}{scale}, seeds {joined(report.distinct('seed'))}: {caption}", 85)


def draw_metrics(report: Report, file: Path):
    """Plots each metric against the axis of the study and, in a second panel, against the number of parameters."""
    metrics, fields = report.compared_metrics, [report.axis]
    if report.axis != COUNTED and any(shape[COUNTED] is not None for shape in report.shapes):
        fields.append(COUNTED)
    with new_figure(PAGE, 3.2 * len(metrics) + 0.5 + ROW * len(report.series), file) as figure:
        panels = figure.subplots(len(metrics), len(fields), sharex="col", squeeze=False)
        for row, metric in zip(panels, metrics, strict=True):
            for panel, field in zip(row, fields, strict=True):
                plot_metric(panel, report, metric, field)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center")
        caption = "one marker per seed, lines through averages; series are offset horizontally"
        if any(shape.not_converged for shape in report.shapes):
            caption += "; hollow: not converged"
        if any(shape["objective"] in TASKS for shape in report.shapes):
            found = task_results(report.shapes)
            caption += "".join(f"; {text}" for name, text in LINES.items() if found.get(name) is not None)
        figure.suptitle(title(report, caption))


def plot_metric(panel: Axes, report: Report, metric: str, field: str):
    for index, (series, shapes) in enumerate(report.series.items()):
        color, marker = f"C{index}", MARKERS[index % len(MARKERS)]
        offset = STEP ** (index - (len(report.series) - 1) / 2)
        known = [shape for shape in shapes if shape[field] is not None and shape.estimate(metric).values]
        places = [offset * shape[field] for shape in known]
        panel.plot(places, [shape.estimate(metric).mean for shape in known], color=color, linewidth=1)
        panel.plot([], [], f"-{marker}", color=color, label=series)
        for shape, place in zip(known, places, strict=True):
            plot_seeds(panel, shape, metric, place, color, marker)
        plot_theory(panel, known, metric, field, color, offset)
    task = task_results(report.shapes)
    for name, style in (("null", "-"), ("goal", "--")):
        if task.get(name) is not None and metric in ("relative_error", "recalled"):
            panel.axhline(METRICS[metric].factor * task[name], color="black", linewidth=1, linestyle=style)
    if METRICS[metric].logarithmic:
        panel.set_yscale("log")
    if field == COUNTED:
        scale_counts(panel)
    else:
        values = sorted({shape[field] for shape in report.shapes if shape[field] is not None}, reverse=True)
        distance = (values[0] / values[-1]) ** TICK_DISTANCE
        ticks = values[:1]
        for value in values:
            ticks += [value] if value * distance < ticks[-1] else []
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [f"{value:g}" for value in ticks])
    panel.set(xlabel=AXES[field], ylabel=fill(METRICS[metric].label, 30))
    panel.grid()


def plot_theory(panel: Axes, shapes: list[ShapeResult], metric: str, field: str, color: str, offset: float):
    """Draws predicted thresholds as dotted lines, and predicted values of the metric as a dashed line."""
    threshold, _ = predictions(shapes, field) if shapes else (None, None)  # an order of magnitude is not drawn
    if threshold is not None:
        panel.axvline(offset * threshold, color=color, linestyle=":")
    recorded = {"error": "floor", "memorised": "predicted"}.get(metric)
    if recorded:
        values = [np.mean([record.results.get(recorded) or np.nan for record in shape.records]) for shape in shapes]
        panel.plot([offset * shape[field] for shape in shapes], values, "--", color=color, linewidth=1)


def plot_seeds(panel: Axes, shape: ShapeResult, metric: str, place: float, color: str, marker: str):
    by_seed = shape.estimate(metric).by_seed
    for record in shape.records:
        if record.seed in by_seed:
            inside, value = "none" if is_unfinished(record.results) else color, by_seed[record.seed]
            panel.plot(place, value, marker, color=color, markerfacecolor=inside, markersize=5, alpha=0.7)


def scale_counts(panel: Axes):
    """Makes the horizontal axis logarithmic, with labels such as 200 k."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(report: Report, file: Path):
    """Draws a panel for each pair of series, with a line and its 95% band for each pair of shapes."""
    by_series: dict[tuple[str, str], list[CurveDifference]] = {}
    for curve in report.curves:
        by_series.setdefault((curve.first["series"], curve.second["series"]), []).append(curve)
    columns = min(2, len(by_series))
    rows = ceil(len(by_series) / columns)
    with new_figure(PAGE, 3.2 * rows + 0.5, file) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel, curves in zip(panels.flat, by_series.values(), strict=False):
            plot_curves(panel, curves, report.axis)
        for panel in panels.flat[len(by_series) :]:
            panel.set_visible(False)
        for panel in panels[:, 0]:
            panel.set_ylabel("difference in held-out loss (nats)\nbelow zero is better")
        caption = "differences during training, paired by seed, with pointwise 95% bands"
        if any(curve.decay_from is not None for curve in report.curves):
            caption += "; dotted: start of the learning rate decay"
        figure.suptitle(title(report, caption))


def plot_curves(panel: Axes, curves: list[CurveDifference], axis: str):
    for index, curve in enumerate(curves):
        tokens, estimates = list(curve.differences), list(curve.differences.values())
        means, halves = (np.array([getattr(one, name) for one in estimates]) for name in ("mean", "half_interval"))
        panel.fill_between(tokens, means - halves, means + halves, color=f"C{index}", alpha=0.15, linewidth=0)
        label = f"{AXES[axis]} {curve.second[axis]:,} (seeds: {len(estimates[0].values)})"
        panel.plot(tokens, means, "o-", color=f"C{index}", markersize=4, label=label)
    first, second = curves[0].first, curves[0].second
    other = f"{AXES[axis]} {first[axis]:,}" if first["series"] == second["series"] else first["series"]
    panel.set_title(fill(f"{second['series']}: difference from {other}", 42))
    panel.axhline(0, color="black", linewidth=1)
    for end in {curve.decay_from for curve in curves if curve.decay_from is not None}:
        panel.axvline(end, color="black", linewidth=1, linestyle=":")
    scale_counts(panel)
    panel.set_xlabel("tokens seen")
    panel.grid()
    panel.legend()
