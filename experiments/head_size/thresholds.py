"""The head size, or number of heads, from which on a synthetic task is solved, compared with theory."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from experiments.study.shape_results import ShapeResult, reached_goal

MARGIN = 1.5  # factor within which a knee agrees with its prediction
KNEES = 400  # candidates in the search
NEARER = 0.5  # a knee needs less than this share of the mean squared residual of a power law
TIE = 1e-9  # tolerance between variances of logarithms

# The claims of theory, and the rules by which a threshold agrees with them.
SUFFICES, TRANSITION, KNEE = "suffices", "transition", "knee"
CLAIMS = {"nearest": TRANSITION, "memorise": KNEE, "average": SUFFICES, "extremes": TRANSITION, "recall": SUFFICES}
NUMBERS_OF_HEADS = ("extremes",)  # tasks with a predicted number of heads instead of a head size
RULES = {
    SUFFICES: "a number that suffices agrees if the threshold is at most this number",
    TRANSITION: "a transition agrees if its number is above the largest that misses the goal, and at most the "
    "threshold",
    KNEE: f"a knee agrees within a factor of {MARGIN}; there is a knee if the mean squared residual of a min(size, "
    "k), the form in theory, is less than half that of a power law (residuals are root mean squares of natural "
    "logarithms)",
}


@dataclass(frozen=True)
class Growth:
    """
    Growth of the number of memorized examples with the head size: a min(size, k), or a power law.

    Args:
        knee: k.
        knee_residual, power_residual: root mean squares of the differences of natural logarithms.
        exponent: exponent of the power law; 1 up to the knee in theory.
    """

    knee: float
    knee_residual: float
    exponent: float
    power_residual: float

    @property
    def has_knee(self) -> bool:
        """Whether the knee fits clearly better than the power law."""
        return self.knee_residual**2 < NEARER * self.power_residual**2 - TIE


@dataclass(frozen=True)
class Threshold:
    """
    The threshold of a series.

    Args:
        claim: one of RULES.
        predicted: None if theory names no number.
        order: order of magnitude of the number, if theory only names this.
        found: least value on the axis from which on all shapes reach the goal with their best seed; for `memorise` the
            knee of the means.
        missed: largest value on the axis whose shape misses the goal with every seed.
        by_all: like `found`, with every seed.
        not_converged: runs that did not converge, of the shapes that missed the goal, or of all for `memorise`.
        growth: for `memorise`, with at least three shapes.
        at_limit: runs that fitted all examples that were tried; their shapes are not part of `growth`.
        largest: largest value on the axis in `growth`, beyond which a knee would not be seen.
    """

    series: str
    claim: str
    predicted: float | None
    order: float | None
    found: float | None
    missed: float | None = None
    by_all: float | None = None
    not_converged: int = 0
    growth: Growth | None = None
    at_limit: int = 0
    largest: float | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether the threshold agrees; None without a prediction, or if the shapes do not decide."""
        if self.predicted is None:
            return None
        found, missed = self.found or math.inf, self.missed or 0
        if self.claim == KNEE:
            ends_before = self.largest is not None and self.largest <= MARGIN * self.predicted
            if self.growth is None or self.found is None and ends_before:
                return None
            return 1 / MARGIN <= found / self.predicted <= MARGIN
        if missed >= self.predicted or self.claim == TRANSITION and found < self.predicted:
            return False
        decided = found <= self.predicted if self.claim == SUFFICES else missed > 0 and found < math.inf
        return True if decided else None


def thresholds_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Threshold]:
    """Returns the thresholds of all series whose task has a goal or a knee."""
    found = []
    for name, shapes in series.items():
        results, said = results_of_task(shapes), predicted_by_theory(shapes, axis)
        claim = CLAIMS.get(shapes[0]["objective"], "")
        if "memorised" in results:
            limits = [sum(bool(record.results.get("at_limit")) for record in shape.records) for shape in shapes]
            fitted = [shape for shape, limit in zip(shapes, limits, strict=True) if not limit]
            known = [shape for shape in fitted if shape.estimate("memorised").values]
            growth, largest = growth_of(known, axis), max((shape[axis] for shape in known), default=None)
            knee = growth.knee if growth and growth.has_knee else None
            not_converged = sum(shape.not_converged for shape in shapes)
            found.append(Threshold(name, claim, *said, knee, None, knee, not_converged, growth, sum(limits), largest))
        elif results.get("goal") is not None:
            best, missed = from_which_on(shapes, axis, any)
            by_all, _ = from_which_on(shapes, axis, all)
            not_converged = sum(shape.not_converged for shape in shapes if not any(reached(shape)))
            found.append(Threshold(name, claim, *said, best, missed, by_all, not_converged))
    return found


def predicted_by_theory(shapes: list[ShapeResult], axis: str) -> tuple[float | None, float | None]:
    """Returns the threshold and the order that theory predicts on this axis, or None."""
    of_heads = shapes[0]["objective"] in NUMBERS_OF_HEADS
    if axis != ("num_attention_heads" if of_heads else "attention_head_size"):
        return None, None
    results = results_of_task(shapes)
    return results.get("threshold"), results.get("order")


def from_which_on(
    shapes: list[ShapeResult], axis: str, which: Callable[[Iterable[bool]], bool]
) -> tuple[int | None, int | None]:
    """
    Returns the least value on the axis from which on `which` (any or all) seeds reach the goal, and the largest value
    at which they do not.
    """
    missed = max((shape[axis] for shape in shapes if not which(reached(shape))), default=None)
    return min((shape[axis] for shape in shapes if missed is None or shape[axis] > missed), default=None), missed


def reached(shape: ShapeResult) -> list[bool]:
    """Returns whether each run reached the goal."""
    return [reached_goal(record.results) for record in shape.records]


def growth_of(shapes: list[ShapeResult], axis: str) -> Growth | None:
    """Returns the growth of the means over seeds; None with fewer than three shapes, or if one memorized nothing."""
    means = {shape[axis]: shape.estimate("memorised").mean for shape in shapes}
    return None if len(means) < 3 or min(means.values()) <= 0 else Growth(*fits(list(means), list(means.values())))


def fits(sizes: list[int], amounts: list[float]) -> tuple[float, float, float, float]:
    """
    Returns k and the residual of the best a min(size, k), and exponent and residual of the best power law, by least
    squares of logarithms.
    """
    x, y = np.log(sizes), np.log(amounts)
    knees = np.linspace(x.min(), x.max(), KNEES)
    residuals = (y - np.minimum(x, knees[:, None])).std(axis=1)
    exponent, offset = np.polyfit(x, y, 1)
    power_residual = (y - exponent * x - offset).std()
    best = residuals.argmin()
    return float(np.exp(knees[best])), float(residuals[best]), float(exponent), float(power_residual)


def results_of_task(shapes: list[ShapeResult]) -> dict:
    """Returns the results of any run that did not diverge, for constants of the task such as its goal."""
    every = (record.results for shape in shapes for record in shape.records)
    return next((results for results in every if results["loss"] is not None), {})
