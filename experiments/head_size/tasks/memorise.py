"""
memorise: the largest number T of queries whose random labels an attention layer can memorize.

The T queries and the n tokens of a fixed context are standard normal vectors with the width of the model. Labels are
plus or minus one. Queries attend to the context, and the sign of a linear readout of the heads predicts the label.
With a residual connection, the readout alone could memorize labels, so there is none. The search tries T on a grid
with steps of a factor of 2^(1/4), and uses the first T queries of one list. T is fitted if 99% of the labels are
correct with one of three initializations, because a single one can get stuck at a third of what others reach.

Prediction: T grows like H min(n, p), with a knee at p = n (Mahdavi, Liao and Thrampoulidis, "Memorization Capacity of
Multi-Head Attention in Transformers", 2023, arXiv 2306.02010). The abstract confirms Omega(H n) examples for n < d. A
summary of the paper states H min(n, p) for queries of which any n are linearly independent, and contexts of full rank,
as here. Attention probabilities sum to one, so only n - 1 dimensions of the scores count, and the knee can lie at n -
1 (our own remark). The theorem is a lower bound for arbitrary labels. We know of no upper bound, so growth beyond the
knee does not contradict the theorem. Signs of independent queries are easier to fit: even a head of size 1 is a linear
classifier in d dimensions, which fits any d queries (tested) and typically about 2 d (Cover, 1965; quoted from
memory). Studies therefore test only the knee and the scaling with p, n and H, not the constant. The null value is one
query, the largest number that a constant prediction always fits.
"""

from itertools import count

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

from .training import WARM_UP, WINDOW, TaskDivergence, descend, is_flat, means

FITTED_ACCURACY = 0.99
INITIALIZATIONS = 3
FIRST, STEPS_PER_OCTAVE = 16, 4  # the first T that is tried, and the grid steps per factor of two


class Memory(nn.Module):
    """An attention layer over a fixed context (n, D) with a linear readout. Maps queries (T, D) to scores (T)."""

    context: Tensor

    def __init__(self, config: FixedHeadBertConfig, context: Tensor):
        super().__init__()
        config._attn_implementation = "eager"
        self.attention = FixedHeadBertVariantSelfAttention(config)
        self.readout = nn.Linear(self.attention.all_head_size, 1)
        self.register_buffer("context", context)

    def forward(self, queries: Tensor) -> Tensor:
        heads, _ = self.attention(queries[None], encoder_hidden_states=self.context[None])
        return self.readout(heads[0])[:, 0]


def examples(config: FixedHeadBertConfig, length: int, max_queries: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the context (n, D), and all queries (T, D) with their labels (T)."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(length, config.hidden_size, generator=generator)
    labels = torch.randint(2, (max_queries,), generator=generator) * 2.0 - 1
    queries = torch.randn(max_queries, config.hidden_size, generator=generator)
    return context, queries, labels


def fit(
    config: FixedHeadBertConfig,
    context: Tensor,
    queries: Tensor,
    labels: Tensor,
    max_steps: int,
    rate: float,
    seed: int,
) -> tuple[int | None, bool, int]:
    """
    Trains with Adam and the squared hinge loss on all queries at once.

    The logistic loss would keep sharpening the softmax for fitted queries, until queries that attend to an unhelpful
    token receive no gradient.

    Returns:
        The number of steps until 99% of the labels were correct, or None; whether training ended before `max_steps`;
        and the number of training steps.
    """
    torch.manual_seed(seed)
    model = Memory(config, context)
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=True)
    losses: list[float] = []
    for step in range(1, max_steps + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1, step / WARM_UP)
        margins = labels * model(queries)
        if (margins > 0).float().mean() >= FITTED_ACCURACY:
            return step, True, step
        loss = (1 - margins).relu().square().mean()
        descend(loss, optimizer, step, len(queries))
        losses.append(loss.item())
        if step % WINDOW == 0 and is_flat(means(losses, WINDOW)):
            return None, True, step
    return None, False, max_steps


def train_memorise(
    config: FixedHeadBertConfig, length: int, max_queries: int, max_steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Searches for the largest fitted T up to `max_queries`, by doubling T until it is not fitted, then by bisection.

    Returns:
        `memorised`: The largest fitted T, or 0.
        `loss`: -memorised.
        `steps_to_goal`, `steps`: Training steps at that T.
        `at_limit`: 1 if every T up to `max_queries` was fitted, so that `memorised` is only a lower bound.
        `converged`: 1 if the loss became flat for all initializations at the smallest T that was not fitted.
        `examples`: Number of queries seen in the entire search.
        `predicted`: H min(n, p), which theory predicts up to a constant factor. `threshold`: n. `null`: 1.

    Raises:
        TaskDivergence: If the loss becomes NaN or infinite.
    """
    context, queries, labels = examples(config, length, max_queries, seed)
    end = next(index for index in count() if grid_value(index) > max_queries)
    fitted, failed = 0, end  # grid indices
    steps, converged, queries_seen, index = None, False, 0, min(STEPS_PER_OCTAVE, end - 1)
    while failed - fitted > 1:
        T, all_flat = grid_value(index), True
        data = context, queries[:T], labels[:T]
        for initialization in range(INITIALIZATIONS):
            try:
                needed, is_done, trained = fit(config, *data, max_steps, learning_rate, seed + 1000 * initialization)
            except TaskDivergence as error:
                error.examples += queries_seen
                raise
            queries_seen += T * trained
            all_flat = all_flat and is_done
            if needed is not None:
                fitted, steps = index, needed
                break
        else:
            failed, converged = index, all_flat
        index = (fitted + failed) // 2 if failed < end else min(fitted + STEPS_PER_OCTAVE, end - 1)
    memorised = grid_value(fitted) if fitted else 0
    return {
        "loss": -float(memorised),
        "memorised": memorised,
        "steps_to_goal": steps,
        "steps": steps,
        "at_limit": float(failed == end),
        "converged": float(converged),
        "examples": queries_seen,
        "predicted": config.num_attention_heads * min(length, config.head_dim),
        "threshold": float(length),
        "null": 1.0,
    }


def grid_value(index: int) -> int:
    """Returns T for a grid index. The search starts with FIRST, at index STEPS_PER_OCTAVE."""
    return round(FIRST * 2 ** (index / STEPS_PER_OCTAVE - 1))
