"""What a study has found: from its records, means over seeds with intervals, and differences between shapes."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..errors import InputError
from .records import METRICS, SHAPE, Record
from .studies import lowest_loss
from .thresholds import Threshold, thresholds_of

CONFIDENCE = 0.95
REPORTED = {name: metric for name, metric in METRICS.items() if metric.label}
FLOOR = "floor"  # of the synthetic task, whatever was trained: shown beside the error, not compared


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


@dataclass(frozen=True)
class ShapeResult:
    """
    One shape of a series: its runs with the best learning rate, one for each seed. `shape["hidden_size"]`, or another
    field, is that of its records.
    """

    records: list[Record]
    learning_rates: list[float]  # the grid

    def __getitem__(self, field: str):
        return self.records[0][field]

    @property
    def metrics(self) -> list[str]:
        return [name for name in REPORTED if name in self["results"]]

    def estimate(self, metric: str) -> Estimate:
        values = {record["seed"]: record["results"].get(metric) for record in self.records}
        factor = METRICS[metric].factor
        return Estimate({seed: factor * value for seed, value in values.items() if value is not None})

    @property
    def not_converged(self) -> int:
        """Runs that ended at their cap, of tasks that end when the loss is flat."""
        return sum(record["results"].get("converged") == 0 for record in self.records)

    @property
    def end_of_grid(self) -> str | None:
        """Whether the best learning rate is the "lowest" or the "highest" of several; beyond may be a better one."""
        ends = {min(self.learning_rates): "lowest", max(self.learning_rates): "highest"}
        return ends.get(self["learning_rate"]) if len(self.learning_rates) > 1 else None


@dataclass(frozen=True)
class Finding:
    """
    The change of a metric along a series, from its first shape to its last, or at one shape from a series to another
    that was made equal to it.

    Args:
        from_value, to_value: of the two shapes, on the axis of the study.
        difference: seed by seed, as a seed has the same examples in the same order in every shape.
    """

    metric: str
    from_series: str
    from_value: int
    to_series: str
    to_value: int
    difference: Estimate


@dataclass(frozen=True)
class Conditions:
    """
    How the runs were made.

    Args:
        tokens: the fewest and the most of a run.
        epochs: the most of a run; None for synthetic tasks.
        texts: None for synthetic tasks.
        seconds: of all runs but the `interrupted` ones, whose time is not known.
    """

    runs: int
    interrupted: int
    seconds: float
    tokens: tuple[int, int]
    epochs: float | None
    texts: str | None
    objectives: list[str]
    max_seq_lengths: list[int]
    seeds: list[int]
    learning_rates: list[float]
    hardware: list[str]
    versions: list[str]
    commits: list[str | None]


@dataclass(frozen=True)
class Report:
    """The results of a study: by series its shapes, in the order of the study."""

    study: str
    scale: str | None
    axis: str
    series: dict[str, list[ShapeResult]]
    findings: list[Finding]
    thresholds: list[Threshold]
    conditions: Conditions

    @property
    def metrics(self) -> list[str]:
        found = {metric for shapes in self.series.values() for shape in shapes for metric in shape.metrics}
        return [metric for metric in REPORTED if metric in found]

    @property
    def compared_metrics(self) -> list[str]:
        return [metric for metric in self.metrics if metric != FLOOR]


def make_report(records: list[Record]) -> Report:
    """
    Args:
        records: of one study, from one or more machines; it need not be finished.

    Raises:
        InputError: there are none, or they are of different studies, texts or shapes.
    """
    if not records:
        raise InputError("no runs: nothing to report.")
    studies = sorted({f"{record['study']} at scale {record['scale']}" for record in records})
    if len(studies) > 1:
        raise InputError(f"runs of different studies: {', '.join(studies)}; report them one by one.")
    if len({record["texts"] for record in records if record["texts"]}) > 1:
        raise InputError("runs on different texts, or with different tokenizers; report them apart.")
    first, series = records[0], shapes_by_series(records)
    findings, thresholds = findings_of(series, first["axis"]), thresholds_of(series, first["axis"])
    return Report(first["study"], first["scale"], first["axis"], series, findings, thresholds, conditions_of(records))


def shapes_by_series(records: list[Record]) -> dict[str, list[ShapeResult]]:
    """By series, its shapes in their order, with the runs of the learning rate that went on to most seeds."""
    series: dict[str, list[ShapeResult]] = {}
    for name in dict.fromkeys(record["series"] for record in records):
        for point in sorted({record["point"] for record in records if record["series"] == name}):
            by_rate: dict[float, list[Record]] = {}
            for record in records:
                if (record["series"], record["point"]) == (name, point):
                    by_rate.setdefault(record["learning_rate"], []).append(record)
            if len({shape_of(record) for runs in by_rate.values() for record in runs}) > 1:
                raise InputError(f"{name}, shape {point + 1}: runs of different shapes; report them apart.")
            most = max(len(runs) for runs in by_rate.values())
            best = lowest_loss([(runs[0]["results"], runs) for runs in by_rate.values() if len(runs) == most])
            shape = ShapeResult(sorted(best, key=lambda record: record["seed"]), list(by_rate))
            series.setdefault(name, []).append(shape)
    return series


def shape_of(record: Record) -> tuple:
    return tuple(record.get(name) for name in ("objective", *SHAPE, "max_seq_length"))


def findings_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Finding]:
    """By metric: what grows or falls along each series, then between series that were made equal."""

    def finding(metric: str, first: ShapeResult, last: ShapeResult) -> Finding:
        before, after = first.estimate(metric).by_seed, last.estimate(metric).by_seed
        difference = Estimate({seed: after[seed] - before[seed] for seed in before if seed in after})
        return Finding(metric, first["series"], first[axis], last["series"], last[axis], difference)

    found = []
    for metric in REPORTED:
        if metric == FLOOR:
            continue
        with_metric = {name: [one for one in shapes if metric in one.metrics] for name, shapes in series.items()}
        for shapes in with_metric.values():
            if len(shapes) > 1:
                found.append(finding(metric, shapes[0], shapes[-1]))
        for shapes in with_metric.values():
            for shape in shapes:
                others = [one for one in with_metric.get(shape["to"], []) if one["point"] == shape["to_point"]]
                found += [finding(metric, other, shape) for other in others]
    return found


def conditions_of(records: list[Record]) -> Conditions:
    def distinct(field: str) -> list:
        return list(dict.fromkeys(record[field] for record in records))

    # A run that two series share has a record in both.
    seconds = [record["seconds"] for record in {record["key"]: record for record in records}.values()]
    known = [value for value in seconds if value is not None]
    return Conditions(
        runs=len(seconds),
        interrupted=len(seconds) - len(known),
        seconds=sum(known),
        tokens=(min(distinct("tokens")), max(distinct("tokens"))),
        epochs=max((value for value in distinct("epochs") if value is not None), default=None),
        texts=next((value for value in distinct("texts") if value), None),
        objectives=distinct("objective"),
        max_seq_lengths=distinct("max_seq_length"),
        seeds=distinct("seed"),
        learning_rates=distinct("learning_rate"),
        hardware=distinct("hardware"),
        versions=sorted({f"{name} {version}" for record in records for name, version in record["versions"].items()}),
        commits=distinct("commit"),
    )
