"""Results for each shape at its best learning rate: averages over seeds with 95% confidence intervals."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fixedbert.support.errors import InputError

from .metrics import METRICS
from .records import SHAPE, Record
from .studies import lowest_loss

CONFIDENCE = 0.95
COMPARABLE = ("objective", *SHAPE, "max_seq_length")  # fields that all runs of a shape share


@dataclass(frozen=True)
class Estimate:
    """Values by seed, in the unit of the metric's label. Excludes diverged runs."""

    by_seed: dict[int, float]

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        """The average over seeds. NaN if there are no values."""
        return float(np.mean(self.values)) if self.by_seed else float("nan")

    @property
    def half_interval(self) -> float:
        """Half-width of the 95% confidence interval for the mean (Student's t). NaN for fewer than two seeds."""
        if len(self.by_seed) < 2:
            return float("nan")
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(self.values) - 1) * stats.sem(self.values))

    def less(self, other: "Estimate") -> "Estimate":
        """Returns the differences `self` - `other`, paired by seed. A seed determines the examples for all shapes."""
        return Estimate(
            {seed: self.by_seed[seed] - value for seed, value in other.by_seed.items() if seed in self.by_seed}
        )


@dataclass(frozen=True)
class ShapeResult:
    """
    The results for one shape of a series.

    Args:
        records: Runs with the best learning rate, one per seed.
        learning_rates: All learning rates that were tried.
    """

    records: list[Record]
    learning_rates: list[float]

    def __getitem__(self, field: str):
        """Returns a field of the first record in which it is not None. Diverged runs do not have all counts."""
        return next((value for record in self.records if (value := getattr(record, field)) is not None), None)

    @property
    def metrics(self) -> list[str]:
        """The labeled metrics in the results of the runs."""
        found = {name for record in self.records for name in record.results}
        return [name for name, metric in METRICS.items() if metric.label and name in found]

    def estimate(self, metric: str) -> Estimate:
        values = {record.seed: record.results.get(metric) for record in self.records}
        factor = METRICS[metric].factor
        return Estimate({seed: factor * value for seed, value in values.items() if value is not None})

    @property
    def evaluated(self) -> dict[int, Record]:
        """Maps seeds to runs that were evaluated during training. Excludes diverged runs."""
        return {record.seed: record for record in self.records if record.curve and not record.diverged}

    @property
    def not_converged(self) -> int:
        return sum(is_unfinished(record.results) for record in self.records)

    @property
    def diverged(self) -> int:
        return sum(record.diverged for record in self.records)

    @property
    def end_of_grid(self) -> str | None:
        """Describes the best learning rate as "lowest" or "highest" if it is at an end of the grid. Otherwise None."""
        ends = {min(self.learning_rates): "lowest", max(self.learning_rates): "highest"}
        return ends.get(self["learning_rate"]) if len(self.learning_rates) > 1 else None


def reached_goal(results: dict) -> bool:
    """Returns True if a run reached the goal of its task."""
    goal = results.get("goal")
    if goal is None:
        return False
    if results.get("recalled") is not None:
        return results["recalled"] >= goal
    return results.get("relative_error") is not None and results["relative_error"] <= goal


def is_unfinished(results: dict) -> bool:
    """Returns True if a run used its maximum number of steps, so that more steps might improve its results."""
    return results.get("converged") == 0 and not reached_goal(results) and not results.get("at_limit")


def shapes_by_series(records: list[Record]) -> dict[str, list[ShapeResult]]:
    """
    Groups records by series and shape. Among the learning rates with the most seeds, the lowest loss decides.

    Raises:
        InputError: If the runs of a shape are not comparable.
    """
    names = list(dict.fromkeys(record.series for record in records))
    places = sorted({(names.index(record.series), record.point) for record in records})
    series: dict[str, list[ShapeResult]] = {}
    for name, point in ((names[number], point) for number, point in places):
        of_shape = [record for record in records if (record.series, record.point) == (name, point)]
        complete = [record for record in of_shape if not record.of_grid]
        shapes = {repr([getattr(record, field) for field in COMPARABLE]) for record in complete}
        if len(shapes) > 1 or len({(record.learning_rate, record.seed) for record in complete}) < len(complete):
            raise InputError(
                f"{name}, shape {point + 1}: runs have different shapes or settings; report them separately."
            )
        by_rate: dict[float, list[Record]] = {}
        for record in complete:
            by_rate.setdefault(record.learning_rate, []).append(record)
        if by_rate:
            most = max(map(len, by_rate.values()))
            best = lowest_loss([(runs[0].results, runs) for runs in by_rate.values() if len(runs) == most])
            rates = list(dict.fromkeys(record.learning_rate for record in of_shape))
            shape = ShapeResult(sorted(best, key=lambda record: record.seed), rates)
            series.setdefault(name, []).append(shape)
    return series


def equal_pairs(series: dict[str, list[ShapeResult]]) -> Iterator[tuple[ShapeResult, ShapeResult]]:
    """Yields pairs (reference, shape) with the same objective and an equal number of parameters or FLOPs."""
    for shapes in series.values():
        for shape in shapes:
            for other in series.get(shape["to"], []):
                if (other["point"], other["objective"]) == (shape["to_point"], shape["objective"]):
                    yield other, shape
