"""Writes the files of a report: report.md, a figure of all metrics, and a figure of differences during training."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fixedbert.support.errors import InputError, error_context, require_package
from fixedbert.support.figures import PAGE, style
from fixedbert.support.files import new_directory, write_atomically

from .records import AXES, COUNTED, read_records
from .registry import EXTENSIONS, METRICS
from .report import CurveDifference, Report, make_report
from .report_text import joined, report_markdown
from .shape_results import ShapeResult, is_unfinished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS, COLORS = "os^Dv<>pP*Xdh8", 10  # markers for series, and the number of colors before matplotlib repeats them
STEP = 0.02  # horizontal offset between series, as a fraction of the logarithmic axis
LETTER, HANDLE, ROW = 0.072, 0.55, 0.19  # size of a legend entry in inches
TITLE, LABEL = 42, 30  # characters per line of a panel's title and of a vertical axis label
NEAR = 0.06  # ticks have no label if they are closer than this fraction of the axis to the previous label


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Creates the report for the runs of a study, and writes its files to the new directory `output_dir`.

    Args:
        files: Files runs.jsonl from one study, from one or more machines.

    Raises:
        InputError: If the files contain no runs, or runs from different studies.
    """
    require_package("matplotlib", "study")
    if not files:
        raise InputError("no runs to report: pass the runs.jsonl of a study.")
    with new_directory(output_dir) as directory:
        records = read_records(files)
        with error_context(", ".join(map(str, files))):
            report = make_report(records)
        write_report(report, directory)
    return report


def write_report(report: Report, directory: Path):
    """Writes report.md, report.png with all metrics, and curves.png if runs were evaluated during training."""
    figures = {"report.png": (metrics_figure, report.compared_metrics), "curves.png": (curves_figure, report.curves)}
    for name, (draw, shown) in figures.items():
        if shown:
            image = BytesIO()
            with style():
                draw(report).savefig(image, format="png")
            write_atomically(directory / name, image.getvalue())
    write_atomically(directory / "report.md", report_markdown(report))


def entitle(figure: Figure, report: Report, caption: str):
    """Sets the figure's title, which names the study and explains how to read the figure."""
    scale = f", scale {report.scale}" if report.scale else ""
    seeds = report.conditions.seeds
    caption = f"study {report.study}{scale}, seed{'s' if len(seeds) > 1 else ''} {joined(seeds)}: {caption}"
    figure.suptitle(fill(caption, round(11 * figure.get_figwidth())))


def metrics_figure(report: Report) -> Figure:
    """Plots each metric against the axis of the study and, in a second panel, against the number of parameters."""
    from matplotlib.figure import Figure

    metrics, fields = report.compared_metrics, [report.axis]
    if report.axis != COUNTED and any(shape[COUNTED] is not None for shape in report.shapes):
        fields.append(COUNTED)
    figure = Figure(figsize=(PAGE, 3.2 * len(metrics)))
    panels = figure.subplots(len(metrics), len(fields), sharex="col", squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, field in zip(row, fields, strict=True):
            plot_metric(panel, report, metric, field)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    legend_columns = max(1, int(PAGE / (LETTER * longest + HANDLE)))
    figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns)
    figure.set_figheight(figure.get_figheight() + 0.5 + ROW * ceil(len(labels) / legend_columns))
    hollow = " (hollow: not converged)" if any(shape.not_converged for shape in report.shapes) else ""
    entitle(figure, report, f"one marker per seed{hollow}, lines through averages; series are offset horizontally")
    return figure


def plot_metric(panel: Axes, report: Report, metric: str, field: str):
    found = {name: [one for one in shapes if one[field] is not None] for name, shapes in report.series.items()}
    values = sorted({shape[field] for shapes in found.values() for shape in shapes})
    step = max(values[-1] / values[0], 4) ** STEP if values else 1.0  # nearly equal values span a factor of 4
    for index, (series, shapes) in enumerate(found.items()):
        color, marker, offset = f"C{index}", MARKERS[index % len(MARKERS)], step ** (index - (len(found) - 1) / 2)
        shown = [shape for shape in shapes if metric in shape.metrics and shape.estimate(metric).values]
        for shape in shown:
            plot_seeds(panel, shape, metric, offset * shape[field], color, marker)
        line = ("-" if index < COLORS else "--") if METRICS[metric].has_line else ""
        if line:
            means = [shape.estimate(metric).mean for shape in shown]
            panel.plot([offset * shape[field] for shape in shown], means, line, color=color, linewidth=1)
        panel.plot([], [], f"{line}{marker}", color=color, label=series)
    for extension in EXTENSIONS:
        extension.plot(panel, report, metric, field)
    scale(panel, METRICS[metric].logarithmic, field, values)
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(fill(METRICS[metric].label, LABEL))
    panel.grid()


def scale(panel: Axes, logarithmic: bool, field: str, values: list[int]):
    """Sets the scales of a panel: for the metric, and for the field with a tick at each value."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    few = (1, 2, 5)  # ticks in each decade
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    if high < 2 * low:  # a single value
        panel.set_xlim(low / 2, high * 2)
    if field == COUNTED:
        panel.xaxis.set_major_locator(LogLocator(subs=few))
        panel.xaxis.set_major_formatter(EngFormatter())
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_xticks(values, tick_labels(values))
        panel.xaxis.set_minor_locator(NullLocator())
    if logarithmic and np.isfinite(panel.dataLim.minposy):  # False if no run has a value
        panel.set_yscale("log")
        low, high = panel.get_ylim()
        if high < 1000 * low:
            panel.yaxis.set_major_locator(LogLocator(subs=few))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())


def tick_labels(values: list[int]) -> list[str]:
    """Returns labels for the ticks of a logarithmic axis. A label is empty if it would touch the previous one."""
    length, last, labels = np.log(values[-1] / values[0]) or 1.0, -np.inf, []
    for value in values:
        position = np.log(value / values[0]) / length
        labels.append(f"{value:,}" if position - last >= NEAR else "")
        last = position if labels[-1] else last
    return labels


def plot_seeds(panel: Axes, shape: ShapeResult, metric: str, position: float, color: str, marker: str):
    by_seed = shape.estimate(metric).by_seed
    for record in shape.records:
        if record.seed in by_seed:
            fill_color = "none" if is_unfinished(record.results) else color
            value = by_seed[record.seed]
            panel.plot(position, value, marker, color=color, markerfacecolor=fill_color, markersize=5, alpha=0.7)


def curves_figure(report: Report) -> Figure:
    """Draws a panel for each pair of series, with a line and its 95% band for each pair of shapes."""
    from matplotlib.figure import Figure

    by_series: dict[tuple[str, str], list[CurveDifference]] = {}
    for curve in report.curves:
        by_series.setdefault((curve.from_series, curve.to_series), []).append(curve)
    columns = min(2, len(by_series))
    rows = ceil(len(by_series) / columns)
    figure = Figure(figsize=(PAGE, 3.2 * rows + 0.5))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for panel, curves in zip(panels.flat, by_series.values(), strict=False):
        plot_curves(panel, curves, AXES[report.axis])
    for panel in panels.flat[len(by_series) :]:
        panel.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("difference in held-out loss (nats)\nbelow zero is better")
    decays = any(curve.decay_from is not None for curve in report.curves)
    caption = "differences during training, paired by seed, with pointwise 95% bands (hollow: one seed)"
    entitle(figure, report, caption + ("; dotted: start of the learning rate decay" if decays else ""))
    return figure


def plot_curves(panel: Axes, curves: list[CurveDifference], axis: str):
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    for number, curve in enumerate(curves):
        color, tokens, estimates = f"C{number}", list(curve.differences), list(curve.differences.values())
        means, halves = (np.array([getattr(one, name) for one in estimates]) for name in ("mean", "half_interval"))
        seeds = len(estimates[0].values)
        if seeds > 1:
            panel.fill_between(tokens, means - halves, means + halves, color=color, alpha=0.15, linewidth=0)
        inside = color if seeds > 1 else "none"
        label = f"{axis} {curve.to_value:,} ({seeds} seed{'s' if seeds > 1 else ''})"
        panel.plot(tokens, means, "o-", color=color, markersize=4, markerfacecolor=inside, label=label)
    first = curves[0]
    other = f"{axis} {first.from_value:,}" if first.from_series == first.to_series else first.from_series
    panel.set_title(fill(f"{first.to_series}: difference from {other}", TITLE))
    panel.axhline(0, color="black", linewidth=1)
    for end in {curve.decay_from for curve in curves if curve.decay_from is not None}:
        panel.axvline(end, color="black", linewidth=1, linestyle=":")
    panel.set_xlabel("tokens seen")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid()
    panel.legend()
