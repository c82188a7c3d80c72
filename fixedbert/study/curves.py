"""Whether a difference in loss closes, stays or grows: between two shapes, along the training, seed by seed."""

from dataclasses import dataclass

from .shape_results import Estimate, ShapeResult, equal_pairs

TOLERANCE = 0.01  # between the tokens of evaluations that are taken for the same; the last row of a text may be short


@dataclass(frozen=True)
class CurveDifference:
    """
    The held-out loss of a shape less that of another one, in nats, at the evaluations that all their runs have.

    Args:
        differences: by tokens seen, in their order, two or more; each with the same seeds.
    """

    from_series: str
    from_value: int
    to_series: str
    to_value: int
    differences: dict[int, Estimate]

    @property
    def first(self) -> int:
        """Tokens seen at the first evaluation."""
        return next(iter(self.differences))

    @property
    def middle(self) -> int:
        """Tokens seen at the evaluation, before the last, that is nearest to half of the training."""
        *before, last = self.differences
        return min(before, key=lambda tokens: abs(tokens - last / 2))

    @property
    def last(self) -> int:
        return next(reversed(self.differences))

    @property
    def change(self) -> Estimate:
        """From the middle to the last evaluation."""
        return self.differences[self.last].less(self.differences[self.middle])

    @property
    def trend(self) -> str | None:
        """
        "within the spread" where the interval of the change has zero in it; otherwise "closing" where the difference
        is smaller in the end than in the middle, "growing" where it is larger, "reversing" where it is larger with the
        other sign. None of a single seed.
        """
        middle, last = self.differences[self.middle].mean, self.differences[self.last].mean
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
    found = [
        CurveDifference(first["series"], first[axis], second["series"], second[axis], differences_of(first, second))
        for first, second in pairs
    ]
    return [one for one in found if len(one.differences) > 1]


def differences_of(first: ShapeResult, second: ShapeResult) -> dict[int, Estimate]:
    """By the tokens of the first run, where all runs of the seeds in common have an evaluation."""
    seeds = [seed for seed in first.curves if seed in second.curves]
    pairs = [(first.curves[seed], second.curves[seed]) for seed in seeds]
    differences = {}
    for tokens, _ in pairs[0][0] if pairs else []:
        nearest = [[min(curve, key=lambda point: abs(point[0] - tokens)) for curve in pair] for pair in pairs]
        if all(abs(other - tokens) <= TOLERANCE * tokens for pair in nearest for other, _ in pair):
            values = [after - before for (_, before), (_, after) in nearest]
            differences[tokens] = Estimate(dict(zip(seeds, values, strict=True)))
    return differences
