"""The demo: what it promises is checked."""

import json

import pytest

import run_demo
from fixedbert.support.errors import InputError


def write_results(folder, pairs: tuple[float, float], questions: tuple[float, float]):
    """Shares of right answers with and without pretraining, as the scripts write them."""
    for task, shares in (("pairs", pairs), ("questions", questions)):
        for start, share in zip(run_demo.START, shares, strict=True):
            output = folder / run_demo.directory(task, start)
            output.mkdir(parents=True)
            scores = {"eval_accuracy": share} if task == "pairs" else {}
            scores |= {"eval_exact_match": 100 * share, "eval_f1": 100 * share} if task == "questions" else {}
            (output / "all_results.json").write_text(json.dumps(scores))


def test_demo_that_keeps_its_promise(tmp_path, monkeypatch):
    """Guards: pretraining above 95 % and random weights below 75 % in every metric pass."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, (0.96, 0.74), (0.951, 0.25))
    run_demo.check_lesson()
    assert run_demo.scores()["questions, F1"] == pytest.approx((95.1, 25.0))


@pytest.mark.parametrize(
    "pairs, questions, said",
    [
        ((1.0, 0.5), (0.224, 0.252), "questions, exact match is 22.4 % with pretraining, .*; it is 25.2 % without"),
        ((1.0, 0.75), (1.0, 0.25), "pairs, accuracy is 100.0 % with pretraining, .*; it is 75.0 % without"),
    ],
)
def test_demo_that_misses_its_lesson(tmp_path, monkeypatch, pairs, questions, said):
    """Guards: where pretraining does not win by far, the demo ends with an error that names the scores."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, pairs, questions)
    with pytest.raises(InputError, match=said):
        run_demo.check_lesson()
