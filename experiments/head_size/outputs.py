"""
Which outputs the heads of a layer can give with values of a given size.

In the paper's notation: on a sequence X (d, n), h heads with patterns P_i (n, n) and values of size v give

    Y = sum_i W_o^i W_v^i X P_i = [W_o^1 ... W_o^h] [W_v^1 X P_1; ...; W_v^h X P_h],

a product over h v dimensions. Its rank is at most h v, whatever the size of queries and keys. Where every X P_i has
full column rank, that is the only limit: the layer gives Y if and only if rank(Y) <= h v. A head gives any part Z of
rank v by W_o^i W_v^i = Z (X P_i)^+, which has the rank of Z. With the bias of W_o, which adds the same to all tokens,
the rank is at most h v + 1; a bias of values changes nothing. Derived and tested here; all is computed in float64.
"""

import torch
from torch import Tensor

from fixedbert.support.errors import InputError


def values_for(X: Tensor, patterns: Tensor, Y: Tensor, value_size: int) -> tuple[Tensor, Tensor]:
    """
    W_v (h, v, d) and W_o (h, d, v) of heads with these patterns (h, n, n) whose output on X (d, n) is Y (d, n), to
    rounding; or where rank(Y) is above h v, the nearest one in the Frobenius norm (Eckart and Young).

    Raises:
        InputError: the tokens of X under a pattern depend on each other.
    """
    left, singular, right = torch.linalg.svd(Y.double(), full_matrices=False)
    W_v, W_o = [], []
    for head, P in enumerate(patterns.double()):
        mixed = X.double() @ P  # (d, n)
        if (rank := int(torch.linalg.matrix_rank(mixed))) < mixed.shape[1]:
            raise InputError(f"the {mixed.shape[1]} tokens of X, mixed by pattern {head}, are of rank {rank}.")
        part = slice(head * value_size, (head + 1) * value_size)  # of the singular values; fewer may be left
        W_v.append(padded(singular[part, None] * right[part] @ torch.linalg.pinv(mixed), value_size))
        W_o.append(padded(left.mT[part], value_size).mT)
    return torch.stack(W_v), torch.stack(W_o)


def padded(rows: Tensor, size: int) -> Tensor:
    """`rows` (r, d) and zeros below them, (size, d)."""
    return torch.cat([rows, rows.new_zeros(size - len(rows), rows.shape[1])])


def output(X: Tensor, patterns: Tensor, W_v: Tensor, W_o: Tensor) -> Tensor:
    """sum_i W_o^i W_v^i X P_i, (d, n)."""
    return (W_o @ W_v @ X @ patterns).sum(dim=0)
