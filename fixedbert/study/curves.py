"""
Whether a difference in loss closes, stays or grows: between two shapes, along the training, seed by seed.

A difference is taken where both runs have seen as many tokens and are in the same part of their schedule. The fall of
the learning rate lowers the loss by an amount of its own, which can be another one in another shape. So where a
schedule keeps the rate constant before it falls, what becomes of a difference is judged before the fall alone.
Other schedules fall all along, alike in both shapes: there the change has the gain of the fall in it.
"""

from dataclasses import dataclass

from .shape_results import Estimate, ShapeResult, equal_pairs

TOLERANCE = 0.01  # between tokens that are taken for the same; the last row of a text may be short


@dataclass(frozen=True)
class CurveDifference:
    """
    The held-out loss of a shape less that of another one, in nats, at the evaluations that all their runs have.

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
        """Tokens seen at the evaluations before the fall of the rate, or where there are not two such, at all."""
        return [tokens for tokens in self.differences if self.decay_from is None or tokens <= self.decay_from]

    @property
    def middle(self) -> int:
        """Tokens seen at the evaluation nearest to half of those that are judged, before their last."""
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
        sign. None of a single seed.
        """
        middle, last = self.differences[self.middle].mean, self.differences[self.judged[-1]].mean
        if len(self.change.values) < 2:
            return None
        if not self.change.is_beyond_spread:
            return "within the spread"
        if abs(last) < abs(middle):
            return "closing"
        return "growing" if middle * last >= 0 else "reversing"


def curve_differences(series: dict[str, list[ShapeResult]], axis: str) -> list[CurveDifference]:
    """Along each series every shape less that with the largest value on the axis; then between series made equal."""
    with_curves = {name: [shape for shape in shapes if shape.curves] for name, shapes in series.items()}
    pairs = []
    for shapes in with_curves.values():
        largest = max(shapes, key=lambda shape: shape[axis], default=None)
        pairs += [(largest, shape) for shape in shapes if largest is not None and shape is not largest]
    pairs += equal_pairs(with_curves)
    found = []
    for first, second in pairs:
        differences = differences_of(first, second)
        steady = [tokens for tokens in differences if is_before_decay(first, tokens)]
        places = first["series"], first[axis], second["series"], second[axis]
        found.append(CurveDifference(*places, differences, steady[-1] if len(steady) > 1 else None))
    return [one for one in found if len(one.differences) > 1]


def differences_of(first: ShapeResult, second: ShapeResult) -> dict[int, Estimate]:
    """By the tokens of the first run, where all runs of the seeds in common have a comparable evaluation."""
    seeds = [seed for seed in first.curves if seed in second.curves]
    pairs = [(first.curves[seed], second.curves[seed]) for seed in seeds]
    differences = {}
    for tokens, _ in pairs[0][0] if pairs else []:
        nearest = [[min(curve, key=lambda point: abs(point[0] - tokens)) for curve in pair] for pair in pairs]
        have_all = all(is_same(other, tokens) for pair in nearest for other, _ in pair)
        if have_all and are_in_one_part(first, second, tokens):
            values = [after - before for (_, before), (_, after) in nearest]
            differences[tokens] = Estimate(dict(zip(seeds, values, strict=True)))
    return differences


def are_in_one_part(first: ShapeResult, second: ShapeResult, tokens: int) -> bool:
    """Whether the rates of both are not falling yet, or both are, in runs of the same length."""
    constant = [is_before_decay(shape, tokens) for shape in (first, second)]
    return all(constant) or not any(constant) and is_same(length_of(second), length_of(first))


def is_before_decay(shape: ShapeResult, tokens: int) -> bool:
    return tokens <= (1 + TOLERANCE) * (shape["decay_from"] or 0)


def length_of(shape: ShapeResult) -> int:
    """Tokens of a run, at its last evaluation."""
    return max(tokens for curve in shape.curves.values() for tokens, _ in curve)


def is_same(tokens: int, others: int) -> bool:
    return abs(tokens - others) <= TOLERANCE * others
