"""Tests of the demo."""

import json
from contextlib import nullcontext

import pytest

import run_demo
from fixedbert.support.errors import InputError


def write_results(directory, pairs: tuple[float, float], questions: tuple[float, float]):
    """Writes results of both tasks, each with and without pretraining, in the format of the scripts."""
    for task, fractions in (("pairs", pairs), ("questions", questions)):
        for start, fraction in zip(run_demo.START, fractions, strict=True):
            output = directory / run_demo.directory(task, start)
            output.mkdir(parents=True)
            scores = {"eval_accuracy": fraction} if task == "pairs" else {}
            scores |= {"eval_exact_match": 100 * fraction, "eval_f1": 100 * fraction} if task == "questions" else {}
            (output / "all_results.json").write_text(json.dumps(scores))


@pytest.mark.parametrize(
    "pairs, questions, message",
    [
        ((1.0, 0.5), (0.224, 0.252), "questions, exact match is 22.4% with pretraining .* 25.2% without"),
        ((1.0, 0.75), (1.0, 0.25), "pairs, accuracy is 100.0% with pretraining .* 75.0% without"),
        ((0.96, 0.74), (0.951, 0.25), None),
    ],
)
def test_scores_of_the_demo(tmp_path, monkeypatch, pairs, questions, message):
    """The demo fails with an error unless all metrics are above 95% with pretraining and below 75% without."""
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, pairs, questions)
    with pytest.raises(InputError, match=message) if message else nullcontext():
        run_demo.check_scores()
