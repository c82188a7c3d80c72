"""
Heads cut to what text uses: the mathematics, without text and files.

In the notation of the attention's equation (9), of one head: queries q = W_q x + b_q and keys k = W_k x + b_k of size
P, and z, what attention takes out of the values, of size V. All second moments are over the tokens of a text.

Scores. The softmax forgets what is added to all scores of a query, so that keys count less their mean in a sequence:
k~. Where a query and the keys it meets are independent, a matrix B in q^T B k~ instead of q^T k~ has the mean squared
error

    E (q^T (I - B) k~)^2 = || M_q^(1/2) (I - B) M_k^(1/2) ||_F^2,    M_q = E q q^T,  M_k = E k~ k~^T,

and the best B of rank p has the p largest singular values of M_q^(1/2) M_k^(1/2) = U S V^T (Eckart and Young).
B = M_q^(-1/2) U_p U_p^T M_q^(1/2) is one, B = M_k^(1/2) V_p V_p^T M_k^(-1/2) another: the same where both moments
have an inverse. The side is taken whose moment has the better condition.

Values. W_o z is approximated by U_p U_p^T W_o (z - E z) + W_o E z, with U_p the first left singular vectors of
W_o M_z^(1/2), M_z = E (z - E z) (z - E z)^T: W_o' = U_p, W_v' = U_p^T W_o W_v, and what is lost of the mean goes into
the bias behind W_o. No inverse is needed.

On any input, not on the text alone, a cut is exact where the weights allow it: [W_q b_q]^T W_k of rank p or less is
factored itself, and so is W_o W_v.

Whole heads, and neurons of the feed-forward network, go by Optimal Brain Surgeon (Hassibi and Stork, 1992): of what
feeds a matrix the part is left out that least squares on the text makes up for best.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..conversion.growing import Heads
from ..support.errors import InputError

RANK_TOLERANCE = 1e-12  # of the largest singular value, below which one counts as zero in float64
TOKENS_PER_DIMENSION = 4  # of a second moment, at least
RIDGE = 1e-8  # of the mean eigenvalue, added to a moment before it is inverted


@dataclass(frozen=True)
class Cut:
    """
    A smaller pair of linear maps.

    Args:
        first: weight (p, D) and bias (p) of queries, or of values.
        second: weight (p, D) of keys, whose bias the softmax forgets; or W_o (D, p).
        lost_mean: (D), what the output bias has to take up; of scores none.
        error: root of the mean squared error on the text by the moments, relative to what was there.
    """

    first: tuple[Tensor, Tensor]
    second: Tensor
    lost_mean: Tensor | None
    error: float


class SecondMoments:
    """
    Sums over the tokens of a text, in float64: of `groups` vectors of `size` numbers each, and of their products.

    Attributes:
        tokens: how many there were.
        raw: second moments (G, S, S), times the tokens; `sum`: means (G, S), times the tokens.
    """

    def __init__(self, groups: int, size: int):
        self.tokens = 0
        self.sum = torch.zeros(groups, size, dtype=torch.float64)
        self.raw = torch.zeros(groups, size, size, dtype=torch.float64)

    def add(self, x: Tensor):
        """Add rows of some sequences, (B, L, G S)."""
        rows = x.double().flatten(0, 1).unflatten(-1, self.sum.shape).transpose(0, 1)  # (G, B L, S)
        self.raw += (rows.mT @ rows).cpu()
        self.sum += rows.sum(dim=1).cpu()
        self.tokens += rows.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.sum / self.tokens  # (G, S)

    @property
    def about_zero(self) -> Tensor:
        return self.raw / self.tokens  # (G, S, S)

    @cached_property
    def about_mean(self) -> Tensor:
        return self.about_zero - self.mean[:, :, None] * self.mean[:, None, :]  # (G, S, S)

    def check(self):
        """
        Raises:
            InputError: the text is too short for moments of this size, or they are not finite.
        """
        check_finite(self.sum)
        needed = TOKENS_PER_DIMENSION * self.sum.shape[1]
        if self.tokens < needed:
            raise InputError(f"the text has {self.tokens:,} tokens; give {needed:,} or more, 4 for each dimension.")


class Moments:
    """
    What the attention of a layer computes with a text, as second moments.

    Args:
        heads: the layer's heads.
        of_all: whether z's second moment is that of all heads together, which leaving heads out needs.

    Attributes:
        queries, keys: (H, P), the keys less their mean in a sequence.
        z: (H, V), or (1, H V) of all heads together.
        output: the sum of squares of W_o's output with its bias.
    """

    def __init__(self, heads: Heads, of_all: bool = False):
        self.heads, self.of_all, self.output, self.key_squares = heads, of_all, 0.0, 0.0
        self.queries, self.keys = SecondMoments(heads.number, heads.size), SecondMoments(heads.number, heads.size)
        z = (1, heads.number * heads.value_size) if of_all else (heads.number, heads.value_size)
        self.z = SecondMoments(*z)

    def add(self, queries: Tensor, keys: Tensor, z: Tensor, output: Tensor):
        """Add some sequences: queries and keys (B, L, H P), z (B, L, H V), and W_o's output (B, L, D)."""
        keys = keys.double()
        self.key_squares += float(keys.square().sum())
        self.queries.add(queries)
        self.keys.add(keys - keys.mean(dim=1, keepdim=True))
        self.z.add(z)
        self.output += float(output.double().square().sum())

    def z_of_head(self, head: int) -> tuple[Tensor, Tensor]:
        """The mean (V) of z and its second moment (V, V) about that."""
        if not self.of_all:
            return self.z.mean[head], self.z.about_mean[head]
        own = slice(head * self.heads.value_size, (head + 1) * self.heads.value_size)
        return self.z.mean[0, own], self.z.about_mean[0, own, own]

    def check(self):
        """
        Raises:
            InputError: the text is too short, or shows no variance, or what it gives is not finite.
        """
        for sums in (self.queries.sum, self.keys.sum, self.z.sum, torch.tensor(self.output)):
            check_finite(sums)  # each: kernels may take a score that is not a number for none
        max(self.queries, self.z, key=lambda moments: moments.sum.shape[1]).check()
        squares = self.key_squares / self.keys.tokens, trace(self.z.about_zero)
        for about_mean, whole in zip((self.keys.about_zero, self.z.about_mean), squares, strict=True):
            if not trace(about_mean) > RANK_TOLERANCE * whole:
                raise InputError("the text shows no variance, as if all its tokens were one; give other text.")


def score_spectrum(M_q: Tensor, M_k: Tensor) -> Tensor:
    """Singular values (P) of M_q^(1/2) M_k^(1/2), the largest first; both moments (P, P)."""
    return torch.linalg.svdvals(root(M_q) @ root(M_k))


def value_spectrum(W_o: Tensor, M_z: Tensor) -> Tensor:
    """Singular values of W_o M_z^(1/2), the largest first; W_o (D, V), M_z (V, V)."""
    return torch.linalg.svdvals(W_o.double() @ root(M_z))


def relative_errors(spectrum: Tensor) -> Tensor:
    """Relative errors (P + 1) in the Frobenius norm of keeping 0, 1, ... P of the singular values."""
    lost = squares(spectrum)
    return (lost / lost[0]).sqrt() if lost[0] > 0 else lost


def cut_scores(W_q: Tensor, b_q: Tensor, W_k: Tensor, M_q: Tensor, M_k: Tensor, size: int) -> Cut:
    """
    Queries and keys of a head with `size` dimensions for P.

    Args:
        W_q, b_q, W_k: (P, D), (P), (P, D).
        M_q, M_k: (P, P), of the queries with their bias, and of the keys less their mean in a sequence.
        size: at most P.

    Returns:
        In float64. Scores keep their scale: they are divided by the square root of the new size.
    """
    W_q, b_q, W_k = W_q.double(), b_q.double(), W_k.double()
    old = len(W_q)
    check_size(size, old)
    scale = (size / old) ** 0.5
    if size == old:
        return Cut((W_q, b_q), W_k, None, 0.0)
    left, singular, right = low_rank_product(torch.cat([W_q, b_q[:, None]], dim=1).T, W_k)  # (D + 1, P), (P), (P, D)
    if rank_of(singular) <= size:
        root_s = singular[:size].sqrt()
        queries = left[:, :size] * root_s * scale  # (D + 1, p)
        return Cut((queries[:-1].T, queries[-1]), root_s[:, None] * right[:size], None, 0.0)
    root_q, root_k = root(ridged(M_q)), root(ridged(M_k))
    U, S, Vh = torch.linalg.svd(root_q @ root_k)
    balance = S[:size, None].sqrt()  # queries and keys of like size, which trains better
    if condition(M_q) <= condition(M_k):
        F, G = U[:, :size].T @ torch.linalg.inv(root_q) * balance, U[:, :size].T @ root_q / balance
    else:
        F, G = Vh[:size] @ root_k / balance, Vh[:size] @ torch.linalg.inv(root_k) * balance
    return Cut((scale * F @ W_q, scale * F @ b_q), G @ W_k, None, float(relative_errors(S)[size]))


def cut_values(W_v: Tensor, b_v: Tensor, W_o: Tensor, mean_z: Tensor, M_z: Tensor, size: int) -> Cut:
    """
    Values of a head, and its part of W_o, with `size` dimensions for V.

    Args:
        W_v, b_v, W_o: (V, D), (V), (D, V).
        mean_z, M_z: (V), (V, V), of what attention takes out of the values, with their bias.
        size: at most V.

    Returns:
        In float64, with the mean that the bias behind W_o has to take up.
    """
    W_v, b_v, W_o = W_v.double(), b_v.double(), W_o.double()
    check_size(size, len(W_v))
    if size == len(W_v):
        return Cut((W_v, b_v), W_o, torch.zeros(len(W_o), dtype=torch.float64), 0.0)
    left, singular, _ = low_rank_product(W_o, W_v)
    error = 0.0
    if rank_of(singular) > size:
        left, S, _ = torch.linalg.svd(W_o @ root(M_z), full_matrices=False)
        error = float(relative_errors(S)[size])
    kept = left[:, :size]  # (D, p)
    mean = W_o @ mean_z.double()
    return Cut((kept.T @ W_o @ W_v, kept.T @ W_o @ b_v), kept, mean - kept @ (kept.T @ mean), error)


def cut_attention(tensors: dict[str, Tensor], new: Heads, moments: Moments) -> dict[str, Tensor]:
    """
    The attention of a layer with the heads `new`, which are fewer or smaller.

    Args:
        tensors: parameters by BERT's names: self.query.weight and so on, output.dense.weight.

    Returns:
        The same, with the dtype that they had. What does not change is what was given.
    """
    old = moments.heads
    W_o, b_o = tensors["output.dense.weight"].double(), tensors["output.dense.bias"].double()
    kept = list(range(old.number))
    if new.number < old.number:
        removal = remove_inputs(W_o, moments.z.mean[0], moments.z.about_mean[0], old.value_size, new.number)
        kept, W_o, b_o = removal.kept, removal.weight, b_o + removal.lost_mean
    parts = {
        f"{name}.{kind}": tensors[f"self.{name}.{kind}"].unflatten(0, (old.number, -1))[kept]  # (H, P, D) or (H, P)
        for name in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    if new.size < old.size:
        given = parts["query.weight"], parts["query.bias"], parts["key.weight"]
        M_q, M_k = moments.queries.about_zero[kept], moments.keys.about_zero[kept]
        scores = [cut_scores(*of_head, new.size) for of_head in zip(*given, M_q, M_k, strict=True)]
        parts["query.weight"] = torch.stack([cut.first[0] for cut in scores])
        parts["query.bias"] = torch.stack([cut.first[1] for cut in scores])
        parts["key.weight"] = torch.stack([cut.second for cut in scores])
        parts["key.bias"] = torch.zeros_like(parts["query.bias"])
    if new.value_size < old.value_size:
        W_o_by_head = W_o.split(old.value_size, dim=1)
        heads = zip(kept, parts["value.weight"], parts["value.bias"], W_o_by_head, strict=True)
        values = [cut_values(W_v, b_v, W, *moments.z_of_head(head), new.value_size) for head, W_v, b_v, W in heads]
        parts["value.weight"] = torch.stack([cut.first[0] for cut in values])
        parts["value.bias"] = torch.stack([cut.first[1] for cut in values])
        W_o = torch.cat([cut.second for cut in values], dim=1)
        b_o = b_o + torch.stack([cut.lost_mean for cut in values if cut.lost_mean is not None]).sum(dim=0)
    changed = {f"self.{name}": part.flatten(0, 1) for name, part in parts.items()}
    changed |= {"output.dense.weight": W_o, "output.dense.bias": b_o}
    return tensors | {name: tensor.to(tensors[name].dtype) for name, tensor in changed.items()}


@dataclass(frozen=True)
class Removal:
    """
    Groups of inputs of a linear map that are left out.

    Args:
        kept: numbers of the groups that stay, in their order.
        weight: (D, kept groups * size), by least squares on the text.
        lost_mean: (D), what the bias has to take up.
        errors: relative errors after 0, 1, 2, ... removals, in the order of `removed`.
        removed: numbers of the groups that are left out, the least important first.
    """

    kept: list[int]
    weight: Tensor
    lost_mean: Tensor
    errors: list[float]
    removed: list[int]


def remove_inputs(weight: Tensor, mean: Tensor, moment: Tensor, size: int, keep: int) -> Removal:
    """
    All but `keep` groups of the inputs of y = W a left out, one after the other, each time the one whose loss the
    others make up for best: heads of W_o, which have `size` inputs each, or neurons, which have one.

    Args:
        weight: (D, groups * size).
        mean, moment: (N), (N, N), of the inputs; the moment less their mean.
        size: inputs of a group.
        keep: groups that stay.
    """
    weight, mean, moment = weight.double(), mean.double(), moment.double()
    groups = weight.shape[1] // size
    check_size(keep, groups)
    total = float(((weight @ moment) * weight).sum())
    inverse_moment = torch.linalg.inv(ridged(moment)) if keep < groups else moment
    columns = weight.T.clone(memory_format=torch.contiguous_format)  # (N, D), of what is left
    of_groups = columns.view(groups, size, -1)
    left, removed, errors, lost = list(range(groups)), [], [0.0], 0.0
    places = torch.arange(groups * size).view(groups, size)
    while len(left) > keep:
        blocks = inverse_moment.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)[left]
        products = (of_groups @ of_groups.mT)[left]  # (g, S, S), as blocks
        costs = torch.linalg.solve(blocks, products).diagonal(dim1=1, dim2=2).sum(dim=1)
        best = int(costs.argmin())
        group = left.pop(best)
        place = places[group]
        share = torch.linalg.solve(blocks[best], inverse_moment[place])  # (S, N)
        columns.addmm_(share.T, columns[place], alpha=-1)  # in place: of thousands of neurons, copies take the time
        inverse_moment.addmm_(inverse_moment[:, place], share, alpha=-1)
        columns[place] = 0
        lost += float(costs[best])
        removed.append(group)
        errors.append((lost / total) ** 0.5 if total > 0 else 0.0)
    stay = places[left].flatten()
    kept = columns[stay].T.contiguous()
    return Removal(left, kept, weight @ mean - kept @ mean[stay], errors, removed)


def trace(moments: Tensor) -> float:
    """Sum of the traces of all moments (G, S, S)."""
    return float(moments.diagonal(dim1=1, dim2=2).sum())


def squares(spectrum: Tensor) -> Tensor:
    """(P + 1): what is lost of the sum of squares by keeping 0, 1, ... P of the singular values."""
    tails = spectrum.double().square().flip(0).cumsum(0).flip(0)  # of each and all that follow
    return torch.cat([tails, tails.new_zeros(1)])


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
    return float(values[-1] / values[0].clamp(min=torch.finfo(torch.float64).tiny))


def check_finite(sums: Tensor):
    if not sums.isfinite().all():
        raise InputError("what it computes is not finite: the weights are damaged; give others.")


def check_size(size: int, old: int):
    if not 1 <= size <= old:
        raise InputError(f"{size} for {old}: cutting makes smaller, and leaves at least 1; convert makes larger.")
