"""The pictures of a report, with what they show in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

from ..figures import style
from .difference_figures import curves_figure, differences_figure
from .figure import fields_of, metrics_figure, plain
from .records import AXES, METRICS
from .report import Report
from .report_text import joined, pair, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """
    Args:
        name: of its file.
        caption: how to read it; its title too.
        alt: what is seen in it, for those who do not see it.
        png: the file.
    """

    name: str
    caption: str
    alt: str
    png: bytes


def pictures_of(report: Report) -> list[Picture]:
    """The metrics; the differences; and those along the training; each if there are any."""
    pictures = [metrics_picture(report)] if report.compared_metrics else []
    if any(finding.difference.values for finding in report.findings):
        pictures.append(differences_picture(report))
    return pictures + ([curves_picture(report)] if report.curves else [])


def drawn(draw: Callable[[Report], Figure], report: Report, name: str, caption: str, alt: str) -> Picture:
    file = BytesIO()
    with style():
        figure = draw(report)
        figure.suptitle(fill(plain(caption), round(11 * figure.get_figwidth())))
        figure.savefig(file, format="png")
    return Picture(name, caption, alt, file.getvalue())


def study_and_seeds(report: Report) -> str:
    scale = f", scale {report.scale}" if report.scale else ""
    seeds = report.conditions.seeds
    return f"study {report.study}{scale}, seed{'s' if len(seeds) > 1 else ''} {joined(seeds)}"


def metrics_picture(report: Report) -> Picture:
    hollow = ", hollow: not converged" if any(shape.not_converged for shape in report.shapes) else ""
    caption = (
        f"{study_and_seeds(report)}: a dot for each seed{hollow}, lines through means; series are moved sideways a "
        "little, so that they do not cover each other"
    )
    metrics = " and ".join(METRICS[metric].label for metric in report.compared_metrics)
    axes = " and against ".join(AXES[field] for field in fields_of(report))
    alt = f"{metrics} against {axes}, for the series {'; '.join(report.series)}. The table has the numbers."
    return drawn(metrics_figure, report, "report.png", caption, alt)


def differences_picture(report: Report) -> Picture:
    found = [finding for finding in report.findings if finding.difference.values]
    notes = {
        "hollow: one seed, no interval": any(len(one.difference.values) == 1 for one in found),
        "blue: the last of a series less its first": any(one.from_series == one.to_series for one in found),
        "orange: less the shape that it was made equal to": any(one.from_series != one.to_series for one in found),
    }
    caption = "; ".join(
        [
            f"{study_and_seeds(report)}: differences in the end, paired by seed (ticks), with 95 % intervals",
            *(note for note, holds in notes.items() if holds),
        ]
    )
    beyond = [
        f"{pair(one, report.axis)}: {METRICS[one.metric].label} {with_interval(one.difference)}"
        for one in found
        if one.difference.is_beyond_spread
    ]
    alt = f"A row for each of {len(found)} differences. Beyond the spread: {'; '.join(beyond) or 'none'}."
    return drawn(differences_figure, report, "differences.png", caption, alt)


def curves_picture(report: Report) -> Picture:
    single = "; hollow: one seed, no band" if any(curve.trend is None for curve in report.curves) else ""
    falls = any(curve.rate_falls for curve in report.curves)
    caption = (
        f"{study_and_seeds(report)}: differences along the training, paired by seed, with 95 % bands, at each "
        f"evaluation for itself{single}{'; dotted: the learning rate falls from there on' if falls else ''}"
    )
    trends = [f"{pair(curve, report.axis)}: {curve.trend or 'one seed'}" for curve in report.curves]
    alt = f"Differences in loss against tokens seen. Trends: {'; '.join(trends)}."
    return drawn(curves_figure, report, "curves.png", caption, alt)
