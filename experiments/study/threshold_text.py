"""Thresholds in the text of a report."""

from .records import AXES
from .report import Report
from .thresholds import KNEE, RULES, Growth, Threshold, thresholds_of

VERDICTS = {True: ", agrees", False: ", does not agree", None: ", not decided by these shapes"}


def threshold_answer(report: Report) -> tuple[str, list[str]]:
    """Returns a paragraph with the rules that apply, and a line for each series with a threshold."""
    thresholds = thresholds_of(report.series, report.axis)
    rules = dict.fromkeys(RULES[threshold.claim] for threshold in thresholds)
    return f"Thresholds on the {AXES[report.axis]}: {'; '.join(rules)}:", [*map(threshold_line, thresholds)]


def threshold_line(threshold: Threshold) -> str:
    predicted = "none predicted" if threshold.predicted is None else f"predicted {threshold.predicted:g}"
    if threshold.order is not None:
        predicted = f"predicted order of magnitude {threshold.order:g}"
    measured = "none measured" if threshold.measured is None else f"measured {threshold.measured:.3g}"
    line = f"{threshold.series}: {predicted}, {measured}"
    line += "" if threshold.predicted is None else VERDICTS[threshold.agrees]
    if threshold.growth:
        line += f"; {growth_text(threshold.growth)}"
    return line + (f"; {threshold.not_converged} of these runs did not converge" if threshold.not_converged else "")


def growth_text(growth: Growth) -> str:
    power, knee = f"{growth.power_residual:.2g}", f"{growth.knee_residual:.2g}"
    law = f"a power law with exponent {growth.exponent:.2g}"
    if growth.has_knee:
        return f"residuals of {knee}, and of {power} for {law}"
    return f"no knee: {law} fits as well, with residuals of {power} against {knee}"


def limits_of_thresholds(report: Report) -> dict[str, bool]:
    """Returns sentences about what thresholds do not show, mapped to True if they apply to this report."""
    thresholds = thresholds_of(report.series, report.axis)
    orders = [threshold.series for threshold in thresholds if threshold.order is not None]
    at_limit = sum(bool(record.results.get("at_limit")) for shape in report.shapes for record in shape.records)
    claims = {threshold.claim for threshold in thresholds}
    return {
        "A shape whose runs miss the goal may still be able to reach it, because training can get stuck. Where a "
        "threshold lies between two shapes is unknown.": bool(claims - {KNEE}),
        f"Theory predicts only an order of magnitude for {'; '.join(orders)}: only the scaling can be compared.": bool(
            orders
        ),
        "Theory gives a lower bound on memorization, so growth past the knee does not contradict it.": KNEE in claims,
        "Runs that fitted all examples, so that their maximum is unknown and their shapes do not count for a knee: "
        f"{at_limit}.": at_limit > 0,
    }
