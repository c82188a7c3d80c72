"""What a study costs before it runs: its shapes with their counts, its tokens and FLOPs."""

from dataclasses import dataclass

from ..counts import forward_flops, parameters
from ..planning import DEVICES, UTILISATION
from .studies import Study, parse_share
from .tasks import TASKS, has_feed_forward

# The size of a unit, its name, from the largest on.
TOKENS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1, "tokens"))
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))


@dataclass(frozen=True)
class ShapeCost:
    """
    A shape of a series: fields of its configuration, its parameters, and the FLOPs of a token, forward. A task without
    a text has no embeddings: its parameters are None, and so is the width of a feed-forward network that it lacks.
    """

    series: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    attention_head_size: int
    intermediate_size: int | None
    parameters: int | None
    forward_flops: int


@dataclass(frozen=True)
class StudyCost:
    """
    The runs of a study, and what all of them cost.

    Args:
        shapes: of every series.
        distinct_shapes: fewer where series share one, which is trained once.
        learning_rates, seeds, runs: how many; an extended grid has more.
        shorter_grid: whether the runs of the grid are shorter than the others.
        extended: whether grids are extended.
        tokens, training_flops: of pretraining in all runs; FLOPs are those of the layers.
    """

    question: str
    shapes: list[ShapeCost]
    distinct_shapes: int
    learning_rates: int
    seeds: int
    shorter_grid: bool
    extended: bool
    runs: int
    tokens: int
    training_flops: int

    @property
    def h100_seconds(self) -> float:
        """Seconds on one H100 at UTILISATION of its peak, an assumption."""
        return self.training_flops / (DEVICES["h100"] * UTILISATION)


def study_cost(study: Study, share: str = "1/1") -> StudyCost:
    """
    The cost of a study, or of the `share` of it that one machine does, as of `run_study`.

    Raises:
        InputError: `share` is not of the form 1/2.
    """
    part = parse_share(share)
    first_runs = [
        study.run(series, point, study.learning_rates[0], study.seeds[0]) for series, point in study.places(part)
    ]
    planned = study.planned_runs([], part)
    shapes = []
    for run in first_runs:
        config, is_generated = run.config, run.objective in TASKS
        shapes.append(
            ShapeCost(
                run.series,
                config.hidden_size,
                config.num_hidden_layers,
                config.num_attention_heads,
                config.head_dim,
                config.intermediate_size if has_feed_forward(run.objective) else None,
                None if is_generated else parameters(config)[0],
                forward_flops(config, run.length),
            )
        )
    return StudyCost(
        study.question,
        shapes,
        len({run.key for run in first_runs}),
        len(study.learning_rates),
        len(study.seeds),
        bool(study.grid),
        study.extend_learning_rates,
        len(planned),
        sum(run.tokens for run in planned),
        sum(run.training_flops for run in planned),
    )


def study_cost_text(cost: StudyCost) -> str:
    """The shapes of a study with their counts, and what all runs cost."""
    row = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12}"
    lines = [
        cost.question,
        "",
        row.format("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token"),
    ]
    for shape in cost.shapes:
        counted = "-" if shape.parameters is None else f"{shape.parameters / 1e6:,.2f} M"
        ffn = "-" if shape.intermediate_size is None else shape.intermediate_size
        lines.append(
            row.format(
                shape.series[:44], shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads,
                shape.attention_head_size, ffn, counted, f"{shape.forward_flops / 1e6:.3f}",
            )
        )  # fmt: skip
    more = ", and more where grids are extended" if cost.extended else ""
    grid, seeds = ("in shorter runs ", f"{cost.seeds}") if cost.shorter_grid else ("", f"{cost.seeds - 1} more")
    best = "" if seeds == "0 more" else f", and the best one for {seeds}"
    on_gpu = ""
    if cost.h100_seconds >= 3600:  # small shapes do not reach that share
        on_gpu = f", {in_unit(cost.h100_seconds, TIMES)} of an H100 at {UTILISATION:.0%} of its peak, an assumption"
    lines += [
        "",
        f"{cost.runs} runs{more}: {cost.distinct_shapes} different shapes, each with {cost.learning_rates} learning "
        f"rate{'s' if cost.learning_rates > 1 else ''} {grid}for the first seed{best}; "
        f"{in_unit(cost.tokens, TOKENS)}, {cost.training_flops:.2g} FLOPs in layers{on_gpu}",
    ]
    return "\n".join(lines)


def in_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    """An amount in the largest unit that it fills, with three digits."""
    size, name = next((unit for unit in units if amount >= unit[0]), units[-1])
    if amount < size:
        return f"less than a {name.removesuffix('s')}"
    amount /= size
    return f"{amount:,.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"
