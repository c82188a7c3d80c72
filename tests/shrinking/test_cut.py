"""Heads and neurons cut by what text uses, against naive references in float64."""

import pytest
import torch

from fixedbert.shrinking.cut import (
    cut_scores,
    cut_values,
    relative_errors,
    remove_inputs,
    score_spectrum,
    value_spectrum,
)
from fixedbert.support.errors import InputError

D, P, N = 11, 6, 13  # width, head size, tokens


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def moment(x):
    """Second moment of rows (N, P), about zero."""
    return x.T @ x / len(x)


def scores(x, W_q, b_q, W_k, b_k=0.0):
    """Scores of all tokens, less their mean for each query, which the softmax forgets."""
    found = (x @ W_q.T + b_q) @ (x @ W_k.T + b_k).T / len(W_q) ** 0.5
    return found - found.mean(dim=1, keepdim=True)


def test_scores_have_the_least_error(draw):
    """Guards: no rank-p form has a smaller mean squared error where queries and keys are independent."""
    W_q, b_q, W_k = draw(P, D), draw(P), draw(P, D)
    Q, K = draw(P, P), draw(P, P)
    M_q, M_k = Q @ Q.T, K @ K.T
    cut = cut_scores(W_q, b_q, W_k, M_q, M_k, 2)
    # q' = F q and k' = G k with F, G (p, P): W_q' = F W_q, found again from the weights; D > P.
    F = cut.first[0] @ torch.linalg.pinv(W_q) * (P / 2) ** 0.5
    G = cut.second @ torch.linalg.pinv(W_k)

    def error(B):
        E = torch.eye(P, dtype=torch.float64) - B
        return float((M_q @ E @ M_k @ E.T).trace())

    found = error(F.T @ G)
    whole = error(torch.zeros(P, P, dtype=torch.float64))
    assert found / whole == pytest.approx(cut.error**2, rel=1e-6)
    left, right = draw(P, 2), draw(2, P)
    for _ in range(300):  # alternating least squares from elsewhere
        left = torch.linalg.solve(right @ M_k @ right.T, right @ M_k).T
        right = torch.linalg.solve(left.T @ M_q @ left, left.T @ M_q)
    assert found == pytest.approx(error(left @ right), rel=1e-6)


def test_scores_of_half_the_queries_are_those_of_the_moments(draw):
    """Guards: the cut is by the text's own queries and keys: along directions that it takes nothing is lost."""
    x = draw(400, 3) @ draw(3, D)  # a text in three dimensions
    W_q, b_q, W_k, b_k = draw(P, D), draw(P), draw(P, D), draw(P)
    queries, keys = x @ W_q.T + b_q, x @ W_k.T
    M_q, M_k = moment(queries), moment(keys - keys.mean(dim=0))
    cut = cut_scores(W_q, b_q, W_k, M_q, M_k, 3)
    torch.testing.assert_close(scores(x, *cut.first, cut.second), scores(x, W_q, b_q, W_k, b_k), rtol=0, atol=1e-4)
    assert cut.error < 1e-4


@pytest.mark.parametrize("size", [3, 4])
def test_scores_of_low_rank_are_exact_on_any_input(draw, size):
    """Guards: where the weights' product has the rank, the cut is exact beyond the text, whatever its moments."""
    W_q, b_q, W_k = draw(P, 3) @ draw(3, D), torch.zeros(P, dtype=torch.float64), draw(P, D)
    b_q = W_q @ draw(D)
    singular = torch.zeros(P, P, dtype=torch.float64)  # of a text that shows nothing
    cut = cut_scores(W_q, b_q, W_k, singular, singular, size)
    x = draw(N, D)
    torch.testing.assert_close(scores(x, *cut.first, cut.second), scores(x, W_q, b_q, W_k), rtol=0, atol=1e-10)
    assert cut.error == 0 and cut.first[0].shape == (size, D)


def test_unchanged_sizes_touch_nothing(draw):
    """Guards: at the old size weights come back as they are."""
    W_q, b_q, W_k, M = draw(P, D), draw(P), draw(P, D), torch.eye(P, dtype=torch.float64)
    cut = cut_scores(W_q, b_q, W_k, M, M, P)
    assert torch.equal(cut.first[0], W_q) and torch.equal(cut.first[1], b_q) and torch.equal(cut.second, W_k)
    cut = cut_values(W_q, b_q, W_k.T, b_q, M, P)
    assert torch.equal(cut.first[0], W_q) and torch.equal(cut.first[1], b_q) and torch.equal(cut.second, W_k.T)
    assert not cut.lost_mean.any()
    removal = remove_inputs(W_k.T, b_q, M, 2, 3)
    assert removal.kept == [0, 1, 2] and torch.equal(removal.weight, W_k.T)


def test_values_have_the_least_error(draw):
    """Guards: the error on the text is that of the best rank-p output about its mean, and the mean is kept."""
    W_v, b_v, W_o = draw(P, D), draw(P), draw(D, P)
    x = draw(N, D) + 3
    z = x @ W_v.T + b_v
    mean = z.mean(dim=0)
    cut = cut_values(W_v, b_v, W_o, mean, moment(z - mean), 2)
    after = (x @ cut.first[0].T + cut.first[1]) @ cut.second.T + cut.lost_mean
    before = z @ W_o.T
    tail = torch.linalg.svdvals(before - before.mean(dim=0))[2:].norm()
    assert float((after - before).norm()) == pytest.approx(float(tail), rel=1e-9)
    torch.testing.assert_close(after.mean(dim=0), before.mean(dim=0), rtol=0, atol=1e-10)
    spread = (before - before.mean(dim=0)).norm()
    assert cut.error == pytest.approx(float(tail / spread), rel=1e-9)
    assert cut.error == pytest.approx(float(relative_errors(value_spectrum(W_o, moment(z - mean)))[2]), rel=1e-9)


def test_values_of_low_rank_are_exact_on_any_input(draw):
    """Guards: where W_o W_v has the rank, the cut is exact beyond the text, whatever its moments."""
    W_v, b_v, W_o = draw(P, D), draw(P), draw(D, P)
    W_v[2:] = draw(4, 2) @ W_v[:2]
    mean, x = W_v @ draw(D) + b_v, draw(N, D)
    cut = cut_values(W_v, b_v, W_o, mean, torch.zeros(P, P, dtype=torch.float64), 3)
    # b_v is outside the values' span, and counts: attention passes it on as it is.
    after = (x @ cut.first[0].T + cut.first[1]) @ cut.second.T + cut.lost_mean
    before = (x @ W_v.T + b_v) @ W_o.T
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10)


def test_errors_are_predicted_for_every_size(draw):
    """Guards: errors by size are those of the tail of the singular values, 1 for nothing kept and 0 for all."""
    errors = relative_errors(torch.tensor([2.0, 1.0, 0.5]))
    assert errors.tolist() == pytest.approx([1, (1.25 / 5.25) ** 0.5, (0.25 / 5.25) ** 0.5, 0])
    assert relative_errors(torch.zeros(2)).tolist() == [0, 0, 0]
    Q, K = draw(P, P), draw(P, P)
    cut = cut_scores(draw(P, D), draw(P), draw(P, D), Q @ Q.T, K @ K.T, 4)
    assert cut.error == pytest.approx(float(relative_errors(score_spectrum(Q @ Q.T, K @ K.T))[4]), rel=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_removed_inputs_are_made_up_for(draw, size):
    """Guards: the first head or neuron to go is the best of all, and the weights left are those of least squares."""
    weight, a = draw(D, P), draw(200, P) @ draw(P, P) + 2
    mean = a.mean(dim=0)
    about = a - mean
    removal = remove_inputs(weight, mean, moment(about), size, P // size - 2)
    wanted = about @ weight.T

    def residual(groups):
        kept = about[:, [group * size + i for group in groups for i in range(size)]]
        return float((wanted - kept @ torch.linalg.lstsq(kept, wanted).solution).norm() / wanted.norm())

    groups = set(range(P // size))
    best = min(groups, key=lambda group: residual(sorted(groups - {group})))
    assert removal.removed[0] == best
    assert removal.errors[1] == pytest.approx(residual(sorted(groups - {best})), rel=1e-5)
    assert removal.errors[2] == pytest.approx(residual(removal.kept), rel=1e-5)
    kept = a[:, [group * size + i for group in removal.kept for i in range(size)]]
    after = kept @ removal.weight.T + removal.lost_mean
    torch.testing.assert_close(after.mean(dim=0), (a @ weight.T).mean(dim=0), rtol=0, atol=1e-8)
    assert float((after - a @ weight.T).norm() / wanted.norm()) == pytest.approx(removal.errors[2], rel=1e-5)


def test_inputs_without_effect_go_first_and_exactly(draw):
    """Guards: heads whose part of W_o is zero, as growth adds them, are left out without any change."""
    weight = draw(D, P)
    weight[:, 2:4] = 0
    factor = draw(P, P)
    removal = remove_inputs(weight, draw(P), factor @ factor.T, 2, 2)
    assert removal.kept == [0, 2] and removal.errors == [0, 0]
    torch.testing.assert_close(removal.weight, weight[:, [0, 1, 4, 5]], rtol=0, atol=1e-12)
    assert removal.lost_mean.abs().max() < 1e-12


@pytest.mark.parametrize("size", [0, -1, P + 1])
def test_sizes_that_are_no_cut(draw, size):
    """Guards: more than there is, or nothing, is refused, with the way to make heads larger."""
    W, b, M = draw(P, D), draw(P), torch.eye(P, dtype=torch.float64)
    with pytest.raises(InputError, match=f"{size} for {P}: .*convert makes larger"):
        cut_scores(W, b, W, M, M, size)
    with pytest.raises(InputError, match=f"{size} for {P}"):
        cut_values(W, b, W.T, b, M, size)
    with pytest.raises(InputError, match=f"{size} for {P}"):
        remove_inputs(W.T, b, M, 1, size)
