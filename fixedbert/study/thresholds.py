"""From which size, or number, of heads on a synthetic task is done, beside what theory says."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .shape_results import ShapeResult

MARGIN = 1.5  # the factor within which a threshold agrees with the prediction
KNEES = 400  # tried in the search for one
TIE = 1e-9  # between variances of logarithms


@dataclass(frozen=True)
class Threshold:
    """
    Args:
        predicted: None where theory names no number.
        order: that of the number, where theory names no more than this.
        found: the least value on the axis from which on all shapes reach the goal of the task with their best seed, of
            `memorise` the knee of the means; None where there is none.
        by_all: the same with every seed; of `memorise` the knee too.
        at_cap: runs that ended at their cap, of the shapes that missed the goal, of `memorise` of all: with more steps
            another threshold might be found.
    """

    series: str
    predicted: float | None
    order: float | None
    found: float | None
    by_all: float | None = None
    at_cap: int = 0

    @property
    def agrees(self) -> bool | None:
        """Within MARGIN; None without a prediction."""
        if self.predicted is None:
            return None
        return self.found is not None and 1 / MARGIN <= self.found / self.predicted <= MARGIN


def thresholds_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Threshold]:
    """Of the series whose task has a goal."""
    found = []
    for name, shapes in series.items():
        results: dict = next((shape["results"] for shape in shapes if "null" in shape["results"]), {})
        predicted, order = results.get("threshold"), results.get("order")
        if "memorised" in results:
            known = [shape for shape in shapes if shape.estimate("memorised").values]
            place = knee([shape[axis] for shape in known], [shape.estimate("memorised").mean for shape in known])
            found.append(Threshold(name, predicted, order, place, place, sum(shape.not_converged for shape in shapes)))
        elif results.get("goal") is not None:
            best = from_which_on(shapes, axis, results["goal"], any)
            by_all = from_which_on(shapes, axis, results["goal"], all)
            missed = [shape for shape in shapes if not any(reached(shape, results["goal"]))]
            at_cap = sum(shape.not_converged for shape in missed)
            found.append(Threshold(name, predicted, order, best, by_all, at_cap))
    return found


def from_which_on(
    shapes: list[ShapeResult], axis: str, goal: float, which: Callable[[Iterable[bool]], bool]
) -> int | None:
    """The least value on the axis from which on `which` of the seeds, any or all, are at the goal."""
    missed = max((shape[axis] for shape in shapes if not which(reached(shape, goal))), default=0)
    return min((shape[axis] for shape in shapes if shape[axis] > missed), default=None)


def reached(shape: ShapeResult, goal: float) -> list[bool]:
    """Of every run whether it did. One shows that the shape can; the others may be stuck. What diverged did not."""
    results = [record["results"] for record in shape.records]
    return [
        one["recalled"] >= goal if "recalled" in one else one.get("relative_error", math.inf) <= goal
        for one in results
    ]


def knee(sizes: list[int], amounts: list[float]) -> float | None:
    """
    The k of that a min(size, k) which is nearest to the amounts in squares of logarithms; None of two or fewer, and
    where a power law, which has no knee and as many parameters, is as near.
    """
    if len(sizes) < 3 or min(amounts) <= 0:
        return None
    x, y = np.log(sizes), np.log(amounts)
    knees = np.linspace(x.min(), x.max(), KNEES)
    variances = (y - np.minimum(x, knees[:, None])).var(axis=1)
    power_law = (y - np.polyval(np.polyfit(x, y, 1), x)).var()
    if variances.min() >= power_law - TIE:
        return None
    return float(np.exp(knees[variances.argmin()]))
