"""Tests of the demo."""

import json
from contextlib import nullcontext

import pytest
from helpers.tiny_checkpoints import SHAPE, TEXTS, save
from helpers.tiny_models import model_of

import fixedbert
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


def test_table_of_runtimes(tmp_path, monkeypatch, capsys):
    """The demo's table has a line for each runtime that `fixedbert compare` measured."""
    monkeypatch.chdir(tmp_path)
    save(model_of("ForSequenceClassification", num_hidden_layers=1, **SHAPE), tmp_path / "model")
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    runtimes = ["torch", "torch-unpadded"]
    fixedbert.compare("model", "rows.txt", runtime=runtimes, batch_size=2, output_dir=run_demo.COMPARED)
    capsys.readouterr()
    run_demo.show_runtimes()
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == runtimes and all(line.endswith("100.0%") for line in lines)
