"""Measured latencies, and how they determine the shapes of a shrunken model."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from fixedbert.loading.heads import Heads
from fixedbert.options import ShrinkOptions
from fixedbert.shrinking.budget import LayerPrices, LayerSize, Prices, price_of
from fixedbert.shrinking.context import ShrinkContext
from fixedbert.shrinking.fisher_information import layer_sizes
from fixedbert.shrinking.shrink import prices_for, prune_to_budget, statistics_for
from fixedbert.support.machine import warn_if_busy

LARGE = [LayerSize(Heads(7, 8, 8), 48)] * 3  # layers of `large`


def prices_of(*scales):
    """Returns prices for `large` that are proportional to the number of head dimensions and neurons."""
    layers = [
        LayerPrices(lambda x, s=scale: s * x.num_heads * (x.size + x.value_size), lambda x, s=scale: s * x)
        for scale in scales
    ]
    return Prices.of_model(layers, LARGE, 0.0, "seconds")


def context_for(large, texts, **target):
    data = {"train_file": [str(texts / "rows.txt")], "batch_size": 13}
    options = ShrinkOptions(model=large, output_dir="out", unpad_inputs=True, dtype="float32", **data, **target)
    return ShrinkContext.load(options)


def with_target(context, **target):
    return replace(context, options=replace(context.options, **{"params": None} | target))


def test_busy_machines(monkeypatch):
    """A warning is logged only if other programs keep at least one core busy."""
    logger = Mock()
    monkeypatch.setattr("fixedbert.support.machine.logger", logger)
    for load in (0.9, 2.5):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        warn_if_busy()
    logger.warning.assert_called_once_with("load average 2.5: other programs can distort the measured speeds")


def test_measured_speed_meets_the_target(large, texts, monkeypatch):
    """Shapes are chosen by their prices, and chosen again if the pruned model is slower than the target."""
    measured = iter([(3.0, 2.0, 1.5), (3.0, 1.5, 2.0)])
    monkeypatch.setattr("fixedbert.shrinking.context.measure_speedup", lambda *_: next(measured))
    context, prices = context_for(large, texts, params=1.0), prices_of(1, 1, 1)
    _, pruners = statistics_for(context)
    pruned = prune_to_budget(with_target(context, speedup=[2.0]), pruners, prices)
    shapes = layer_sizes(pruned)
    assert prices.original > 2.0 * price_of(shapes, prices.layers)  # pruned more than at first
    with pytest.raises(StopIteration):
        next(measured)


def test_every_sublayer_is_measured(large, texts):
    """Every size to which a sublayer can be pruned has a price, and the short last layer has its own prices."""
    prices = prices_for(context_for(large, texts, speedup=[2.0]))
    for layer in prices.layers:
        assert layer.of_heads(Heads(7, 8, 8)) >= layer.of_heads(Heads(0, 8, 8)) > 0
        assert all(layer.of_neurons(count) > 0 for count in range(49))
    assert prices.layers[0] is prices.layers[1] is not prices.layers[2]  # the last layer of a classifier is short


def test_layers_that_save_no_time_are_not_pruned(large, texts):
    """If pruning the last layer saves no time, only its superfluous heads and neurons are pruned."""
    context, prices = context_for(large, texts, params=1.0), prices_of(1.0, 1.0, 1e-6)
    _, pruners = statistics_for(context)
    context = with_target(context, params=prices.original / 2.5)
    first, _, last = layer_sizes(prune_to_budget(context, pruners, prices))
    assert (last.heads.num_heads, last.neurons) == (5, 37)
    assert first.heads.num_heads * first.neurons < 5 * 37
