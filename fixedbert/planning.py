"""
Shapes that fit a budget, with exact counts, and beside each what theory and a fitted law say of its sizes.

All counts are of BERT's pretraining model: embeddings, layers, pooler, masked-LM and next-sentence heads.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from tqdm.auto import tqdm

from .counts import PREDICTED, Shape
from .model.configuration_fixed_head_bert import FixedHeadBertConfig
from .model.modeling_fixed_head_bert import FixedHeadBertForPreTraining
from .presets import PRESETS
from .support.errors import InputError
from .support.notebook import as_html
from .training.dropout import use_fast_dropout

# Peak of matrix products in half precision without sparsity, as the data sheets have it (FLOP/s).
DEVICES = {"h100": 989e12, "a100": 312e12, "v100": 125e12, "t4": 65e12}
UTILISATION = 0.4  # of the peak: an assumption, what good training code reaches
WIDTHS = (*range(64, 1024, 64), *range(1024, 2049, 128))
LAYERS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 48)
HEADS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32)
HEAD_SIZES = (16, 32, 64, 96, 128, 256)
FEED_FORWARD = (4, 8)  # times the width: BERT's, and the paper's narrow models'
USED = 0.85  # of the budget, at least
SHOWN = 10
KNOWN = {
    "BERT-base": Shape(768, 12, 12, 64, 3072),
    "BERT-large": Shape(1024, 24, 16, 64, 4096),
    **{
        name: Shape(
            p.hidden_size, p.num_hidden_layers, p.num_attention_heads,
            p.attention_head_size or p.hidden_size // p.num_attention_heads,
            p.intermediate_size, p.vocab_size, p.max_position_embeddings,
        )
        for name, p in PRESETS.items()
        if not p.is_decoder
    },
}  # fmt: skip


COLUMNS = "{:<20} {:>5} {:>6} {:>5} {:>9} {:>6} {:>8} {:>9} {:>9} {:>13} {:>11} {:>7} {:>7} {:>7} {:>7} {:>7}"


@dataclass(frozen=True)
class PlannedShape:
    """A shape and what it costs. Parameters and operations are exact, memory and time are estimates."""

    name: str  # of a known model; "" for a shape that fits the budget
    shape: Shape
    parameters: int  # of the pretraining model
    forward_flops: float  # for each token
    training_flops: float
    training_memory: float  # bytes, for 32 rows in float32
    inference_memory: float
    tokens_per_second: float  # in training, calculated for the device, or measured here
    hours: float  # of the paper's recipe on the device, calculated
    reaches_length: bool  # p >= n - 1: a head has every pattern over n tokens
    reaches_width: bool  # h p >= d: every standard layer of this width with as many heads is included
    log_3_width: float  # layers up to which depth gains more than width, without softmax and feed-forward
    fitted_depth: float | None  # by a law of causal language models; None below the widths that it holds for


@dataclass(frozen=True)
class Plan:
    """What `plan` finds."""

    max_seq_length: int  # tokens of a row in training
    budgets: dict[str, str]  # as given, by name
    device: str  # one of DEVICES, for which time is calculated
    measured: bool  # whether `tokens_per_second` was measured on this machine
    shapes: tuple[PlannedShape, ...]  # some that fit the budgets, the one that uses most first
    known: tuple[PlannedShape, ...]  # BERT-base, BERT-large and the presets with positions for `max_seq_length`

    def __str__(self) -> str:
        return plan_text(self)

    def _repr_html_(self) -> str:
        return as_html(str(self))


@dataclass(frozen=True)
class Budget:
    """Limits by name, for rows of `length` tokens on a device of `speed` FLOP/s."""

    limits: dict[str, float]
    length: int
    speed: float

    def cost(self, name: str, shape: Shape) -> float:
        """What a shape takes of a limit, in its unit."""
        if name == "params":
            return shape.parameters
        if name == "flops":
            return shape.training_flops(self.length, PREDICTED * self.length) / self.length
        return shape.memory(self.length)[0] if name == "memory" else shape.paper_hours(self.speed)

    def share(self, shape: Shape) -> float:
        """How much of the budget a shape uses, by the limit that it is nearest to."""
        return max(self.cost(name, shape) / limit for name, limit in self.limits.items())


def plan(
    max_seq_length: int = 128,
    params: str | float | None = None,
    flops: str | float | None = None,
    memory: str | float | None = None,
    hours: str | float | None = None,
    device: str = "h100",
    measure: bool = False,
) -> Plan:
    """
    Shapes that fit all budgets given: the ten that use most of them, no two of the same width and depth.

    Nothing says that one of them is better than another.

    Args:
        max_seq_length: n, of the rows in training.
        params: parameters of the pretraining model, such as "110M" or 110e6.
        flops: FLOPs of a training step for each token.
        memory: bytes for training 32 rows.
        hours: of the paper's recipe on `device`.
        device: one of DEVICES.
        measure: time a training step of each shape that is returned, here, instead of estimating.

    Raises:
        InputError: no budget, one that no shape fits (it names the nearest), or an unknown device.
    """
    given = {"params": params, "flops": flops, "memory": memory, "hours": hours}
    budgets = {
        name: f"{value:.12g}" if isinstance(value, float) else str(value)
        for name, value in given.items()
        if value is not None
    }
    if not budgets:
        raise InputError("no budget: give params, flops, memory or hours.")
    limits = {name: read_limit(name, value) for name, value in budgets.items()}
    if device.lower() not in DEVICES:
        raise InputError(f"{device}: there are {', '.join(DEVICES)}; measure times this machine.", "device")
    if not 8 <= max_seq_length <= 512:
        raise InputError(f"{max_seq_length}: BERT's rows have 8 to 512 tokens.", "max_seq_length")
    budget = Budget(limits, max_seq_length, DEVICES[device.lower()] * UTILISATION)
    shapes = [("", shape) for shape in fullest(budget)]
    known = [(name, shape) for name, shape in KNOWN.items() if shape.positions >= max_seq_length]
    progress = tqdm([*shapes, *known], desc="timing steps", disable=not measure, leave=False)
    planned = [planned_shape(name, shape, budget, measure) for name, shape in progress]
    found, known_ones = tuple(planned[: len(shapes)]), tuple(planned[len(shapes) :])
    return Plan(max_seq_length, budgets, device.lower(), measure, found, known_ones)


def read_limit(name: str, text: str) -> float:
    """110M, 2.5e9, 8G, 64k as numbers."""
    factor = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        raise InputError(f"{text}: not a number such as 110M, 2.5e9 or 8G.", name) from None
    if not 1e-100 < value < 1e100:
        raise InputError(f"{text}: a budget is above zero, and finite.", name)
    return value


def candidates() -> Iterator[Shape]:
    for d, L, h, p, factor in product(WIDTHS, LAYERS, HEADS, HEAD_SIZES, FEED_FORWARD):
        if d / 4 <= h * p <= 8 * d:
            yield Shape(d, L, h, p, factor * d)


def fullest(budget: Budget) -> list[Shape]:
    """
    The SHOWN candidates that fit and use most of the budget, one of each width and depth.

    Raises:
        InputError: there is none; it names the nearest.
    """
    shares = {shape: budget.share(shape) for shape in candidates()}
    first: dict[tuple[int, int], Shape] = {}
    for shape in sorted((shape for shape in shares if USED <= shares[shape] <= 1), key=budget.share, reverse=True):
        first.setdefault((shape.d, shape.L), shape)
    if not first:
        nearest = min(shares, key=lambda shape: abs(math.log(shares[shape])))
        near = ", ".join(f"{name} {budget.cost(name, nearest):.3g}" for name in budget.limits)
        raise InputError(f"no shape fits; the nearest is {describe(nearest)} with {near}.")
    return list(first.values())[:SHOWN]


def fitted_depth(width: float) -> float | None:
    """The L of ln(width) = 5.039 + 0.0555 L (Levine et al., 2020, for causal language models); None below zero."""
    depth = (math.log(width) - 5.039) / 0.0555
    return depth if depth >= 0 else None


def planned_shape(name: str, shape: Shape, budget: Budget, measure: bool) -> PlannedShape:
    length = budget.length
    training = shape.training_flops(length, PREDICTED * length) / length
    training_memory, inference_memory = shape.memory(length)
    return PlannedShape(
        name,
        shape,
        parameters=shape.parameters,
        forward_flops=shape.forward_flops(length, PREDICTED * length) / length,
        training_flops=training,
        training_memory=training_memory,
        inference_memory=inference_memory,
        tokens_per_second=tokens_per_second(shape.config(), length) if measure else budget.speed / training,
        hours=shape.paper_hours(budget.speed),
        reaches_length=shape.p >= length - 1,
        reaches_width=shape.inner >= shape.d,
        log_3_width=math.log(shape.d, 3),
        fitted_depth=fitted_depth(shape.layer.equivalent_width),
    )


def describe(shape: Shape) -> str:
    return f"{shape.L} layers of width {shape.d}, {shape.h} heads of {shape.p}, feed-forward {shape.F}"


def tokens_per_second(config: FixedHeadBertConfig, length: int, rows: int = 4) -> float:
    """Speed of a training step here in float32, the better of two after one to warm up."""
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator() or device
    model = FixedHeadBertForPreTraining(config).train().to(device)
    model.sparse_prediction = True
    use_fast_dropout(model)  # as the trainers do
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(config.vocab_size, (rows, length), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > PREDICTED, -100)
    pairs, seconds = torch.zeros(rows, dtype=torch.long, device=device), []
    for _ in range(3):
        began = time.perf_counter()
        model(input_ids=ids, labels=labels, next_sentence_label=pairs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
    return ids.numel() / min(seconds[1:])


def plan_text(plan: Plan) -> str:
    """A table of the shapes and the known models, and what its columns mean."""
    budget = ", ".join(f"{name} {value}" for name, value in plan.budgets.items())
    rate = "tokens/s" + (" *" if plan.measured else "")
    return "\n".join(
        [
            f"rows of {plan.max_seq_length} tokens; budget: {budget}",
            COLUMNS.format(
                "", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP fwd", "MFLOP trn", "GB trn/infer",
                rate, "hours", "p>=n-1", "h*p>=d", "log_3 d", "fit L",
            ),
            *map(plan_row, (*plan.shapes, *plan.known)),
            "",
            "p>=n-1: a head has every pattern over n tokens. h*p>=d: every standard layer of this width with as many",
            "heads is included. log_3 d, fit L: layers by a theorem and a law of other networks. The evidence is in",
            "docs/planning.md; nothing says that one of these shapes is better than another.",
            f"Tokens a second and hours: {'measured here (float32), hours' if plan.measured else 'calculated'} for "
            f"{plan.device.upper()} at {UTILISATION:.0%} of its peak, an assumption. Memory: an estimate, 32 rows, "
            "float32.",
        ]
    )  # fmt: skip


def plan_row(planned: PlannedShape) -> str:
    shape = planned.shape
    return COLUMNS.format(
        planned.name, shape.d, shape.L, shape.h, shape.p, shape.F, f"{planned.parameters / 1e6:.1f} M",
        f"{planned.forward_flops / 1e6:.1f}", f"{planned.training_flops / 1e6:.1f}",
        f"{planned.training_memory / 1e9:.2f}/{planned.inference_memory / 1e9:.2f}",
        f"{planned.tokens_per_second:,.0f}", f"{planned.hours:.1f}", "yes" if planned.reaches_length else "no",
        "yes" if planned.reaches_width else "no", f"{planned.log_3_width:.1f}",
        "-" if planned.fitted_depth is None else f"{planned.fitted_depth:.0f}",
    )  # fmt: skip
