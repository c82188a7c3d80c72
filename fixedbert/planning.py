"""
Finds model shapes that fit a budget and reports which theoretical bounds they satisfy (see `PlannedShape`).

Counts are exact and refer to BERT's pretraining model: embeddings, layers, pooler, masked-LM and next-sentence heads.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

from .commands import takes_options
from .counts import PREDICTED, Shape, shape_of
from .options import PlanOptions
from .presets import PRESETS, preset_config
from .support.errors import InputError

WIDTHS = (*range(64, 1024, 64), *range(1024, 2049, 128))
LAYERS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 48)
HEADS = (4, 6, 8, 12, 16, 20, 24, 32)
HEAD_SIZES = (16, 32, 64, 96, 128, 256)
FEED_FORWARD = (4, 8)  # multiples of the width: 4 as in BERT, 8 as in the presets with width 512
MINIMUM_FRACTION = 0.85  # minimum fraction of the budget that a shape must use
KNOWN_FRACTION = 1.05  # maximum fraction for known models, so that 110M includes BERT-base (110.1 million)
SHOWN = 10
KNOWN = {
    "BERT-base": Shape(768, 12, 12, 64, 3072),
    "BERT-large": Shape(1024, 24, 16, 64, 4096),
    **{name: shape_of(preset_config(name)) for name, preset in PRESETS.items() if not preset.is_decoder},
}
ROW = "{:<20} {:>5} {:>6} {:>5} {:>9} {:>6} {:>8} {:>9} {:>7} {:>7}".format
HEADER = ROW("", *"width layers heads head_size ffn params MFLOPs p>=n-1 h*p>=d".split())
LEGEND = """
MFLOPs: millions of training FLOPs per token. p>=n-1: a head can express every attention pattern over n tokens.
h*p>=d: the layer can represent every standard layer with as many heads. The first shape uses the largest part of the
budget, but there is no evidence that it trains better than the others. Named models can exceed the budget by 5%."""


@dataclass(frozen=True)
class PlannedShape:
    """A shape with its exact costs and two bounds on the head size p, for n tokens, width d and h heads."""

    name: str  # name of a preset or known model, or empty
    shape: Shape
    parameters: int  # parameters of the pretraining model
    training_flops: float  # training FLOPs per token
    reaches_length: bool  # p >= n - 1: a head can express every attention pattern over n tokens
    reaches_width: bool  # h p >= d: every standard layer with this width and number of heads can be represented

    @classmethod
    def from_shape(cls, length: int, shape: Shape, name: str = "") -> "PlannedShape":
        flops = shape.training_flops(length, PREDICTED * length) / length
        return cls(name, shape, shape.parameters, flops, shape.p >= length - 1, shape.h * shape.p >= shape.d)

    def used_fraction(self, limits: dict[str, float]) -> float:
        """Returns the fraction of the budget that this shape uses. With two budgets, this is the larger fraction."""
        costs = {"params": self.parameters, "flops": self.training_flops}
        return max(costs[name] / limit for name, limit in limits.items())

    def __str__(self) -> str:
        shape, bounds = self.shape, ("yes" if x else "no" for x in (self.reaches_length, self.reaches_width))
        sizes = (shape.d, shape.L, shape.h, shape.p, shape.F)
        return ROW(self.name, *sizes, f"{self.parameters / 1e6:.1f} M", f"{self.training_flops / 1e6:.1f}", *bounds)


@dataclass(frozen=True)
class Plan:
    """The result of `plan`. `str(plan)` is the table that the command prints."""

    max_seq_length: int
    budgets: dict[str, str]
    shapes: tuple[PlannedShape, ...]  # shapes within the budgets, sorted by the fraction used, largest first
    known: tuple[PlannedShape, ...]  # BERT-base, BERT-large and presets within the budgets

    def __str__(self) -> str:
        budget = ", ".join(f"{name} {value}" for name, value in self.budgets.items())
        title = f"rows of {self.max_seq_length} tokens; budget: {budget}"
        return "\n".join([title, HEADER, *map(str, (*self.shapes, *self.known)), LEGEND])


@takes_options("plan")
def plan(options: PlanOptions) -> Plan:
    """
    Returns up to ten shapes that use as much of the budgets as possible, at most one per width and depth.

    The shapes have at least four heads, and proportions in the range of published models.

    Raises:
        InputError: If no shape fits.
    """
    max_seq_length, attention_head_size = options.max_seq_length, options.attention_head_size
    given = {"params": options.params, "flops": options.flops}
    budgets = {name: str(value) for name, value in given.items() if value is not None}
    limits = {name: parse_number(name, text) for name, text in budgets.items()}
    planned = partial(PlannedShape.from_shape, max_seq_length)
    sizes = HEAD_SIZES if attention_head_size is None else (attention_head_size,)
    # Published models: d / L is 21 in the narrow presets from the paper, 64 in BERT-base and 128 in DistilBERT.
    # h p / d is 1 in standard models and at least 0.5 in the presets.
    candidates = [
        planned(Shape(d, L, h, p, factor * d))
        for d, L, h, p, factor in product(WIDTHS, LAYERS, HEADS, sizes, FEED_FORWARD)
        if 16 <= d / L <= 128 and 0.5 <= h * p / d <= 4
    ]
    fitting: dict[tuple[int, int], PlannedShape] = {}
    for one in sorted(candidates, key=lambda one: one.used_fraction(limits), reverse=True):
        if MINIMUM_FRACTION <= one.used_fraction(limits) <= 1:
            fitting.setdefault((one.shape.d, one.shape.L), one)
    if not fitting:
        heads = "" if attention_head_size is None else f" with heads of size {attention_head_size}"
        raise InputError(
            f"no shape{heads} uses {MINIMUM_FRACTION:.0%} to 100% of the budget; choose a different budget."
        )
    shapes = {name: shape for name, shape in KNOWN.items() if attention_head_size in (None, shape.p)}
    known = (planned(shape, name) for name, shape in shapes.items() if shape.positions >= max_seq_length)
    within = tuple(one for one in known if one.used_fraction(limits) <= KNOWN_FRACTION)
    return Plan(max_seq_length, budgets, tuple(fitting.values())[:SHOWN], within)


def parse_number(name: str, text: str) -> float:
    """Parses numbers such as 110M, 2.5e9 or 64k."""
    factor = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{text}: must be a positive number such as 110M or 2.5e9.", name)
    return value
