"""How a task with new examples at every step is trained: until its loss is flat, or to a cap."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...configuration_fixed_head_bert import FixedHeadBertConfig
from ...errors import Divergence

WINDOW = 100  # steps whose mean loss counts
AT_GOAL = 20  # steps whose mean measure has to be at the goal
LEAST_WINDOWS = 15
FALL = 0.02
LEARNED = 0.1  # of the way from the null line to the goal
WARM_UP = 100  # steps
EVALUATED, BATCH = 2048, 64  # examples in the end, and how many at once


class SyntheticTask(nn.Module):
    """
    A task with the model that is trained on it.

    Attributes:
        measure: a metric of records.py, `relative_error` or `recalled`.
        goal: what the measure is to reach; the steps to it are recorded.
        solved: a training loss below which nothing is left to learn.
        null: what the measure is without solving the task.
        threshold: the predicted one, on the axis of the study; None where theory names none.
        order: of the threshold, where theory names only this.
    """

    measure: ClassVar[str] = "relative_error"
    goal: ClassVar[float] = 0.05
    solved: ClassVar[float] = 0.005
    null: float = 1.0
    threshold: float | None = None
    order: float | None = None
    variance: float = 1.0  # of the target about the best constant, summed over its coordinates

    def __init__(self, config: FixedHeadBertConfig):
        super().__init__()
        config._attn_implementation = "eager"
        self.config = config

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs of `forward`, and the target."""
        raise NotImplementedError

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum(dim=-1).mean() / self.variance

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The measure, of one batch."""
        return self.loss(output, target)

    def is_at_goal(self, score: float) -> bool:
        return score <= self.goal

    def has_learned(self, score: float) -> bool:
        """Whether it is off the null line, where a flat loss is the plateau before learning begins."""
        return (score - self.null) / (self.goal - self.null) >= LEARNED


def input_projections(attention: nn.Module, width: int, *names: str) -> list[nn.Linear]:
    """
    The linear maps of these names, such as query, that read the input of an attention in a model of this width. One
    of another class can lack some: what it has instead begins as the class has made it.
    """
    found = (getattr(attention, name, None) for name in names)
    return [one for one in found if isinstance(one, nn.Linear) and one.in_features == width]


def is_flat(losses: list[float]) -> bool:
    """Whether no window of the last third has a loss 2 % below the lowest before it; never in fewer than 15."""
    before = len(losses) - len(losses) // 3
    return len(losses) >= LEAST_WINDOWS and min(losses[before:]) > (1 - FALL) * min(losses[:before])


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, step: int):
    """
    One step.

    Raises:
        Divergence: the loss or its gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not (loss.isfinite() and norm.isfinite()):
        raise Divergence(f"step {step}: the loss or the gradient norm is not finite; lower the learning rate.")
    optimizer.step()


def train(
    make: Callable[[], SyntheticTask], rows: int, max_steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Train by Adam: a warm-up, a constant rate until the loss is flat and off the null line, or below what the task
    calls solved, or five sixths of `max_steps` are done; then a fifth as many steps with the rate falling to zero.
    Examples are new at every step, so that the measure on a batch is one on held-out examples. A plateau between two
    phases of learning cannot be distinguished from the end of it.

    Raises:
        Divergence: the loss is not finite.

    Returns:
        The measure of the task, which is also the `loss` by which rates are chosen; `steps_to_goal`, after which the
        mean of AT_GOAL batches was at the goal, None if it never was; `steps`; `converged`, 1 if training ended
        because the loss was flat or the task solved, 0 at the cap; `null`, `goal`, `threshold` and `order` of the
        task.
    """
    torch.manual_seed(seed)
    task = make()
    optimizer = torch.optim.Adam(task.parameters(), learning_rate)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    scores: list[float] = []

    def train_step(factor: float):
        optimizer.param_groups[0]["lr"] = factor * learning_rate
        inputs, target = task.examples(rows, generator)
        output = task(*inputs)
        loss = task.loss(output, target)
        descend(loss, optimizer, len(losses) + 1)
        losses.append(loss.item())
        with torch.no_grad():
            scores.append(task.score(output, target).item())

    converged = False
    constant = max_steps * 5 // 6
    while not converged and len(losses) < constant:
        for _ in range(min(WINDOW, constant - len(losses))):
            train_step(min(1, (len(losses) + 1) / WARM_UP))
        windows = means(losses, WINDOW)
        if windows:
            has_learned = task.has_learned(means(scores, WINDOW)[-1])
            converged = windows[-1] < task.solved or is_flat(windows) and has_learned
    cooling = len(losses) // 5
    for left in range(cooling, 0, -1):
        train_step(left / cooling)
    score = evaluate(task, generator)
    at_goal = [number for number, mean in enumerate(means(scores, AT_GOAL), start=1) if task.is_at_goal(mean)]
    return {
        "loss": -score if task.measure == "recalled" else score,
        task.measure: score,
        "steps_to_goal": AT_GOAL * at_goal[0] if at_goal else None,
        "steps": len(losses),
        "converged": float(converged),
        "null": task.null,
        "goal": task.goal,
        "threshold": task.threshold,
        "order": task.order,
    }


def means(values: list[float], window: int) -> list[float]:
    """Of every whole window, one after the other."""
    return [sum(values[first : first + window]) / window for first in range(0, len(values) - window + 1, window)]


@torch.no_grad()
def evaluate(task: SyntheticTask, generator: torch.Generator) -> float:
    """The measure on EVALUATED examples, without dropout."""
    task.eval()
    scores = []
    for _ in range(EVALUATED // BATCH):
        inputs, target = task.examples(BATCH, generator)
        scores.append(task.score(task(*inputs), target))
    return torch.stack(scores).mean().item()
