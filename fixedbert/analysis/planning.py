"""
`fixedbert plan`: shapes that fit a budget, with exact counts, ranked by rules that are stated with their evidence.

All counts are of BERT's pretraining model: embeddings, layers, pooler, masked-LM and next-sentence heads.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from ..configuration_fixed_head_bert import FixedHeadBertConfig
from ..errors import InputError
from ..modeling_fixed_head_bert import FixedHeadBertForPreTraining, FixedHeadBertModel
from ..presets import PRESETS
from ..training.output import new_directory
from .laws import EVIDENCE, best_depth, depth_threshold

# Peak of matrix products in half precision without sparsity, as the data sheets have it (FLOP/s).
DEVICES = {"h100": 989e12, "a100": 312e12, "v100": 125e12, "t4": 65e12}
UTILISATION = 0.4  # of the peak: an assumption, what good training code reaches
PREDICTED = 0.15  # of the tokens, by BERT's recipe
PAPER_TOKENS = {128: 1024 * 128 * 450_000, 512: 1024 * 512 * 50_000}  # by length: Bhojanapalli et al., appendix C
WIDTHS = (*range(64, 1024, 64), *range(1024, 2049, 128))
LAYERS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 48)
HEADS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32)
HEAD_SIZES = (16, 32, 64, 96, 128, 256)
FEED_FORWARD = (4, 8)  # times the width: BERT's, and that of the paper's narrow models
USED = 0.85  # of the budget, at least
SHOWN = 10


@dataclass(frozen=True)
class Shape:
    """A pretraining model, by the names of the papers: width d, layers L, heads h of size p, feed-forward width F."""

    d: int
    L: int
    h: int
    p: int
    F: int
    vocabulary: int = 30522
    positions: int = 512

    @property
    def inner(self) -> int:
        return self.h * self.p

    @property
    def layer_parameters(self) -> int:
        projections = 4 * self.d * self.inner + 3 * self.inner + self.d
        return projections + 2 * self.d * self.F + self.F + self.d + 4 * self.d

    @property
    def parameters(self) -> int:
        """Exactly those of FixedHeadBertForPreTraining."""
        embeddings = (self.vocabulary + self.positions + 2) * self.d + 2 * self.d
        pooler = self.d**2 + self.d
        predictions = self.d**2 + self.d + 2 * self.d + self.vocabulary  # the decoder is the embeddings' table
        return embeddings + self.L * self.layer_parameters + pooler + predictions + 2 * self.d + 2

    def forward_flops(self, length: int, predicted: float) -> float:
        """Of a row of `length` tokens, `predicted` of which go through the masked-LM head; two for each product."""
        layer = 4 * self.d * self.inner + 2 * length * self.inner + 2 * self.d * self.F
        head = self.d**2 + self.d * self.vocabulary
        return 2 * (self.L * layer * length + predicted * head + self.d**2 + 2 * self.d)

    def training_flops(self, length: int, predicted: float) -> float:
        """Forward and backward: a gradient for each of the two factors of every product."""
        return 3 * self.forward_flops(length, predicted)

    def memory(self, length: int, batch: int = 32) -> tuple[float, float]:
        """
        Bytes for training (float32 weights, gradients and Adam's two moments, activations of a batch, eager attention)
        and for inference (weights, one layer's activations). Estimates: what a framework keeps beside is left out.
        """
        floats = 6 * self.d + 4 * self.inner + 2 * self.h * length + 2 * self.F  # kept for each token by each layer
        head = PREDICTED * 2 * self.vocabulary
        tokens = batch * length
        return 16 * self.parameters + 4 * tokens * (self.L * floats + head), 4 * (self.parameters + tokens * floats)

    def paper_hours(self, flops_per_second: float) -> float:
        """Of the paper's recipe, both stages."""
        flops = sum(
            tokens / length * self.training_flops(length, PREDICTED * length)
            for length, tokens in PAPER_TOKENS.items()
        )
        return flops / flops_per_second / 3600

    def config(self) -> FixedHeadBertConfig:
        return FixedHeadBertConfig(
            hidden_size=self.d,
            num_hidden_layers=self.L,
            num_attention_heads=self.h,
            attention_head_size=self.p,
            intermediate_size=self.F,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.positions,
        )

    @property
    def equivalent_width(self) -> float:
        """The width of a standard layer (12 d^2) with as many weights in its matrices."""
        return math.sqrt((4 * self.d * self.inner + 2 * self.d * self.F) / 12)


KNOWN = {
    "BERT-base": Shape(768, 12, 12, 64, 3072),
    "BERT-large": Shape(1024, 24, 16, 64, 4096),
    **{
        name: Shape(
            preset.hidden_size,
            preset.num_hidden_layers,
            preset.num_attention_heads,
            preset.attention_head_size or preset.hidden_size // preset.num_attention_heads,
            preset.intermediate_size,
            preset.vocab_size,
            preset.max_position_embeddings,
        )
        for name, preset in PRESETS.items()
        if not preset.is_decoder
    },
}


@dataclass(frozen=True)
class Rule:
    name: str
    evidence: str
    holds: object  # of a shape and a length


RULES = (
    Rule(
        "head size at least n - 1, or the paper's 128",
        f"n - 1 is proved to be enough, 128 for longer rows is practice. {EVIDENCE['head size']}",
        lambda shape, n: shape.p >= min(n - 1, 128),
    ),
    Rule(
        "heads * head size at least the width",
        "proved (Bhojanapalli et al., 2020, Theorem 2): every standard layer is then included. T5-v1.1-small has "
        "less, and, as others report, PaLM.",
        lambda shape, n: shape.inner >= shape.d,
    ),
    Rule(
        "8 to 32 heads",
        "measured by Bhojanapalli et al. (2020) at 24 layers and head size 128, with more parameters: F1 on SQuAD "
        "mostly rises up to 20 or 32 heads, MNLI not steadily. At an equal number of parameters it is open; most "
        "heads can be removed after training (Michel et al., 2019, as others report).",
        lambda shape, n: 8 <= shape.h <= 32,
    ),
    Rule(
        "more layers than log_3(width)",
        f"a theorem about another network: {EVIDENCE['depth threshold']}",
        lambda shape, n: shape.L > depth_threshold(shape.d),
    ),
    Rule(
        "depth within a third of the fitted law's",
        f"fitted: {EVIDENCE['depth law']} BERT-base and BERT-large are shallower.",
        lambda shape, n: 2 / 3 <= shape.L / max(best_depth(shape.equivalent_width), 1e-9) <= 4 / 3,
    ),
)


def candidates() -> Iterator[Shape]:
    for d, L, h, p, factor in product(WIDTHS, LAYERS, HEADS, HEAD_SIZES, FEED_FORWARD):
        if d / 4 <= h * p <= 8 * d:
            yield Shape(d, L, h, p, factor * d)


def number(text: str) -> float:
    """110M, 2.5e9, 8G, 64k as numbers."""
    factor = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        raise InputError(f"{text}: not a number such as 110M, 2.5e9 or 8G.") from None
    if not 1e-100 < value < 1e100:
        raise InputError(f"{text}: a budget is above zero, and finite.")
    return value


def plan(
    max_seq_length: int = 128,
    params: str | None = None,
    flops: str | None = None,
    memory: str | None = None,
    hours: str | None = None,
    device: str = "h100",
    measure: bool = False,
    output_dir: str | Path | None = None,
) -> str:
    """
    The shapes that fit all budgets given, and use at least 85 % of one, ranked by how many of RULES hold.

    Args:
        max_seq_length: n, of the rows in training.
        params: parameters of the pretraining model, such as 110M.
        flops: FLOPs of a training step for each token.
        memory: bytes for training 32 rows.
        hours: of the paper's recipe on `device`.
        device: one of DEVICES.
        measure: time a training step of each shape that is shown, here, instead of estimating.
        output_dir: a new directory for cost.png: how cost grows, calculated and measured.

    Raises:
        InputError: no budget, one that no shape fits (it names the nearest), or an unknown device.
    """
    budgets = {"params": params, "flops": flops, "memory": memory, "hours": hours}
    limits = {name: number(value) for name, value in budgets.items() if value is not None}
    if not limits:
        raise InputError("no budget: give --params, --flops, --memory or --hours.")
    if device.lower() not in DEVICES:
        raise InputError(f"--device {device}: there are {', '.join(DEVICES)}; --measure times this machine.")
    if not 8 <= max_seq_length <= 512:
        raise InputError(f"--seq_length {max_seq_length}: BERT's rows have 8 to 512 tokens.")
    speed = DEVICES[device.lower()] * UTILISATION

    def cost(shape: Shape) -> dict[str, float]:
        return {
            "params": shape.parameters,
            "flops": shape.training_flops(max_seq_length, PREDICTED * max_seq_length) / max_seq_length,
            "memory": shape.memory(max_seq_length)[0],
            "hours": shape.paper_hours(speed),
        }

    found, nearest = [], (math.inf, next(candidates()))
    for shape in candidates():
        costs = cost(shape)
        share = max(costs[name] / limit for name, limit in limits.items())
        if USED <= share <= 1:
            found.append(shape)
        if abs(math.log(share)) < nearest[0]:
            nearest = (abs(math.log(share)), shape)
    if not found:
        costs = cost(nearest[1])
        near = ", ".join(f"{name} {costs[name]:.3g}" for name in limits)
        raise InputError(f"no shape fits; the nearest is {describe(nearest[1])} with {near}.")

    def rank(shape: Shape) -> tuple:
        kept = sum(bool(rule.holds(shape, max_seq_length)) for rule in RULES)
        depth = max(best_depth(shape.equivalent_width), 1)
        return -kept, abs(math.log(shape.L / depth)), -max(cost(shape)[name] / limit for name, limit in limits.items())

    chosen, seen = [], set()
    for shape in sorted(found, key=rank):
        if (shape.d, shape.L) not in seen:
            seen.add((shape.d, shape.L))
            chosen.append(("", shape))
        if len(chosen) == SHOWN:
            break
    budget = ", ".join(f"{name} {budgets[name]}" for name in limits)
    lines = [f"rows of {max_seq_length} tokens; budget: {budget}", header(measure)]
    known = {name: shape for name, shape in KNOWN.items() if shape.positions >= max_seq_length}
    with new_directory(output_dir) if output_dir is not None else nullcontext() as folder:
        if folder is not None:
            draw_cost(folder / "cost.png")
        with tqdm(total=len(chosen) + len(known), desc="timing steps", disable=not measure, leave=False) as progress:
            for name, shape in [*chosen, *known.items()]:
                measured = tokens_per_second(shape, max_seq_length) if measure else None
                lines.append(row(name, shape, max_seq_length, speed, measured))
                progress.update()
    lines += ["", "rules, by number in the column, and what speaks for and against them:"]
    lines += [f"  {place}. {rule.name}: {rule.evidence}" for place, rule in enumerate(RULES, start=1)]
    lines.append(
        f"Tokens a second and hours: {'measured here (float32), hours' if measure else 'calculated'} for "
        f"{device.upper()} at {UTILISATION:.0%} of its peak, an assumption. Memory: an estimate, 32 rows, float32."
    )
    return "\n".join(lines)


def describe(shape: Shape) -> str:
    return f"{shape.L} layers of width {shape.d}, {shape.h} heads of {shape.p}, feed-forward {shape.F}"


COLUMNS = "{:<20} {:>5} {:>6} {:>5} {:>9} {:>6} {:>8} {:>9} {:>9} {:>13} {:>11} {:>7}  {}"


def header(measured: bool) -> str:
    return COLUMNS.format(
        "", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP fwd", "MFLOP trn", "GB trn/infer",
        "tokens/s" + (" *" if measured else ""), "hours", "rules kept",
    )  # fmt: skip


def row(name: str, shape: Shape, length: int, speed: float, measured: float | None) -> str:
    forward, training = (
        flops(length, PREDICTED * length) / length for flops in (shape.forward_flops, shape.training_flops)
    )
    memory = "/".join(f"{size / 1e9:.2f}" for size in shape.memory(length))
    kept = "".join(str(place) for place, rule in enumerate(RULES, start=1) if rule.holds(shape, length))
    rate = measured or speed / training
    return COLUMNS.format(
        name, shape.d, shape.L, shape.h, shape.p, shape.F, f"{shape.parameters / 1e6:.1f} M", f"{forward / 1e6:.1f}",
        f"{training / 1e6:.1f}", memory, f"{rate:,.0f}", f"{shape.paper_hours(speed):.1f}", kept,
    )  # fmt: skip


def tokens_per_second(shape: Shape, length: int, rows: int = 4) -> float:
    """Of a training step here, the better of two after one to warm up."""
    model = FixedHeadBertForPreTraining(shape.config()).train()
    model.sparse_prediction = True
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(shape.vocabulary, (rows, length))
    labels = ids.masked_fill(torch.rand(ids.shape) > PREDICTED, -100)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        model(input_ids=ids, labels=labels, next_sentence_label=torch.zeros(rows, dtype=torch.long)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return ids.numel() / min(seconds[1:])


BASE = Shape(256, 4, 8, 32, 1024, vocabulary=1000)
GROWING = {  # what grows, with values
    "heads": ("h", (2, 4, 8, 16, 32)),
    "head size": ("p", (8, 16, 32, 64, 128)),
    "width (feed-forward 4 x)": ("d", (64, 128, 256, 512)),
    "layers": ("L", (1, 2, 4, 8, 16)),
    "tokens in a row": ("length", (32, 64, 128, 256, 512)),
}


@torch.no_grad()
def forward_seconds(shape: Shape, length: int, tokens: int = 2048) -> float:
    """Of the layers here, for a token; the best of five."""
    model = FixedHeadBertModel(shape.config(), add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(shape.vocabulary, (max(1, tokens // length), length))
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        model(ids)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]) / ids.numel()


def draw_cost(file: Path):
    """Forward cost of a token against each dimension: FLOPs, and seconds measured here, on one scale."""
    figure = Figure(figsize=(16, 4), layout="constrained")
    panels = figure.subplots(1, len(GROWING), sharey=True)
    base_flops = BASE.forward_flops(128, 0) / 128
    forward_seconds(BASE, 128)  # warms up
    base_seconds = forward_seconds(BASE, 128)
    for panel, (name, (field, values)) in zip(panels, GROWING.items(), strict=True):
        shapes = []
        for value in values:
            changes = {} if field == "length" else {field: value, **({"F": 4 * value} if field == "d" else {})}
            shapes.append((Shape(**{**BASE.__dict__, **changes}), value if field == "length" else 128))
        calculated = [shape.forward_flops(length, 0) / length / base_flops for shape, length in shapes]
        seconds = [forward_seconds(shape, length) for shape, length in shapes]
        base = seconds[shapes.index((BASE, 128))] if (BASE, 128) in shapes else base_seconds
        panel.plot(values, calculated, "-", label="FLOPs, calculated")
        panel.plot(values, [value / base for value in seconds], "o--", label="seconds, measured")
        panel.set(xlabel=name, xscale="log", yscale="log")
        panel.set_xticks(values, labels=map(str, values), minor=False)
        panel.minorticks_off()
    panels[0].set_ylabel("cost of a token, relative to the base")
    ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8]
    panels[0].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    panels[0].legend(fontsize=8)
    figure.suptitle(
        f"Forward pass; base: {describe(BASE)}, rows of 128: {base_flops / 1e6:.1f} MFLOP and "
        f"{base_seconds * 1e6:.0f} microseconds a token on {torch.get_num_threads()} of {os.cpu_count()} cores"
    )
    figure.savefig(file, dpi=110)
