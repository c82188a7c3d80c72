"""Measured latencies, and how they determine the shapes of a shrunken model."""

from types import SimpleNamespace

import pytest

from fixedbert.conversion.growing import Heads
from fixedbert.shrinking.budget import LayerPrices, LayerSize, Prices
from fixedbert.shrinking.calibration import CalibrationData
from fixedbert.shrinking.context import ShrinkContext, Target
from fixedbert.shrinking.shrink import budget_for, choose_shapes, prices_for, shrink, statistics_for
from fixedbert.support.errors import InputError

LARGE = [LayerSize(Heads(7, 8, 8), 48)] * 3  # layers of `large`


def prices_of(*scales):
    """Returns prices for `large` that are proportional to the number of head dimensions and neurons."""
    layers = [
        LayerPrices(lambda x, s=scale: s * x.num_heads * (x.size + x.value_size), lambda x, s=scale: s * x)
        for scale in scales
    ]
    return Prices.of_model(layers, LARGE, 0.0, "seconds")


def data_for(texts):
    return CalibrationData(train_file=[str(texts / "rows.txt")], batch_size=13)


def test_measured_speed_meets_the_target(large, texts, tmp_path, monkeypatch):
    """Shapes are chosen according to the prices, and chosen again if the pruned model is slower than the target."""
    measured = iter([(3.0, 2.0, 1.5), (3.0, 1.5, 2.0), (3.0, 1.5, 2.0)])
    monkeypatch.setattr("fixedbert.shrinking.shrink.measure_latencies", lambda *_: prices_of(1, 1, 1))
    monkeypatch.setattr("fixedbert.shrinking.context.measure_speedup", lambda *_: next(measured))
    options = {"train_file": texts / "rows.txt", "unpad_inputs": False, "dtype": "float32"}
    result = shrink(large, tmp_path / "out", speedup=2.0, **options)
    price = sum(x.heads.num_heads * sum(x.heads[1:]) + x.neurons for x in result.after)
    assert result.speedup == 2.0 and price < 3 * (7 * 16 + 48) / 2  # more was pruned than according to the prices
    with pytest.raises(StopIteration):
        next(measured)


def test_milliseconds_refer_to_the_current_speed(monkeypatch):
    """A time is converted to a speedup over the original, which is timed again."""
    monkeypatch.setattr("fixedbert.shrinking.shrink.median_time", lambda *_: 3.0)
    prices = Prices([], original=4.6, rest=0.2, unit="seconds")

    def budget(**target):
        options = {"original": SimpleNamespace(device=None), "batches": [{}], "forward_passes": lambda _: None}
        return budget_for(SimpleNamespace(target=Target(**target), **options), prices, least=0.1)

    assert budget(milliseconds=1500) == budget(speedup=2.0) == pytest.approx(2.4)
    for target in ({"milliseconds": 3500}, {"speedup": 17}):
        with pytest.raises(InputError, match="seconds, but the original needs 4.8 and the smallest .* needs 0.3"):
            budget(**target)


def test_all_sublayers_are_measured(large, texts):
    """All sublayers have a price, including empty ones, and a classifier's last layer has its own."""
    context = ShrinkContext.load(large, data_for(texts), Target(speedup=2.0))
    prices = prices_for(context)
    for layer in prices.layers:
        assert layer.of_heads(Heads(7, 8, 8)) >= layer.of_heads(Heads(0, 8, 8)) > 0
        assert all(layer.of_neurons(count) > 0 for count in range(49))
    assert prices.layers[0] is prices.layers[1] and prices.layers[0] != prices.layers[2]
    assert prices.original > 0 and prices.unit == "seconds"


def test_layers_that_save_no_time_are_not_pruned(large, texts):
    """If pruning the last layer saves nothing, nothing that is used is pruned there."""
    context = ShrinkContext.load(large, data_for(texts), Target(params=1.0))
    _, pruners = statistics_for(context)
    prices = prices_of(1.0, 1.0, 1e-6)
    context.target = Target(params=prices.original / 2.5)
    (first, _, last), _ = choose_shapes(context, pruners, prices)
    assert (last.heads.num_heads, last.neurons) == (5, 37)
    assert first.heads.num_heads * first.neurons < 5 * 37
