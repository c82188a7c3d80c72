"""Every metric against the study's axis, and against parameters: a dot for each seed, a line of means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .records import AXES, COUNTED, METRICS
from .report import Report
from .shape_results import ShapeResult, is_open

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS, COLORS = "os^Dv<>pP*Xdh8", 10  # matplotlib's, which then begin again
STEP, WIDEST = 0.014, 0.6  # between neighbouring series, of the axis; of all, of the least distance of two values
LETTER, HANDLE = 0.072, 0.55  # inches of a legend's entry
SAME = 0.05  # in logarithms: nearer values, such as parameters made equal, are one place
# What a checkout adds to a panel: by the report, the metric and the field of the axis.
BESIDE: list[Callable[[Axes, Report, str, str], None]] = []


def metrics_figure(report: Report) -> Figure:
    """A row of panels for each metric; where parameters are not counted, which leaves one axis, a panel for each."""
    from matplotlib.figure import Figure

    metrics, fields = report.compared_metrics, fields_of(report)
    one_axis = fields == [report.axis] and report.axis != COUNTED
    rows, columns = (1, len(metrics)) if one_axis else (len(metrics), len(fields))
    figure = Figure(figsize=(6.5 * columns, (5.4 if one_axis else 4.4) * rows + 0.3))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=one_axis).reshape(len(metrics), len(fields))
    for row, metric in zip(panels, metrics, strict=True):
        for panel, field in zip(row, fields, strict=True):
            plot_metric(panel, report, metric, field)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    legend_columns = max(1, int(figure.get_figwidth() / (LETTER * longest + HANDLE)))
    figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns)
    return figure


def fields_of(report: Report) -> list[str]:
    """The horizontal axes: that of the study, and parameters, where they are counted."""
    counted = any(shape[COUNTED] is not None for shape in report.shapes)
    return list(dict.fromkeys((report.axis, COUNTED))) if counted else [report.axis]


def plot_metric(panel: Axes, report: Report, metric: str, field: str):
    from matplotlib.ticker import NullLocator

    found = {name: [one for one in shapes if one[field] is not None] for name, shapes in report.series.items()}
    places = sideways([(name, shape[field]) for name, shapes in found.items() for shape in shapes])
    for number, (series, shapes) in enumerate(found.items()):
        name, color, marker = plain(series), f"C{number}", MARKERS[number % len(MARKERS)]
        shown = [shape for shape in shapes if metric in shape.metrics and shape.estimate(metric).values]
        for shape in shown:
            plot_seeds(panel, shape, metric, places[series, shape[field]], color, marker)
        if not METRICS[metric].has_line:
            panel.plot([], [], marker, color=color, label=name)
        else:
            means = [shape.estimate(metric).mean for shape in shown]
            line = "-" if number < COLORS else "--"
            panel.plot([places[series, shape[field]] for shape in shown], means, line, color=color, linewidth=1)
            panel.plot([], [], f"{line}{marker}", color=color, label=name)
    for plot in BESIDE:
        plot(panel, report, metric, field)
    if METRICS[metric].logarithmic:
        panel.set_yscale("log")
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    if high < 2 * low:  # one place: the axis is wide beside the moves
        panel.set_xlim(low / 2, high * 2)
    if field != COUNTED:
        values = sorted({value for _, value in places})
        panel.set_xticks(values, [f"{value:,}" for value in values])
        panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(AXES[field])
    panel.set_ylabel(METRICS[metric].label)
    panel.grid()


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


def plain(text: str) -> str:
    """Text for matplotlib, where a dollar begins a formula."""
    return text.replace("$", r"\$")
