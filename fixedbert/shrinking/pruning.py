"""
What a cut does to a model's answers, and the cut that does least: the mathematics, without models, text and files.

Answers. A model gives a distribution p(y) for a row of tokens. A change delta_t of what a sublayer adds at token t,
o = W a + b, moves the answers by

    KL(p || p') = 1/2 E_y (sum_t g_t^T delta_t)^2 + ...,     g = d log p(y) / d o,  y drawn from p,

which is the Fisher information of the answers. The mean of delta costs nothing, as the bias takes it up.

Whole heads, and neurons: W' = W + dW. With the errors of a row's tokens independent of each other and of the gradients
(Martens and Grosse, 2015), G = E g g^T (D, D) and M = cov a (N, N) over all tokens, and T tokens in a row, dW costs

    1/2 T tr(dW M dW^T G)  nats.

Optimal Brain Surgeon (Hassibi and Stork, 1992) on G^(1/2) W gives the order: group after group of inputs is left out
whose loss the others make up for best (`remove_inputs`).

Sizes. A matrix B of rank p < P between two maps, x^T B y for x^T y, has the mean squared error

    E (x^T (I - B) y)^2 = || L^(1/2) (I - B) R^(1/2) ||_F^2,    L = E x x^T,  R = E y y^T,

where x and y are independent, and the best B has the p largest singular values of L^(1/2) R^(1/2) = U S V^T (Eckart
and Young): B = F^T K with F = U_p^T L^(-1/2) and K = U_p^T L^(1/2), or F = V_p^T R^(1/2) and K = V_p^T R^(-1/2): the
same where both have an inverse. The side is taken whose moment has the better condition (`cut_size`). On any input,
not on these rows alone, it is exact where the weights of the two maps allow it.

- Scores q^T k: x is a query, y a key less the mean of the keys of its row, which the softmax forgets. What an error
  of scores costs is no matter of second order: the softmax of a sharp head has gradients near zero. So it is measured:
  the heads' outputs with smaller queries and keys differ by dz, which costs 1/2 T E |G^(1/2) W_o dz|^2.
- Values: of a head, z less its mean is x, and the gradients W_o^T g are y. The cost is 1/2 T times the error above.

Refit. What a cut model's sublayer adds is made to come nearest to what the original's sum W a + b + residual was, by
least squares on the inputs a' and the residual that the cut model really has (`refit`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..support.errors import InputError

RANK_TOLERANCE = 1e-12  # of the largest singular value, below which one counts as zero in float64
TOKENS_PER_DIMENSION = 4  # of a second moment, at least
RIDGE = 1e-8  # of the mean eigenvalue, added to a moment before it is inverted
PRIOR = 1e-4  # of the mean eigenvalue: how much a refit trusts the weights that it begins with


class SecondMoments:
    """
    Sums over tokens, in float64: `groups` vectors of `size` numbers each, and their products.

    Attributes:
        tokens: how many there were.
        sum: (G, S); raw: products (G, S, S).
    """

    def __init__(self, groups: int, size: int):
        self.tokens = 0
        self.sum = torch.zeros(groups, size, dtype=torch.float64)
        self.raw = torch.zeros(groups, size, size, dtype=torch.float64)

    def add(self, rows: Tensor):
        """Add tokens, (n, G S)."""
        x = rows.unflatten(-1, self.sum.shape).transpose(0, 1)  # (G, n, S)
        self.raw += (x.mT @ x).double().cpu()
        self.sum += x.sum(dim=1).double().cpu()
        self.tokens += len(rows)

    @property
    def mean(self) -> Tensor:
        return self.sum / self.tokens  # (G, S)

    @property
    def about_zero(self) -> Tensor:
        return self.raw / self.tokens  # (G, S, S)

    @property
    def about_mean(self) -> Tensor:
        return self.about_zero - self.mean[:, :, None] * self.mean[:, None, :]  # (G, S, S)


@dataclass(frozen=True)
class Removal:
    """
    Groups of inputs of a linear map, left out one after the other.

    Args:
        removed: numbers of the groups, the first to go first.
        costs: (groups + 1): squared error after 0, 1, 2, ... removals.
    """

    removed: list[int]
    costs: Tensor

    def kept(self, number: int) -> list[int]:
        """The groups that stay where `number` of them do, in their order."""
        gone = set(self.removed[: len(self.removed) - number])
        return [group for group in range(len(self.removed)) if group not in gone]


def remove_inputs(weight: Tensor, moment: Tensor, size: int, at_once: int = 1) -> Removal:
    """
    The order in which the inputs of y = W a are best left out: heads of W_o, which have `size` inputs each, or
    neurons, which have one. What stays makes up for what goes, by least squares.

    Args:
        weight: (D, groups * size), with the root of the metric of y in front.
        moment: (N, N), of the inputs about their mean.
        at_once: groups that go in one step; more are faster, and less exact.
    """
    groups = weight.shape[1] // size
    inverse = torch.linalg.inv(ridged(moment))
    columns = weight.double().T.clone(memory_format=torch.contiguous_format)  # (N, D), of what is left
    places = torch.arange(groups * size).view(groups, size)
    left, removed, costs = torch.arange(groups), [], [0.0]
    while len(left):
        blocks = inverse.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)[left]  # (g, S, S)
        parts = columns.view(groups, size, -1)[left]
        losses = torch.linalg.solve(blocks, parts @ parts.mT).diagonal(dim1=1, dim2=2).sum(dim=1)
        cheapest = losses.argsort()[:at_once]
        gone = left[cheapest]
        place = places[gone].flatten()
        share = torch.linalg.solve(inverse[place[:, None], place], inverse[place])  # (S, N)
        lost = (columns[place] * (torch.linalg.solve(inverse[place[:, None], place], columns[place]))).sum()
        columns.addmm_(share.T, columns[place], alpha=-1)  # in place: of thousands of neurons, copies take the time
        inverse.addmm_(inverse[:, place], share, alpha=-1)
        columns[place] = 0
        stay = torch.ones(len(left), dtype=torch.bool)
        stay[cheapest] = False
        left = left[stay]
        steps = torch.arange(1, len(gone) + 1) / len(gone)
        costs += (costs[-1] + float(lost.clamp(min=0)) * steps).tolist()
        removed += gone.tolist()
    return Removal(removed, torch.tensor(costs, dtype=torch.float64))


def size_errors(left: Tensor, right: Tensor) -> Tensor:
    """Mean squared errors (H, P + 1) of keeping 0, 1, ... P dimensions of heads, by L and R, (H, P, P) each."""
    return tails(torch.stack([torch.linalg.svdvals(root(L) @ root(R)) for L, R in zip(left, right, strict=True)]))


def cut_size(A: Tensor, C: Tensor, L: Tensor, R: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """
    Smaller factors A', C' (p, D), (p, E) of A^T C, A (P, D) and C (P, E), of about the same function.

    Args:
        L, R: second moments of what the two maps give, (P, P) each.
    """
    A, C = A.double(), C.double()
    left, singular, right = low_rank_product(A.T, C)  # (D, P), (P), (P, E)
    if rank_of(singular) <= size:
        root_s = singular[:size].sqrt()
        return root_s[:, None] * left[:, :size].T, root_s[:, None] * right[:size]
    root_l, root_r = root(ridged(L)), root(ridged(R))
    U, _, Vh = torch.linalg.svd(root_l @ root_r)
    if condition(L) <= condition(R):
        F, K = U[:, :size].T @ torch.linalg.pinv(root_l), U[:, :size].T @ root_l
    else:
        F, K = Vh[:size] @ root_r, Vh[:size] @ torch.linalg.pinv(root_r)
    first, second = F @ A, K @ C
    balance = (norms(second) / norms(first)).sqrt()  # factors of like size, which trains better
    return balance * first, second / balance


def least_squares(weight: Tensor, moment: Tensor, kept: Tensor) -> Tensor:
    """The weight (D, n) by which the inputs `kept` make up best for all inputs of `weight` (D, N)."""
    M = ridged(moment)
    return torch.linalg.solve(M[kept[:, None], kept], M[kept] @ weight.double().T).T


class Refit:
    """
    Least squares of a sublayer's output on what feeds it in the cut model: sums over tokens, and the solution.

    Args:
        inputs, outputs: how many numbers there are, N and D.
    """

    def __init__(self, inputs: int, outputs: int):
        self.tokens = 0
        self.a, self.y = torch.zeros(inputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
        self.aa = torch.zeros(inputs, inputs, dtype=torch.float64)
        self.ay = torch.zeros(inputs, outputs, dtype=torch.float64)

    def add(self, a: Tensor, y: Tensor):
        """Add tokens: inputs (n, N), and what is wanted of the output, (n, D)."""
        self.tokens += len(a)
        self.a += a.sum(dim=0).double().cpu()
        self.y += y.sum(dim=0).double().cpu()
        self.aa += (a.T @ a).double().cpu()
        self.ay += (a.T @ y).double().cpu()

    def solution(self, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (D, N) and bias (D), where the tokens say little near the weight `prior`."""
        mean_a, mean_y = self.a / self.tokens, self.y / self.tokens
        if not len(mean_a):
            return prior.double(), mean_y
        A = self.aa / self.tokens - torch.outer(mean_a, mean_a)
        B = self.ay / self.tokens - torch.outer(mean_a, mean_y)
        eye = PRIOR * A.diagonal().mean() * torch.eye(len(A), dtype=torch.float64)
        prior = prior.double()
        weight = prior + torch.linalg.lstsq(A + eye, B - A @ prior.T).solution.T
        return weight, mean_y - weight @ mean_a


def norms(rows: Tensor) -> Tensor:
    """Lengths (n, 1) of rows, none of them zero."""
    return rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def tails(singular: Tensor) -> Tensor:
    """(..., P + 1): what is lost of the sum of squares by keeping 0, 1, ... P of the singular values (..., P)."""
    lost = singular.double().square().flip(-1).cumsum(-1).flip(-1)
    return torch.cat([lost, lost.new_zeros(*lost.shape[:-1], 1)], dim=-1)


def low_rank_product(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition of A B, (D, P) times (P, E), by one of size P."""
    Q_a, R_a = torch.linalg.qr(A)
    Q_b, R_b = torch.linalg.qr(B.T)
    left, singular, right = torch.linalg.svd(R_a @ R_b.T, full_matrices=False)
    return Q_a @ left, singular, right @ Q_b.T


def rank_of(singular: Tensor) -> int:
    return int((singular > RANK_TOLERANCE * singular[0]).sum())


def root(M: Tensor) -> Tensor:
    """The symmetric root of a second moment."""
    values, vectors = torch.linalg.eigh(M.double())
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def ridged(M: Tensor) -> Tensor:
    """M, with what makes it invertible where the text has directions that it never takes."""
    return M.double() + RIDGE * M.double().diagonal().mean() * torch.eye(len(M), dtype=torch.float64)


def condition(M: Tensor) -> float:
    values = torch.linalg.eigvalsh(M.double())
    return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


def check_finite(sums: Tensor):
    if not sums.isfinite().all():
        raise InputError("what it computes is not finite: the weights are damaged; give others.")
