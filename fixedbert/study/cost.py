"""What a study costs before it runs: its shapes with their counts, its tokens and FLOPs."""

from dataclasses import dataclass

from ..analysis.planning import DEVICES, UTILISATION
from ..counts import forward_flops, parameters
from .studies import Study, parse_share


@dataclass(frozen=True)
class ShapeCost:
    """A shape of a series: fields of its configuration, its parameters, and the FLOPs of a token, forward."""

    series: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    attention_head_size: int
    intermediate_size: int
    parameters: int
    forward_flops: int


@dataclass(frozen=True)
class StudyCost:
    """
    The runs of a study, and what all of them cost.

    Args:
        shapes: of every series.
        distinct_shapes: fewer where series share one, which is trained once.
        learning_rates, seeds: how many.
        tokens, training_flops: of pretraining in all runs; FLOPs are those of the layers.
    """

    question: str
    shapes: list[ShapeCost]
    distinct_shapes: int
    learning_rates: int
    seeds: int
    tokens: int
    training_flops: int

    @property
    def runs(self) -> int:
        """For every shape the grid with the first seed, and the best rate with the others."""
        return self.distinct_shapes * (self.learning_rates + self.seeds - 1)

    @property
    def h100_seconds(self) -> float:
        """On one H100 at UTILISATION of its peak, an assumption."""
        return self.training_flops / (DEVICES["h100"] * UTILISATION)


def study_cost(study: Study, share: str = "1/1", trust_remote_code: bool = False) -> StudyCost:
    """
    The cost of a study, or of the `share` of it that one machine does, as of `run_study`, whose `trust_remote_code`
    this is too.

    Raises:
        InputError: `share` is not of the form 1/2, or a class of attention cannot be used.
    """
    study = study.with_attentions(trust_remote_code)
    runs = [
        study.run(series, point, study.learning_rates[0], study.seeds[0])
        for series, point in study.places(parse_share(share))
    ]
    distinct = {run.key: run for run in runs}.values()
    runs_of_a_shape = len(study.learning_rates) + len(study.seeds) - 1
    shapes = []
    for run in runs:
        config = run.config
        shapes.append(
            ShapeCost(
                run.series,
                config.hidden_size,
                config.num_hidden_layers,
                config.num_attention_heads,
                config.head_dim,
                config.intermediate_size,
                parameters(config)[0],
                forward_flops(config, run.length),
            )
        )
    return StudyCost(
        study.question,
        shapes,
        len(distinct),
        len(study.learning_rates),
        len(study.seeds),
        runs_of_a_shape * sum(run.tokens for run in distinct),
        runs_of_a_shape * sum(run.training_flops for run in distinct),
    )
