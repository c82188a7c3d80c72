"""
Which attention patterns a head of a given size can express.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020), Theorem 1, and the exact criterion
behind it. In the paper's notation: a sequence X (d, n) has tokens as columns, a pattern P (n, n) has a column for each
query, which sums to one, and a head of size p gives

    softmax((W_k X)^T (W_q X) / sqrt(p))    over each column.

The softmax forgets what is added to a whole column, so that only C log P matters, C = I - 11^T / n. A head expresses P
on X of full column rank if and only if rank(C log P) <= p; for most P that rank is n - 1. All is computed in float64.
"""

import torch
from torch import Tensor

from fixedbert.support.errors import InputError

RANK_TOLERANCE = 1e-9  # of the largest singular value, below which one counts as zero in float64
# The paper's example of a pattern that no head expresses on this sequence, whose second token is zero (section 2).
COUNTER_EXAMPLE = (
    torch.tensor([[1.0, 0.0]], dtype=torch.float64),
    torch.tensor([[0.5, 0.75], [0.5, 0.25]], dtype=torch.float64),
)


def attention(X: Tensor, W_q: Tensor, W_k: Tensor) -> Tensor:
    """The pattern (n, n) of a head W_q, W_k (p, d) on a sequence X (d, n)."""
    return ((W_k @ X).T @ (W_q @ X) / len(W_q) ** 0.5).softmax(dim=0)


def centred_log(P: Tensor) -> Tensor:
    """
    C log P (n, n): the scores that give P, with a mean of zero for each query.

    Raises:
        InputError: P is not square, not positive, or a column does not sum to one.
    """
    check_pattern(P)
    logarithm = P.double().log()
    return logarithm - logarithm.mean(dim=0)


def least_head_size(P: Tensor) -> int:
    """
    The smallest head that expresses P (n, n) on a sequence of full column rank: rank(C log P), at least 1, where what
    P's own precision rounds counts as zero.
    """
    singular = torch.linalg.svdvals(centred_log(P))
    return max(1, int((singular > tolerance(P) * max(1.0, float(singular[0]))).sum()))


def tolerance(P: Tensor) -> float:
    """The share of its largest singular value up to which one of C log P counts as zero."""
    return max(RANK_TOLERANCE, 10 * len(P) * torch.finfo(P.dtype).eps)


def weights_for(X: Tensor, P: Tensor, head_size: int | None = None) -> tuple[Tensor, Tensor]:
    """
    W_q and W_k (p, d) of a head whose pattern on X (d, n) is P (n, n), to rounding.

    Theorem 1's construction has p = d >= n and X of full column rank; here any p and X do for which it is possible.

    Args:
        head_size: p; default: d.

    Raises:
        InputError: P is no pattern, the tokens of X leave no scores that give it, or a larger head is needed.
    """
    X, scores = X.double(), centred_log(P)
    if X.ndim != 2 or X.shape[1] != len(P):
        raise InputError(f"X has the shape {tuple(X.shape)}: it must have a column for each of {len(P)} tokens.")
    p = len(X) if head_size is None else head_size
    left, singular, right = torch.linalg.svd(scores)
    rank = max(1, int((singular > tolerance(P) * max(1.0, float(singular[0]))).sum()))
    if rank > p:
        raise InputError(f"a head of {p} cannot express P on X: it takes {rank}.")
    root = (singular[:rank] * p**0.5).sqrt()
    W_k, W_q = X.new_zeros(p, len(X)), X.new_zeros(p, len(X))
    W_k[:rank] = (torch.linalg.pinv(X.T - X.T.mean(dim=0)) @ (left[:, :rank] * root)).T  # keys less their mean, C X^T
    W_q[:rank] = root[:, None] * right[:rank] @ torch.linalg.pinv(X)
    if not (attention(X, W_q, W_k) - P).abs().max() < 1e-4:
        independent = int(torch.linalg.matrix_rank(X))
        if independent < X.shape[1]:
            raise InputError(f"no head of any size gives P on X, whose {X.shape[1]} tokens are of rank {independent}.")
        raise InputError(f"X is too close to dependent tokens for float64: condition {torch.linalg.cond(X):.1e}.")
    return W_q, W_k


def kullback_leibler(P: Tensor, fit: Tensor) -> float:
    """The Kullback-Leibler divergence of `fit` from P, in nats, the mean over queries."""
    return float((P * (P.log() - fit.log())).sum(dim=0).mean())


def truncated_fit(P: Tensor, head_size: int) -> Tensor:
    """
    The pattern of the `head_size` largest singular values of C log P: among heads of this size the nearest scores in
    the Frobenius norm (Eckart and Young), so that its divergence is a bound on the best one, exact at both ends.
    """
    left, singular, right = torch.linalg.svd(centred_log(P))
    return (left[:, :head_size] * singular[:head_size] @ right[:head_size]).softmax(dim=0)


def fitted(P: Tensor, head_size: int, steps: int = 200) -> Tensor:
    """The pattern of a head of this size after gradient descent (L-BFGS) on the divergence from the truncated fit."""
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
    """A pattern (n, n) whose columns are uniformly distributed over all that sum to one."""
    exponential = torch.empty(length, length, dtype=torch.float64).exponential_(generator=generator)
    return exponential / exponential.sum(dim=0)


def check_pattern(P: Tensor):
    if P.ndim != 2 or P.shape[0] != P.shape[1]:
        raise InputError(f"P has the shape {tuple(P.shape)}: a pattern is square, a column for each query.")
    if not (P > 0).all():
        row, column = (~(P > 0)).nonzero()[0].tolist()
        raise InputError(f"P[{row}, {column}] is {P[row, column]:g}: a softmax is positive everywhere.")
    sums = P.double().sum(dim=0)
    if (sums - 1).abs().max() > 1e-6:
        column = int((sums - 1).abs().argmax())
        raise InputError(f"column {column} of P sums to {sums[column]:g}, not to one.")
