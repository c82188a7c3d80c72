"""
Synthetic tasks for one or two attention layers, for which theory predicts the necessary head size.

Each module docstring defines a task, the prediction and its source.
"""

from functools import partial

from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

from .average import Average
from .extremes import Extremes
from .memorise import train_memorise
from .mixing import PATTERNS, train_mixing
from .nearest import Nearest
from .recall import Recall
from .training import train

STAGE = ("max_seq_length", "total_train_batch_size", "max_steps")  # fields of every stage
CLASSES = {"nearest": Nearest, "average": Average, "extremes": Extremes, "recall": Recall}
TASKS: dict[str, tuple[str, ...]] = {  # maps each task to the additional fields of its stages
    **dict.fromkeys((*PATTERNS, "memorise"), ()),
    "nearest": ("dimension",),
    "average": ("subset", "mlp"),
    "extremes": ("features",),
    "recall": ("symbols",),
}


def train_synthetic(
    objective: str, config: FixedHeadBertConfig, stage: dict, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Trains a model with the attention heads in `config` on a task. The result depends only on the arguments.

    Args:
        stage: The settings of the task, and `max_seq_length` (tokens per example), `total_train_batch_size` (examples
            per step, or the most examples that `memorise` tries) and `max_steps`.

    Returns:
        Metrics, and the `loss` that is used to compare learning rates.

    Raises:
        TaskDivergence: If the loss becomes NaN or infinite.
    """
    length, rows, max_steps = (stage[name] for name in STAGE)
    if objective in PATTERNS:
        return train_mixing(objective, config, length, rows, max_steps, learning_rate, seed)
    if objective == "memorise":
        return train_memorise(config, length, rows, max_steps, learning_rate, seed)
    settings = {name: stage[name] for name in TASKS[objective]}
    return train(partial(CLASSES[objective], config, length, **settings), rows, max_steps, learning_rate, seed)
