"""
dense, half and sparse: each position must output a fixed mixture of numbers. Theory predicts the necessary head size.

Each example has a random number x_i at each of n positions. Position j must output sum_i P_ij x_i.

    dense     P is a random positive pattern of full rank. A head of size p expresses it exactly if and only if
              rank(C log P) <= p (see patterns.py), that is, if p >= n - 1. The error of smaller heads has a floor.
    half      P is a random positive pattern with rank(C log P) = n // 2.
    sparse    P is a permutation: position j copies the number at position pi(j). A head of size 2 approximates it to
              any precision with scores -t (i - pi(j))^2 for large t. With a size of order log n, t need not be large
              (Likhosherstov, Choromanski and Weller, 2021, arXiv 2106.03764).

The attention layer is that of FixedHeadBert, in the setting of the theorem. Queries and keys see one-hot positions, so
X has full column rank and all examples have the same pattern. Values see the numbers. The error is the average of
(output - target)^2. For one head with pattern P' and scale w, it is sum_i (w P'_ij - P_ij)^2 in expectation.
"""

import math

import torch
from torch import Tensor, nn
from transformers import get_cosine_schedule_with_warmup

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.training.speed import use_fast_dropout

from ..patterns import centred_log, least_head_size
from .training import descend

PATTERNS = ("dense", "half", "sparse")
EVALUATION_EXAMPLES = 20_000
STARTS, DESCENT_STEPS = 64, 1000  # initializations and steps in the search for the floor


def pattern(task: str, length: int, seed: int) -> Tensor:
    """
    Returns the pattern P (n, n) for a task in float64. Its columns sum to one.

    For `dense` and `half`, C log P has random singular vectors and equal singular values, so that every missing head
    dimension costs the same. The mean square of the entries of C log P is one.
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
    Returns the lowest known error of one head of this size on a positive pattern P (n, n).

    The error is zero if the size is at least rank(C log P). For smaller sizes, Adam minimizes it, starting from STARTS
    factorizations of the scores, the first of which keeps the largest singular values of C log P. L-BFGS then improves
    the best result.
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
        scale = (fit * P).sum(dim=(-2, -1), keepdim=True) / fit.square().sum(dim=(-2, -1), keepdim=True)  # optimal w
        return (scale * fit - P).square().sum(dim=(-2, -1)) / len(P)

    K, Q = K.requires_grad_(), Q.requires_grad_()
    adam = torch.optim.Adam([K, Q], lr=0.05)
    for _ in range(DESCENT_STEPS):
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
    """FixedHeadBert's attention over one-hot positions, with a W_o that outputs one number per position."""

    positions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int):
        super().__init__()
        config.hidden_size = length + 1  # one-hot positions and the number
        config._attn_implementation = "eager"
        self.attention = FixedHeadBertVariantSelfAttention(config)
        self.output = nn.Linear(self.attention.all_head_size, 1)
        self.register_buffer("positions", torch.eye(length))
        for projection in (self.attention.query, self.attention.key):
            nn.init.normal_(projection.weight)  # attention starts far from uniform
            with torch.no_grad():
                projection.weight[:, -1] = 0
            projection.weight.register_hook(without_last_column)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs (B, n) for numbers x (B, n)."""
        hidden_states = torch.cat([self.positions.expand(len(x), -1, -1), x[..., None]], dim=-1)  # (B, n, n + 1)
        return self.output(self.attention(hidden_states)[0])[..., 0]


def without_last_column(gradient: Tensor) -> Tensor:
    """Sets the gradient of the weights for numbers to zero, because queries and keys must not see the numbers."""
    return torch.cat([gradient[:, :-1], torch.zeros_like(gradient[:, -1:])], dim=1)


def train_mixing(
    task: str, config: FixedHeadBertConfig, length: int, rows: int, steps: int, learning_rate: float, seed: int
) -> dict[str, float | None]:
    """
    Trains a MixingLayer with Adam, linear warm-up over 5% of the steps, and cosine decay to zero.

    Returns:
        `loss` and `error`, which are both the error on new examples, and `examples`, the number of training examples.
        For permutations, also `order`, the order of magnitude of a sufficient size. For a single head on other
        patterns, also `floor`, the lowest known error, and `threshold`, the necessary size.

    Raises:
        TaskDivergence: If the loss becomes NaN or infinite.
    """
    P = pattern(task, length, seed)
    generator = torch.Generator().manual_seed(seed)  # all shapes see the same examples
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
        x = torch.randn(EVALUATION_EXAMPLES, length, generator=generator)
        error = (model(x) - x @ target).square().mean().item()
    results: dict[str, float | None] = {"loss": error, "error": error, "examples": steps * rows}
    if task == "sparse":
        results["order"] = math.log2(length)
    elif config.num_attention_heads == 1:
        results |= {"floor": floor(P, config.head_dim), "threshold": least_head_size(P)}
    return results
