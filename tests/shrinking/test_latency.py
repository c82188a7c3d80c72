"""Measured latencies, and how they determine the shapes of a shrunken model."""

from dataclasses import replace
from functools import partial

import pytest

from fixedbert.loading.heads import Heads
from fixedbert.options import ShrinkOptions
from fixedbert.shrinking.budget import LayerSize, Prices
from fixedbert.shrinking.context import ShrinkContext, Speedup
from fixedbert.shrinking.fisher_information import layer_sizes
from fixedbert.shrinking.shrink import layer_pruners
from fixedbert.shrinking.target import prices_for, prune_to_budget

LARGE = [LayerSize(Heads(7, 8, 8), 48)] * 3  # layers of `large`


def prices_of(*scales):
    """Returns prices for `large` that are proportional to the number of head dimensions and neurons."""

    def price(scale, part):
        return scale * (part if isinstance(part, int) else part.num_heads * (part.size + part.value_size))

    return Prices([partial(price, scale) for scale in scales], LARGE, 0.0)


def context_for(large, texts, **target):
    options = {"model": large, "output_dir": "", "train_file": [str(texts / "rows.txt")], "batch_size": 13}
    return ShrinkContext.load(ShrinkOptions(**options, **target, unpad_inputs=True, dtype="float32"))


def with_target(context, **target):
    return replace(context, options=replace(context.options, **{"params": None} | target))


def test_measured_speed_meets_the_target(large, texts, monkeypatch):
    """Shapes are chosen by their prices, and chosen again if the pruned model is slower than the target."""
    measured = iter([Speedup(3.0, 2.0, 1.5, 1.4, 1.6), Speedup(3.0, 1.5, 2.0, 1.9, 2.1)])
    monkeypatch.setattr(ShrinkContext, "measure_speedup", lambda *_: next(measured))
    context, prices = context_for(large, texts, params=1.0), prices_of(1, 1, 1)
    pruners = layer_pruners(context)
    pruned = prune_to_budget(with_target(context, speedup=[2.0]), pruners, prices)
    assert prices.of_layers(LARGE) > 2.0 * prices.of_layers(layer_sizes(pruned))  # pruned more than at first
    with pytest.raises(StopIteration):
        next(measured)
    speeds = iter([2.1, *[1.5] * 5])  # the first one is the best
    monkeypatch.setattr(ShrinkContext, "measure_speedup", lambda *_: Speedup(1, 1, next(speeds), 1, 1))
    pruned = prune_to_budget(with_target(context, speedup=[2.0]), pruners, prices)
    assert prices.of_layers(layer_sizes(pruned)) > 0.9 * prices.of_layers(LARGE) / 2
    assert next(speeds, None) is None


def test_one_head_remains(large, texts):
    """The smallest possible model has one head and no neurons, also if other sizes would cost less."""
    context, prices = context_for(large, texts, params=1.0), prices_of(1.0, 2.0, 3.0)
    pruners = layer_pruners(context)
    for budget in (4, 11):  # a head of size 2 with values of size 2 costs 4 in the first layer
        *layers, last = layer_sizes(prune_to_budget(with_target(context, params=float(budget)), pruners, prices))
        assert (layers[0].heads, *(each.heads.num_heads for each in (*layers[1:], last))) == (Heads(1, 2, 2), 0, 0)
        assert prices.of_layers([*layers, last]) <= budget


def test_every_sublayer_is_measured(large, texts):
    """Every size to which a sublayer can be pruned has a price, and the short last layer has its own prices."""
    prices = prices_for(context_for(large, texts, speedup=[2.0]))
    for layer in prices.layers:
        assert layer(Heads(7, 8, 8)) >= layer(Heads(0, 8, 8)) > 0
        assert all(layer(count) > 0 for count in range(49))
    assert prices.layers[0] is prices.layers[1] is not prices.layers[2]  # the last layer of a classifier is short


def test_layers_that_save_no_time_are_not_pruned(large, texts):
    """If pruning the last layer saves no time, only its superfluous heads and neurons are pruned."""
    context, prices = context_for(large, texts, params=1.0), prices_of(1.0, 1.0, 1e-6)
    pruners = layer_pruners(context)
    context = with_target(context, params=prices.of_layers(LARGE) / 2.5)
    first, _, last = layer_sizes(prune_to_budget(context, pruners, prices))
    assert (last.heads.num_heads, last.neurons) == (5, 37)
    assert first.heads.num_heads * first.neurons < 5 * 37
