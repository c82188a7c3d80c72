"""From which size, or number, of heads on a synthetic task is done, beside what theory says."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from experiments.study.shape_results import ShapeResult, reached_goal

MARGIN = 1.5  # the factor within which a knee agrees with the prediction
KNEES = 400  # tried in the search for one
NEARER = 0.5  # times the mean squared residual of a power law; a knee's has to be less
TIE = 1e-9  # between variances of logarithms

# What theory claims of a task, and the rule by which a threshold agrees with the claim.
SUFFICES, TRANSITION, KNEE = "suffices", "transition", "knee"
CLAIMS = {"nearest": TRANSITION, "memorise": KNEE, "average": SUFFICES, "extremes": TRANSITION, "recall": SUFFICES}
NUMBERS_OF_HEADS = ("extremes",)  # the tasks whose number is one of heads; of the others it is the size of one
RULES = {
    SUFFICES: "a claim that a number suffices agrees if the threshold found is at most this number",
    TRANSITION: "a claim of a transition agrees if its number is above the largest that misses the goal, and at most "
    "the threshold found",
    KNEE: f"a claim of a knee agrees within a factor of {MARGIN}; there is a knee where the mean squared residual of "
    "a min(size, k), the form that theory has, is less than half that of a power law (residuals are root mean squares "
    "of natural logarithms)",
}


@dataclass(frozen=True)
class Growth:
    """
    How what is memorised grows with the size of a head: as a min(size, k), or by a power law, of two parameters each.

    Args:
        knee: k.
        knee_residual, power_residual: root mean squares of the differences of natural logarithms.
        exponent: of the power law; by theory 1, up to the knee.
    """

    knee: float
    knee_residual: float
    exponent: float
    power_residual: float

    @property
    def has_knee(self) -> bool:
        """Whether the knee is clearly nearer than the power law."""
        return self.knee_residual**2 < NEARER * self.power_residual**2 - TIE


@dataclass(frozen=True)
class Threshold:
    """
    Args:
        claim: the kind of what theory says, one of RULES.
        predicted: None where theory names no number.
        order: of magnitude of the number, where theory names no more than this.
        found: the least value on the axis from which on all shapes reach the goal of the task with their best seed, of
            `memorise` the knee of the means; None where there is none.
        missed: the largest value on the axis whose shape misses the goal with every seed; None where there is none.
        by_all: as `found`, with every seed; of `memorise` the knee too.
        at_cap: runs that ended at their cap, of the shapes that missed the goal, of `memorise` of all: with more steps
            another threshold might be found.
        growth: of `memorise`, where three shapes or more have a most that they fit.
        at_limit: runs that fitted the largest number of examples that was tried; their shapes are not in `growth`.
        largest: value on the axis in `growth`: a knee near it or beyond it would not be seen.
    """

    series: str
    claim: str
    predicted: float | None
    order: float | None
    found: float | None
    missed: float | None = None
    by_all: float | None = None
    at_cap: int = 0
    growth: Growth | None = None
    at_limit: int = 0
    largest: float | None = None

    @property
    def agrees(self) -> bool | None:
        """By the rule of the claim; None without a prediction, and where the shapes tried do not decide."""
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
    """Thresholds of the series whose task has a goal or a knee."""
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
            at_cap = sum(shape.not_converged for shape in shapes)
            found.append(Threshold(name, claim, *said, knee, None, knee, at_cap, growth, sum(limits), largest))
        elif results.get("goal") is not None:
            best, missed = from_which_on(shapes, axis, any)
            by_all, _ = from_which_on(shapes, axis, all)
            at_cap = sum(shape.not_converged for shape in shapes if not any(reached(shape)))
            found.append(Threshold(name, claim, *said, best, missed, by_all, at_cap))
    return found


def predicted_by_theory(shapes: list[ShapeResult], axis: str) -> tuple[float | None, float | None]:
    """Threshold and order that theory predicts for shapes of one task; None where it names none on this axis."""
    of_heads = shapes[0]["objective"] in NUMBERS_OF_HEADS
    if axis != ("num_attention_heads" if of_heads else "attention_head_size"):
        return None, None
    results = results_of_task(shapes)
    return results.get("threshold"), results.get("order")


def from_which_on(
    shapes: list[ShapeResult], axis: str, which: Callable[[Iterable[bool]], bool]
) -> tuple[int | None, int | None]:
    """
    The least value on the axis from which on `which` of the seeds, any or all, are at the goal, and the largest at
    which they are not.
    """
    missed = max((shape[axis] for shape in shapes if not which(reached(shape))), default=None)
    return min((shape[axis] for shape in shapes if missed is None or shape[axis] > missed), default=None), missed


def reached(shape: ShapeResult) -> list[bool]:
    """Whether each run reached the goal. One shows that the shape can; the others may be stuck."""
    return [reached_goal(record.results) for record in shape.records]


def growth_of(shapes: list[ShapeResult], axis: str) -> Growth | None:
    """Growth of the means over seeds; None for fewer than three shapes, or if one has memorised nothing."""
    means = {shape[axis]: shape.estimate("memorised").mean for shape in shapes}
    return None if len(means) < 3 or min(means.values()) <= 0 else Growth(*fits(list(means), list(means.values())))


def fits(sizes: list[int], amounts: list[float]) -> tuple[float, float, float, float]:
    """
    The k of that a min(size, k) which is nearest to the amounts in squares of logarithms, and its residual; the
    exponent of the nearest power law, and its residual.
    """
    x, y = np.log(sizes), np.log(amounts)
    knees = np.linspace(x.min(), x.max(), KNEES)
    residuals = (y - np.minimum(x, knees[:, None])).std(axis=1)
    exponent, offset = np.polyfit(x, y, 1)
    power_residual = (y - exponent * x - offset).std()
    best = residuals.argmin()
    return float(np.exp(knees[best])), float(residuals[best]), float(exponent), float(power_residual)


def results_of_task(shapes: list[ShapeResult]) -> dict:
    """Results of any run that did not diverge: they have what is the task's, such as its goal."""
    every = (record.results for shape in shapes for record in shape.records)
    return next((results for results in every if results["loss"] is not None), {})
