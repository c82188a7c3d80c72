"""Training of tasks with new examples in every step: until the loss is flat, or for a maximum number of steps."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import Divergence

WINDOW = 100  # steps for means
AT_GOAL = 20  # steps whose mean must reach the goal
LEAST_WINDOWS = 16
FALL = 0.02
LEARNED = 0.1  # share of the way from the null line to the goal
WARM_UP = 100  # steps
EVALUATED, BATCH = 2048, 64  # examples of the evaluation, and its batch size


class SyntheticTask(nn.Module):
    """
    A task with its model.

    Attributes:
        measure: metric of the task, `relative_error` or `recalled`.
        goal: value of the measure to reach; the steps to it are recorded.
        null: value of the measure without solving the task.
        threshold: predicted threshold on the axis of the study; None if theory names none.
        order: order of the threshold, if theory only names this.
    """

    measure: ClassVar[str] = "relative_error"
    goal: ClassVar[float] = 0.05
    null: float = 1.0
    threshold: float | None = None
    order: float | None = None
    variance: float = 1.0  # of the target around the best constant, summed over coordinates

    def __init__(self, config: FixedHeadBertConfig):
        super().__init__()
        config._attn_implementation = "eager"
        self.config = config

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draws inputs of `forward` and the target."""
        raise NotImplementedError

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum(dim=-1).mean() / self.variance

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the measure of one batch."""
        return self.loss(output, target)

    def progress(self, score: float) -> float:
        """Returns the share of the way from the null line (0) to the goal (1)."""
        return (score - self.null) / (self.goal - self.null)


def is_flat(losses: list[float]) -> bool:
    """
    Returns whether no window of the second half has a loss 2 % below the lowest of the first, with at least 16
    windows.

    A run whose loss stops falling after t windows ends after 2 t: a plateau only ends it if it is as long as
    everything before it. Without noise, a power law steps^-a is flat if a is less than 0.029.
    """
    half = len(losses) // 2
    return len(losses) >= LEAST_WINDOWS and min(losses[half:]) > (1 - FALL) * min(losses[:half])


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, step: int, rows: int):
    """
    Take a step with `rows` examples.

    Raises:
        Divergence: the loss or its gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not (loss.isfinite() and norm.isfinite()):
        raise Divergence(
            f"step {step}: the loss or the gradient norm is not finite; lower the learning rate.", step * rows
        )
    optimizer.step()


def train(
    make: Callable[[], SyntheticTask], rows: int, max_steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Train with Adam: a warm-up, then a constant rate until the task is done or five sixths of `max_steps` are over;
    then a fifth as many steps with the rate falling to zero. Examples are new in every step, so that the measure of a
    batch is a held-out measure.

    A task is done if its measure was at the goal in the last quarter of the steps, or if its loss is flat (`is_flat`)
    and its measure off the null line, where a flat loss is the plateau before learning starts. A plateau between two
    phases of learning only ends a run if it is as long as everything before it; that cannot be distinguished from the
    end of learning. A measure beyond the goal shows how far a run got in a third more steps than to the goal, not how
    far it can get.

    Raises:
        Divergence: the loss is not finite.

    Returns:
        `loss`, by which learning rates are compared: for a run that ends at the goal the share of `max_steps` that it
        needed, minus one; for others the remaining share of the way from the null line to the goal. The measure of the
        task, after the rate has fallen. `steps_to_goal`, after which the mean of AT_GOAL batches was at the goal
        before the rate falls, or None. `steps`; `examples`; `converged`, 1 if the task was done; `null`, `goal`,
        `threshold` and `order` of the task.
    """
    torch.manual_seed(seed)
    task = make()
    optimizer = torch.optim.Adam(task.parameters(), learning_rate, fused=True)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    scores: list[float] = []

    def train_step(factor: float):
        optimizer.param_groups[0]["lr"] = factor * learning_rate
        inputs, target = task.examples(rows, generator)
        output = task(*inputs)
        loss = task.loss(output, target)
        descend(loss, optimizer, len(losses) + 1, rows)
        losses.append(loss.item())
        with torch.no_grad():
            scores.append(task.score(output, target).item())

    converged = False
    constant = max_steps * 5 // 6
    while not converged and len(losses) < constant:
        for _ in range(min(WINDOW, constant - len(losses))):
            train_step(min(1, (len(losses) + 1) / WARM_UP))
        progress = [task.progress(score) for score in means(scores, WINDOW)]
        if progress:
            is_solved = min(progress[len(progress) * 3 // 4 :]) >= 1
            converged = is_solved or is_flat(means(losses, WINDOW)) and progress[-1] >= LEARNED
    at_goal = [number for number, mean in enumerate(means(scores, AT_GOAL), start=1) if task.progress(mean) >= 1]
    steps_to_goal = AT_GOAL * at_goal[0] if at_goal else None
    cooling = len(losses) // 5
    for left in range(cooling, 0, -1):
        train_step(left / cooling)
    score = evaluate(task, generator)
    left_to_goal = max(1 - task.progress(score), 0.0)  # in this order NaN stays NaN
    return {
        "loss": left_to_goal if left_to_goal or steps_to_goal is None else steps_to_goal / max_steps - 1,
        task.measure: score,
        "steps_to_goal": steps_to_goal,
        "steps": len(losses),
        "examples": len(losses) * rows,
        "converged": float(converged),
        "null": task.null,
        "goal": task.goal,
        "threshold": task.threshold,
        "order": task.order,
    }


def means(values: list[float], window: int) -> list[float]:
    """Returns the means of consecutive windows."""
    return [sum(values[first : first + window]) / window for first in range(0, len(values) - window + 1, window)]


@torch.no_grad()
def evaluate(task: SyntheticTask, generator: torch.Generator) -> float:
    """Returns the measure on EVALUATED examples, without dropout."""
    task.eval()
    scores = []
    for _ in range(EVALUATED // BATCH):
        inputs, target = task.examples(BATCH, generator)
        scores.append(task.score(task(*inputs), target))
    return torch.stack(scores).mean().item()
