"""What a study costs before it runs: its shapes with their counts, its tokens and FLOPs."""

from dataclasses import dataclass

from ..analysis.planning import DEVICES, UTILISATION
from ..counts import forward_flops, parameters
from .studies import Study, parse_share
from .tasks import TASKS, has_feed_forward


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
                config.neuron_counts[0] if has_feed_forward(run.objective) else None,
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
