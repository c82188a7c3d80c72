"""The results of a study: averages over seeds with intervals, and paired differences between shapes."""

from dataclasses import dataclass
from itertools import combinations, pairwise

from fixedbert.support.errors import InputError

from .metrics import METRICS
from .records import Record
from .shape_results import Estimate, ShapeResult, equal_pairs, shapes_by_series


@dataclass(frozen=True)
class Finding:
    """The difference in a metric between two shapes, `second` minus `first`, paired by seed."""

    metric: str
    first: ShapeResult
    second: ShapeResult
    difference: Estimate


@dataclass(frozen=True)
class CurveDifference:
    """
    The difference in held-out loss between two shapes during training, `second` minus `first`, in nats.

    Args:
        differences: Maps tokens seen to differences. All differences have the same seeds.
        decay_from: Tokens seen at the last evaluation before the learning rate decays, or None.
    """

    first: ShapeResult
    second: ShapeResult
    differences: dict[float, Estimate]
    decay_from: float | None


@dataclass(frozen=True)
class Report:
    """
    The results of a study.

    Args:
        records: All runs, including those that chose a learning rate.
        question: The question that the study answers.
        series: Maps series to their shapes, in the order of the study.
        findings: For each metric, the differences between neighboring shapes and between the first and last shape of a
            series, and between shapes of different series (see `findings_of`).
        curves: Differences during training, for runs with more than one evaluation: from the largest shape of a
            series, and between shapes with equal budgets.
    """

    records: list[Record]
    study: str
    scale: str | None
    question: str | None
    axis: str
    series: dict[str, list[ShapeResult]]
    findings: list[Finding]
    curves: list[CurveDifference]

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

    def distinct(self, field: str) -> list:
        """Returns the different values of a field of the records."""
        return list(dict.fromkeys(getattr(record, field) for record in self.records))


def make_report(records: list[Record]) -> Report:
    """
    Args:
        records: Records from one study, which can be unfinished, from one or more machines.

    Raises:
        InputError: If there are no records of complete runs, or if studies, texts or shapes differ.
    """
    studies = sorted({f"{record.study} at scale {record.scale}" for record in records})
    if len(studies) > 1:
        raise InputError(f"runs from different studies: {', '.join(studies)}; report them separately.")
    if len({record.texts for record in records if record.texts}) > 1:
        raise InputError("runs with different texts or tokenizers; report them separately.")
    series = shapes_by_series(records)
    if not series:
        raise InputError("no complete runs to report.")
    first = records[0]
    findings, curves = findings_of(series, first.axis), curves_of(series, first.axis)
    return Report(records, first.study, first.scale, first.question, first.axis, series, findings, curves)


def findings_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Finding]:
    """
    Compares neighboring shapes in a series, its first shape with its last, shapes in different series with the same
    value on the axis, and shapes with equal parameters or FLOPs.
    """
    findings = []
    for metric, described in METRICS.items():
        compared = {
            name: [shape for shape in shapes if metric in shape.metrics and described.unless not in shape.metrics]
            for name, shapes in series.items()
        }
        pairs = []
        for shapes in compared.values():
            pairs += [*pairwise(shapes), *([(shapes[0], shapes[-1])] if len(shapes) > 2 else [])]
        for first, second in combinations(compared.values(), 2):
            pairs += [(a, b) for a in first for b in second if a[axis] == b[axis]]
        pairs += equal_pairs(compared)
        distinct = {(a["series"], a["point"], b["series"], b["point"]): (a, b) for a, b in pairs}
        for one, other in distinct.values():
            if one["key"] != other["key"]:
                findings.append(Finding(metric, one, other, other.estimate(metric).less(one.estimate(metric))))
    return findings


def curves_of(series: dict[str, list[ShapeResult]], axis: str) -> list[CurveDifference]:
    with_curves = {name: [shape for shape in shapes if shape.evaluated] for name, shapes in series.items()}
    pairs = []
    for shapes in filter(None, with_curves.values()):
        largest = max(shapes, key=lambda shape: shape[axis])
        pairs += [(largest, shape) for shape in shapes if shape is not largest]
    curves = [curve_difference(*pair) for pair in [*pairs, *equal_pairs(with_curves)]]
    return [curve for curve in curves if curve is not None and len(curve.differences) > 1]


def curve_difference(first: ShapeResult, second: ShapeResult) -> CurveDifference | None:
    """
    Compares two shapes during training. Returns None if no seed has evaluations of both after the same steps of the
    same schedule. The schedule matters because the decay of the learning rate lowers the loss.
    """
    mine, others = first.evaluated, second.evaluated
    seeds = [seed for seed in mine if seed in others and schedule(mine[seed]) == schedule(others[seed])]
    if not seeds:
        return None
    differences = {}
    for number, (tokens, _) in enumerate(mine[seeds[0]].curve or []):
        values = {seed: others[seed].losses[number] - mine[seed].losses[number] for seed in seeds}
        differences[tokens] = Estimate(values)
    return CurveDifference(first, second, differences, mine[seeds[0]].decay_from)


def schedule(record: Record) -> tuple[list, int | None]:
    return [tokens for tokens, _ in record.curve or []], record.decay_from
