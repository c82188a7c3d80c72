"""Tests for adding a task."""

import json

import datasets
from helpers.tiny_tasks import QUICK

from fixedbert.data.glue import TASKS, GlueTask
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.glue_metrics import MEASURES, METRICS


def test_adding_a_task(model, tmp_path, monkeypatch):
    """A task can be added with one entry in TASKS and one in METRICS."""
    task = GlueTask("Added", ("text",), ("no", "yes"), dataset_name="me/added", dataset_config_name="plain")
    monkeypatch.setitem(TASKS, "added", task)
    monkeypatch.setitem(METRICS, "added", ("recall",))
    monkeypatch.setitem(MEASURES, "recall", lambda labels, predictions: (predictions[labels == 1] == 1).mean())
    rows = datasets.Dataset.from_dict({"text": ["one two", "three", "four five", "six"], "label": [0, 1, 0, 1]})
    rows = rows.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    asked = []
    monkeypatch.setattr(
        "fixedbert.fine_tuning.texts.load_from_hub",
        lambda *names, **options: asked.append(names) or {"train": rows, "validation": rows},
    )
    command = ["--model_name_or_path", model, "--task_name", "added", "--do_train", "--do_eval", "--max_steps", "1"]
    run_glue([*command, *QUICK, "--seeds", "1", "--output_dir", str(tmp_path / "out")])
    assert asked == [("me/added", "plain")]
    assert json.loads((tmp_path / "out/results.json").read_text())["best"]["added"].keys() == {"recall"}
    card = (tmp_path / "out/added/seed-1/README.md").read_text()
    assert "me/added" in card and "nyu-mll/glue" not in card
