"""
The mathematics of pruning: estimates how much the removal of heads, head dimensions and neurons changes a model's
predictions, and computes the weights that minimize this change. All functions work on plain tensors.

Cost. A model predicts a distribution p(y) for a row of tokens. Suppose that pruning changes the output o = W a + b of
a sublayer by delta_t at token t. To second order, the predictions change by

    KL(p || p') = 1/2 E_y (sum_t g_t^T delta_t)^2 + ...,     g = d log p(y) / d o,  y sampled from p.

The second moment of g is the Fisher information. The mean of delta costs nothing, because the bias absorbs it.

Heads and neurons. Pruning inputs changes W (D, N) to W + dW. Let G = E g g^T and M = cov a over all tokens, and let T
be the number of tokens in a row. If the errors at different tokens are independent of each other and of the
gradients (Martens and Grosse, 2015), the cost of dW is

    1/2 T tr(dW M dW^T G)  nats.

The order of removal follows from Optimal Brain Surgeon (Hassibi and Stork, 1992), applied to G^(1/2) W. Each step
removes the group of inputs that the remaining inputs can replace with the smallest error (`prune_inputs`).

Head sizes. Let x and y have P elements. Replace x^T y by x^T B y with a matrix B of rank p < P. If x and y are
independent, the mean squared error is

    E (x^T (I - B) y)^2 = || L^(1/2) (I - B) R^(1/2) ||_F^2,    L = E x x^T,  R = E y y^T.

The best B keeps the p largest singular values of L^(1/2) R^(1/2) = U S V^T (Eckart and Young, 1936). It factors as
B = F^T K, either with F = U_p^T L^(-1/2) and K = U_p^T L^(1/2), or with F = V_p^T R^(1/2) and K = V_p^T R^(-1/2). The
two products are equal if L and R are invertible, and `reduce_head_size` uses the better conditioned one. If the
weights themselves have rank p, the reduction is exact for every input, not only for the calibration data.

- Scores q^T k: x is a query, and y is a key minus the mean key of its row. The softmax is invariant to this shift. A
  second-order expansion does not predict the cost of errors in the scores, because the softmax of a sharp head has
  gradients near zero. The cost is therefore measured: if smaller queries and keys change the outputs of the heads by
  dz, the cost is 1/2 T E |G^(1/2) W_o dz|^2.
- Values: x is the output z of a head minus its mean, and y is the gradient W_o^T g. The cost is 1/2 T times the error
  above.

Refit. W and b of each sublayer in the pruned model are refitted by least squares, given the inputs and the residual
stream of the pruned model, so that W a + b + residual approximates this sum in the original (`fit`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-12  # float64 singular values below this multiple of the largest one are treated as zero
TOKENS_PER_DIMENSION = 4  # minimum number of tokens per dimension of a second moment
RIDGE = 1e-8  # multiple of the mean eigenvalue that is added to the diagonal of a moment before inversion
PRIOR = 1e-4  # strength of the pull toward the initial weights in a refit, as a multiple of the mean eigenvalue


class SecondMoments:
    """
    Accumulates means and covariances over tokens in float64, separately for G groups of S elements. Each batch is
    centered first (Chan et al., 1979), because rounding errors of sums would exceed small variances.

    Args:
        others: Number of elements in addition to S whose covariances with the S elements are accumulated, too.

    Attributes:
        tokens: Number of tokens.
        mean: Means (G, S + others) of the vectors.
        covariance: Second moments (G, S, S + others) about the mean.
    """

    def __init__(self, groups: int, size: int, others: int = 0):
        self.tokens = 0
        self.mean = torch.zeros(groups, size + others, dtype=torch.float64)
        self.covariance = torch.zeros(groups, size, size + others, dtype=torch.float64)

    def add(self, vectors: Tensor):
        """Adds the vectors (n, G (S + others)) of n tokens."""
        size = self.covariance.shape[1]
        x = vectors.unflatten(-1, self.mean.shape).transpose(0, 1)  # (G, n, S + others)
        mean = x.mean(dim=1, dtype=torch.float64)
        x = x - mean[:, None].to(x.dtype)
        self.tokens += len(vectors)
        weight, change = len(vectors) / self.tokens, mean.cpu() - self.mean
        self.mean += weight * change
        self.covariance.baddbmm_(change[:, :size, None], change[:, None], beta=1 - weight, alpha=weight * (1 - weight))
        self.covariance += (x[..., :size].mT @ x).cpu().double().mul_(1 / self.tokens)

    @property
    def uncentered(self) -> Tensor:
        """Second moments (G, S, S) about zero."""
        return self.covariance + self.mean[:, :, None] * self.mean[:, None, :]


@dataclass(frozen=True)
class PruningOrder:
    """
    The order in which to remove the input groups of a linear map.

    Args:
        removed: Indices of the groups in the order of removal.
        costs: Squared errors (groups + 1,) after 0, 1, 2, ... removals.
    """

    removed: list[int]
    costs: Tensor

    def kept(self, count: int) -> list[int]:
        """Returns the sorted indices of the `count` groups to keep: those that would be removed last."""
        return sorted(self.removed[len(self.removed) - count :])


def prune_inputs(weight: Tensor, moment: Tensor, size: int, at_once: int = 1) -> PruningOrder:
    """
    Finds a greedy order in which to remove inputs of y = W a. After each removal, the weights of the remaining inputs
    are refitted by least squares.

    Args:
        weight: G^(1/2) W (D, groups * size), where G is the Fisher information (D, D) of y.
        moment: Covariance (groups * size, groups * size) of the inputs.
        size: Number of inputs per group: the value head size for the heads in W_o, or 1 for neurons.
        at_once: Number of groups to remove per step. Larger steps are faster but less accurate.
    """
    groups = weight.shape[1] // size
    inverse = torch.linalg.inv(with_ridge(moment))
    columns = weight.double().T.clone(memory_format=torch.contiguous_format)  # (N, D), zero for removed inputs
    inputs = torch.arange(groups * size).view(groups, size)
    left, removed, costs = torch.arange(groups), [], [0.0]
    while len(left):
        blocks = inverse.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)[left]  # (g, S, S)
        parts = columns.view(groups, size, -1)[left]
        losses = torch.linalg.solve(blocks, parts @ parts.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
        cheapest = losses.argsort()[:at_once]
        pruned = left[cheapest]
        index = inputs[pruned].flatten()
        block = inverse[index[:, None], index]
        coefficients = torch.linalg.solve(block, inverse[index])  # (S, N)
        lost = (columns[index] * torch.linalg.solve(block, columns[index])).sum()
        # In place, because copying would take most of the time.
        columns.addmm_(coefficients.T, columns[index], alpha=-1)
        inverse.addmm_(inverse[:, index], coefficients, alpha=-1)
        columns[index] = 0
        stay = torch.ones(len(left), dtype=torch.bool)
        stay[cheapest] = False
        left = left[stay]
        steps = torch.arange(1, len(pruned) + 1) / len(pruned)
        costs += (costs[-1] + float(lost.clamp(min=0)) * steps).tolist()
        removed += pruned.tolist()
    return PruningOrder(removed, torch.tensor(costs, dtype=torch.float64))


def least_squares(weight: Tensor, moment: Tensor, kept: Tensor) -> Tensor:
    """
    Returns a weight (D, n) for the n inputs in `kept`, fitted by least squares to the outputs of `weight` (D, N) for
    all N inputs. `moment` (N, N) is the covariance of all inputs.
    """
    M = with_ridge(moment)
    return torch.linalg.solve(M[kept[:, None], kept], M[kept] @ weight.double().T).T


def head_size_errors(left: Tensor, right: Tensor) -> Tensor:
    """
    Returns the squared errors (H, P + 1) of reducing each of H heads of size P to the sizes 0, ..., P.

    Args:
        left, right: Second moments L and R (H, P, P) for each head.
    """
    roots = zip(map(square_root, left), map(square_root, right), strict=True)
    energies = torch.stack([torch.linalg.svdvals(root_l @ root_r) for root_l, root_r in roots]).square()  # (H, P)
    lost = energies.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([lost, lost.new_zeros(len(lost), 1)], dim=-1)


def reduce_head_size(A: Tensor, C: Tensor, L: Tensor, R: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """
    Returns smaller factors A' (size, D) and C' (size, E) whose product A'^T C' approximates A^T C.

    Args:
        A, C: Weights (P, D) and (P, E) of linear maps from D and E inputs to a head of size P.
        L, R: Second moments (P, P) of the outputs of A and C.
    """
    A, C = A.double(), C.double()
    left, singular, right = low_rank_svd(A.T, C)  # (D, P), (P), (P, E)
    if int((singular > RANK_TOLERANCE * singular[0]).sum()) <= size:  # exact for every input
        scale = singular[:size].sqrt()[:, None]
        return scale * left[:, :size].T, scale * right[:size]
    root_l, root_r = square_root(with_ridge(L)), square_root(with_ridge(R))
    U, _, Vh = torch.linalg.svd(root_l @ root_r)
    if condition_number(L) <= condition_number(R):
        F, K = U[:, :size].T @ torch.linalg.pinv(root_l), U[:, :size].T @ root_l
    else:
        F, K = Vh[:size] @ root_r, Vh[:size] @ torch.linalg.pinv(root_r)
    first, second = F @ A, K @ C
    balance = (row_norms(second) / row_norms(first)).sqrt()  # factors with equal norms train better
    return balance * first, second / balance


def fit(moments: SecondMoments, prior: Tensor) -> tuple[Tensor, Tensor]:
    """
    Fits a linear layer with N inputs and D outputs by least squares. Returns its weight (D, N) and bias (D,).

    `moments` contains one group of vectors: N inputs, followed by D target outputs. In directions without input
    variance, the weight stays near `prior` (D, N).
    """
    prior, inputs = prior.double(), prior.shape[1]
    A, B = moments.covariance[0].split([inputs, len(prior)], dim=1)
    mean_a, mean_y = moments.mean[0].split([inputs, len(prior)])
    if not inputs:
        return prior, mean_y
    ridge = PRIOR * A.diagonal().mean() * torch.eye(inputs, dtype=torch.float64)
    weight = prior + torch.linalg.lstsq(A + ridge, B - A @ prior.T).solution.T
    return weight, mean_y - weight @ mean_a


def low_rank_svd(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the SVD of A @ B for A (D, P) and B (P, E), computed by decomposing a (P, P) matrix."""
    Q_a, R_a = torch.linalg.qr(A)
    Q_b, R_b = torch.linalg.qr(B.T)
    left, singular, right = torch.linalg.svd(R_a @ R_b.T, full_matrices=False)
    return Q_a @ left, singular, right @ Q_b.T


def square_root(M: Tensor) -> Tensor:
    """Returns the symmetric square root of a positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh(M.double())
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def with_ridge(M: Tensor) -> Tensor:
    """Returns M plus a small multiple of the identity, so that it is invertible even if some inputs are constant."""
    return M.double() + RIDGE * M.double().diagonal().mean() * torch.eye(len(M), dtype=torch.float64)


def condition_number(M: Tensor) -> float:
    values = torch.linalg.eigvalsh(M.double())
    return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


def row_norms(rows: Tensor) -> Tensor:
    """Returns the norms (n, 1) of the rows, clamped to a tiny positive number to avoid division by zero."""
    return rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
