"""Synthetic mixing tasks: their theory, and training that confirms it."""

from dataclasses import replace

import pytest
import torch

from experiments.head_size.patterns import least_head_size
from experiments.head_size.tasks import train_synthetic
from experiments.head_size.tasks.mixing import MixingLayer, floor, pattern
from experiments.study.run import execute
from experiments.study.sources import DataSources
from experiments.study.studies import load_study
from fixedbert.support.errors import Divergence


def train(run):
    return train_synthetic(run.objective, run.config, run.pretraining[0], run.learning_rate, run.seed)


@pytest.mark.parametrize("length", [5, 12])
def test_patterns_need_the_documented_head_size(length):
    """Positive patterns have columns that sum to 1 and need size n - 1 or n // 2. Sparse patterns are permutations."""
    for task, size in (("dense", length - 1), ("half", length // 2)):
        P = pattern(task, length, seed=3)
        assert (P > 0).all() and torch.allclose(P.sum(dim=0), torch.ones(length, dtype=torch.float64))
        assert least_head_size(P) == size
        scores = P.log() - P.log().mean(dim=0)
        singular = torch.linalg.svdvals(scores)[:size]
        assert torch.allclose(singular, singular[0].expand(size))  # all dimensions have the same weight
        assert scores.square().mean().item() == pytest.approx(1)
    P = pattern("sparse", length, seed=3)
    assert (P.sum(dim=0) == 1).all() and (P.sum(dim=1) == 1).all() and set(P.flatten().tolist()) == {0, 1}
    assert not torch.equal(pattern("dense", length, 1), pattern("dense", length, 2))


def test_floor():
    """The floor is the least possible error. It falls with head size, and is zero exactly from rank(C log P) on."""
    P = pattern("dense", 5, seed=0)
    floors = [floor(P, size) for size in range(1, 7)]
    assert floors[3:] == [0, 0, 0] and all(before > after for before, after in zip(floors, floors[1:4], strict=False))
    assert floors[2] > 1e-6
    # An independent search, gradient descent from 100 random starts with w as a parameter, reaches the same floor.
    generator = torch.Generator().manual_seed(0)
    K, Q = (torch.randn(100, 5, 1, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    w = torch.ones(100, 1, 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([K, Q, w], lr=0.05)
    for _ in range(1500):
        errors = (w * (K @ Q.mT).softmax(dim=1) - P).square().sum(dim=1).mean(dim=1)
        optimizer.zero_grad()
        errors.sum().backward()
        optimizer.step()
    assert floors[0] * 0.999 < errors.min().item() < floors[0] * 1.02  # the minimum is at infinite scores


def test_layer_computes_the_attention_of_the_theorem():
    """The layer's pattern depends only on positions, before and after an optimizer step."""
    run = load_study("synthetic", "tiny").run("dense pattern", 4, 0.1, 1)
    torch.manual_seed(0)
    layer = MixingLayer(run.config, 12).double()
    x = torch.randn(13, 12, dtype=torch.float64)
    attention, output = layer.attention, layer.output
    Q = attention.query.weight[:, :12] + attention.query.bias[:, None]  # (p, n): one-hot positions
    K = attention.key.weight[:, :12] + attention.key.bias[:, None]
    P = (K.T @ Q / 5**0.5).softmax(dim=0)
    values = attention.value.weight[:, :12] + attention.value.bias[:, None]
    values = values[None] + attention.value.weight[:, 12:] * x[:, None]  # (B, p, n)
    expected = (output.weight @ (values @ P) + output.bias[:, None])[:, 0]
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    (layer(x) - x.flip(1)).square().mean().backward()
    optimizer.step()
    assert (attention.query.weight[:, 12] == 0).all() and (attention.key.weight[:, 12] == 0).all()
    assert (attention.value.weight[:, 12] != 0).all()


@pytest.mark.slow
def test_training_finds_the_threshold():
    """Training reaches the floor but no lower error, and zero at the predicted size. Permutations need size 2."""
    run = load_study("synthetic", "tiny").run("dense pattern", 0, 0.1, 1)
    run = replace(run, pretraining=[{"max_seq_length": 5, "max_steps": 1000, "total_train_batch_size": 64}])

    def trained(task, size, seed=1):
        model = {**run.model, "attention_head_size": size}
        return train(replace(run, objective=task, model=model, seed=seed))

    results = [trained("dense", 3, seed) for seed in (1, 2, 3)]
    assert 0.95 < min(result["loss"] / result["floor"] for result in results) < 1.2  # some seeds get stuck
    at_threshold = trained("dense", 4)
    assert at_threshold["floor"] == 0 and at_threshold["loss"] < min(result["floor"] for result in results) / 100
    one, two = trained("sparse", 1), trained("sparse", 2)
    assert "floor" not in one and one["loss"] > 0.1 and two["loss"] < 1e-3


def test_diverging_run_is_a_result_without_a_loss(tmp_path):
    """Training stops at a NaN or infinite loss, and the record counts the examples seen until then."""
    run = load_study("synthetic", "tiny").run("permutation", 1, 1e30, 1)
    run = replace(run, pretraining=[{"max_seq_length": 5, "max_steps": 40, "total_train_batch_size": 7}])
    with pytest.raises(Divergence, match="^step [2-9]: the loss or the gradient norm is NaN or infinite") as caught:
        train(run)
    step = int(str(caught.value)[5])
    record = execute(run, tmp_path / "run", DataSources())
    assert record["results"] == {"loss": None} and record["tokens"] == step * 7 * 5
    assert record["training_flops"] == 3 * record["forward_flops"] * step * 7 * 5
