"""The files of a report: report.md, a figure of all metrics, and a figure of differences during training."""

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
from .shape_results import Estimate, ShapeResult, is_unfinished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS, COLORS = "os^Dv<>pP*Xdh8", 10  # matplotlib's, which then begin again
# Series are drawn side by side: STEP of the axis apart, together at most WIDEST of the distance between two values.
STEP, WIDEST = 0.014, 0.6
LETTER, HANDLE, ROW = 0.072, 0.55, 0.19  # size of a legend entry in inches
SAME = 0.05  # difference of logarithms up to which values share a position, such as parameters made equal
TITLE, LABEL = 42, 30  # characters per line of a panel's title and of a vertical axis
NEAR = 0.06  # share of the axis up to which a tick is too near the one before it to have a number


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Report the runs of a study, and write the files of the report to `output_dir`, a new directory.

    Args:
        files: runs.jsonl files of one study, from one or more machines.

    Raises:
        InputError: the files contain no runs, or runs of different studies.
    """
    require_package("matplotlib", "study")
    if not files:
        raise InputError("no runs to report: give the runs.jsonl of a study.")
    with new_directory(output_dir) as folder:
        records = read_records(files)
        with error_context(", ".join(map(str, files))):
            report = make_report(records)
        write_report(report, folder)
    return report


def write_report(report: Report, folder: Path):
    """Write report.md, report.png with all metrics, and curves.png if runs were evaluated during training."""
    figures = {"report.png": (metrics_figure, report.compared_metrics), "curves.png": (curves_figure, report.curves)}
    for name, (draw, shown) in figures.items():
        if shown:
            image = BytesIO()
            with style():
                draw(report).savefig(image, format="png")
            write_atomically(folder / name, image.getvalue())
    write_atomically(folder / "report.md", report_markdown(report))


def entitle(figure: Figure, report: Report, caption: str):
    """Set the title, which explains how to read the figure."""
    scale = f", scale {report.scale}" if report.scale else ""
    seeds = report.conditions.seeds
    caption = f"study {report.study}{scale}, seed{'s' if len(seeds) > 1 else ''} {joined(seeds)}: {caption}"
    figure.suptitle(fill(escape_dollars(caption), round(11 * figure.get_figwidth())))


def escape_dollars(text: str) -> str:
    """Escapes dollar signs, which begin a formula in matplotlib."""
    return text.replace("$", r"\$")


def metrics_figure(report: Report) -> Figure:
    """Draws a row of panels for each metric: against the axis of the study, and against the number of parameters."""
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
    hollow = ", hollow: not converged" if any(shape.not_converged for shape in report.shapes) else ""
    entitle(figure, report, f"a dot for each seed{hollow}, lines through means; series are offset horizontally")
    return figure


def plot_metric(panel: Axes, report: Report, metric: str, field: str):
    found = {name: [one for one in shapes if one[field] is not None] for name, shapes in report.series.items()}
    places = sideways([(name, shape[field]) for name, shapes in found.items() for shape in shapes])
    for number, (series, shapes) in enumerate(found.items()):
        color, marker = f"C{number}", MARKERS[number % len(MARKERS)]
        shown = [shape for shape in shapes if metric in shape.metrics and shape.estimate(metric).values]
        for shape in shown:
            plot_seeds(panel, shape, metric, places[series, shape[field]], color, marker)
        line = ("-" if number < COLORS else "--") if METRICS[metric].has_line else ""
        if line:
            means = [shape.estimate(metric).mean for shape in shown]
            panel.plot([places[series, shape[field]] for shape in shown], means, line, color=color, linewidth=1)
        panel.plot([], [], f"{line}{marker}", color=color, label=escape_dollars(series))
    for extension in EXTENSIONS:
        extension.plot(panel, report, metric, field)
    scale(panel, METRICS[metric].logarithmic, field, sorted({value for _, value in places}))
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(fill(METRICS[metric].label, LABEL))
    panel.grid()


def scale(panel: Axes, logarithmic: bool, field: str, values: list[int]):
    """Set the scales of a panel: for the metric, and for the field with a tick for each value."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    few = (1, 2, 5)  # numbers of a decade
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    if high < 2 * low:  # a single value
        panel.set_xlim(low / 2, high * 2)
    if field == COUNTED:
        panel.xaxis.set_major_locator(LogLocator(subs=few))
        panel.xaxis.set_major_formatter(EngFormatter())
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_xticks(values, numbered(values))
        panel.xaxis.set_minor_locator(NullLocator())
    if logarithmic and np.isfinite(panel.dataLim.minposy):  # else no run has a value
        panel.set_yscale("log")
        low, high = panel.get_ylim()
        if high < 1000 * low:
            panel.yaxis.set_major_locator(LogLocator(subs=few))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())


def numbered(values: list[int]) -> list[str]:
    """Returns labels for the ticks of a logarithmic axis, empty where a label would touch the one before it."""
    whole, last, numbers = np.log(values[-1] / values[0]) or 1.0, -np.inf, []
    for value in values:
        place = np.log(value / values[0]) / whole
        numbers.append(f"{value:,}" if place - last >= NEAR else "")
        last = place if numbers[-1] else last
    return numbers


def sideways(shapes: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
    """Returns the position of each (series, value) on a logarithmic axis, with nearly equal values side by side."""
    groups: list[list[tuple[str, int]]] = []
    for shape in sorted(dict.fromkeys(shapes), key=lambda shape: shape[1]):
        if not groups or np.log(shape[1] / groups[-1][0][1]) > SAME:
            groups.append([])
        groups[-1].append(shape)
    logarithms = np.log([group[0][1] for group in groups])
    whole = np.ptp(logarithms) or 1.0
    step = min(STEP * whole, WIDEST * np.diff(logarithms).min(initial=whole) / max(map(len, groups)))
    return {
        shape: float(shape[1] * np.exp(step * (number - (len(group) - 1) / 2)))
        for group in groups
        for number, shape in enumerate(group)
    }


def plot_seeds(panel: Axes, shape: ShapeResult, metric: str, place: float, color: str, marker: str):
    by_seed = shape.estimate(metric).by_seed
    for record in shape.records:
        if record.seed in by_seed:
            inside = "none" if is_unfinished(record.results) else color
            value = by_seed[record.seed]
            panel.plot(place, value, marker, color=color, markerfacecolor=inside, markersize=5, alpha=0.7)


def curves_figure(report: Report) -> Figure:
    """Draws a panel for each pair of series and a line with its 95 % band for each pair of shapes."""
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
        panel.set_ylabel("difference in held-out loss (nats);\nbelow zero is better")
    panels[0, 0].set_ylim(*bounds([one for curve in report.curves for one in curve.differences.values()]))
    decays = any(curve.decay_from is not None for curve in report.curves)
    caption = "differences during training, paired by seed, with pointwise 95 % bands; hollow: one seed"
    entitle(figure, report, caption + ("; dotted: the learning rate decays from there on" if decays else ""))
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
    panel.set_title(fill(escape_dollars(f"{first.to_series}: difference from {other}"), TITLE))
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


def bounds(estimates: list[Estimate]) -> tuple[float, float]:
    """Returns axis limits that show zero and all seeds, extended for intervals by at most its length on each side."""
    seeds = [0.0, *(value for estimate in estimates for value in estimate.values)]
    low, high = min(seeds), max(seeds)
    room = (high - low) or 1.0
    several = [estimate for estimate in estimates if len(estimate.values) > 1]
    lowest = min((one.mean - one.half_interval for one in several), default=low)
    highest = max((one.mean + one.half_interval for one in several), default=high)
    low, high = max(min(low, lowest), low - room), min(max(high, highest), high + room)
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin
