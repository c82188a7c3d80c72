"""
memorise: the largest number T of queries with random labels that an attention layer can learn by heart.

T queries and n tokens of a fixed context are standard normal vectors with the width of the model; labels are plus or
minus one. Queries attend to the context, and a linear readout of the heads predicts the label by its sign: with a
residual connection the readout alone would memorize. T is searched on a grid with steps of a factor of 2^(1/4), always
with the first T queries of one list: T is fitted if 99 % of the labels are right from one of three initializations.
From a single one, training can get stuck at a third of what it reaches from others.

Prediction: T grows as H min(n, p), with a knee at p = n (Mahdavi, Liao and Thrampoulidis, "Memorization Capacity of
Multi-Head Attention in Transformers", 2023, arXiv 2306.02010). Checked in the abstract: Omega(H n) examples for n < d;
in a summary of the paper: H min(n, p), for queries of which any n are linearly independent and contexts of full rank,
as here. Because probabilities sum to one, only n - 1 dimensions of the scores count, and the knee can lie at n - 1
(our own remark). The theorem is a lower bound for labels of any kind; we know of no upper bound, so that growth beyond
the knee contradicts nothing. Signs of independent queries are easier: a head of size 1 is already a linear classifier
of d dimensions, which fits any d of them (tested), and typically about 2 d (Cover, 1965; recalled). So only the
scaling with p, n and H is tested, and the knee, not the constant. The null line is a single query, the most that a
constant is certain to fit.
"""

from itertools import count

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import Divergence

from .training import WARM_UP, WINDOW, descend, is_flat, means

FITTED = 0.99
STARTS = 3  # initializations
FIRST, STEPS_PER_OCTAVE = 16, 4  # grid of T


class Memory(nn.Module):
    """An attention layer over a fixed context (n, D) with a linear readout: queries (T, D) -> (T)."""

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


def examples(config: FixedHeadBertConfig, length: int, most: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the context (n, D), and all queries (T, D) with their labels (T)."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(length, config.hidden_size, generator=generator)
    labels = torch.randint(2, (most,), generator=generator) * 2.0 - 1
    queries = torch.randn(most, config.hidden_size, generator=generator)
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
    Train with Adam on all queries at once, with the squared hinge loss. (The logistic loss continues to sharpen the
    softmax for fitted queries, until those that attend to the wrong token have no gradient left.)

    Returns:
        The steps until 99 % of the labels were right, or None; whether training ended before the maximum of steps; and
        the number of steps.
    """
    torch.manual_seed(seed)
    model = Memory(config, context)
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=True)
    losses: list[float] = []
    for step in range(1, max_steps + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1, step / WARM_UP)
        margins = labels * model(queries)
        if (margins > 0).float().mean() >= FITTED:
            return step, True, step
        loss = (1 - margins).relu().square().mean()
        descend(loss, optimizer, step, len(queries))
        losses.append(loss.item())
        if step % WINDOW == 0 and is_flat(means(losses, WINDOW)):
            return None, True, step
    return None, False, max_steps


def train_memorise(
    config: FixedHeadBertConfig, length: int, most: int, max_steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Search T up to `most`: by octaves until one is not fitted, then by bisection.

    Raises:
        Divergence: a loss is not finite.

    Returns:
        `memorised`, the largest fitted T, or 0; `loss`, its negative; `steps_to_goal` and `steps`, the steps at that
        T; `at_limit`, 1 if all T up to `most` were fitted, so that `memorised` is only a lower bound; `converged`, 1
        if all trainings at the least T that was not fitted ended with a flat loss; `examples`, the queries trained on
        in the search; `predicted`, H min(n, p), a claim about growth only; `threshold`, n; `null`.
    """
    context, queries, labels = examples(config, length, most, seed)
    beyond = next(place for place in count() if grid(place) > most)
    fitted, failed = 0, beyond  # indices in the grid of T
    steps, converged, seen, place = None, False, 0, min(STEPS_PER_OCTAVE, beyond - 1)
    while failed - fitted > 1:
        T, all_ended = grid(place), True
        for start in range(STARTS):
            weights = seed + 1000 * start
            try:
                needed, ended, taken = fit(config, context, queries[:T], labels[:T], max_steps, learning_rate, weights)
            except Divergence as error:
                error.examples += seen
                raise
            seen += T * taken
            all_ended = all_ended and ended
            if needed is not None:
                fitted, steps = place, needed
                break
        else:
            failed, converged = place, all_ended
        place = (fitted + failed) // 2 if failed < beyond else min(fitted + STEPS_PER_OCTAVE, beyond - 1)
    memorised = grid(fitted) if fitted else 0
    return {
        "loss": -float(memorised),
        "memorised": memorised,
        "steps_to_goal": steps,
        "steps": steps,
        "at_limit": float(failed == beyond),
        "converged": float(converged),
        "examples": seen,
        "predicted": config.num_attention_heads * min(length, config.head_dim),
        "threshold": float(length),
        "null": 1.0,
    }


def grid(place: int) -> int:
    """Returns T at an index of the grid; FIRST at STEPS_PER_OCTAVE."""
    return round(FIRST * 2 ** (place / STEPS_PER_OCTAVE - 1))
