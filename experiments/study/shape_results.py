"""Results for each shape: means over seeds with 95 % intervals, at the best learning rate."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fixedbert.support.errors import InputError

from .records import SHAPE, Record
from .registry import METRICS
from .studies import lowest_loss

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value for each seed whose run did not diverge, in the unit of the metric's label."""

    by_seed: dict[int, float]

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        """The mean over seeds; nan without any."""
        return float(np.mean(self.values)) if self.by_seed else float("nan")

    @property
    def half_interval(self) -> float:
        """Half of the 95 % interval of the mean, by Student's t; nan for a single seed."""
        if len(self.by_seed) < 2:
            return float("nan")
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(self.values) - 1) * stats.sem(self.values))

    @property
    def excludes_zero(self) -> bool:
        """Whether the 95 % interval excludes 0; False for a single seed."""
        return abs(self.mean) > self.half_interval

    def less(self, other: "Estimate") -> "Estimate":
        """Returns the paired differences: a seed has the same examples in the same order in every shape."""
        return Estimate(
            {seed: self.by_seed[seed] - value for seed, value in other.by_seed.items() if seed in self.by_seed}
        )


@dataclass(frozen=True)
class ShapeResult:
    """
    One shape of a series.

    Args:
        records: runs with the best learning rate, one for each seed.
        learning_rates: all rates that were tried.
    """

    records: list[Record]
    learning_rates: list[float]

    def __getitem__(self, field: str):
        """Returns a field of the shape from the first record that has it: diverged runs lack counts."""
        return next((value for record in self.records if (value := getattr(record, field)) is not None), None)

    @property
    def metrics(self) -> list[str]:
        """Metrics with a label that the runs have."""
        found = {name for record in self.records for name in record.results}
        return [name for name, metric in METRICS.items() if metric.label and name in found]

    def estimate(self, metric: str) -> Estimate:
        values = {record.seed: record.results.get(metric) for record in self.records}
        factor = METRICS[metric].factor
        return Estimate({seed: factor * value for seed, value in values.items() if value is not None})

    @property
    def curves(self) -> dict[int, list[list[float]]]:
        """[Tokens seen, held-out loss] at each evaluation, by seed, for runs that did not diverge."""
        return {record.seed: record.curve for record in self.records if record.curve and not record.diverged}

    @property
    def not_converged(self) -> int:
        return sum(is_unfinished(record.results) for record in self.records)

    @property
    def diverged(self) -> int:
        return sum(record.diverged for record in self.records)

    @property
    def end_of_grid(self) -> str | None:
        """Returns "lowest" or "highest" if the best of several learning rates is at an end of the grid."""
        ends = {min(self.learning_rates): "lowest", max(self.learning_rates): "highest"}
        return ends.get(self["learning_rate"]) if len(self.learning_rates) > 1 else None


def reached_goal(results: dict) -> bool:
    """Returns whether a run ended at the goal of its task."""
    goal = results.get("goal")
    if goal is None:
        return False
    if results.get("recalled") is not None:
        return results["recalled"] >= goal
    return results.get("relative_error") is not None and results["relative_error"] <= goal


def is_unfinished(results: dict) -> bool:
    """Returns whether a run reached its maximum number of steps, so that more steps might improve it."""
    return results.get("converged") == 0 and not reached_goal(results) and not results.get("at_limit")


def shapes_by_series(records: list[Record]) -> dict[str, list[ShapeResult]]:
    """Groups records into the shapes of each series, with the learning rate that was trained with the most seeds."""
    names = list(dict.fromkeys(record.series for record in records))
    places = sorted({(names.index(record.series), record.point) for record in records})
    series: dict[str, list[ShapeResult]] = {}
    for name, point in ((names[number], point) for number, point in places):
        of_shape = [record for record in records if (record.series, record.point) == (name, point)]
        by_rate: dict[float, list[Record]] = {}
        for record in of_shape:
            if not record.of_grid:
                by_rate.setdefault(record.learning_rate, []).append(record)
        if by_rate:
            check_comparable(list(by_rate.values()), f"{name}, shape {point + 1}")
            most = max(map(len, by_rate.values()))
            best = lowest_loss([(runs[0].results, runs) for runs in by_rate.values() if len(runs) == most])
            rates = list(dict.fromkeys(record.learning_rate for record in of_shape))
            shape = ShapeResult(sorted(best, key=lambda record: record.seed), rates)
            series.setdefault(name, []).append(shape)
    return series


def check_comparable(by_rate: list[list[Record]], place: str):
    """
    Raises:
        InputError: the runs have different shapes, or several runs have one seed and learning rate.
    """
    names = ("objective", *SHAPE, "max_seq_length")
    if len({tuple(getattr(record, name) for name in names) for runs in by_rate for record in runs}) > 1:
        raise InputError(f"{place}: runs with different shapes; report them separately.")
    if any(len({record.seed for record in runs}) < len(runs) for runs in by_rate):
        raise InputError(f"{place}: several runs with one seed but different settings; report them separately.")


def equal_pairs(series: dict[str, list[ShapeResult]]) -> Iterator[tuple[ShapeResult, ShapeResult]]:
    """Yields pairs (reference, shape) with equal budgets and the same objective."""
    for shapes in series.values():
        for shape in shapes:
            for other in series.get(shape["to"], []):
                if (other["point"], other["objective"]) == (shape["to_point"], shape["objective"]):
                    yield other, shape
