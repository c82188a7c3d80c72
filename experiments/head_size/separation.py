"""
Layers that fixed heads can express and standard heads cannot.

Constructs layers and sequences for the three cases in the proof of Theorem 2 of "Low-Rank Bottleneck in Multi-head
Attention Models" (Bhojanapalli et al., 2020).

Standard heads have size d / h. Let g be a layer with fixed heads of size p > d / h, in which all heads share the
matrix (W_k^i)^T W_q^i = U of rank p, and W_o [W_v^1; ...] has full rank. Then g differs from every standard layer f on
some X. Define M = sum_i W_o^i W_v^i for each layer, A_i = (W_k^i)^T W_q^i / sqrt(d / h) for f, and B = U / sqrt(p) for
g. The cases are:

    1  M_f != M_g                                   X = v 1^T
    2  M_f = M_g, some B - A_i not skew-symmetric   X = v e_1^T
    3  M_f = M_g, all B - A_i skew-symmetric        X = [v_1 v_2 0 ... 0], v_2 long

The published proof assumes that the vectors W_o^i W_v^i v are independent for any v. This holds only for generic v, so
this module draws v at random.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fixedbert.support.errors import InputError


@dataclass(frozen=True)
class MultiHead:
    """An attention layer of width d with h heads of size p, and weights W_q, W_k, W_v (h, p, d) and W_o (h, d, p)."""

    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """Maps X (d, n) to the output (d, n): sum_i W_o^i W_v^i X softmax((W_k^i X)^T (W_q^i X) / sqrt(p))."""
        scores = (self.W_k @ X).mT @ (self.W_q @ X) / self.W_q.shape[1] ** 0.5  # (h, n, n)
        return (self.W_o @ (self.W_v @ X) @ scores.softmax(dim=1)).sum(dim=0)

    @property
    def values(self) -> Tensor:
        """The matrices W_o^i W_v^i (h, d, d), one per head. Their sum is M."""
        return self.W_o @ self.W_v

    @property
    def scores(self) -> Tensor:
        """The matrices (W_k^i)^T W_q^i / sqrt(p) (h, d, d), one per head. These are A_i for f and B for g."""
        return self.W_k.mT @ self.W_q / self.W_q.shape[1] ** 0.5


def separated(case: int, d: int, heads: int, head_size: int, seed: int = 0) -> tuple[MultiHead, MultiHead]:
    """
    Returns a layer f with standard heads and a layer g with fixed heads, for case 1, 2 or 3.

    Raises:
        InputError: If the number of heads does not divide d, or the theorem does not apply to the head size.
    """
    if d % heads or not d // heads < head_size <= d or case == 3 and (head_size - d // heads) % 2:
        raise InputError(
            f"case {case} with {heads} heads of size {head_size} in width {d}: the head size must be more than d / h "
            f"= {d / heads:g} and at most {d}. In case 3, the difference between head size and d / h must be even."
        )
    size, generator = d // heads, torch.Generator().manual_seed(seed)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    W_o, W_v = gaussian(heads, d, head_size), gaussian(heads, head_size, d)
    M = (W_o @ W_v).sum(dim=0)
    assert torch.linalg.matrix_rank(M) == d, "not generic"
    W_q, W_k = gaussian(heads, size, d), gaussian(heads, size, d)
    U = gaussian(head_size, d).T @ gaussian(head_size, d)  # rank p
    if case == 1:
        f = MultiHead(W_q, W_k, gaussian(heads, size, d), gaussian(heads, d, size))
    else:  # M_f = M_g: W_v consists of blocks of any invertible matrix, and W_o of blocks of M times its inverse
        B_0 = gaussian(d, d)
        right = (M @ torch.linalg.inv(B_0)).view(d, heads, size).transpose(0, 1)
        if case == 3:  # all heads of f have the same scores; those of g differ from them by a skew-symmetric matrix
            W_q, W_k = W_q[:1].expand(heads, -1, -1), W_k[:1].expand(heads, -1, -1)
            a, b = gaussian(d, (head_size - size) // 2), gaussian(d, (head_size - size) // 2)
            U = head_size**0.5 * (W_k[0].T @ W_q[0] / size**0.5 + a @ b.T - b @ a.T)
        f = MultiHead(W_q, W_k, B_0.view(heads, size, d), right)
    left, singular, right = torch.linalg.svd(U)
    root = singular[:head_size].sqrt()
    shared_k, shared_q = (left[:, :head_size] * root).T, root[:, None] * right[:head_size]
    g = MultiHead(shared_q.expand(heads, -1, -1), shared_k.expand(heads, -1, -1), W_v, W_o)
    return f, g


def sequence(case: int, f: MultiHead, g: MultiHead, length: int, alpha: float = 100.0, seed: int = 1) -> Tensor:
    """Returns a sequence X (d, n) on which f and g differ. In case 3, `alpha` scales v_2."""
    d = f.W_q.shape[2]
    v = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    X = torch.zeros(d, length, dtype=torch.float64)
    if case == 1:
        return v[:, None].expand(d, length).clone()
    X[:, 0] = v
    if case == 3:  # v_2 points along B v_1 and against A_1 v_1
        along, against = g.scores[0] @ v, f.scores[0] @ v
        X[:, 1] = alpha * (along / along.norm() - against / against.norm())
    return X


def difference(case: int, f: MultiHead, g: MultiHead, X: Tensor) -> Tensor:
    """Returns the difference f(X) - g(X) (d, n), from its closed form in case 1 or 2."""
    n = X.shape[1]
    if case == 1:
        return (f.values.sum(dim=0) - g.values.sum(dim=0)) @ X  # X P = X for every pattern P
    v = X[:, 0]

    def weight(scores: Tensor) -> Tensor:
        """Returns, for each head, the attention of the first token to itself. All other scores are zero."""
        logit = torch.einsum("d,hde,e->h", v, scores, v)
        return torch.sigmoid(logit - math.log(n - 1))

    closed = torch.zeros_like(X)
    closed[:, 0] = ((weight(f.scores) - weight(g.scores)[0])[:, None] * (f.values @ v)).sum(dim=0)
    return closed
