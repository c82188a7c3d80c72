"""What a report says of thresholds, and what they do not show."""

from experiments.study.records import AXES
from experiments.study.report import Report
from experiments.study.report_text import Answer

from .thresholds import KNEE, RULES, Growth, Threshold, thresholds_of


def threshold_answer(report: Report) -> Answer:
    """What was predicted and found, where theory has a threshold of the task."""
    thresholds = thresholds_of(report.series, report.axis)
    claims = {one.claim: None for one in thresholds}
    axis = AXES[report.axis]
    of_goal = f"{axis} from which on the best seed reaches the goal" if claims.keys() - {KNEE} else ""
    of_knee = f"{axis} at which the growth of what is memorised ends" if KNEE in claims else ""
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
    verdict = {True: ", agrees", False: ", does not agree", None: ", not decided by the shapes tried"}[
        threshold.agrees
    ]
    line = f"{threshold.series}: {predicted}, {found}" + ("" if threshold.predicted is None else verdict)
    if threshold.growth:
        line += f"; {growth_text(threshold.growth)}"
    if threshold.at_limit:
        line += f"; without the shapes of {threshold.at_limit} runs that are at the upper limit of T"
    return line + (f"; {threshold.at_cap} of the runs that decide this had not converged" if threshold.at_cap else "")


def growth_text(growth: Growth) -> str:
    power, knee = f"{growth.power_residual:.2g}", f"{growth.knee_residual:.2g}"
    law = f"a power law with exponent {growth.exponent:.2g}"
    if growth.has_knee:
        return f"residuals of {knee}; {law} has {power}"
    return f"no knee: {law} fits as well, with residuals of {power}, of the best knee {knee}"


def limits_of_thresholds(report: Report) -> dict[str, bool]:
    thresholds = thresholds_of(report.series, report.axis)
    goals = any(threshold.claim != KNEE for threshold in thresholds)
    orders = [one.series for one in thresholds if one.order is not None]
    knees = any(threshold.claim == KNEE for threshold in thresholds)
    at_limit = sum(threshold.at_limit for threshold in thresholds)
    return {
        "That no run of a shape reached the goal does not show that it cannot: training may be stuck, or its loss be "
        "flat before it goes on. Between two shapes of a series a threshold is not known.": goals,
        f"Of {'; '.join(orders)} theory names an order alone: only the scaling can be compared.": bool(orders),
        "Theory has a lower bound of what can be memorised: growth past the knee does not contradict it.": knees,
        f"Runs that fitted as many examples as were tried, so that their most is not known: {at_limit}.": at_limit > 0,
    }
