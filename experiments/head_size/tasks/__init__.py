"""
Synthetic tasks for one or two attention layers, for which theory predicts the necessary head size.

Each module docstring defines a task, the prediction and its source.
"""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature

from experiments.study.registry import STAGE
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

from .average import Average
from .extremes import Extremes
from .memorise import train_memorise
from .mixing import PATTERNS, train_mixing
from .nearest import Nearest
from .recall import Recall
from .training import SyntheticTask, train

TASKS: dict[str, Callable[..., SyntheticTask]] = {
    "nearest": Nearest,
    "average": Average,
    "extremes": Extremes,
    "recall": Recall,
}
SYNTHETIC = (*PATTERNS, *TASKS, "memorise")


def train_synthetic(
    objective: str, config: FixedHeadBertConfig, stage: dict, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Trains a model with the attention heads in `config` on a task. The result depends only on the arguments.

    Args:
        stage: The settings of the task, and `max_seq_length` (tokens per example), `total_train_batch_size` (examples
            per step, or the largest number that `memorise` tries) and `max_steps`.

    Returns:
        Metrics, and the `loss` that is used to compare learning rates.

    Raises:
        Divergence: If the loss becomes NaN or infinite.
    """
    length, rows, max_steps = (stage[name] for name in STAGE)
    if objective in PATTERNS:
        return train_mixing(objective, config, length, rows, max_steps, learning_rate, seed)
    if objective == "memorise":
        return train_memorise(config, length, rows, max_steps, learning_rate, seed)
    settings = {name: value for name, value in stage.items() if name not in STAGE}
    return train(partial(TASKS[objective], config, length, **settings), rows, max_steps, learning_rate, seed)


def task_settings(objective: str) -> dict[str, bool]:
    """Returns the names of a task's settings, mapped to True for required settings."""
    if objective not in TASKS:
        return {}
    parameters = list(signature(TASKS[objective]).parameters.values())[2:]  # skip the configuration and the length
    return {parameter.name: parameter.default is Parameter.empty for parameter in parameters}
