"""The mathematics of cuts, against brute force and naive references in float64."""

from itertools import combinations

import pytest
import torch

from fixedbert.shrinking.pruning import (
    Refit,
    SecondMoments,
    cut_size,
    least_squares,
    remove_inputs,
    root,
    size_errors,
)

torch.manual_seed(0)
TOKENS = 500


def tokens(size):
    """Correlated numbers with a mean, (TOKENS, size)."""
    return torch.randn(TOKENS, size).double() @ torch.randn(size, size).double() + torch.randn(size).double()


def covariance(x):
    return torch.cov(x.T, correction=0)


def residual(weight, x, kept):
    """The least sum of squares of W x that the inputs `kept`, with a constant, leave over, for each token."""
    outputs, inputs = x @ weight.T, torch.cat([x[:, kept], torch.ones(len(x), 1).double()], dim=1)
    return float((outputs - inputs @ torch.linalg.lstsq(inputs, outputs).solution).square().sum() / len(x))


@pytest.mark.parametrize("size", [1, 3])
def test_each_removal_is_the_best_and_costs_what_least_squares_leaves(size):
    """Guards: group after group goes whose loss is least of all, and its cost is the residual of the best refit."""
    groups = 5
    weight, x = torch.randn(7, groups * size).double(), tokens(groups * size)
    found = remove_inputs(weight, covariance(x), size)
    places = torch.arange(groups * size).view(groups, size)
    left = list(range(groups))
    for gone, cost in zip(found.removed, found.costs[1:].tolist(), strict=True):
        others = [residual(weight, x, places[[g for g in left if g != one]].flatten()) for one in left]
        assert left[min(range(len(left)), key=others.__getitem__)] == gone
        left.remove(gone)
        assert cost == pytest.approx(min(others), rel=1e-5)
    assert found.kept(2) == sorted(found.removed[3:])


def test_several_removals_at_once_end_at_the_same_cost():
    """Guards: steps of several neurons are a faster way to the same end, and every one of them goes once."""
    weight, x = torch.randn(5, 13).double(), tokens(13)
    one, four = (remove_inputs(weight, covariance(x), 1, at_once) for at_once in (1, 4))
    assert sorted(four.removed) == list(range(13)) and (four.costs.diff() >= 0).all()
    assert four.costs[-1] == pytest.approx(float(one.costs[-1]), rel=1e-6)
    whole = float((weight @ covariance(x) * weight).sum())
    assert four.costs[-1] == pytest.approx(whole, rel=1e-6)


def test_inputs_without_effect_cost_nothing():
    """Guards: what a larger model got by conversion, with zeros behind it, goes first and for nothing."""
    weight = torch.randn(5, 6).double()
    weight[:, [1, 4]] = 0
    found = remove_inputs(weight, covariance(tokens(6)), 1)
    assert set(found.removed[:2]) == {1, 4} and found.costs[2] == 0 < found.costs[3]


def test_a_size_is_cut_with_the_least_error_there_is():
    """Guards: x^T B y is as near to x^T y as singular values allow, where x and y are independent."""
    A, C = torch.randn(5, 9).double(), torch.randn(5, 8).double()
    x, y = torch.randn(TOKENS, 9).double(), torch.randn(TOKENS, 8).double()
    L, R = (A @ x.T @ x @ A.T / TOKENS, C @ y.T @ y @ C.T / TOKENS)
    errors = size_errors(L[None], R[None])[0]
    for size in (1, 3, 4):
        first, second = cut_size(A, C, L, R, size)
        assert first.shape == (size, 9) and second.shape == (size, 8)
        change = x @ (A.T @ C - first.T @ second) @ y.T  # every x with every y: independent
        assert float(change.square().mean()) == pytest.approx(float(errors[size]), rel=1e-4)
        for kept in combinations(range(5), size):  # no choice of dimensions is better
            part = x @ (A.T @ C - A[list(kept)].T @ C[list(kept)]) @ y.T
            assert change.square().mean() <= part.square().mean() * (1 + 1e-9)


def test_a_size_that_the_weights_do_not_use_is_cut_exactly():
    """Guards: maps of rank 3 keep their product with 3 dimensions, on any input, whatever the tokens are."""
    A, C = torch.randn(3, 9).double(), torch.randn(3, 8).double()
    mix, back = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    wide_a, wide_c = mix @ A, back @ C
    moment = torch.diag(torch.tensor([1.0, 0, 0, 0, 0])).double()
    first, second = cut_size(wide_a, wide_c, moment, moment, 3)
    assert torch.allclose(first.T @ second, wide_a.T @ wide_c, atol=1e-12)


def test_inputs_that_stay_make_up_for_the_others():
    """Guards: the weight of what stays is the one of least squares on the tokens."""
    weight, x, kept = torch.randn(5, 6).double(), tokens(6), torch.tensor([0, 2, 5])
    centred = x - x.mean(dim=0)
    expected = torch.linalg.lstsq(centred[:, kept], centred @ weight.T).solution.T
    assert torch.allclose(least_squares(weight, covariance(x), kept), expected, rtol=1e-5)


def test_a_refit_is_least_squares_with_a_constant():
    """Guards: weight and bias bring the output nearest to what is wanted; without inputs the bias is the mean."""
    a, y = tokens(4), tokens(3)
    sums = Refit(4, 3)
    for part in (slice(0, 213), slice(213, TOKENS)):
        sums.add(a[part], y[part])
    weight, bias = sums.solution(torch.randn(3, 4).double())
    inputs = torch.cat([a, torch.ones(TOKENS, 1).double()], dim=1)
    expected = torch.linalg.lstsq(inputs, y).solution.T
    assert torch.allclose(torch.cat([weight, bias[:, None]], dim=1), expected, rtol=0.05, atol=0.01)
    empty = Refit(0, 3)
    empty.add(a[:, :0], y)
    weight, bias = empty.solution(torch.zeros(3, 0))
    assert weight.shape == (3, 0) and torch.allclose(bias, y.mean(dim=0))


def test_second_moments_are_summed_over_tokens():
    """Guards: moments of groups are those of all tokens together, about zero and about the mean."""
    x = tokens(6)
    sums = SecondMoments(2, 3)
    for part in (slice(0, 100), slice(100, TOKENS)):
        sums.add(x[part])
    assert torch.allclose(sums.mean.flatten(), x.mean(dim=0))
    assert torch.allclose(sums.about_mean[1], covariance(x[:, 3:]), rtol=1e-6)
    assert torch.allclose(root(sums.about_zero[0]) @ root(sums.about_zero[0]), x[:, :3].T @ x[:, :3] / TOKENS)
