"""Thresholds in the text of a report."""

from experiments.study.records import AXES
from experiments.study.report import Report
from experiments.study.report_text import Answer

from .thresholds import KNEE, RULES, Growth, Threshold, thresholds_of

VERDICTS = {True: ", agrees", False: ", does not agree", None: ", not decided by the shapes tried"}


def threshold_answer(report: Report) -> Answer:
    """Returns the predicted and measured thresholds of all series."""
    thresholds = thresholds_of(report.series, report.axis)
    claims = dict.fromkeys(one.claim for one in thresholds)
    axis = AXES[report.axis]
    of_goal = f"{axis} from which on the best seed reaches the goal" if claims.keys() - {KNEE} else ""
    of_knee = f"{axis} at which the number of memorized examples stops growing" if KNEE in claims else ""
    compared = {one.claim for one in thresholds if one.predicted is not None or one.growth}
    rules = [RULES[claim] for claim in claims if claim in compared]
    text = "; ".join([f"Thresholds: {' or '.join(filter(None, (of_goal, of_knee)))}", *rules]) + ":"
    return text, [threshold_line(one) for one in thresholds]


def threshold_line(threshold: Threshold) -> str:
    predicted = "none predicted" if threshold.predicted is None else f"predicted {threshold.predicted:g}"
    if threshold.order is not None:
        predicted = f"predicted an order of {threshold.order:g}"
    form = ".3g" if threshold.claim == KNEE else "g"
    found = "found none" if threshold.found is None else f"found {threshold.found:{form}}"
    if threshold.by_all != threshold.found:
        found += f" (with every seed {'none' if threshold.by_all is None else format(threshold.by_all, 'g')})"
    line = f"{threshold.series}: {predicted}, {found}"
    line += "" if threshold.predicted is None else VERDICTS[threshold.agrees]
    if threshold.growth:
        line += f"; {growth_text(threshold.growth)}"
    if threshold.at_limit:
        line += f"; without the shapes of {threshold.at_limit} runs that fitted all examples"
    return line + (f"; {threshold.not_converged} of these runs had not converged" if threshold.not_converged else "")


def growth_text(growth: Growth) -> str:
    power, knee = f"{growth.power_residual:.2g}", f"{growth.knee_residual:.2g}"
    law = f"a power law with exponent {growth.exponent:.2g}"
    if growth.has_knee:
        return f"residuals of {knee}, and of {power} for {law}"
    return f"no knee: {law} fits as well, with residuals of {power} against {knee}"


def limits_of_thresholds(report: Report) -> dict[str, bool]:
    thresholds = thresholds_of(report.series, report.axis)
    orders = [one.series for one in thresholds if one.order is not None]
    at_limit = sum(one.at_limit for one in thresholds)
    return {
        "A shape whose runs miss the goal may still be able to reach it: training can be stuck. A threshold "
        "between two shapes is unknown.": any(one.claim != KNEE for one in thresholds),
        f"For {'; '.join(orders)} theory names only an order: only the scaling can be compared.": bool(orders),
        "Theory has a lower bound for memorization: growth beyond the knee does not contradict it.": any(
            one.claim == KNEE for one in thresholds
        ),
        f"Runs that fitted all examples that were tried, so that their maximum is unknown: {at_limit}.": at_limit > 0,
    }
