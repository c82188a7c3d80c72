"""From which size, or number, of heads on a synthetic task is done, beside what theory says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .report import ShapeResult

MARGIN = 1.5  # the factor within which a threshold agrees with the prediction
KNEES = 400  # tried in the search for one


@dataclass(frozen=True)
class Threshold:
    """
    Args:
        predicted: None where theory names no number.
        order: that of the number, where theory names no more than this.
        found: the least value on the axis from which on all shapes reach the goal of the task in the mean, of
            `memorise` the knee; None where none does.
    """

    series: str
    predicted: float | None
    order: float | None
    found: float | None

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
        results = shapes[0]["results"]
        values = [shape[axis] for shape in shapes]
        if results.get("memorised") is not None:
            place = knee(values, [shape.estimate("memorised").mean for shape in shapes])
        elif results.get("goal") is not None:
            reached = [
                value for value, shape in zip(values, shapes, strict=True) if has_reached(shape, results["goal"])
            ]
            missed = [value for value in values if value not in reached]
            place = min((value for value in reached if value > max(missed, default=0)), default=None)
        else:
            continue
        found.append(Threshold(name, results.get("threshold"), results.get("order"), place))
    return found


def has_reached(shape: ShapeResult, goal: float) -> bool:
    """Whether the best seed has: one that does it shows that the shape can; the others may be stuck."""
    if "recalled" in shape.metrics:
        return max(shape.estimate("recalled").values, default=0) >= 100 * goal
    return min(shape.estimate("relative_error").values, default=math.inf) <= goal


def knee(sizes: list[int], amounts: list[float]) -> float | None:
    """The k of that a min(size, k) which is nearest to the amounts in squares of logarithms; None of two or fewer."""
    if len(sizes) < 3 or min(amounts) <= 0:
        return None
    knees = np.geomspace(min(sizes), max(sizes), KNEES)
    differences = np.log(amounts) - np.log(np.minimum(np.array(sizes), knees[:, None]))
    return float(knees[differences.var(axis=1).argmin()])
