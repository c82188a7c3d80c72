"""Execution of studies: checks, interruption, resumption, shares and several processes."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from helpers import ROOT, fork_server

from experiments import sample_tasks
from experiments.study.execution import RunLog, run_study
from experiments.study.records import read_records
from experiments.study.report import Report, make_report
from experiments.study.report_files import report_runs
from experiments.study.report_text import report_markdown
from experiments.study.run import constant_steps, execute
from experiments.study.sources import DataSources
from experiments.study.studies import load_study
from experiments.tests.tiny_studies import SMALL, fields_of, table, write
from fixedbert.counts import forward_flops
from fixedbert.presets import preset_config
from fixedbert.support.errors import InputError
from fixedbert.support.files import directory_lock

WARMUP_STABLE_DECAY = {
    "warmup_steps": 2,
    "lr_scheduler_type": "warmup_stable_decay",
    "lr_scheduler_kwargs": {"num_decay_steps": 3},
}


def train(file: str, output: Path, processes=None, share="1/1", take_over_output_dir=False, **sources) -> Report:
    study = load_study(file)
    return run_study(study, output, DataSources(**sources), processes, share, take_over_output_dir)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """Returns the path of a file with 40 documents of 12 sentences."""
    file = tmp_path_factory.mktemp("text") / "text.jsonl"
    words = "the function takes one string and returns two lists of three words".split()
    lines = []
    for number in range(40):
        sentences = (
            " ".join(words[(number * 7 + place * 3 + k) % len(words)] for k in range(9)) for place in range(12)
        )
        lines.append(json.dumps({"text": ". ".join(sentences) + "."}))
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_runs_shared_by_series(tmp_path):
    """A run that two series share is trained once, and its record is copied."""
    series = {"standard": {"num_attention_heads": [4, 8], "attention_head_size": None}}
    series["fixed"] = {"num_attention_heads": [4, 8], "attention_head_size": 8}
    lines = RunLog(tmp_path, table(series=series), (1, 1))
    assert [(run.series, run.point) for run in lines.ready()] == [("standard", 0), ("standard", 1), ("fixed", 1)]
    for run in lines.ready():
        lines.add(run, fields_of(run, 1.0))
    assert lines.ready() == lines.left() == []
    written = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [(line["series"], line["point"]) for line in written] == [
        ("standard", 0), ("standard", 1), ("fixed", 1), ("fixed", 0)
    ]  # fmt: skip
    assert written[0]["key"] == written[3]["key"]
    # An incomplete line, left by a killed process, is removed.
    whole = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(whole + whole[:50])
    assert [asdict(one) for one in RunLog(tmp_path, lines.study, (1, 1)).records] == written
    assert (tmp_path / "runs.jsonl").read_text() == whole
    # The question may change, because it does not affect training.
    asked = replace(lines.study, question="Why?")
    assert {record.question for record in RunLog(tmp_path, asked, (1, 1)).records} == {"Why?"}
    # Records of changed shapes are refused.
    with pytest.raises(InputError, match="standard, shape 1 has changed"):
        RunLog(tmp_path, table(series=series, model={**SMALL["model"], "intermediate_size": 38}), (1, 1))


def start(study_file: str, text: str, vocabulary: str, output: Path) -> BaseProcess:
    arguments = [study_file, "--train_file", text, "--processes", "1"]
    arguments += ["--tokenizer_name", vocabulary, "--output_dir", str(output)]
    return fork_server.start(ROOT / "experiments/study/__main__.py", arguments, ROOT, output.parent)


def wait_for(process: BaseProcess, condition: Callable[[], object]):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)


def comparable(folder: Path) -> list[dict]:
    """Returns the records in the order of their keys, with zero for the seconds."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return sorted(({**line, "seconds": 0} for line in lines), key=lambda line: line["key"])


@pytest.mark.slow
def test_resumption(text, vocabulary, tmp_path):
    """A study that is killed and resumed has the same records and curves as an uninterrupted one."""
    evaluated = {**SMALL["pretraining"], "eval_strategy": "steps", "eval_steps": 4}
    file, killed, whole = write(tmp_path, pretraining=evaluated), tmp_path / "killed", tmp_path / "whole"
    process = start(file, text, vocabulary, killed)
    wait_for(process, lambda: (killed / "runs.jsonl").exists() and (killed / "runs.jsonl").read_text())
    wait_for(process, lambda: [*killed.glob("unfinished/*/stage-1.partial/checkpoint-10/trainer_state.json")])
    process.kill()
    process.join()
    before = (killed / "runs.jsonl").read_text()
    assert len(before.splitlines()) == 1
    done = fork_server.ended(start(file, text, vocabulary, killed), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (killed / "runs.jsonl").read_text().startswith(before)
    assert json.loads((killed / "runs.jsonl").read_text().splitlines()[1])["seconds"] is None
    train(file, whole, processes=1, train_file=[text], tokenizer_name=vocabulary)
    assert comparable(killed) == comparable(whole) and len(comparable(whole)) == 2
    report = {"report.md", "report.png", "curves.png"}
    assert {path.name for path in whole.iterdir()} == {"study.json", "runs.jsonl", *report}

    # The record describes the run.
    line = comparable(whole)[0]
    config = preset_config("tiny", **table().shapes["fixed"][line["point"]])
    assert (line["hidden_size"], line["attention_head_size"], line["intermediate_size"]) == (32, 6, 37)
    assert (line["num_attention_heads"], line["seed"], line["learning_rate"]) == ((5, 3)[line["point"]], 5, 0.003)
    assert 0.95 * 30 * 4 * 16 < line["tokens"] <= 30 * 4 * 16 and line["objective"] == "clm"  # the last row is short
    assert line["training_flops"] == 3 * forward_flops(config, 16) * 30 * 4 * 16
    assert len(line["curve"]) == 8 and line["curve"][-1] == [line["tokens"], line["results"]["loss"]]
    assert line["results"]["perplexity"] == pytest.approx(2.718281828 ** line["results"]["loss"])
    assert set(line["versions"]) == {"fixedbert", "torch", "transformers", "python"}

    # A finished study is not repeated, and different texts need a different directory.
    again = comparable(whole)
    train(file, whole, train_file=[text], tokenizer_name=vocabulary)
    assert comparable(whole) == again
    with pytest.raises(InputError, match="contains other files, or runs of a different study"):
        train(file, whole, train_file=[text, text], tokenizer_name=vocabulary)


@pytest.mark.slow
def test_interrupted_runs_save_a_checkpoint(text, vocabulary, tmp_path):
    """After Ctrl-C, runs save a checkpoint, and all processes end without a traceback."""
    steps = {**SMALL["pretraining"], "max_steps": 100_000, "save_steps": 100_000}
    process = start(write(tmp_path, pretraining=steps), text, vocabulary, tmp_path / "out")
    logs = tmp_path / "out" / "unfinished"
    wait_for(process, lambda: any("tokens_per_second" in log.read_text() for log in logs.glob("*.log")))
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    done = fork_server.ended(process, tmp_path)
    assert len(children) >= 1 and psutil.wait_procs(children, timeout=20)[1] == []
    assert done.returncode == 130 and "interrupted" in done.stderr and "Traceback" not in done.stderr
    assert len(list(tmp_path.glob("out/unfinished/*/stage-1.partial/checkpoint-*/trainer_state.json"))) == 1


@pytest.mark.slow
def test_shares_and_workers(tmp_path):
    """Shares of several machines, one with two processes, give the same report as one that runs the whole study."""
    synthetic = {
        "axis": "attention_head_size",
        "learning_rates": [0.03, 0.1],
        "seeds": [1, 2],
        "model": {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1},
        "pretraining": {"max_seq_length": 5, "total_train_batch_size": 7, "max_steps": 40},
        "series": {"dense": {"objective": "dense", "attention_head_size": [1, 5]}},
    }
    file = write(tmp_path, **synthetic)
    train(file, tmp_path / "share-1", processes=2, share="1/2")
    for name, part in (("whole", (1, 1)), ("share-2", (2, 2))):
        (tmp_path / name).mkdir()
        log = RunLog(tmp_path / name, load_study(file), part)  # runs in this process, which is faster
        while ready := log.ready():
            log.add(ready[0], execute(ready[0], tmp_path / "run", DataSources()))
    assert multiprocessing.active_children() == []
    whole, first, second = (tmp_path / name / "runs.jsonl" for name in ("whole", "share-1", "share-2"))
    assert [len(lines.read_text().splitlines()) for lines in (whole, first, second)] == [6, 3, 3]
    texts = [
        report_markdown(report_runs(files, tmp_path / f"report-{len(files)}")) for files in ([whole], [first, second])
    ]
    rows = [[line for line in text.splitlines() if line.startswith(("| ", "- "))] for text in texts]
    assert rows[0] == rows[1] and sum(row.startswith("| ") for row in rows[0]) == 1 + 2
    assert sum(row.startswith("- dense, head size 1 to 5: ") for row in rows[0]) == 1


@pytest.mark.slow
def test_distributed_run(text, vocabulary, tmp_path):
    """Two processes of a launcher train a run together and write a single record."""
    file = write(tmp_path, series={"fixed": {"num_attention_heads": 5, "attention_head_size": 6}})
    data = ("--train_file", text, "--tokenizer_name", vocabulary, "--output_dir", str(tmp_path / "out"))
    fork_server.Pair(ROOT / "experiments/study/__main__.py", [file, *data], tmp_path / "printed").finished()
    (line,) = comparable(tmp_path / "out")
    assert 0.95 * 30 * 4 * 16 < line["tokens"] <= 30 * 4 * 16  # as in a single process
    assert (tmp_path / "out" / "report.md").exists()


@pytest.mark.slow
def test_two_stages_and_fine_tuning(text, vocabulary, download, tmp_path):
    """Each stage continues from the previous one with new examples, and fine-tuning follows."""
    (tmp_path / "squad").mkdir()
    for name, split in (("train-v1.1.json", "train"), ("dev-v1.1.json", "dev")):
        (tmp_path / "squad" / name).write_text(json.dumps(sample_tasks.questions(31, split)))
    first = {**SMALL["pretraining"], "max_steps": 10}
    tune = {"max_steps": 3, "train_batch_size": 4, "max_seq_length": 32, "bf16": False}
    made = table(
        objective="mlm",
        pretraining=[first, {**first, "max_steps": 5, "max_seq_length": 24}],
        fine_tuning={"mnli": tune, "squad": {**tune, "max_seq_length": 64, "doc_stride": 8}},
    )
    data = DataSources(
        train_file=[text], tokenizer_name=vocabulary, glue_dir=download, squad_dir=str(tmp_path / "squad")
    )
    data.check(made)
    line = execute(made.run("fixed", 0, 0.003, 5), tmp_path / "run", data)
    summaries = [json.loads((tmp_path / "run" / f"stage-{n}" / "summary.json").read_text()) for n in (1, 2)]
    assert [summary["steps"] for summary in summaries] == [10, 5]
    commands = [json.loads((tmp_path / "run" / f"stage-{n}" / "command.json").read_text()) for n in (1, 2)]
    assert [command["seed"] for command in commands] == [5, 1005]
    assert commands[1]["model_name_or_path"] == str(tmp_path / "run" / "stage-1")
    assert line["tokens"] == sum(summary["real tokens seen"] for summary in summaries)
    assert line["max_seq_length"] == 24
    results = line["results"]
    assert set(results) == {
        "loss", "masked_perplexity", "accuracy", "mnli_accuracy", "mnli_accuracy_mm", "squad_f1", "squad_exact_match"
    }  # fmt: skip
    assert results["loss"] == pytest.approx(summaries[1]["results"]["eval_mlm_loss"])
    for task, name, found in (("mnli", "mnli_accuracy", "eval_accuracy"), ("squad", "squad_f1", "eval_f1")):
        scores = json.loads((tmp_path / "run" / task / "all_results.json").read_text())
        assert results[name] == scores[found]


def test_curves(text, vocabulary, tmp_path):
    """Curves contain every evaluation, and evaluations do not change the weights."""
    data = DataSources(train_file=[text], tokenizer_name=vocabulary)
    model = {**SMALL["model"], "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    weights, records = [], []
    for changes in ({}, {"eval_strategy": "steps", "eval_steps": 4}):
        folder = tmp_path / str(len(records))
        stage = {**SMALL["pretraining"], **WARMUP_STABLE_DECAY, "max_steps": 13, "logging_steps": 4, **changes}
        made = table(model=model, pretraining=stage)
        records.append(execute(made.run("fixed", 1, 0.003, 5), folder, data))
        weights.append((folder / "stage-1" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    end = [records[1]["tokens"], records[1]["results"]["loss"]]
    assert records[0]["curve"] == [end]
    (*along, last), logged = records[1]["curve"], json.loads((folder / "stage-1" / "trainer_state.json").read_text())
    losses = {entry["step"]: entry["eval_clm_loss"] for entry in logged["log_history"] if "eval_loss" in entry}
    assert along == [[pytest.approx(step * 4 * 16, rel=0.05), losses[step]] for step in (4, 8, 12)] and last == end
    rates = {entry["step"]: entry["learning_rate"] for entry in logged["log_history"] if "loss" in entry}
    assert rates[4] == rates[8] == 0.003 > rates[12] > 0
    assert [record["decay_from"] for record in records] == [None, along[1][0]]  # the rate falls after step 10
    constant = {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": None}
    for changes, steps in ((WARMUP_STABLE_DECAY, 10), (constant, 13), ({}, 0), ({"lr_scheduler_type": "cosine"}, 0)):
        assert constant_steps({**SMALL["pretraining"], "max_steps": 13, **changes}) == steps


def test_divergence(text, tmp_path):
    """The record of a diverged run has no token count and no FLOPs."""
    study = load_study(write(tmp_path))
    run = study.run("fixed", 0, 1e30, 5)
    record = execute(run, tmp_path / "run", DataSources(train_file=[text]))
    assert record["results"] == {"loss": None} and record["tokens"] is record["training_flops"] is None
    RunLog(tmp_path, study, (1, 1)).add(run, record)
    (log,) = tmp_path.glob("*.jsonl")
    assert "with an unknown number of tokens" in report_markdown(make_report(read_records([log])))


def test_directories_in_use(tmp_path, text):
    """A study does not start in a directory that another process uses or that contains other files."""
    with directory_lock(tmp_path / "out"), pytest.raises(InputError, match="in use by process"):
        train(write(tmp_path), tmp_path / "out", train_file=[text])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="contains other files"):
        train(write(tmp_path), tmp_path / "other", train_file=[text])
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"


def test_invalid_fine_tuning_data(text, tmp_path):
    """Invalid SQuAD files and missing GLUE tasks are refused before hours of pretraining."""
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text('{"data": [{"paragraphs": 3}]}')
    tuned = {"objective": "mlm", "fine_tuning": {"squad": {"max_seq_length": 16}, "mnli": {"max_seq_length": 16}}}
    file = write(tmp_path, **tuned)
    with pytest.raises(InputError, match="train-v1.1.json"):
        train(file, tmp_path / "out", train_file=[text], squad_dir=str(tmp_path))
    with pytest.raises(InputError, match="train.tsv"):
        train(file, tmp_path / "out", train_file=[text], glue_dir=str(tmp_path))
    assert not (tmp_path / "out").exists()
