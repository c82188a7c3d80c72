"""Finds the smallest head size or number of heads that solves a synthetic task, and compares it with theory."""

import math
from dataclasses import dataclass

import numpy as np

from .shape_results import ShapeResult, reached_goal

MARGIN = 1.5  # factor within which a knee agrees with its prediction
KNEE_CANDIDATES = 400
KNEE_RATIO = 0.5  # a knee must have less than this fraction of the power law's mean squared residual
TIE = 1e-9  # tolerance when variances of logarithms are compared

# The three kinds of predictions, the kind for each task, and the rules for agreement with a measured threshold.
SUFFICES, TRANSITION, KNEE = "suffices", "transition", "knee"
CLAIMS = {"nearest": TRANSITION, "memorise": KNEE, "average": SUFFICES, "extremes": TRANSITION, "recall": SUFFICES}
GOAL = "the smallest value at and above which the best seed reaches the goal"
RULES = {
    SUFFICES: f"{GOAL}; a prediction agrees if it is at least this value",
    TRANSITION: f"{GOAL}; a prediction agrees if it is at most this value and above every value that misses the goal",
    KNEE: "the value at which the number of memorized examples stops growing; a prediction agrees within a factor of "
    f"{MARGIN}; there is a knee if the predicted form, a min(size, k), has less than half the mean squared residual "
    "of a power law (residuals are root mean squares of natural logarithms)",
}


@dataclass(frozen=True)
class Growth:
    """
    Two fits of the number of memorized examples against the head size: a min(size, k), and a power law.

    Args:
        knee: The size k at which growth ends.
        knee_residual, power_residual: Root mean square errors of the natural logarithms.
        exponent: Exponent of the power law. In theory, it is 1 up to the knee.
    """

    knee: float
    knee_residual: float
    exponent: float
    power_residual: float

    @property
    def has_knee(self) -> bool:
        """True if a min(size, k) fits clearly better than the power law."""
        return self.knee_residual**2 < KNEE_RATIO * self.power_residual**2 - TIE


@dataclass(frozen=True)
class Threshold:
    """
    The predicted and measured threshold for one series, on the axis of the study.

    Args:
        claim: The rule that decides whether the threshold agrees, a key of RULES.
        predicted: Predicted threshold, or None if theory predicts no value.
        order: Predicted order of magnitude, if theory predicts only this.
        measured: Smallest value at and above which all shapes reach the goal with their best seed. For `memorise`, the
            knee of the averages over seeds.
        largest_miss: Largest value for which every seed misses the goal.
        not_converged: Number of runs that did not converge, among the shapes that missed the goal. For `memorise`,
            among all shapes.
        growth: Growth with the head size, for `memorise` with at least three shapes. Excludes shapes with runs that
            fitted all examples.
        largest: Largest value in `growth`. Knees beyond it cannot be seen.
    """

    series: str
    claim: str
    predicted: float | None
    order: float | None
    measured: float | None
    largest_miss: float | None = None
    not_converged: int = 0
    growth: Growth | None = None
    largest: float | None = None

    @property
    def agrees(self) -> bool | None:
        """True if the threshold agrees with its prediction. None without a prediction, or if undecided."""
        if self.predicted is None:
            return None
        measured, largest_miss = self.measured or math.inf, self.largest_miss or 0
        if self.claim == KNEE:
            ends_before = self.largest is not None and self.largest <= MARGIN * self.predicted
            if self.growth is None or self.measured is None and ends_before:
                return None
            return 1 / MARGIN <= measured / self.predicted <= MARGIN
        if largest_miss >= self.predicted or self.claim == TRANSITION and measured < self.predicted:
            return False
        decided = measured <= self.predicted if self.claim == SUFFICES else largest_miss > 0 and measured < math.inf
        return True if decided else None


def thresholds_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Threshold]:
    """Returns the thresholds of all series whose task has a goal or a knee."""
    thresholds = []
    for name, shapes in series.items():
        results, objective, predicted = task_results(shapes), shapes[0]["objective"], predictions(shapes, axis)
        if "memorised" in results:
            known = [shape for shape in shapes if shape.estimate("memorised").values]
            known = [shape for shape in known if not any(record.results.get("at_limit") for record in shape.records)]
            growth, largest = growth_of(known, axis), max((shape[axis] for shape in known), default=None)
            knee = growth.knee if growth and growth.has_knee else None
            not_converged = sum(shape.not_converged for shape in shapes)
            thresholds.append(Threshold(name, KNEE, *predicted, knee, None, not_converged, growth, largest))
        elif results.get("goal") is not None:
            missed = [shape for shape in shapes if not any(reached_goal(record.results) for record in shape.records)]
            largest_miss = max((shape[axis] for shape in missed), default=None)
            above = (shape[axis] for shape in shapes if largest_miss is None or shape[axis] > largest_miss)
            not_converged = sum(shape.not_converged for shape in missed)
            measured = min(above, default=None)
            thresholds.append(Threshold(name, CLAIMS[objective], *predicted, measured, largest_miss, not_converged))
    return thresholds


def predictions(shapes: list[ShapeResult], axis: str) -> tuple[float | None, float | None]:
    """Returns the predicted threshold and the predicted order of magnitude on this axis. Each can be None."""
    if axis != ("num_attention_heads" if shapes[0]["objective"] == "extremes" else "attention_head_size"):
        return None, None
    results = task_results(shapes)
    return results.get("threshold"), results.get("order")


def growth_of(shapes: list[ShapeResult], axis: str) -> Growth | None:
    """Fits the averages over seeds. Returns None for fewer than three shapes, or if a shape memorized nothing."""
    averages = {shape[axis]: shape.estimate("memorised").mean for shape in shapes}
    if len(averages) < 3 or min(averages.values()) <= 0:
        return None
    return fit_growth(list(averages), list(averages.values()))


def fit_growth(sizes: list[int], amounts: list[float]) -> Growth:
    """Fits a min(size, k) and a power law by least squares of logarithms."""
    x, y = np.log(sizes), np.log(amounts)
    knees = np.linspace(x.min(), x.max(), KNEE_CANDIDATES)
    residuals = (y - np.minimum(x, knees[:, None])).std(axis=1)
    exponent, offset = np.polyfit(x, y, 1)
    power_residual = (y - exponent * x - offset).std()
    best = residuals.argmin()
    return Growth(float(np.exp(knees[best])), float(residuals[best]), float(exponent), float(power_residual))


def task_results(shapes: list[ShapeResult]) -> dict:
    """Returns the results of any run that did not diverge, to read constants of the task such as its goal."""
    every = (record.results for shape in shapes for record in shape.records)
    return next((results for results in every if results["loss"] is not None), {})
