"""The pictures of a report, each with how to read it as its title."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

from ..support.figures import style
from .difference_figures import curves_figure, differences_figure
from .figure import metrics_figure, plain
from .report import Report
from .report_text import joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pictures_of(report: Report) -> dict[str, bytes]:
    """By the name of the file: the metrics; the differences; and those along the training; each if there are any."""
    pictures = {}
    if report.compared_metrics:
        pictures["report.png"] = drawn(metrics_figure, report, metrics_caption(report))
    if any(finding.difference.values for finding in report.findings):
        pictures["differences.png"] = drawn(differences_figure, report, differences_caption(report))
    if report.curves:
        pictures["curves.png"] = drawn(curves_figure, report, curves_caption(report))
    return pictures


def drawn(draw: Callable[[Report], Figure], report: Report, caption: str) -> bytes:
    file = BytesIO()
    with style():
        figure = draw(report)
        figure.suptitle(fill(plain(caption), round(11 * figure.get_figwidth())))
        figure.savefig(file, format="png")
    return file.getvalue()


def study_and_seeds(report: Report) -> str:
    scale = f", scale {report.scale}" if report.scale else ""
    seeds = report.conditions.seeds
    return f"study {report.study}{scale}, seed{'s' if len(seeds) > 1 else ''} {joined(seeds)}"


def metrics_caption(report: Report) -> str:
    hollow = ", hollow: not converged" if any(shape.not_converged for shape in report.shapes) else ""
    return (
        f"{study_and_seeds(report)}: a dot for each seed{hollow}, lines through means; series are moved sideways a "
        "little, so that they do not cover each other"
    )


def differences_caption(report: Report) -> str:
    found = [finding for finding in report.findings if finding.difference.values]
    notes = {
        "hollow: one seed, no interval": any(len(one.difference.values) == 1 for one in found),
        "blue: the last of a series less its first": any(one.from_series == one.to_series for one in found),
        "orange: less the shape that it was made equal to": any(one.from_series != one.to_series for one in found),
    }
    start = f"{study_and_seeds(report)}: differences in the end, paired by seed (ticks), with 95 % intervals"
    return "; ".join([start, *(note for note, holds in notes.items() if holds)])


def curves_caption(report: Report) -> str:
    single = "; hollow: one seed, no band" if any(curve.trend is None for curve in report.curves) else ""
    falls = any(curve.rate_falls for curve in report.curves)
    return (
        f"{study_and_seeds(report)}: differences along the training, paired by seed, with 95 % bands, at each "
        f"evaluation for itself{single}{'; dotted: the learning rate falls from there on' if falls else ''}"
    )
