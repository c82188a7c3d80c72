"""Tests for sweeps over tasks and seeds."""

import json
import re
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.tiny_tasks import glue, squad
from transformers import AutoModelForSequenceClassification

from fixedbert.fine_tuning.sweep import PlannedRun, plan_runs, print_row, run_fields, summarize, tasks_of
from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.options import GlueDataOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.glue import TASKS


def test_all_tasks_in_one_command(model, download, tmp_path, capsys):
    """One command trains on all GLUE tasks, predicts AX with the new MNLI model, and writes averages and plots."""
    output = tmp_path / "out"
    steps = ("--max_steps", "2", "--per_device_train_batch_size", "4")
    glue(model, download, output, "--do_train", "--do_eval", "--do_predict", "--seeds", "5", *steps, task="all")
    for name, task in TASKS.items():
        directory = output / name / "seed-5"
        files = [task.submission(split) for split in task.files if split.startswith("test")]
        for file in files:
            lines = (directory / file).read_text().splitlines()
            assert lines[0] == "index\tprediction"
            assert [line.split("\t")[0] for line in lines[1:]] == [str(100 + number) for number in range(7)]
            allowed = {str(n) for n in range(len(task.labels))} if task.numbered else set(task.labels)
            assert not allowed or {line.split("\t")[1] for line in lines[1:]} <= allowed
        if name != "ax":
            assert (directory / "glue.png").read_bytes()[:4] == b"\x89PNG"
            found = json.loads((directory / "all_results.json").read_text())
            assert (found["train_samples"], found["eval_samples"]) == (23, 13)
            AutoModelForSequenceClassification.from_pretrained(directory)
    results = json.loads((output / "results.json").read_text())
    assert [run["task"] for run in results["runs"]] == [task for task in TASKS if task != "ax"]
    by_task = {run["task"]: run for run in results["runs"]}
    main = {"cola": "eval_matthews_correlation", "mrpc": "eval_combined_score", "qqp": "eval_combined_score"}
    main |= {"stsb": "eval_combined_score"}
    scores = {task: run[main.get(task, "eval_accuracy")] for task, run in by_task.items()}
    scores["mnli"] = (by_task["mnli"]["eval_accuracy"] + by_task["mnli"]["eval_accuracy_mm"]) / 2
    assert results["average"] == [pytest.approx(np.mean(list(scores.values())))]
    del scores["wnli"]
    assert results["average without wnli"] == [pytest.approx(np.mean(list(scores.values())))]
    table = capsys.readouterr().out
    for line in (r"stsb +pearson", r"stsb +spearmanr", r"mnli +accuracy_mm", r"average +-?0\.\d{4}"):
        assert re.search(line, table)
    glue(str(output / "mnli/seed-5"), download, tmp_path / "alone", "--do_predict", task="ax")
    assert (tmp_path / "alone/AX.tsv").read_text() == (output / "ax/seed-5/AX.tsv").read_text()
    assert tasks_of(GlueDataOptions(task_name=["ax", "mnli"]), True) == ["mnli", "ax"]


def test_runs_of_a_sweep(tmp_path):
    """Each seed is trained once, in a directory of its own."""
    training_args = FineTuningArguments(output_dir=str(tmp_path), seeds=[1, 2, 1], use_cpu=True)
    runs = plan_runs(["rte"], training_args)
    assert [run.directory for run in runs] == ["rte/seed-1", "rte/seed-2"]
    assert PlannedRun(None, 7).directory == "seed-7"
    assert run_fields(runs[1], {"seeds": [1, 2, 1], "learning_rate": 0.5, "bf16": False}, training_args) == {
        "bf16": False,
        "task_name": ["rte"],
        "seed": 2,
        "learning_rate": 0.5,
        "output_dir": str(tmp_path / "rte/seed-2"),
    }


def test_seeds_of_squad(model, questions, tmp_path, capsys):
    """The results for several seeds include the scores for questions, and a table shows their statistics."""
    squad(model, questions, tmp_path / "out", "--do_train", "--do_eval", "--max_steps", "1", "--seeds", "3", "4")
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["tasks"]["data"]["f1"] == [run["eval_f1"] for run in results["runs"]]
    capsys.readouterr()
    print_row("rte", "accuracy", [0.5, 0.6, 1.0])
    assert capsys.readouterr().out.split()[-6:] == ["0.6000", "0.7000", "0.2646", "0.5000", "1.0000", "3"]


def test_repeated_sweeps(model, download, tmp_path, monkeypatch, capsys):
    """A sweep continues only with the same seeds and data, and stays complete if it is refused."""
    download = str(shutil.copytree(download, tmp_path / "download"))
    sweep = ("--do_train", "--do_eval", "--max_steps", "1", "--seeds", "1", "2")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.fine_tuning.sweep.gc", Mock(collect=Mock(side_effect=KeyboardInterrupt)))
        glue(model, download, tmp_path / "out", *sweep)  # only the first run
    file = tmp_path / "download/RTE/train.tsv"
    rows = file.read_text()
    file.write_text("".join(rows.splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="seed-1: the data has changed"):
        glue(model, download, tmp_path / "out", *sweep)
    file.write_text(rows)
    glue(model, download, tmp_path / "out", *sweep)
    with pytest.raises(InputError, match="different arguments \\(seeds"):
        glue(model, download, tmp_path / "out", *sweep, "3")
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]
    glue(model, download, tmp_path / "out", *sweep)
    assert "already complete" in capsys.readouterr().out
    (tmp_path / "out/rte/seed-1/all_results.json").write_text("{")
    with pytest.raises(InputError, match="seed-1/all_results.json: cannot be read"):
        summarize(tmp_path / "out", [PlannedRun("rte", 1)])


def test_metric_of_one_task(model, download, tmp_path):
    """A metric that one of the tasks lacks is refused before the first run."""
    with pytest.raises(InputError, match="'f1': unknown metric; available metrics: loss, pearson"):
        glue(model, download, tmp_path / "no", "--do_train", "--metric_for_best_model", "f1", task="mrpc stsb")
    assert not list(tmp_path.glob("no*"))  # incomplete sweeps without a run are removed
