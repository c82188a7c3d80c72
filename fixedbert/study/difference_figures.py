"""Differences paired by seed against a zero line: in the end a row for each pair of shapes, and along the training."""

from __future__ import annotations

from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING

from .curves import CurveDifference
from .figure import plain
from .records import AXES, METRICS
from .report import Finding, Report
from .report_text import pair, with_interval
from .shape_results import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGHER_IS_BETTER = ("mnli_accuracy", "mnli_accuracy_mm", "squad_f1", "squad_exact_match", "recalled", "memorised")
LABEL = 52  # characters in a line of a row's label
ROW = 0.42  # inches


def differences_figure(report: Report) -> Figure:
    """A panel for each metric, with a row for each of its findings."""
    from matplotlib.figure import Figure

    by_metric = {
        metric: [finding for finding in report.findings if finding.metric == metric and finding.difference.values]
        for metric in report.compared_metrics
    }
    by_metric = {metric: found for metric, found in by_metric.items() if found}
    heights = [ROW * len(found) + 0.9 for found in by_metric.values()]
    figure = Figure(figsize=(11, sum(heights) + 0.3))
    panels = figure.subplots(len(by_metric), squeeze=False, height_ratios=heights)[:, 0]
    for panel, (metric, found) in zip(panels, by_metric.items(), strict=True):
        plot_findings(panel, found, report.axis)
        better = "right" if metric in HIGHER_IS_BETTER else "left"
        panel.set_xlabel(f"difference in {METRICS[metric].label}; {better} of zero is better")
    return figure


def plot_findings(panel: Axes, findings: list[Finding], axis: str):
    low, high = bounds([finding.difference for finding in findings])
    for row, finding in enumerate(findings):
        estimate, color = finding.difference, "C0" if finding.from_series == finding.to_series else "C1"
        seeds = len(estimate.values)
        panel.plot(estimate.values, [row + 0.22] * seeds, "|", color=color, markersize=6, alpha=0.6)
        if seeds > 1:
            left, right = estimate.mean - estimate.half_interval, estimate.mean + estimate.half_interval
            panel.plot([max(left, low), min(right, high)], [row, row], "-", color=color, linewidth=2)
            for end, limit, arrow in ((-left, -low, "<"), (right, high, ">")):
                if end > limit:  # the interval goes on
                    panel.plot(limit if arrow == ">" else -limit, row, arrow, color=color, clip_on=False)
        panel.plot(estimate.mean, row, "o", color=color, markerfacecolor=color if seeds > 1 else "none")
        text = f"{with_interval(estimate)}  ({seeds} seed{'s' if seeds > 1 else ''})"
        panel.text(1.01, row, text, transform=panel.get_yaxis_transform(), va="center", fontsize="small")
    panel.axvline(0, color="black", linewidth=1)
    panel.set_xlim(low, high)
    panel.set_ylim(len(findings) - 0.5, -0.5)
    labels = [fill(plain(pair(finding, axis)), LABEL) for finding in findings]
    panel.set_yticks(range(len(findings)), labels, fontsize="small")
    panel.grid(axis="x")


def curves_figure(report: Report) -> Figure:
    """A panel for each series along its axis, or less another series; a line for each pair, with its 95 % band."""
    from matplotlib.figure import Figure

    by_series: dict[tuple[str, str], list[CurveDifference]] = {}
    for curve in report.curves:
        by_series.setdefault((curve.from_series, curve.to_series), []).append(curve)
    groups = list(by_series.values())
    columns = min(3, len(groups))
    rows = ceil(len(groups) / columns)
    figure = Figure(figsize=(max(6.5, 4.6 * columns), 3.9 * rows + 0.3))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for panel, curves in zip(panels.flat, groups, strict=False):
        plot_curves(panel, curves, AXES[report.axis])
    for panel in panels.flat[len(groups) :]:
        panel.set_visible(False)
    for panel in panels.flat[max(0, len(groups) - columns) : len(groups)]:  # the lowest of each column
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("tokens seen")
    for panel in panels[:, 0]:
        panel.set_ylabel("difference in held-out loss (nats);\nbelow zero is better")
    panels[0, 0].set_ylim(*bounds([one for curve in report.curves for one in curve.differences.values()]))
    return figure


def plot_curves(panel: Axes, curves: list[CurveDifference], axis: str):
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    for number, curve in enumerate(curves):
        color, tokens, estimates = f"C{number}", list(curve.differences), list(curve.differences.values())
        means, halves = [one.mean for one in estimates], [one.half_interval for one in estimates]
        seeds = len(estimates[0].values)
        if seeds > 1:
            low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
            panel.fill_between(tokens, low, high, color=color, alpha=0.15, linewidth=0)
        inside = color if seeds > 1 else "none"
        label = f"{axis} {curve.to_value:,} ({seeds} seed{'s' if seeds > 1 else ''})"
        panel.plot(tokens, means, "o-", color=color, markersize=4, markerfacecolor=inside, label=label)
    first = curves[0]
    other = f"{axis} {first.from_value:,}" if first.from_series == first.to_series else first.from_series
    panel.set_title(fill(plain(f"{first.to_series}: difference from {other}"), LABEL))
    panel.axhline(0, color="black", linewidth=1)
    for end in {curve.decay_from for curve in curves if curve.rate_falls and curve.decay_from is not None}:
        panel.axvline(end, color="black", linewidth=1, linestyle=":")
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
