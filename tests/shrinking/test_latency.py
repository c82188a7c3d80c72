"""Measured latencies, and how they determine the shapes of a shrunken model."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fixedbert.conversion.growing import Heads
from fixedbert.shrinking.budget import LayerPrices, LayerSize, Prices
from fixedbert.shrinking.calibration import CalibrationData
from fixedbert.shrinking.context import ShrinkContext, Target
from fixedbert.shrinking.latency import warn_if_busy
from fixedbert.shrinking.shrink import budget_for, choose_shapes, latency_table, shrink, statistics_for
from fixedbert.support.errors import InputError

LARGE = [LayerSize(Heads(7, 8, 8), 48)] * 3  # layers of `large`


def prices_of(*scales):
    """Returns prices for `large` that are proportional to the number of head dimensions and neurons."""
    layers = [
        LayerPrices(lambda x, s=scale: s * x.num_heads * (x.size + x.value_size), lambda x, s=scale: s * x)
        for scale in scales
    ]
    return Prices.of_model(layers, LARGE, 0.0, "seconds")


def context_for(large, texts, **target):
    data = CalibrationData(train_file=[str(texts / "rows.txt")], batch_size=13)
    return ShrinkContext.load(large, data, Target(**target))


def test_busy_machines(monkeypatch):
    """A warning is logged only if other programs keep at least one core busy."""
    logger = Mock()
    monkeypatch.setattr("fixedbert.shrinking.latency.logger", logger)
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
    context.target = Target(speedup=2.0)
    shapes, _ = choose_shapes(context, pruners, prices)
    assert prices.speedup(shapes) > 2.0  # more was pruned, because the first choice was too slow
    with pytest.raises(StopIteration):
        next(measured)


def test_milliseconds_refer_to_the_current_speed(monkeypatch):
    """A target time refers to the original's current speed, unless the latency table is from another machine."""
    monkeypatch.setattr("fixedbert.shrinking.shrink.median_time", lambda *_: 3.0)

    def budget(machine="", **target):
        options = {"original": SimpleNamespace(device=None), "batches": [{}], "serving": Mock()}
        prices = Prices([], original=4.6, rest=0.2, unit="seconds", machine=machine)
        return budget_for(SimpleNamespace(target=Target(**target), **options), prices, least=0.1)

    assert budget(milliseconds=1500) == budget(speedup=2.0) == pytest.approx(2.4)
    assert budget("a server", milliseconds=1500) == pytest.approx(1.5)
    for target in ({"milliseconds": 3500}, {"speedup": 17}):
        with pytest.raises(InputError, match="seconds, but the original needs 4.8 and the smallest .* needs 0.3"):
            budget(**target)


def test_table_from_a_different_machine(large, texts, tmp_path, monkeypatch):
    """All sublayers are measured. A table from another machine is used unchanged, and the report names the machine."""
    file = tmp_path / "table.json"
    context = context_for(large, texts, speedup=2.0)
    context.latency_file = file
    prices = latency_table(context).prices(LARGE)
    for layer in prices.layers:
        assert layer.of_heads(Heads(7, 8, 8)) >= layer.of_heads(Heads(0, 8, 8)) > 0
        assert all(layer.of_neurons(count) > 0 for count in range(49))
    assert prices.layers[0] is prices.layers[1] is not prices.layers[2]  # the last layer of a classifier is short
    assert latency_table(context).prices(LARGE).original == prices.original and not prices.machine
    table = json.loads(file.read_text()) | {"encoder": 0.5 + 3 * (1.12 + 0.48)}
    table["times"] = [[last, sizes, 1e-2 * sizes[0] * (sum(sizes[1:]) or 1)] for last, sizes, _ in table["times"]]
    file.write_text(json.dumps(table))
    monkeypatch.setattr("fixedbert.shrinking.latency.machine_name", lambda: "a laptop")
    options = {"train_file": texts / "rows.txt", "batch_size": 13, "latency_table": file, "dtype": "float32"}
    result = shrink(large, tmp_path / "out", speedup=2.0, unpad_inputs=True, **options)
    seconds = sum(x.heads.num_heads * sum(x.heads[1:]) + x.neurons for x in result.after) / 100
    assert result.table_speedup == pytest.approx(5.3 / (0.5 + seconds)) and 2.0 <= result.table_speedup < 2.1
    speed = f"{result.table_speedup:.2f} times as fast as the original on {result.table_machine}, according to its lat"
    assert speed in str(result) and speed in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(InputError, match="measured for width 32, .* without padding, in float32.* with padding"):
        shrink(large, tmp_path / "no", speedup=2.0, unpad_inputs=False, **options)
    assert not (tmp_path / "no").exists()


def test_layers_that_save_no_time_are_not_pruned(large, texts):
    """If pruning the last layer saves no time, only its superfluous heads and neurons are pruned."""
    context, prices = context_for(large, texts, params=1.0), prices_of(1.0, 1.0, 1e-6)
    _, pruners = statistics_for(context)
    context.target = Target(params=prices.original / 2.5)
    (first, _, last), _ = choose_shapes(context, pruners, prices)
    assert (last.heads.num_heads, last.neurons) == (5, 37)
    assert first.heads.num_heads * first.neurons < 5 * 37
