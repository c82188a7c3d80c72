"""Tests of `python -m benchmarks.gpu`, on a CPU."""

import json
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks import backends, gpu, pretraining_steps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(backends.SCALES, "cpu", backends.Scale([7, 1, 4], [(6, 10)]))


def lines_of(tmp_path, status: int) -> dict[str, dict]:
    """Runs the benchmark, checks its exit status, and returns the lines of its results by title."""
    file = tmp_path / "results.json"
    assert gpu.main(["--output_json", str(file)]) == status
    return {line["title"]: line for line in json.loads(file.read_text())["lines"]}


def test_backends_agree_on_a_cpu(tmp_path, capsys):
    """Each backend is compared in three precisions, or skipped with a reason. The file contains all results."""
    lines = lines_of(tmp_path, 0)
    for backend in ("eager", "sdpa"):
        for dtype in ("float32", "float16", "bfloat16"):
            line = lines[f"{backend}, {dtype}"]
            assert line["right"] and len(line["values"]["cases"]) == 6
    skipped = {title: line["skipped"] for title, line in lines.items() if line["skipped"]}
    assert {"flash_attention_2", "flex_attention"} <= set(skipped)
    printed = capsys.readouterr().out
    assert all(f"skipped: {reason}" in printed for reason in skipped.values()) and "nothing is wrong" in printed


def test_incorrect_backend(tmp_path, monkeypatch, capsys):
    """A backend whose outputs are shifted by one token is reported as incorrect, and the exit status is 1."""
    monkeypatch.setattr(backends, "LAYOUTS", ("full rows",))
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def shifted(*inputs, **named):
        output, weights = original(*inputs, **named)
        return output.roll(1, 1), weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", shifted)
    lines = lines_of(tmp_path, 1)
    wrong = {title for title, line in lines.items() if line["right"] is False}
    assert wrong == {f"sdpa, {dtype}" for dtype in ("float32", "float16", "bfloat16")}
    assert "wrong: sdpa, float32" in capsys.readouterr().out


def test_steps_are_counted(monkeypatch):
    """Tokens and FLOPs are counted only for the measured steps, not for the warm-up."""
    monkeypatch.setattr(pretraining_steps, "LENGTH", 16)
    monkeypatch.setattr(pretraining_steps, "SHORT_FRACTION", 0)
    monkeypatch.setattr(pretraining_steps, "WARM_UP", 1)
    measured = pretraining_steps.measure_steps("tiny", CPU, rows=3, count=2)
    shape = pretraining_steps.KNOWN["tiny"]
    assert measured.tokens == 2 * 3 * 16 and measured.flops == pytest.approx(6 * shape.training_flops(16, 2))
    assert measured.seconds > 0
    assert "tokens/s" in measured.text(matmul_speed=1e12)
    assert pretraining_steps.measure_matmul(CPU, 8) > 0


def test_search_for_the_largest_batch_size(monkeypatch):
    """Out-of-memory errors halve the batch size. Presets that never fit are skipped, and other errors are reported."""
    texts = ("-- Process 1: torch.OutOfMemoryError: GPU 0", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    errors = dict(zip((256, 128, 64), map(RuntimeError, texts), strict=True)) | {32: torch.OutOfMemoryError("GPU 0")}
    broken, fits, too_large = pretraining_steps.PRESETS

    def run(_work, preset=fits, _device=None, rows=16, _count=1):  # the search passes arguments
        if preset == broken:
            raise BrokenProcessPool("terminated abruptly")
        if preset == too_large or rows in errors:
            raise errors.get(rows, errors[32])
        return pretraining_steps.Measurement(1, 1.0, 9, 9.0)

    monkeypatch.setattr(pretraining_steps, "in_a_process", run)
    monkeypatch.setattr(pretraining_steps, "measure_matmul", lambda *_: 1.0)
    matmul, first, second, last = pretraining_steps.speed_lines(torch.device("cuda"))
    assert first.title.startswith(broken) and first.right is False and "BrokenProcessPool" in first.result
    assert second.title == f"{fits}, 16 rows" and second.values
    assert last.title.startswith(too_large) and last.skipped == "out of memory"
