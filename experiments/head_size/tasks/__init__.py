"""
Synthetic tasks for one or two attention layers, for which theory predicts the head size. Each module has the
definition of a task, its prediction and the source.
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
    Train a model with the attention of `config` on a task. The result depends only on the arguments.

    Args:
        stage: `max_seq_length`, tokens of an example; `total_train_batch_size`, examples of a step, or the most that
            `memorise` tries; `max_steps`, the maximum; and the settings of the task.

    Raises:
        Divergence: a loss is not finite.

    Returns:
        `loss`, by which learning rates are compared, and metrics.
    """
    length, rows, max_steps = (stage[name] for name in STAGE)
    if objective in PATTERNS:
        return train_mixing(objective, config, length, rows, max_steps, learning_rate, seed)
    if objective == "memorise":
        return train_memorise(config, length, rows, max_steps, learning_rate, seed)
    own = {name: value for name, value in stage.items() if name not in STAGE}
    return train(partial(TASKS[objective], config, length, **own), rows, max_steps, learning_rate, seed)


def task_settings(objective: str) -> dict[str, bool]:
    """Returns the settings of a task, mapped to whether they are required."""
    if objective not in TASKS:
        return {}
    parameters = list(signature(TASKS[objective]).parameters.values())[2:]  # after the configuration and the length
    return {parameter.name: parameter.default is Parameter.empty for parameter in parameters}
