"""Tests of `python -m benchmarks.gpu`, on a CPU."""

import json

import pytest
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks import backends, gpu


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
