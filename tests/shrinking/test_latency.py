"""Latency tables, and how they determine the shapes of a shrunken model."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fixedbert.conversion.growing import Heads
from fixedbert.shrinking.calibration import CalibrationData
from fixedbert.shrinking.context import ShrinkContext, Target
from fixedbert.shrinking.latency import LatencyTable
from fixedbert.shrinking.shrink import budget_for, latency_table, shrink
from fixedbert.support.errors import InputError

SIZES = (2, 4, 6, 8)


def table_for(machine, rest=1e-2, **changes):
    """Returns a latency table for `large` with times proportional to the number of head dimensions and neurons."""
    heads = [(h, p, v, h * (p + v) * 1e-2) for h in range(8) for p in SIZES for v in SIZES if h or p == v == 8]
    fields = {"width": 32, "inputs": [[7] * 13], "heads": heads, "neurons": [(n, n * 1e-2) for n in range(49)]}
    return LatencyTable(machine=machine, rest=rest, **fields | changes)


def rows(texts):
    return {"train_file": str(texts / "rows.txt"), "batch_size": 13, "unpad_inputs": False, "dtype": "float32"}


def test_measured_speed_meets_the_target(large, texts, tmp_path, monkeypatch):
    """Shapes are chosen according to the table, and chosen again if the pruned model is slower than the target."""
    clock = iter(range(10**9))
    monkeypatch.setattr("fixedbert.shrinking.latency.time.perf_counter", lambda: next(clock) * 1e-3)
    measured = iter([(3.0, 2.0, 1.5), (3.0, 1.5, 2.0), (3.0, 1.5, 2.0)])
    monkeypatch.setattr("fixedbert.shrinking.shrink.median_time", lambda *_: 3.0)
    monkeypatch.setattr("fixedbert.shrinking.context.measure_speedup", lambda *_: next(measured))
    monkeypatch.setattr("fixedbert.shrinking.latency.machine_name", lambda: "a machine")
    table_for("a machine").write(tmp_path / "table.json")
    result = shrink(large, tmp_path / "out", speedup=2.0, latency_table=tmp_path / "table.json", **rows(texts))
    assert result.speedup == 2.0 and not result.table_machine
    assert result.table_speedup > 2.0  # more was pruned, because the first choice was too slow


def test_budget_is_scaled_to_the_current_speed(monkeypatch):
    """`milliseconds` refers to the current speed, even if the machine had a different speed during the measurement."""
    monkeypatch.setattr("fixedbert.shrinking.latency.machine_name", lambda: "a machine")
    monkeypatch.setattr("fixedbert.shrinking.shrink.median_time", lambda *_: 3.0)
    table, original = table_for("a machine", rest=0.2), SimpleNamespace(device=None)

    def budget(**target):
        context = SimpleNamespace(
            original=original, batches=[{}], target=Target(**target), forward_passes=lambda _: None
        )
        return budget_for(context, table, layers=4.6, least=0.1)

    assert budget(milliseconds=1500) == pytest.approx((2.4, 0.2))
    assert budget(speedup=2.0) == pytest.approx((2.4, 0.2))
    with pytest.raises(InputError, match="the target is 3.5 seconds, but the original needs 3 and"):
        budget(milliseconds=3500)


def test_table_from_a_different_machine(large, texts, tmp_path):
    """With a table from a different machine, only the table is used, and the report contains that machine's name."""
    table = table_for("a server", rest=0.5)
    file = tmp_path / "table.json"
    table.write(file)
    result = shrink(large, tmp_path / "out", speedup=2.0, latency_table=file, **rows(texts))
    attention, feed_forward = table.attention_times(), table.feed_forward_times()
    seconds = 0.5 + sum(attention[shape.heads] + feed_forward[shape.neurons] for shape in result.after)
    assert result.table_speedup == pytest.approx((0.5 + 3 * (1.12 + 0.48)) / seconds)
    assert 2.0 <= result.table_speedup < 2.1
    speed = f"{result.table_speedup:.2f} times as fast as the original on a server, according to its latency table ("
    assert speed in str(result) and speed in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(InputError, match="the target is 0.4818 seconds, .* smallest possible model needs 0.5"):
        shrink(large, tmp_path / "no", speedup=11.0, latency_table=file, **rows(texts))


def test_times_are_measured_and_written(large, texts, tmp_path):
    """If the file does not exist, all sublayers, including empty ones, are measured and the table is written."""
    context = ShrinkContext.load(large, CalibrationData(train_file=[rows(texts)["train_file"]]), Target(speedup=2.0))
    context.latency_file = tmp_path / "table.json"
    table = latency_table(context)
    assert table.attention_times().keys() >= {Heads(7, 8, 8), Heads(0, 8, 8)}
    assert len(table.feed_forward_times()) == 49
    assert all(seconds > 0 for *_, seconds in (*table.heads, *table.neurons))
    again = latency_table(context)
    assert again.attention_times() == table.attention_times() and again.machine == table.machine


@pytest.mark.parametrize("changes", [{"width": 64}, {"heads": []}, {"neurons": [(48, 1.0)]}])
def test_table_for_a_different_model(large, texts, tmp_path, changes):
    """A table that lacks times for the model's sublayers raises InputError, and nothing is written."""
    file = tmp_path / "table.json"
    table_for("a machine", **changes).write(file)
    with pytest.raises(InputError, match="measured for a model with a different shape"):
        shrink(large, tmp_path / "out", speedup=2.0, latency_table=file, **rows(texts))
    assert not list(tmp_path.glob("out*"))


def test_last_layer_of_a_classifier(large, texts, tmp_path):
    """Without padding, a classifier's last layer computes only the first tokens, so that pruning it saves nothing."""
    context = ShrinkContext.load(large, CalibrationData(train_file=[rows(texts)["train_file"]]), Target(speedup=2.0))
    assert {Heads(*shape) for *shape, _ in latency_table(context).last_heads} >= {Heads(7, 8, 8), Heads(0, 8, 8)}
    table = table_for("a server", rest=0.5, serving="without padding, in float32")
    options = rows(texts) | {"unpad_inputs": True, "speedup": 2.5, "latency_table": tmp_path / "table.json"}
    table.write(tmp_path / "table.json")
    with pytest.raises(InputError, match="measured with a different task head, batch size"):
        shrink(large, tmp_path / "out", **options)
    last = {
        "last_heads": [(*shape, 1e-6) for *shape, _ in table.heads],
        "last_neurons": [(n, 1e-6) for n in range(49)],
    }
    replace(table, **last).write(tmp_path / "table.json")
    result = shrink(large, tmp_path / "out", **options)
    assert (result.after[-1].heads.num_heads, result.after[-1].neurons) == (5, 37)  # nothing that is used was pruned
    assert result.after[0].heads.num_heads * result.after[0].neurons < 5 * 37


def test_table_for_different_serving(large, texts, tmp_path):
    """A table that was measured with padding does not apply to a model without padding."""
    table_for("a server").write(tmp_path / "table.json")
    options = rows(texts) | {"unpad_inputs": True, "latency_table": tmp_path / "table.json"}
    with pytest.raises(InputError, match="measured with padding, in float32, but the new model runs without padding"):
        shrink(large, tmp_path / "out", speedup=2.0, **options)
    assert not (tmp_path / "out").exists()
