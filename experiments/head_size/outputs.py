"""
Outputs that the attention heads in a layer can produce with a given value size.

In the paper's notation, h heads with patterns P_i (n, n) and values of size v map a sequence X (d, n) to

    Y = sum_i W_o^i W_v^i X P_i = [W_o^1 ... W_o^h] [W_v^1 X P_1; ...; W_v^h X P_h],

a product with inner dimension h v. The rank of Y is at most h v, regardless of the query and key size. If every X P_i
has full column rank, there is no other limit: the layer can produce Y if and only if rank(Y) <= h v. Head i produces
any component Z of rank v if W_o^i W_v^i = Z (X P_i)^+, which has the same rank as Z. The bias of W_o adds the same
vector to all tokens and raises the limit to h v + 1. A value bias changes nothing. This criterion is our own
derivation. The tests check it in float64.
"""

import torch
from torch import Tensor

from fixedbert.support.errors import InputError


def values_for(X: Tensor, patterns: Tensor, Y: Tensor, value_size: int) -> tuple[Tensor, Tensor]:
    """
    Returns the W_v (h, v, d) and W_o (h, d, v) of heads with `patterns` (h, n, n) that map X (d, n) to Y (d, n).

    If the rank of Y exceeds h v, the heads produce the nearest output in the Frobenius norm (Eckart and Young).

    Raises:
        InputError: If the tokens X P are linearly dependent for any pattern P.
    """
    left, singular, right = torch.linalg.svd(Y.double(), full_matrices=False)
    W_v, W_o = [], []
    for head, P in enumerate(patterns.double()):
        mixed = X.double() @ P  # (d, n)
        if (rank := int(torch.linalg.matrix_rank(mixed))) < mixed.shape[1]:
            raise InputError(f"the {mixed.shape[1]} tokens of X, mixed by pattern {head}, have only rank {rank}.")
        part = slice(head * value_size, (head + 1) * value_size)  # shorter or empty beyond the last singular value
        W_v.append(pad_rows(singular[part, None] * right[part] @ torch.linalg.pinv(mixed), value_size))
        W_o.append(pad_rows(left.mT[part], value_size).mT)
    return torch.stack(W_v), torch.stack(W_o)


def pad_rows(rows: Tensor, size: int) -> Tensor:
    """Pads `rows` (r, d) with zeros to (size, d)."""
    return torch.cat([rows, rows.new_zeros(size - len(rows), rows.shape[1])])


def output(X: Tensor, patterns: Tensor, W_v: Tensor, W_o: Tensor) -> Tensor:
    """Returns the output (d, n) of the heads, sum_i W_o^i W_v^i X P_i."""
    return (W_o @ W_v @ X @ patterns).sum(dim=0)
