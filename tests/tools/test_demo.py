"""The demo checks its own results."""

import json

import pytest

import run_demo
from fixedbert.support.errors import InputError


def write_results(folder, pairs: tuple[float, float], questions: tuple[float, float]):
    """Writes results with and without pretraining, as the scripts do."""
    for task, shares in (("pairs", pairs), ("questions", questions)):
        for start, share in zip(run_demo.START, shares, strict=True):
            output = folder / run_demo.directory(task, start)
            output.mkdir(parents=True)
            scores = {"eval_accuracy": share} if task == "pairs" else {}
            scores |= {"eval_exact_match": 100 * share, "eval_f1": 100 * share} if task == "questions" else {}
            (output / "all_results.json").write_text(json.dumps(scores))


def test_demo_that_succeeds(tmp_path, monkeypatch):
    """Guards: the demo accepts more than 95 % with pretraining and less than 75 % without, in every metric."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, (0.96, 0.74), (0.951, 0.25))
    run_demo.check_lesson()
    assert run_demo.scores()["questions, F1"] == pytest.approx((95.1, 25.0))


@pytest.mark.parametrize(
    "pairs, questions, message",
    [
        ((1.0, 0.5), (0.224, 0.252), "questions, exact match is 22.4 % with pretraining .* 25.2 % without"),
        ((1.0, 0.75), (1.0, 0.25), "pairs, accuracy is 100.0 % with pretraining .* 75.0 % without"),
    ],
)
def test_demo_that_fails(tmp_path, monkeypatch, pairs, questions, message):
    """Guards: if pretraining does not win clearly, the demo fails with an error that states the scores."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, pairs, questions)
    with pytest.raises(InputError, match=message):
        run_demo.check_lesson()
