"""Numerical checks of theorems: every construction and identity holds to its tolerance in float64."""

import re
from pathlib import Path

import pytest
import torch

from experiments.head_size.__main__ import main
from experiments.head_size.outputs import output, values_for
from experiments.head_size.patterns import (
    attention,
    fitted,
    kullback_leibler,
    least_head_size,
    random_pattern,
    truncated_fit,
    weights_for,
)
from experiments.head_size.separation import difference, separated, sequence
from fixedbert.support.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


@pytest.mark.parametrize("rank", [1, 3, 7])  # a generic pattern has rank n - 1 = 7
def test_a_pattern_of_lower_rank_needs_a_smaller_head(rank):
    """Heads of size rank(C log P) or more express P, and smaller ones do not."""
    n, d = 8, 13
    scores = gaussian(n, rank) @ gaussian(rank, n, seed=1) + gaussian(1, n, seed=2)  # shifting a column has no effect
    P, X = scores.softmax(dim=0), gaussian(d, n, seed=3)
    assert least_head_size(P) == rank
    for size in (rank, rank + 2, None):  # None is the width, as in Theorem 1
        W_q, W_k = weights_for(X, P, size)
        assert W_q.shape == (size or d, d) and (attention(X, W_q, W_k) - P).abs().max() < 1e-10
    if rank > 1:
        with pytest.raises(InputError, match=f"{rank - 1} cannot express P on X; the size must be at least {rank}"):
            weights_for(X, P, rank - 1)


def test_head_size_of_a_pattern_in_single_precision():
    """Rounding errors in a float32 pattern do not increase its rank."""
    P = (gaussian(16, 2) @ gaussian(2, 16, seed=1)).float().softmax(dim=0)
    assert least_head_size(P) == 2


def test_rank_deficient_sequence():
    """With two equal tokens, a head only expresses patterns that treat them equally."""
    X = gaussian(9, 4)
    X[:, 3] = X[:, 2]
    with pytest.raises(InputError, match="4 tokens have rank 3"):
        weights_for(X, random_pattern(4, generator()))
    P = attention(X, gaussian(3, 9, seed=4), gaussian(3, 9, seed=5))
    W_q, W_k = weights_for(X, P, 3)
    assert (attention(X, W_q, W_k) - P).abs().max() < 1e-10


def test_fitted_patterns_stay_below_the_bound():
    """The best fit is never worse than the truncated one, improves with head size, and is exact from n - 1 on."""
    P = random_pattern(6, generator(3))
    bounds = [kullback_leibler(P, truncated_fit(P, size)) for size in range(1, 7)]
    fits = [kullback_leibler(P, fitted(P, size)) for size in range(1, 7)]
    assert all(fit <= bound + 1e-12 for fit, bound in zip(fits, bounds, strict=True))
    assert all(a > b for a, b in zip(fits[:5], fits[1:5], strict=False))
    assert bounds[4] < 1e-12 and fits[4] < 1e-12 and fits[3] > 1e-4


@pytest.mark.parametrize("case", [1, 2])
def test_theorem_2_in_closed_form(case):
    """In cases 1 and 2 of the proof, the layers differ by the closed form, to 1e-12."""
    f, g = separated(case, d=12, heads=6, head_size=4)
    X = sequence(case, f, g, length=5)
    measured = f(X) - g(X)
    assert (measured - difference(case, f, g, X)).abs().max() < 1e-12
    assert measured.abs().max() > 1e-3
    if case == 2:
        assert (f.values.sum(0) - g.values.sum(0)).abs().max() < 1e-10
        assert measured[:, 1:].abs().max() < 1e-12


def test_theorem_2_third_case():
    """If scores differ by skew-symmetric matrices, X of case 3 separates the layers, but X of case 2 does not."""
    f, g = separated(3, d=12, heads=6, head_size=4)
    gap = g.scores[0] - f.scores[0]
    assert (gap + gap.T).abs().max() < 1e-10 and torch.linalg.matrix_rank(g.scores[0]) == 4
    blind = sequence(2, f, g, length=5)
    assert (f(blind) - g(blind)).abs().max() < 1e-10
    differences = []
    for alpha in (1, 10, 100):
        X = sequence(3, f, g, length=5, alpha=alpha)
        differences.append(float((f(X) - g(X)).abs().max()))
    assert differences[0] > 0.1 and differences[1] > 5 * differences[0] and differences[2] > 5 * differences[1]
    v, v_2 = X[:, 0], X[:, 1]
    assert v_2 @ g.scores[0] @ v > 0 > v_2 @ f.scores[0] @ v


@pytest.mark.parametrize("heads, value_size", [(1, 3), (1, 7), (3, 2), (5, 1), (4, 3)])
def test_rank_of_outputs_is_limited_by_the_values(heads, value_size):
    """
    Heads produce an output exactly if its rank is at most heads * value size. Otherwise, the error is the norm of the
    remaining singular values.
    """
    d, n = 13, 7
    X, Y = gaussian(d, n), gaussian(d, n, seed=1)
    patterns = torch.stack([random_pattern(n, generator(seed)) for seed in range(heads)])
    rank = min(heads * value_size, n)
    left, singular, right = torch.linalg.svd(Y, full_matrices=False)
    truncated = left[:, :rank] * singular[:rank] @ right[:rank]
    W_v, W_o = values_for(X, patterns, truncated, value_size)
    assert W_v.shape == (heads, value_size, d) and W_o.shape == (heads, d, value_size)
    assert (output(X, patterns, W_v, W_o) - truncated).abs().max() < 1e-10
    nearest = output(X, patterns, *values_for(X, patterns, Y, value_size))
    assert float((nearest - Y).norm()) == pytest.approx(float(singular[rank:].norm()), abs=1e-10)
    W_v, W_o = gaussian(heads, value_size, d, seed=2), gaussian(heads, d, value_size, seed=3)
    assert torch.linalg.matrix_rank(output(X, patterns, W_v, W_o)) == rank


def test_outputs_of_dependent_tokens():
    """Patterns that mix the tokens into linearly dependent ones are rejected."""
    patterns = torch.stack([random_pattern(4, generator()), torch.full((4, 4), 0.25, dtype=torch.float64)])
    with pytest.raises(InputError, match="the 4 tokens of X, mixed by pattern 1, have only rank 1"):
        values_for(gaussian(9, 4), patterns, gaussian(9, 4, seed=1), 2)


def test_code_in_the_documentation(capsys):
    """The Python code in docs/study_and_theory.md prints the stated results."""
    text = (Path(__file__).parents[3] / "docs" / "study_and_theory.md").read_text(encoding="utf-8")
    by_hand, solutions = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(by_hand, {})
    rank, seven, six = capsys.readouterr().out.splitlines()
    assert rank == "tensor(7)" and number_in(seven[1:]) < 1e-13 and 0.01 < number_in(six[1:]) < 0.03
    exec(solutions, {})
    fits, null = capsys.readouterr().out.splitlines()
    eleven, ten = eval(fits)
    assert eleven < 1e-13 and 5e-3 < ten < 0.02 and number_in(null) < 1e-13


def number_in(printed: str) -> float:
    return float(re.search(r"\d[\d.e-]*", printed)[0])


def test_command(tmp_path, capsys):
    """The command draws its figure and prints the errors."""
    main(["--output_dir", str(tmp_path / "out"), "--lengths", "4", "6", "--patterns", "2"])
    printed = capsys.readouterr().out
    assert "can express every pattern over 4 tokens" in printed and "case 3" in printed
    assert re.search(r"6 tokens: 5; best head of size 3: 0\.", printed)
    assert (tmp_path / "out" / "theory.png").stat().st_size > 10_000
