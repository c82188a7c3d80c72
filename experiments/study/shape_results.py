"""What the runs of a shape have given: means over seeds with intervals, of the learning rate that went on to most."""

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
    """A number by seed, in the unit of the metric's label; without the seeds whose runs diverged."""

    by_seed: dict[int, float]

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        """nan without a seed."""
        return float(np.mean(self.values)) if self.by_seed else float("nan")

    @property
    def half_interval(self) -> float:
        """Half the 95 % interval of the mean, by Student's t; nan of a single seed."""
        if len(self.by_seed) < 2:
            return float("nan")
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(self.values) - 1) * stats.sem(self.values))

    @property
    def is_beyond_spread(self) -> bool:
        """Whether the interval excludes zero; a single seed has none."""
        return abs(self.mean) > self.half_interval

    def less(self, other: "Estimate") -> "Estimate":
        """The difference seed by seed, as a seed has the same examples in the same order in every shape."""
        return Estimate(
            {seed: self.by_seed[seed] - value for seed, value in other.by_seed.items() if seed in self.by_seed}
        )


@dataclass(frozen=True)
class ShapeResult:
    """
    One shape of a series: its runs with the best learning rate, one for each seed. `shape["hidden_size"]`, or another
    field, comes from the first record that has it: a run that diverged does not know its parameters.
    """

    records: list[Record]
    learning_rates: list[float]  # the grid

    def __getitem__(self, field: str):
        return next((record[field] for record in self.records if record[field] is not None), None)

    @property
    def metrics(self) -> list[str]:
        """Metrics that have a label."""
        found = {name for record in self.records for name in record["results"]}
        return [name for name, metric in METRICS.items() if metric.label and name in found]

    def estimate(self, metric: str) -> Estimate:
        values = {record["seed"]: record["results"].get(metric) for record in self.records}
        factor = METRICS[metric].factor
        return Estimate({seed: factor * value for seed, value in values.items() if value is not None})

    @property
    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """By seed (tokens, held-out loss) of the evaluations along a run; none of a run that diverged."""
        return {
            record["seed"]: record["curve"]
            for record in self.records
            if record["curve"] and record["results"]["loss"] is not None
        }

    @property
    def not_converged(self) -> int:
        return sum(is_open(record["results"]) for record in self.records)

    @property
    def diverged(self) -> int:
        return sum(record["results"]["loss"] is None for record in self.records)

    @property
    def end_of_grid(self) -> str | None:
        """Whether the best learning rate is the "lowest" or the "highest" of several; beyond may be a better one."""
        ends = {min(self.learning_rates): "lowest", max(self.learning_rates): "highest"}
        return ends.get(self["learning_rate"]) if len(self.learning_rates) > 1 else None


def reached_goal(results: dict) -> bool:
    """Whether a run ended at the goal of its task; one without a goal, or that diverged, did not."""
    goal = results.get("goal")
    if goal is None:
        return False
    if results.get("recalled") is not None:
        return results["recalled"] >= goal
    return results.get("relative_error") is not None and results["relative_error"] <= goal


def is_open(results: dict) -> bool:
    """Whether a run of a task that ends when the loss is flat ended at its cap: with more steps it might do more."""
    return results.get("converged") == 0 and not reached_goal(results) and not results.get("at_limit")


def shapes_by_series(records: list[Record]) -> dict[str, list[ShapeResult]]:
    """By series, its shapes in their order, with the runs of the learning rate that went on to most seeds."""
    names = list(dict.fromkeys(record["series"] for record in records))
    places = sorted({(names.index(record["series"]), record["point"]) for record in records})
    series: dict[str, list[ShapeResult]] = {}
    for name, point in ((names[number], point) for number, point in places):
        of_shape = [record for record in records if (record["series"], record["point"]) == (name, point)]
        by_rate: dict[float, list[Record]] = {}
        for record in of_shape:
            if not record["of_grid"]:
                by_rate.setdefault(record["learning_rate"], []).append(record)
        if by_rate:
            check_alike(list(by_rate.values()), f"{name}, shape {point + 1}")
            most = max(map(len, by_rate.values()))
            best = lowest_loss([(runs[0]["results"], runs) for runs in by_rate.values() if len(runs) == most])
            rates = list(dict.fromkeys(record["learning_rate"] for record in of_shape))
            shape = ShapeResult(sorted(best, key=lambda record: record["seed"]), rates)
            series.setdefault(name, []).append(shape)
    return series


def check_alike(by_rate: list[list[Record]], place: str):
    """
    Raises:
        InputError: the runs of a shape are of different ones, or a seed has two runs with one learning rate.
    """
    fields = ("objective", *SHAPE, "max_seq_length")
    if len({tuple(record.get(name) for name in fields) for runs in by_rate for record in runs}) > 1:
        raise InputError(f"{place}: runs of different shapes; report them apart.")
    if any(len({record["seed"] for record in runs}) < len(runs) for runs in by_rate):
        raise InputError(f"{place}: a seed has several runs, of different settings; report them apart.")


def equal_pairs(series: dict[str, list[ShapeResult]]) -> Iterator[tuple[ShapeResult, ShapeResult]]:
    """Pairs (reference, shape) of equal budget and objective."""
    for shapes in series.values():
        for shape in shapes:
            for other in series.get(shape["to"], []):
                if (other["point"], other["objective"]) == (shape["to_point"], shape["objective"]):
                    yield other, shape
