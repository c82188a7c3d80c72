"""
What a study has found: means over seeds with intervals, and differences between shapes, in the end and along the
training.

A difference along the training is taken where both runs have seen as many tokens and are in the same part of their
schedule. The fall of the learning rate lowers the loss by an amount of its own, which can be another one in another
shape. So where a schedule keeps the rate constant before it falls, what becomes of a difference is judged before the
fall alone. Other schedules fall all along, alike in both shapes: there the change has the gain of the fall in it.
"""

from dataclasses import dataclass

from fixedbert.support.errors import InputError

from .records import Record
from .registry import METRICS, TASKS
from .shape_results import Estimate, ShapeResult, equal_pairs, shapes_by_series
from .studies import OBJECTIVES

TOLERANCE = 0.01  # between tokens that are taken for the same; the last row of a text may be short


@dataclass(frozen=True)
class Finding:
    """
    The change of a metric along a series, from its first shape to its last, or at one shape from a series to another
    that was made equal to it.

    Args:
        from_value, to_value: the two shapes, by the axis of the study.
        difference: the second shape less the first, seed by seed.
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
    The held-out loss of a shape less another's, in nats, at the evaluations that all their runs have.

    Args:
        differences: by tokens seen, in their order, two or more; each with the same seeds.
        decay_from: tokens seen at the last evaluation before the learning rate falls; None where fewer than two are.
    """

    from_series: str
    from_value: int
    to_series: str
    to_value: int
    differences: dict[int, Estimate]
    decay_from: int | None = None

    @property
    def rate_falls(self) -> bool:
        """Whether the learning rate falls after an evaluation up to which it is constant."""
        return self.decay_from is not None and self.decay_from < max(self.differences)

    @property
    def judged(self) -> list[int]:
        """Tokens seen at the evaluations before the fall of the rate, or at all where there are not two such."""
        return [tokens for tokens in self.differences if self.decay_from is None or tokens <= self.decay_from]

    @property
    def middle(self) -> int:
        """Tokens seen at the evaluation nearest to half of the last one's that is judged."""
        *before, last = self.judged
        return min(before, key=lambda tokens: abs(tokens - last / 2))

    @property
    def change(self) -> Estimate:
        """The change from the middle to the last evaluation that is judged."""
        return self.differences[self.judged[-1]].less(self.differences[self.middle])

    @property
    def trend(self) -> str | None:
        """
        "within the spread" where the interval of the change has zero in it; otherwise "closing" where the difference
        is smaller after it than before, "growing" where it is larger, "reversing" where it is larger with the other
        sign. None for a single seed.
        """
        middle, last = self.differences[self.middle].mean, self.differences[self.judged[-1]].mean
        if len(self.change.values) < 2:
            return None
        if not self.change.is_beyond_spread:
            return "within the spread"
        if abs(last) < abs(middle):
            return "closing"
        return "growing" if middle * last >= 0 else "reversing"


@dataclass(frozen=True)
class Conditions:
    """
    How the runs were made.

    Args:
        of_grid: runs that only chose a learning rate, in fewer steps.
        tokens: the fewest and the most of the other runs; None where all of them diverged in pretraining.
        epochs: the most of a run; None without a text, as `texts`.
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
        series: their shapes by name, in the order of the study.
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
    study, scale, question, axis = (records[0][field] for field in ("study", "scale", "question", "axis"))
    return Report(
        study,
        scale,
        question,
        axis,
        series,
        findings_of(series, axis),
        curves_of(series, axis),
        conditions_of(records),
    )


def findings_of(series: dict[str, list[ShapeResult]], axis: str) -> list[Finding]:
    """By metric: what grows or falls along each series, then between series that were made equal."""
    found = []
    for metric, described in METRICS.items():
        compared = {
            name: [shape for shape in shapes if metric in shape.metrics and described.unless not in shape.metrics]
            for name, shapes in series.items()
        }
        pairs = [(shapes[0], shapes[-1]) for shapes in compared.values() if len(shapes) > 1]
        for first, second in [*pairs, *equal_pairs(compared)]:
            difference = second.estimate(metric).less(first.estimate(metric))
            places = first["series"], first[axis], second["series"], second[axis]
            found.append(Finding(metric, *places, difference))
    return found


def curves_of(series: dict[str, list[ShapeResult]], axis: str) -> list[CurveDifference]:
    """Along each series every shape less that with the largest value on the axis; then between series made equal."""
    with_curves = {name: [shape for shape in shapes if shape.curves] for name, shapes in series.items()}
    pairs = []
    for shapes in filter(None, with_curves.values()):
        largest = max(shapes, key=lambda shape: shape[axis])
        pairs += [(largest, shape) for shape in shapes if shape is not largest]
    found = []
    for first, second in [*pairs, *equal_pairs(with_curves)]:
        differences = differences_along(first, second)
        steady = [tokens for tokens in differences if is_before_decay(first, tokens)]
        places = first["series"], first[axis], second["series"], second[axis]
        if len(differences) > 1:
            found.append(CurveDifference(*places, differences, steady[-1] if len(steady) > 1 else None))
    return found


def differences_along(first: ShapeResult, second: ShapeResult) -> dict[int, Estimate]:
    """By the tokens of the first run, where all runs of the seeds in common have a comparable evaluation."""
    seeds = [seed for seed in first.curves if seed in second.curves]
    pairs = [(first.curves[seed], second.curves[seed]) for seed in seeds]
    lengths = [max(tokens for curve in shape.curves.values() for tokens, _ in curve) for shape in (second, first)]
    differences = {}
    for tokens, _ in pairs[0][0] if pairs else []:
        constant = [is_before_decay(shape, tokens) for shape in (first, second)]
        if any(constant) and not all(constant) or not any(constant) and not are_same(*lengths):
            continue  # in two parts of their schedules
        nearest = [[min(curve, key=lambda point: abs(point[0] - tokens)) for curve in pair] for pair in pairs]
        if all(are_same(other, tokens) for pair in nearest for other, _ in pair):
            values = [after - before for (_, before), (_, after) in nearest]
            differences[tokens] = Estimate(dict(zip(seeds, values, strict=True)))
    return differences


def is_before_decay(shape: ShapeResult, tokens: int) -> bool:
    return tokens <= (1 + TOLERANCE) * (shape["decay_from"] or 0)


def are_same(tokens: int, others: int) -> bool:
    return abs(tokens - others) <= TOLERANCE * others


def conditions_of(records: list[Record]) -> Conditions:
    def distinct(field: str) -> list:
        return list(dict.fromkeys(record[field] for record in records))

    runs = {record["key"]: record for record in records}.values()  # two series that share a run have records of it
    known = [record["seconds"] for record in runs if record["seconds"] is not None]
    tokens = [record["tokens"] for record in runs if not record["of_grid"] and record["tokens"] is not None]
    return Conditions(
        runs=len(runs),
        of_grid=sum(record["of_grid"] for record in runs),
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
