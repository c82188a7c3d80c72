"""
The attention patterns that a head of a given size can express.

Implements Theorem 1 of "Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020) and the exact
criterion behind it, in float64. In the paper's notation, the columns of a sequence X (d, n) are tokens. A pattern P
(n, n) has one column per query, and each column sums to one. A head of size p computes

    softmax((W_k X)^T (W_q X) / sqrt(p))    over each column.

Adding a constant to a column does not change its softmax, so only C log P matters, with C = I - 11^T / n. If X has
full column rank, a head expresses P if and only if rank(C log P) <= p. For almost all P, this rank is n - 1.
"""

import torch
from torch import Tensor

from fixedbert.support.errors import InputError

RANK_TOLERANCE = 1e-9  # smaller fractions of the largest singular value count as zero in float64


def attention(X: Tensor, W_q: Tensor, W_k: Tensor) -> Tensor:
    """Returns the pattern (n, n) of a head W_q, W_k (p, d) on a sequence X (d, n)."""
    return ((W_k @ X).T @ (W_q @ X) / len(W_q) ** 0.5).softmax(dim=0)


def centred_log(P: Tensor) -> Tensor:
    """
    Returns C log P (n, n), the attention scores for P with an average of zero for each query.

    Raises:
        InputError: If P is not a positive square matrix whose columns sum to one.
    """
    if P.ndim != 2 or P.shape[0] != P.shape[1] or not (P > 0).all() or (P.double().sum(dim=0) - 1).abs().max() > 1e-6:
        raise InputError("P must be a positive square matrix whose columns sum to one.")
    logarithm = P.double().log()
    return logarithm - logarithm.mean(dim=0)


def least_head_size(P: Tensor) -> int:
    """
    Returns the smallest head size that expresses P (n, n) on a sequence with full column rank.

    This is rank(C log P), but at least 1. The tolerance depends on the precision of P.
    """
    return rank_of(torch.linalg.svdvals(centred_log(P)), P)


def rank_of(singular: Tensor, P: Tensor) -> int:
    tolerance = max(RANK_TOLERANCE, 10 * len(P) * torch.finfo(P.dtype).eps)
    return max(1, int((singular > tolerance * max(1.0, float(singular[0]))).sum()))


def weights_for(X: Tensor, P: Tensor, head_size: int | None = None) -> tuple[Tensor, Tensor]:
    """
    Returns weights W_q and W_k (p, d) of a head whose pattern on X (d, n) is P (n, n).

    Theorem 1 constructs them for p = d >= n and an X with full column rank. This function constructs them whenever
    they exist.

    Args:
        head_size: The size p. Defaults to d.

    Raises:
        InputError: If no head expresses P on X, or only a larger head does.
    """
    X, scores = X.double(), centred_log(P)
    p = len(X) if head_size is None else head_size
    left, singular, right = torch.linalg.svd(scores)
    rank = rank_of(singular, P)
    if rank > p:
        raise InputError(f"a head of size {p} cannot express P on X; the size must be at least {rank}.")
    root = (singular[:rank] * p**0.5).sqrt()
    W_k, W_q = X.new_zeros(p, len(X)), X.new_zeros(p, len(X))
    W_k[:rank] = (torch.linalg.pinv(X.T - X.T.mean(dim=0)) @ (left[:, :rank] * root)).T  # centered keys, C X^T
    W_q[:rank] = root[:, None] * right[:rank] @ torch.linalg.pinv(X)
    if not (attention(X, W_q, W_k) - P).abs().max() < 1e-4:
        independent, condition = torch.linalg.matrix_rank(X), torch.linalg.cond(X)
        tokens = f"{X.shape[1]} tokens have rank {independent} and condition number {condition:.1e}"
        raise InputError(f"no head expresses P on X, whose {tokens}.")
    return W_q, W_k


def kullback_leibler(P: Tensor, fit: Tensor) -> float:
    """Returns the KL divergence KL(P || fit) in nats, averaged over queries."""
    return float((P * (P.log() - fit.log())).sum(dim=0).mean())


def truncated_fit(P: Tensor, head_size: int) -> Tensor:
    """
    Returns the pattern whose scores keep the `head_size` largest singular values of C log P.

    These are the nearest scores in the Frobenius norm (Eckart and Young). The divergence of the pattern is an upper
    bound on that of the best head of this size.
    """
    left, singular, right = torch.linalg.svd(centred_log(P))
    return (left[:, :head_size] * singular[:head_size] @ right[:head_size]).softmax(dim=0)


def fitted(P: Tensor, head_size: int, steps: int = 200) -> Tensor:
    """Returns the pattern of a head of this size after minimizing the divergence with L-BFGS from `truncated_fit`."""
    left, singular, right = torch.linalg.svd(centred_log(P))
    root = singular[:head_size].sqrt()
    K = (left[:, :head_size] * root).contiguous().requires_grad_()  # (n, p)
    Q = (root[:, None] * right[:head_size]).contiguous().requires_grad_()  # (p, n)
    optimizer = torch.optim.LBFGS([K, Q], max_iter=steps, tolerance_grad=1e-14, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (P * (P.log() - (K @ Q).log_softmax(dim=0))).sum(dim=0).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return (K @ Q).softmax(dim=0).detach()


def random_pattern(length: int, generator: torch.Generator) -> Tensor:
    """Returns a pattern (n, n) whose columns are uniformly distributed on the simplex."""
    exponential = torch.empty(length, length, dtype=torch.float64).exponential_(generator=generator)
    return exponential / exponential.sum(dim=0)
