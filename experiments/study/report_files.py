"""The files of a report: report.md, and pictures of every metric against the axis, and of differences in training."""

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
from .shape_results import Estimate, ShapeResult, is_open

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS, COLORS = "os^Dv<>pP*Xdh8", 10  # matplotlib's, which then begin again
STEP, WIDEST = 0.014, 0.6  # between neighbouring series, of the axis; of all, of the least distance of two values
LETTER, HANDLE, ROW = 0.072, 0.55, 0.19  # inches of a legend's entry
SAME = 0.05  # in logarithms: nearer values, such as parameters made equal, are one place
TITLE = 42  # characters in a line of a panel's title
LABEL = 30  # and in one of a vertical axis
NEAR = 0.06  # of an axis: a value that is nearer to another one has a tick without a number


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Report the runs of a study, and write the files of the report into `output_dir`, a new directory.

    Args:
        files: runs.jsonl of one study, from one or more machines.

    Raises:
        InputError: nothing in the files, or runs of different studies.
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
    """Write report.md and the pictures: report.png of all metrics, and curves.png where runs have curves."""
    pictures = {"report.png": (metrics_figure, report.compared_metrics), "curves.png": (curves_figure, report.curves)}
    for name, (draw, shown) in pictures.items():
        if shown:
            picture = BytesIO()
            with style():
                draw(report).savefig(picture, format="png")
            write_atomically(folder / name, picture.getvalue())
    write_atomically(folder / "report.md", report_markdown(report))


def entitle(figure: Figure, report: Report, caption: str):
    """How to read a figure, as its title."""
    scale = f", scale {report.scale}" if report.scale else ""
    seeds = report.conditions.seeds
    caption = f"study {report.study}{scale}, seed{'s' if len(seeds) > 1 else ''} {joined(seeds)}: {caption}"
    figure.suptitle(fill(plain(caption), round(11 * figure.get_figwidth())))


def plain(text: str) -> str:
    """Text for matplotlib, where a dollar begins a formula."""
    return text.replace("$", r"\$")


# Every metric against the axis of the study, and against parameters: a dot for each seed, a line of means.


def metrics_figure(report: Report) -> Figure:
    """A row of panels for each metric, with a column for the axis of the study and one for counted parameters."""
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
    caption = f"a dot for each seed{hollow}, lines through means; series are moved sideways a little, so that they do "
    entitle(figure, report, caption + "not cover each other")
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
        panel.plot([], [], f"{line}{marker}", color=color, label=plain(series))
    for extension in EXTENSIONS:
        extension.plot(panel, report, metric, field)
    scale(panel, METRICS[metric].logarithmic, field, sorted({value for _, value in places}))
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(fill(METRICS[metric].label, LABEL))
    panel.grid()


def scale(panel: Axes, logarithmic: bool, field: str, values: list[int]):
    """The scales of a panel: of the metric, and of the field with a tick for each value."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    few = (1, 2, 5)  # numbers of a decade
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    if high < 2 * low:  # one place: the axis is wide beside the moves
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
    """Numbers for the ticks of a logarithmic axis, and nothing for one that would touch the number before it."""
    whole, last, numbers = np.log(values[-1] / values[0]) or 1.0, -np.inf, []
    for value in values:
        place = np.log(value / values[0]) / whole
        numbers.append(f"{value:,}" if place - last >= NEAR else "")
        last = place if numbers[-1] else last
    return numbers


def sideways(shapes: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
    """The place of each (series, value) on a logarithmic axis; nearly equal values are drawn side by side."""
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
        if record["seed"] in by_seed:
            inside = "none" if is_open(record["results"]) else color
            value = by_seed[record["seed"]]
            panel.plot(place, value, marker, color=color, markerfacecolor=inside, markersize=5, alpha=0.7)


# Differences along the training, paired by seed, against a zero line.


def curves_figure(report: Report) -> Figure:
    """A panel for each series along its axis, or less another series; a line for each pair, with its 95 % band."""
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
    single = "; hollow: one seed, no band" if any(curve.trend is None for curve in report.curves) else ""
    falls = any(curve.rate_falls for curve in report.curves)
    caption = "differences along the training, paired by seed, with 95 % bands, at each evaluation for itself" + single
    entitle(figure, report, caption + ("; dotted: the learning rate falls from there on" if falls else ""))
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
    panel.set_title(fill(plain(f"{first.to_series}: difference from {other}"), TITLE))
    panel.axhline(0, color="black", linewidth=1)
    for end in {curve.decay_from for curve in curves if curve.rate_falls and curve.decay_from is not None}:
        panel.axvline(end, color="black", linewidth=1, linestyle=":")
    panel.set_xlabel("tokens seen")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid()
    panel.legend()


def bounds(estimates: list[Estimate]) -> tuple[float, float]:
    """Ends of an axis that shows zero and all seeds. Intervals extend it, by at most once its length on each side."""
    seeds = [0.0, *(value for estimate in estimates for value in estimate.values)]
    low, high = min(seeds), max(seeds)
    room = (high - low) or 1.0
    several = [estimate for estimate in estimates if len(estimate.values) > 1]
    lowest = min((one.mean - one.half_interval for one in several), default=low)
    highest = max((one.mean + one.half_interval for one in several), default=high)
    low, high = max(min(low, lowest), low - room), min(max(high, highest), high + room)
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin
