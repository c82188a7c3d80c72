"""
Objectives of a study that are not trained on a text. The package has none: experiments/head_size of a checkout adds
some, with their metrics and named studies, and what a report says of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..model.configuration_fixed_head_bert import FixedHeadBertConfig

STAGE = ("max_seq_length", "total_train_batch_size", "max_steps")  # what every objective of a study has


@dataclass(frozen=True)
class Task:
    """
    An objective whose examples are generated.

    Args:
        train: a function of a configuration, a stage, a learning rate and a seed alone. It returns `loss`, which
            decides between learning rates, `examples`, and metrics of METRICS.
        settings: of a stage those that are the task's own, with whether each must be given.
        has_feed_forward: whether its model has networks of the configuration's intermediate_size.
        single_queries: whether an example is one query, and not a row of tokens.
    """

    train: Callable[[FixedHeadBertConfig, dict, float, int], dict[str, float | None]]
    settings: dict[str, bool] = field(default_factory=dict)
    has_feed_forward: bool = False
    single_queries: bool = False


TASKS: dict[str, Task] = {}


def has_feed_forward(objective: str) -> bool:
    """Whether its model has networks of the configuration's intermediate_size."""
    return objective not in TASKS or TASKS[objective].has_feed_forward
