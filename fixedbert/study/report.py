"""What a study has found: from its records, means over seeds with intervals, and differences between shapes."""

from dataclasses import dataclass

from ..support.errors import InputError
from .curves import CurveDifference, curve_differences
from .records import METRICS, Record
from .shape_results import Estimate, ShapeResult, equal_pairs, shapes_by_series
from .studies import OBJECTIVES
from .tasks import TASKS


@dataclass(frozen=True)
class Finding:
    """
    The change of a metric along a series, from its first shape to its last, or at one shape from a series to another
    that was made equal to it.

    Args:
        from_value, to_value: of the two shapes, on the axis of the study.
        difference: of the second shape less the first, seed by seed.
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
        of_grid: of the runs those that only chose a learning rate, in fewer steps.
        tokens: the fewest and the most of the others; None where all of them diverged in pretraining.
        epochs: the most of a run; None without a text.
        texts: None without a text.
        seconds: of all runs but the `interrupted` ones, whose time is not known.
    """

    runs: int
    of_grid: int
    interrupted: int
    seconds: float
    tokens: tuple[int, int] | None
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
    """
    The results of a study.

    Args:
        question: what the study asks; None where its records do not say.
        series: by name their shapes, in the order of the study.
        curves: differences along the training, of runs that were evaluated more than once.
    """

    study: str
    scale: str | None
    question: str | None
    axis: str
    series: dict[str, list[ShapeResult]]
    findings: list[Finding]
    curves: list[CurveDifference]
    conditions: Conditions

    @property
    def shapes(self) -> list[ShapeResult]:
        return [shape for shapes in self.series.values() for shape in shapes]

    @property
    def metrics(self) -> list[str]:
        found = {metric for shape in self.shapes for metric in shape.metrics}
        return [metric for metric in METRICS if metric in found]

    @property
    def compared_metrics(self) -> list[str]:
        return [metric for metric in self.metrics if METRICS[metric].unless != metric]


def make_report(records: list[Record]) -> Report:
    """
    Args:
        records: of one study, from one or more machines; it need not be finished.

    Raises:
        InputError: there are none, or they are of different studies, texts or shapes, or of a task that is not here.
    """
    unknown = {record["objective"] for record in records} - {*OBJECTIVES, *TASKS}
    if unknown:
        raise InputError(
            f"runs of the task {min(unknown)}, which this installation does not have; report them in a checkout."
        )
    studies = sorted({f"{record['study']} at scale {record['scale']}" for record in records})
    if len(studies) > 1:
        raise InputError(f"runs of different studies: {', '.join(studies)}; report them one by one.")
    if len({record["texts"] for record in records if record["texts"]}) > 1:
        raise InputError("runs on different texts, or with different tokenizers; report them apart.")
    series = shapes_by_series(records)
    if not series:
        raise InputError("no runs of full length: nothing to report.")
    first = records[0]
    axis = first["axis"]
    return Report(
        study=first["study"],
        scale=first["scale"],
        question=first.get("question"),
        axis=axis,
        series=series,
        findings=findings_of(series, axis),
        curves=curve_differences(series, axis),
        conditions=conditions_of(records),
    )


def findings_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Finding]:
    """By metric: what grows or falls along each series, then between series that were made equal."""

    def finding(metric: str, first: ShapeResult, second: ShapeResult) -> Finding:
        difference = second.estimate(metric).less(first.estimate(metric))
        return Finding(metric, first["series"], first[axis], second["series"], second[axis], difference)

    found = []
    for metric in METRICS:
        with_metric = {name: [one for one in shapes if is_compared(one, metric)] for name, shapes in series.items()}
        found += [finding(metric, shapes[0], shapes[-1]) for shapes in with_metric.values() if len(shapes) > 1]
        found += [finding(metric, first, second) for first, second in equal_pairs(with_metric)]
    return found


def is_compared(shape: ShapeResult, metric: str) -> bool:
    return metric in shape.metrics and METRICS[metric].unless not in shape.metrics


def conditions_of(records: list[Record]) -> Conditions:
    def distinct(field: str) -> list:
        return list(dict.fromkeys(record[field] for record in records))

    runs = {record["key"]: record for record in records}.values()  # two series that share a run have records of it
    known = [record["seconds"] for record in runs if record["seconds"] is not None]
    tokens = [record["tokens"] for record in runs if not record.get("of_grid") and record["tokens"] is not None]
    return Conditions(
        runs=len(runs),
        of_grid=sum(record.get("of_grid", False) for record in runs),
        interrupted=len(runs) - len(known),
        seconds=sum(known),
        tokens=(min(tokens), max(tokens)) if tokens else None,
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
