"""
dense, half, sparse: each position has to output a fixed mixture of numbers, for which theory knows the head size.

The numbers x (n) at n positions are drawn for every example, and each position j has to output sum_i P_ij x_i.

    dense     P is a random positive pattern of full rank: a head of size p expresses it exactly if and only if
              rank(C log P) <= p (patterns.py), here from p = n - 1 on. Below, the error has a floor.
    half      the same with P such that this rank is n // 2.
    sparse    P is a permutation: position j copies the number at position pi(j). A head of size 2 approximates it to
              any precision (scores -t (i - pi(j))^2, with t large), and a size of the order of log n needs no large t
              (Likhosherstov, Choromanski and Weller, 2021, arXiv 2106.03764).

The layer is that of the model, in the setting of the theorem: queries and keys see one-hot positions, so that X has
full column rank and the pattern is the same for every example; values see the numbers. The error is the mean of
(output - target)^2, with the expectation sum_i (w P'_ij - P_ij)^2 for one head with the pattern P'.
"""

import torch
from torch import Tensor, nn
from transformers import get_cosine_schedule_with_warmup

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.training.speed import use_fast_dropout

from ..patterns import centred_log, least_head_size
from .training import descend

PATTERNS = ("dense", "half", "sparse")
EVALUATED = 20_000  # examples in the evaluation
STARTS, DESCENT = 64, 1000  # initializations and steps of the search for the floor


def pattern(task: str, length: int, seed: int) -> Tensor:
    """
    Returns P (n, n) in float64, with columns that sum to one.

    For dense patterns, C log P has random singular vectors and equal singular values, so that all missing dimensions
    of a head count equally; its entries have a mean square of one.
    """
    generator = torch.Generator().manual_seed(seed)
    if task == "sparse":
        return torch.eye(length, dtype=torch.float64)[torch.randperm(length, generator=generator)]
    rank = length - 1 if task == "dense" else length // 2
    left, right = (torch.randn(length, rank, dtype=torch.float64, generator=generator) for _ in range(2))
    left, right = torch.linalg.qr(left - left.mean(dim=0)).Q, torch.linalg.qr(right).Q  # (n, rank)
    return (left @ right.T * length / rank**0.5).softmax(dim=0)


def floor(P: Tensor, head_size: int) -> float:
    """
    Returns the least error found for one head of this size on the dense pattern P (n, n): zero from rank(C log P) on.

    Below, it comes from gradient descent on STARTS factorizations of the scores, the first of which has the largest
    singular values of C log P, and L-BFGS from the best.
    """
    left, singular, right = torch.linalg.svd(centred_log(P))
    if head_size >= least_head_size(P):
        return 0.0
    root = singular[:head_size].sqrt()
    generator = torch.Generator().manual_seed(0)
    K, Q = (torch.randn(STARTS, len(P), head_size, dtype=torch.float64, generator=generator) for _ in range(2))
    K[0], Q[0] = left[:, :head_size] * root, right[:head_size].T * root

    def errors() -> Tensor:
        fit = (K @ Q.mT).softmax(dim=-2)  # (starts, n, n)
        scale = (fit * P).sum(dim=(-2, -1), keepdim=True) / fit.square().sum(dim=(-2, -1), keepdim=True)  # the best w
        return (scale * fit - P).square().sum(dim=(-2, -1)) / len(P)

    K, Q = K.requires_grad_(), Q.requires_grad_()
    adam = torch.optim.Adam([K, Q], lr=0.05)
    for _ in range(DESCENT):
        adam.zero_grad()
        errors().sum().backward()
        adam.step()
    best = errors().argmin()
    K, Q = K.detach()[best].clone().requires_grad_(), Q.detach()[best].clone().requires_grad_()
    lbfgs = torch.optim.LBFGS([K, Q], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def error() -> Tensor:
        lbfgs.zero_grad()
        value = errors()
        value.backward()
        return value

    lbfgs.step(error)
    return errors().item()


class MixingLayer(nn.Module):
    """The attention of the model with W_o to one number, on one-hot positions: (B, n) -> (B, n)."""

    positions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int):
        super().__init__()
        config.hidden_size = length + 1  # one-hot positions and the number
        config._attn_implementation = "eager"
        self.attention = FixedHeadBertVariantSelfAttention(config)
        self.output = nn.Linear(self.attention.all_head_size, 1)
        self.register_buffer("positions", torch.eye(length))
        for projection in (self.attention.query, self.attention.key):
            nn.init.normal_(projection.weight)  # attention starts uneven
            with torch.no_grad():
                projection.weight[:, -1] = 0
            projection.weight.register_hook(without_last_column)

    def forward(self, x: Tensor) -> Tensor:
        hidden_states = torch.cat([self.positions.expand(len(x), -1, -1), x[..., None]], dim=-1)  # (B, n, n + 1)
        return self.output(self.attention(hidden_states)[0])[..., 0]


def without_last_column(gradient: Tensor) -> Tensor:
    """Zeroes the column of the numbers, which queries and keys must not see."""
    return torch.cat([gradient[:, :-1], torch.zeros_like(gradient[:, -1:])], dim=1)


def train_mixing(
    task: str, config: FixedHeadBertConfig, length: int, rows: int, steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Train a MixingLayer with Adam, a linear warm-up over a twentieth of the steps and cosine decay to zero.

    Raises:
        Divergence: a loss is not finite.

    Returns:
        `loss` and `error`, the error on new examples; `examples`, the number of training examples; and `floor`, the
        least error found for a single head on a dense pattern.
    """
    P = pattern(task, length, seed)
    generator = torch.Generator().manual_seed(seed)  # of the examples, equal for all shapes
    torch.manual_seed(seed)
    model, target = MixingLayer(config, length), P.float()
    use_fast_dropout(model)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    for step in range(1, steps + 1):
        x = torch.randn(rows, length, generator=generator)
        descend((model(x) - x @ target).square().mean(), optimizer, step, rows)
        schedule.step()
    with torch.no_grad():
        x = torch.randn(EVALUATED, length, generator=generator)
        error = (model(x) - x @ target).square().mean().item()
    results: dict[str, float | None] = {"loss": error, "error": error, "examples": steps * rows}
    if task != "sparse" and config.num_attention_heads == 1:
        results["floor"] = floor(P, config.head_dim)
    return results
