"""The results of a study: averages over seeds with intervals, and paired differences between shapes."""

from dataclasses import dataclass

from fixedbert.support.errors import InputError

from .records import Record
from .registry import METRICS, TASKS
from .shape_results import Estimate, ShapeResult, equal_pairs, shapes_by_series
from .studies import OBJECTIVES

TOLERANCE = 0.01  # relative difference up to which token counts are equal, because the last row can be shorter


@dataclass(frozen=True)
class Finding:
    """
    The difference in a metric between the first and last shape of a series, or between shapes with equal budgets.

    Args:
        from_value, to_value: Values of the two shapes on the axis of the study.
        difference: The second shape minus the first, paired by seed.
    """

    metric: str
    from_series: str
    from_value: int
    to_series: str
    to_value: int
    difference: Estimate


@dataclass(frozen=True)
class CurveDifference:
    """
    The difference in held-out loss between two shapes during training, in nats.

    Args:
        differences: Maps tokens seen to differences, for evaluations in the same part of both learning rate schedules.
            All differences have the same seeds.
        decay_from: Tokens seen at the last evaluation before the learning rate decays, or None.
    """

    from_series: str
    from_value: int
    to_series: str
    to_value: int
    differences: dict[float, Estimate]
    decay_from: float | None = None


@dataclass(frozen=True)
class Conditions:
    """
    The settings and environment of the runs.

    Args:
        runs: Number of runs.
        of_grid: Number of shorter runs whose only purpose was to choose a learning rate.
        tokens: Minimum and maximum number of tokens in the other runs, or None if all of them diverged.
        epochs: Maximum number of epochs, or None for synthetic tasks.
        seconds: Total duration of all runs that were not interrupted.
    """

    runs: int
    of_grid: int
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
        question: The question that the study answers.
        series: Maps series to their shapes, in the order of the study.
        curves: Differences during training, for runs with more than one evaluation.
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
        records: Records from one study, which can be unfinished, from one or more machines.

    Raises:
        InputError: If there are no records of complete runs, or if studies, texts or shapes differ.
    """
    unknown = {record.objective for record in records} - {*OBJECTIVES, *TASKS}
    if unknown:
        raise InputError(f"runs with the unknown objective {min(unknown)}.")
    studies = sorted({f"{record.study} at scale {record.scale}" for record in records})
    if len(studies) > 1:
        raise InputError(f"runs from different studies: {', '.join(studies)}; report them separately.")
    if len({record.texts for record in records if record.texts}) > 1:
        raise InputError("runs with different texts or tokenizers; report them separately.")
    series = shapes_by_series(records)
    if not series:
        raise InputError("no complete runs to report.")
    first = records[0]
    return Report(
        first.study,
        first.scale,
        first.question,
        first.axis,
        series,
        findings_of(series, first.axis),
        curves_of(series, first.axis),
        conditions_of(records),
    )


def findings_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Finding]:
    """Returns, for each metric, the differences along series and between shapes with equal budgets."""
    findings = []
    for metric, described in METRICS.items():
        compared = {
            name: [shape for shape in shapes if metric in shape.metrics and described.unless not in shape.metrics]
            for name, shapes in series.items()
        }
        pairs = [(shapes[0], shapes[-1]) for shapes in compared.values() if len(shapes) > 1]
        for first, second in [*pairs, *equal_pairs(compared)]:
            difference = second.estimate(metric).less(first.estimate(metric))
            findings.append(Finding(metric, *places(first, second, axis), difference))
    return findings


def places(first: ShapeResult, second: ShapeResult, axis: str) -> tuple[str, int, str, int]:
    return first["series"], first[axis], second["series"], second[axis]


def curves_of(series: dict[str, list[ShapeResult]], axis: str) -> list[CurveDifference]:
    """Compares each shape with the largest shape in its series, and shapes with equal budgets, during training."""
    with_curves = {name: [shape for shape in shapes if shape.curves] for name, shapes in series.items()}
    pairs = []
    for shapes in filter(None, with_curves.values()):
        largest = max(shapes, key=lambda shape: shape[axis])
        pairs += [(largest, shape) for shape in shapes if shape is not largest]
    curves = []
    for first, second in [*pairs, *equal_pairs(with_curves)]:
        differences = differences_along(first, second)
        steady = [tokens for tokens in differences if is_before_decay(first, tokens)]
        if len(differences) > 1:
            curves.append(CurveDifference(*places(first, second, axis), differences, max(steady, default=None)))
    return curves


def differences_along(first: ShapeResult, second: ShapeResult) -> dict[float, Estimate]:
    """
    Maps tokens seen to paired differences, for evaluations that both shapes have for all common seeds.

    Learning rate decay lowers the loss by an amount that can depend on the shape, so evaluations are compared only if
    both precede the decay, or if both follow it and the runs have the same length.
    """
    seeds = [seed for seed in first.curves if seed in second.curves]
    pairs = [(first.curves[seed], second.curves[seed]) for seed in seeds]
    lengths = [max(tokens for curve in shape.curves.values() for tokens, _ in curve) for shape in (second, first)]
    differences = {}
    for tokens, _ in pairs[0][0] if pairs else []:
        constant = [is_before_decay(shape, tokens) for shape in (first, second)]
        if any(constant) and not all(constant) or not any(constant) and not are_equal(*lengths):
            continue
        nearest = [[min(curve, key=lambda point: abs(point[0] - tokens)) for curve in pair] for pair in pairs]
        if all(are_equal(other, tokens) for pair in nearest for other, _ in pair):
            values = [after - before for (_, before), (_, after) in nearest]
            differences[tokens] = Estimate(dict(zip(seeds, values, strict=True)))
    return differences


def is_before_decay(shape: ShapeResult, tokens: float) -> bool:
    return tokens <= (1 + TOLERANCE) * (shape["decay_from"] or 0)


def are_equal(tokens: float, others: float) -> bool:
    return abs(tokens - others) <= TOLERANCE * others


def conditions_of(records: list[Record]) -> Conditions:
    def distinct(field: str) -> list:
        return list(dict.fromkeys(getattr(record, field) for record in records))

    runs = {record.key: record for record in records}.values()  # a run in two series has two records
    tokens = [record.tokens for record in runs if not record.of_grid and record.tokens is not None]
    return Conditions(
        runs=len(runs),
        of_grid=sum(record.of_grid for record in runs),
        seconds=sum(record.seconds or 0 for record in runs),
        tokens=(min(tokens), max(tokens)) if tokens else None,
        epochs=max((value for value in distinct("epochs") if value is not None), default=None),
        texts=next((value for value in distinct("texts") if value), None),
        objectives=distinct("objective"),
        max_seq_lengths=distinct("max_seq_length"),
        seeds=distinct("seed"),
        learning_rates=distinct("learning_rate"),
        hardware=distinct("hardware"),
        versions=sorted({f"{name} {version}" for record in records for name, version in record.versions.items()}),
        commits=distinct("commit"),
    )
