"""Compares the mathematics of pruning with brute force and simple reference implementations in float64."""

from itertools import combinations

import pytest
import torch

from fixedbert.shrinking.pruning import (
    SecondMoments,
    fit,
    head_size_errors,
    least_squares,
    prune_inputs,
    reduce_head_size,
    square_root,
)

torch.manual_seed(0)
TOKENS = 500


def correlated_tokens(size):
    """Returns correlated vectors (TOKENS, size) with a nonzero mean."""
    return torch.randn(TOKENS, size).double() @ torch.randn(size, size).double() + torch.randn(size).double()


def covariance(x):
    return torch.cov(x.T, correction=0)


def residual(weight, x, kept):
    """Returns the squared error per token of a least-squares fit to W x from the inputs `kept` and a constant."""
    outputs, inputs = x @ weight.T, torch.cat([x[:, kept], torch.ones(len(x), 1).double()], dim=1)
    return float((outputs - inputs @ torch.linalg.lstsq(inputs, outputs).solution).square().sum() / len(x))


@pytest.mark.parametrize("size", [1, 3])
def test_each_removal_is_the_best_one(size):
    """The group with the lowest cost is removed first, and its cost is the residual of the best refit."""
    groups = 5
    weight, x = torch.randn(7, groups * size).double(), correlated_tokens(groups * size)
    order = prune_inputs(weight, covariance(x), size)
    inputs = torch.arange(groups * size).view(groups, size)
    left = list(range(groups))
    for removed, cost in zip(order.removed, order.costs[1:].tolist(), strict=True):
        residuals = [residual(weight, x, inputs[[g for g in left if g != group]].flatten()) for group in left]
        assert left[min(range(len(left)), key=residuals.__getitem__)] == removed
        left.remove(removed)
        assert cost == pytest.approx(min(residuals), rel=1e-5)
    assert order.kept(2) == sorted(order.removed[3:])


def test_several_removals_per_step_end_at_the_same_cost():
    """With several removals per step, every input is removed once, and the total cost is the same as with one."""
    weight, x = torch.randn(5, 13).double(), correlated_tokens(13)
    one, four = (prune_inputs(weight, covariance(x), 1, at_once) for at_once in (1, 4))
    assert sorted(four.removed) == list(range(13)) and (four.costs.diff() >= 0).all()
    assert four.costs[-1] == pytest.approx(float(one.costs[-1]), rel=1e-6)
    assert four.costs[-1] == pytest.approx(float((weight @ covariance(x) * weight).sum()), rel=1e-6)


def test_head_size_is_reduced_with_the_least_error():
    """For independent x and y, the smaller head has the predicted error, at most that of any subset of dimensions."""
    A, C = torch.randn(5, 9).double(), torch.randn(5, 8).double()
    x, y = torch.randn(TOKENS, 9).double(), torch.randn(TOKENS, 8).double()
    L, R = (A @ x.T @ x @ A.T / TOKENS, C @ y.T @ y @ C.T / TOKENS)
    errors = head_size_errors(L[None], R[None])[0]
    for size in (1, 3, 4):
        first, second = reduce_head_size(A, C, L, R, size)
        assert first.shape == (size, 9) and second.shape == (size, 8)
        change = x @ (A.T @ C - first.T @ second) @ y.T  # over all pairs of x and y, which makes them independent
        assert float(change.square().mean()) == pytest.approx(float(errors[size]), rel=1e-4)
        for kept in combinations(range(5), size):  # removing dimensions is never better
            part = x @ (A.T @ C - A[list(kept)].T @ C[list(kept)]) @ y.T
            assert change.square().mean() <= part.square().mean() * (1 + 1e-9)


def test_reduction_to_the_rank_of_the_weights_is_exact():
    """If the weights have rank 3, their product is preserved exactly in 3 dimensions."""
    A, C = torch.randn(3, 9).double(), torch.randn(3, 8).double()
    wide_a, wide_c = torch.randn(5, 3).double() @ A, torch.randn(5, 3).double() @ C
    moment = torch.diag(torch.tensor([1.0, 0, 0, 0, 0])).double()
    first, second = reduce_head_size(wide_a, wide_c, moment, moment, 3)
    assert torch.allclose(first.T @ second, wide_a.T @ wide_c, atol=1e-12)


def test_remaining_inputs_compensate_for_removed_ones():
    """`least_squares` returns the same weights as a least-squares fit to the outputs for all tokens."""
    weight, x, kept = torch.randn(5, 6).double(), correlated_tokens(6), torch.tensor([0, 2, 5])
    centered = x - x.mean(dim=0)
    expected = torch.linalg.lstsq(centered[:, kept], centered @ weight.T).solution.T
    assert torch.allclose(least_squares(weight, covariance(x), kept), expected, rtol=1e-5)


def test_refit_is_least_squares_with_a_bias():
    """Weight and bias minimize the squared error. Without inputs, the bias is the mean of the targets."""
    torch.manual_seed(0)
    a, y = correlated_tokens(4), correlated_tokens(3)
    moments, empty = SecondMoments(1, 4, 3), SecondMoments(1, 0, 3)
    for part in (slice(0, 213), slice(213, TOKENS)):
        moments.add(torch.cat([a, y], dim=1)[part])
    weight, bias = fit(moments, torch.randn(3, 4).double())
    inputs = torch.cat([a, torch.ones(TOKENS, 1).double()], dim=1)
    expected = torch.linalg.lstsq(inputs, y).solution.T
    assert torch.allclose(torch.cat([weight, bias[:, None]], dim=1), expected, rtol=0.05, atol=0.01)
    empty.add(y)
    weight, bias = fit(empty, torch.zeros(3, 0))
    assert weight.shape == (3, 0) and torch.allclose(bias, y.mean(dim=0))


def test_second_moments():
    """Moments accumulated over batches equal the moments of all tokens, for each group."""
    x = correlated_tokens(6)
    moments, small = SecondMoments(2, 3), SecondMoments(2, 3)
    shifted = (2 + 3e-4 * (x - x.mean(dim=0))).float()
    for part in (slice(0, 100), slice(100, TOKENS)):
        moments.add(x[part])
        small.add(shifted[part])
    assert torch.allclose(moments.mean.flatten(), x.mean(dim=0))
    assert torch.allclose(moments.covariance[1], covariance(x[:, 3:]), rtol=1e-6)
    assert torch.allclose(small.covariance[1], covariance(shifted.double()[:, 3:]), rtol=1e-4)  # 1e-7 of the squares
    root = square_root(moments.uncentered[0])
    assert torch.allclose(root @ root, x[:, :3].T @ x[:, :3] / TOKENS)
