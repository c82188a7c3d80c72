"""Trains models on synthetic tasks, with new examples in every step, until they converge or reach `max_steps`."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import Divergence

WINDOW = 100  # steps per averaging window
GOAL_WINDOW = 20  # steps whose average must reach the goal
MIN_WINDOWS = 16
FALL = 0.02  # relative decrease below which a loss is flat
LEARNED = 0.1  # progress that distinguishes a final loss from the plateau before learning starts
WARM_UP = 100  # steps
EVALUATION_EXAMPLES, BATCH = 2048, 64


class SyntheticTask(nn.Module):
    """
    Base class of tasks, each of which includes the model that is trained on it.

    Attributes:
        measure: Metric of the task, `relative_error` or `recalled`.
        goal: Value of the measure at which the task counts as solved.
        null: Value of the measure for guessing.
        threshold: Predicted threshold on the axis of the study. None if theory predicts no value.
        order: Predicted order of magnitude of the threshold, if theory predicts only this.
    """

    measure: ClassVar[str] = "relative_error"
    goal: ClassVar[float] = 0.05
    null: float = 1.0
    threshold: float | None = None
    order: float | None = None
    variance: float = 1.0  # variance of the target, summed over coordinates

    def __init__(self, config: FixedHeadBertConfig):
        super().__init__()
        config._attn_implementation = "eager"
        self.config = config

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draws the inputs of `forward` and the target."""
        raise NotImplementedError

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().sum(dim=-1).mean() / self.variance

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the measure for one batch."""
        return self.loss(output, target)

    def progress(self, score: float) -> float:
        """Rescales a score so that guessing is 0 and the goal is 1."""
        return (score - self.null) / (self.goal - self.null)


def is_flat(losses: list[float]) -> bool:
    """
    Returns True if no window in the second half has a loss 2% below the lowest loss in the first half. Needs at least
    16 windows.

    A run whose loss stops falling after t windows ends after 2 t windows, so a plateau ends a run only if it is as
    long as everything before it. Without noise, a power law steps^-a is flat if a is less than 0.029.
    """
    half = len(losses) // 2
    return len(losses) >= MIN_WINDOWS and min(losses[half:]) > (1 - FALL) * min(losses[:half])


class TaskDivergence(Divergence):
    """Divergence on a synthetic task, after the given number of examples."""

    def __init__(self, problem: str, examples: int):
        super().__init__(f"{problem}; lower the learning rate.")
        self.examples = examples


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, step: int, rows: int):
    """
    Takes one optimizer step with a batch of `rows` examples.

    Raises:
        TaskDivergence: If the loss or the gradient norm is NaN or infinite.
    """
    optimizer.zero_grad()
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not (loss.isfinite() and norm.isfinite()):
        raise TaskDivergence(f"step {step}: the loss or the gradient norm is NaN or infinite", step * rows)
    optimizer.step()


def train(
    make: Callable[[], SyntheticTask], rows: int, max_steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Trains with Adam on new examples in every step, so the measure on a batch is a held-out measure.

    After a warm-up, the learning rate is constant until the run has converged or five sixths of `max_steps` have
    passed. It then decays to zero over another fifth of the steps taken so far.

    A run has converged if its measure was at the goal throughout the last quarter of the steps, or if its loss is flat
    (see `is_flat`) and its measure is better than guessing: a flat loss at the null value is the plateau before
    learning starts. A plateau between two phases of learning ends a run only if it is as long as everything before it.
    A run stops soon after it reaches the goal, so a measure beyond the goal is not the best that the run could reach.

    Returns:
        `loss`: Used to compare learning rates. For a run that ends at the goal, the fraction of `max_steps` it needed,
            minus one. For other runs, one minus the progress (see `SyntheticTask.progress`).
        The task's measure, after the decay.
        `steps_to_goal`: Steps until the average of GOAL_WINDOW batches reached the goal, before the decay, or None.
        `steps`, `examples`: Number of training steps and examples.
        `converged`: 1 if the run has converged.
        `null`, `goal`, `threshold`, `order`: Attributes of the task.

    Raises:
        TaskDivergence: If the loss becomes NaN or infinite.
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
    at_goal = [index for index, mean in enumerate(means(scores, GOAL_WINDOW), start=1) if task.progress(mean) >= 1]
    steps_to_goal = GOAL_WINDOW * at_goal[0] if at_goal else None
    decay_steps = len(losses) // 5
    for remaining in range(decay_steps, 0, -1):
        train_step(remaining / decay_steps)
    score = evaluate(task, generator)
    distance = max(1 - task.progress(score), 0.0)  # max() returns NaN only if it comes first
    return {
        "loss": distance if distance or steps_to_goal is None else steps_to_goal / max_steps - 1,
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
    """Returns the averages of consecutive windows. Drops an incomplete last window."""
    return [sum(values[first : first + window]) / window for first in range(0, len(values) - window + 1, window)]


@torch.no_grad()
def evaluate(task: SyntheticTask, generator: torch.Generator) -> float:
    """Returns the measure on new examples, without dropout."""
    task.eval()
    scores = []
    for _ in range(EVALUATION_EXAMPLES // BATCH):
        inputs, target = task.examples(BATCH, generator)
        scores.append(task.score(task(*inputs), target))
    return torch.stack(scores).mean().item()
