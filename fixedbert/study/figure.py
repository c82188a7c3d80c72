"""Every metric against the study's axis, and against parameters: a dot for each seed, a line of means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .records import AXES, COUNTED, METRICS
from .report import Report
from .shape_results import FLOOR, ShapeResult, is_open, results_of_task
from .thresholds import predicted_by_theory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOGARITHMIC = ("error", "relative_error", "memorised", "steps_to_goal")
MEASURES = ("relative_error", "recalled", "memorised")  # of which theory says something
MARKERS, COLORS = "os^Dv<>pP*Xdh8", 10  # matplotlib's, which then begin again
STEP, WIDEST = 0.014, 0.6  # between neighbouring series, of the axis; of all, of the least distance of two values
LETTER, HANDLE = 0.072, 0.55  # inches of a legend's entry
SAME = 0.05  # in logarithms: nearer values, such as parameters made equal, are one place


def metrics_figure(report: Report) -> Figure:
    """A row of panels for each metric; of synthetic tasks, which have one axis, a panel for each."""
    from matplotlib.figure import Figure

    metrics, fields = report.compared_metrics, fields_of(report)
    is_synthetic = fields == [report.axis] and report.axis != COUNTED
    rows, columns = (1, len(metrics)) if is_synthetic else (len(metrics), len(fields))
    figure = Figure(figsize=(6.5 * columns, (5.4 if is_synthetic else 4.4) * rows + 0.3))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=is_synthetic).reshape(len(metrics), len(fields))
    for row, metric in zip(panels, metrics, strict=True):
        for panel, field in zip(row, fields, strict=True):
            plot_metric(panel, report, metric, field)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    legend_columns = max(1, int(figure.get_figwidth() / (LETTER * longest + HANDLE)))
    figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns)
    return figure


def fields_of(report: Report) -> list[str]:
    """The horizontal axes: that of the study, and parameters, which are not counted for synthetic tasks."""
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
        if metric == "error":  # the floor is the line that the dots are to be compared to
            panel.plot([], [], marker, color=color, label=name)
        else:
            means = [shape.estimate(metric).mean for shape in shown]
            line = "-" if number < COLORS else "--"
            panel.plot([places[series, shape[field]] for shape in shown], means, line, color=color, linewidth=1)
            panel.plot([], [], f"{line}{marker}", color=color, label=name)
        plot_theory(panel, name, shown, metric, field, color)
    if metric in MEASURES:
        plot_levels(panel, report.shapes, metric)
    if metric in LOGARITHMIC:
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


def plot_theory(panel: Axes, name: str, shapes: list[ShapeResult], metric: str, field: str, color: str):
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


def plain(text: str) -> str:
    """Text for matplotlib, where a dollar begins a formula."""
    return text.replace("$", r"\$")
