"""
memorise: the largest number T of queries, each with a random label, that an attention layer can learn by heart.

T queries and n tokens of a fixed context are vectors of standard normal numbers, as wide as the model; labels are plus
or minus one. Queries attend to the context, and a linear readout of the heads alone gives the label by its sign: with
a residual the readout would memorise by itself. T is searched on a grid with steps of a factor of 2^(1/4), the first T
queries of one list each time: fitted are those on which 99 % of the labels are right, from one of three sets of
initial weights. From a single one training can get stuck at a third of what it reaches from another.

Prediction: T grows as H min(n, p), with a knee at p = n (Mahdavi, Liao and Thrampoulidis, "Memorization Capacity of
Multi-Head Attention in Transformers", 2023, arXiv 2306.02010). Checked in the abstract: Omega(H n) examples for n < d;
in a summary of the paper, not in itself: H min(n, p), for queries of which any n are linearly independent and contexts
of full rank, as they are here. As probabilities sum to one, scores have n - 1 dimensions that count, and the knee can
lie at n - 1 (our own remark). The theorem is a lower bound, for labels of any kind; no upper bound is known to us, so
that growth beyond the knee contradicts nothing. Signs of independent queries are easier: a head of size 1 is already a
linear classifier of d dimensions, which fits any d of them (tested), and about 2 d as a rule (Cover, 1965; recalled).
So only the scaling with p, n and H is tested, and the knee, not the constant. The null line is a single query: a
constant fits no more for certain.
"""

from itertools import count

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import Divergence, InputError

from .training import WARM_UP, WINDOW, descend, is_flat, means

FITTED = 0.99
STARTS = 3  # sets of initial weights
FIRST, STEPS_PER_OCTAVE = 16, 4  # of the grid of T


class Memory(nn.Module):
    """One attention layer over a fixed context (n, D) and a linear readout: queries (T, D) -> (T)."""

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
    """The context (n, D), and the most queries (T, D) that are tried, with their labels (T)."""
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
    Adam on all queries at once, with the squared hinge loss. (The logistic loss goes on to sharpen the softmax for the
    queries that are fitted, until the last few, on the wrong token, have no gradient left.)

    Returns:
        The steps until 99 % of the labels were right, None if they never were; whether training ended before the cap;
        and the steps that it took.
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
    Search T, up to `most`: upwards by octaves until one is not fitted, then between by halves. That a larger T is not
    fitted either is taken for granted.

    Raises:
        InputError: `most` is below the least T of the grid.
        Divergence: a loss is not finite.

    Returns:
        `memorised`, the largest T found, 0 if none; `loss`, its negative; `steps_to_goal` and `steps` at that T, the
        same; `at_limit`, 1 if every T that was tried was fitted, up to `most`, so that `memorised` is only a lower
        bound; `converged`, 1 if training at the least T that was not fitted ended each time because its loss was flat,
        0 if at the cap or if there is no such T; `examples`, the queries trained on in the whole search; `predicted`,
        H min(n, p), a claim about growth alone; `threshold`, n; `null`.
    """
    if most < grid(1):
        raise InputError(f"memorise: total_train_batch_size {most}: at least {grid(1)}, the fewest queries tried.")
    context, queries, labels = examples(config, length, most, seed)
    beyond = next(place for place in count() if grid(place) > most)
    fitted, failed = 0, beyond  # places on the grid of T
    steps, converged, seen, place = None, False, 0, min(STEPS_PER_OCTAVE, beyond - 1)
    while failed - fitted > 1:
        T, all_ended = grid(place), True
        for start in range(STARTS):
            weights = seed + 1000 * start
            try:
                needed, ended, taken = fit(config, context, queries[:T], labels[:T], max_steps, learning_rate, weights)
            except Divergence as error:
                error.examples += seen  # with the other T's
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
    """From FIRST queries on at place STEPS_PER_OCTAVE; below, fewer."""
    return round(FIRST * 2 ** (place / STEPS_PER_OCTAVE - 1))
