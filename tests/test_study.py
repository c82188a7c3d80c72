"""Studies: the tables, what is run when, and runs that are killed, continued, shared out and launched together."""

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
import yaml
from launch import TWO_PROCESSES, finished, launch

from fixedbert.counts import forward_flops, parameters
from fixedbert.errors import InputError
from fixedbert.locks import locked
from fixedbert.presets import PRESETS, preset_config
from fixedbert.printing import TIMES, TOKENS, in_unit, study_cost_text
from fixedbert.study import (
    DataSources,
    Report,
    load_study,
    report_markdown,
    report_runs,
    run_study,
    studies,
    study_cost,
)
from fixedbert.study.records import METRICS
from fixedbert.study.run import execute
from fixedbert.study.scheduler import RunLog, receive, study_directory, visible_gpu
from fixedbert.study.shape_results import shapes_by_series
from fixedbert.study.studies import MOST_EXTENSIONS, Study, named_studies, parse_share
from fixedbert.study.synthetic import TASKS
from fixedbert_cli import main

NAMES = tuple(named_studies())
OF_TASKS = {"synthetic", *TASKS, "memorise"}.__contains__
SMALL = {
    "question": "?",
    "axis": "num_attention_heads",
    "learning_rates": [0.003],
    "seeds": [5],
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 37},
    "pretraining": {
        "max_seq_length": 16,
        "total_train_batch_size": 4,
        "max_steps": 30,
        "save_steps": 5,
        "save_total_limit": 2,
        "max_eval_samples": 13,
        "preprocessing_num_workers": 1,
        "logging_steps": 5,
    },
    "series": {"fixed": {"num_attention_heads": [5, 3], "attention_head_size": 6}},
}
WARMUP_STABLE_DECAY = {
    "warmup_steps": 2,
    "lr_scheduler_type": "warmup_stable_decay",
    "lr_scheduler_kwargs": {"num_decay_steps": 3},
}
OF_A_PATTERN = {"max_seq_length": 16, "total_train_batch_size": 4, "max_steps": 30}


def table(**changes) -> Study:
    entries = {**SMALL, **changes}
    stages = entries["pretraining"]
    return Study(name="small", **{**entries, "pretraining": stages if isinstance(stages, list) else [stages]})


def write(folder: Path, **changes) -> str:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**SMALL, **changes}))
    return str(file)


def train(file: str, output: Path, processes=None, share="1/1", take_over_output_dir=False, **sources) -> Report:
    study = load_study(file)
    return run_study(study, output, DataSources(**sources), processes, share, take_over_output_dir)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """40 documents of a few sentences."""
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


@pytest.mark.parametrize(
    "name, scale", [(name, scale) for name in NAMES if not OF_TASKS(name) for scale in named_studies()[name]["scales"]]
)
def test_shapes_made_equal_are_equal(name, scale):
    """Guards: every named study can be made at every scale, and what is to be equal is, to one unit of the width."""
    made = load_study(name, scale)
    for series, shapes in made.shapes.items():
        for point, shape in enumerate(shapes):
            equal = made.series[series].get("equal")
            if equal is None:
                continue
            goal = made.reference_point(series, point)
            length = made.pretraining[-1]["max_seq_length"]
            config = preset_config("tiny", **shape)
            other = preset_config("tiny", **made.shapes[made.series[series]["to"]][goal])
            if equal == "parameters":
                counts, unit = (parameters(config)[1], parameters(other)[1]), 2 * config.hidden_size + 1
            else:
                counts, unit = (forward_flops(config, length), forward_flops(other, length)), 4 * config.hidden_size
            assert abs(counts[0] - counts[1]) <= config.num_hidden_layers * unit / 2


def test_paper_scale_is_the_papers():
    """Guards: heads and head-size at paper scale have the parameters that the paper prints in Tables 1, 2A and 2B."""
    printed = {
        (p.hidden_size, p.num_attention_heads, preset_config(n).head_dim): p.parameters
        for n, p in PRESETS.items()
        if p.parameters
    }
    found = set()
    for name in ("heads", "head-size"):
        made = load_study(name, "paper")
        for series, shapes in made.shapes.items():
            for shape in shapes:
                config = preset_config("tiny", **shape)
                key = (config.hidden_size, config.num_attention_heads, config.head_dim)
                if key in printed and "to" not in made.series[series]:
                    assert round(parameters(config)[0] / 1e6) == printed[key]
                    found.add(key)
    assert len(found) == 3 + 4 + 3
    stages = load_study("heads", "paper").pretraining
    assert [stage["max_seq_length"] for stage in stages] == [128, 512]
    assert [stage["max_steps"] for stage in stages] == [450_000, 50_000]


def line_of(made: Study, run, loss: float | None) -> dict:
    """A record with all fields, of which those that a study goes by are true."""
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "head_embedding",
        "qk_norm",
        "attention",
    )
    shape = {name: getattr(run.config, name) for name in names} | {"attention_head_size": run.config.head_dim}
    shape["value_head_size"] = run.config.value_head_sizes[0]
    settings = {"training_flops": run.training_flops, "learning_rate": run.learning_rate, "seed": run.seed}
    numbers = dict.fromkeys(("parameters", "non_embedding_parameters", "forward_flops", "max_seq_length", "tokens"), 1)
    place = {
        "curve": None,
        "epochs": 1.0,
        "seconds": 1.0,
        "texts": None,
        "hardware": "",
        "threads": 1,
        "versions": {},
        "commit": None,
    }
    found = {"key": run.key, "objective": run.objective, "results": {"loss": loss}}
    return {**found, **shape, **settings, **numbers, **place, **made.labels(run)}


def test_every_shape_is_tuned_alike():
    """
    Guards: the whole grid with the first seed, then the best rate alone with the others; what diverged loses. A shape
    is complete before the next one goes on.
    """
    made = table(learning_rates=[0.1, 0.2, 0.3], seeds=[7, 8, 9])
    grid = made.runs([])
    assert [(run.point, run.learning_rate, run.seed) for run in grid] == [
        (point, rate, 7) for point in (0, 1) for rate in (0.1, 0.2, 0.3)
    ]
    lines = [line_of(made, run, loss) for run, loss in zip(grid[:3], [3.0, 2.0, None], strict=True)]
    ready = made.runs(lines)
    assert [(run.point, run.learning_rate, run.seed) for run in ready] == [
        (0, 0.2, 8), (0, 0.2, 9), *((1, rate, 7) for rate in (0.1, 0.2, 0.3))
    ]  # fmt: skip
    lines += [line_of(made, run, 1.0) for run in ready]
    assert [(run.point, run.seed) for run in made.runs(lines)] == [(1, 8), (1, 9)]
    lines += [line_of(made, run, 1.0) for run in made.runs(lines)]
    assert made.runs(lines) == [] and len(lines) == 2 * (3 + 2)


def test_grids_are_extended_until_the_best_rate_is_inside():
    """Guards: beyond the best rate the next by the ratio comes with the first seed, until there is a worse one."""
    made = table(learning_rates=[0.1, 0.3], seeds=[7, 8], extend_learning_rates=True)
    lines = []

    def train(losses):
        ready = [run for run in made.runs(lines) if run.point == 0]
        assert [run.seed for run in ready] == [7] * len(ready)
        assert [run.learning_rate for run in ready] == list(losses)
        lines.extend(line_of(made, run, losses[run.learning_rate]) for run in ready)

    train({0.1: 3.0, 0.3: 2.0})
    train({0.9: 1.0})
    train({2.7: None})
    assert [(run.learning_rate, run.seed) for run in made.runs(lines) if run.point == 0] == [(0.9, 8)]
    # Downwards too, from where all diverged; no further than MOST_EXTENSIONS, and not where rates are as good.
    assert made.rate_beyond([(None, 0.1), (None, 0.3)]) == 0.0333
    assert made.rate_beyond([(1.0, 0.1), (1.0, 0.3)]) is None
    assert made.rate_beyond([(1.0 + place, 0.1 * 3**place) for place in range(2 + MOST_EXTENSIONS)]) is None
    assert table(learning_rates=[0.1, 0.3]).rate_beyond([(1.0, 0.1), (2.0, 0.3)]) is None


def test_a_shorter_grid_chooses_the_rate_alone():
    """Guards: with `grid` its runs are short, and the best rate is then trained in full with the first seed too."""
    own = {"num_attention_heads": 5, "attention_head_size": 6}
    made = table(learning_rates=[0.1, 0.3], seeds=[7, 8], extend_learning_rates=True, grid={"max_steps": 11},
                 series={"a": own, "b": {**own, "pretraining": {"save_steps": 3}}})  # fmt: skip
    lines = []

    def train(losses: dict[float, float], of_grid: bool):
        ready = [run for run in made.runs(lines) if run.series == "b"]
        assert {run.learning_rate for run in ready} == losses.keys()
        assert all(run.pretraining[0]["max_steps"] == (11 if of_grid else 30) for run in ready)
        assert all(run.pretraining[0]["save_steps"] == 3 and run.of_grid == of_grid for run in ready)
        assert [run.seed for run in ready] == ([7] * len(ready) if of_grid else [7, 8])
        lines.extend(line_of(made, run, losses[run.learning_rate]) for run in ready)

    train({0.1: 2.0, 0.3: 1.0}, of_grid=True)
    train({0.9: 3.0}, of_grid=True)
    assert shapes_by_series(lines) == {}  # runs of the grid are no results
    train({0.3: 4.0}, of_grid=False)
    assert [run for run in made.runs(lines) if run.series == "b"] == []
    assert [made.run_of(line).key for line in lines] == [line["key"] for line in lines]
    ((shape,),) = shapes_by_series(lines).values()
    assert [record["seed"] for record in shape.records] == [7, 8] and shape["results"] == {"loss": 4.0}
    assert sorted(shape.learning_rates) == [0.1, 0.3, 0.9] and shape.end_of_grid is None
    cost = study_cost(made)
    assert (cost.runs, cost.tokens) == (2 * (2 + 2), 2 * (2 * 11 + 2 * 30) * 4 * 16)
    printed = "8 runs, and more where grids are extended: of 2 different shapes each 2 learning rates in shorter runs "
    assert printed + "with the first seed, the best of them with 2; " in study_cost_text(cost)


def test_series_have_pretraining_of_their_own():
    """Guards: a series replaces some arguments for its own runs; without any, a training keeps its fingerprint."""
    own = {"num_attention_heads": 5, "attention_head_size": 6}
    made = table(series={"short": {**own, "pretraining": {"max_seq_length": 8}}, "as it is": own})
    short, whole = made.run("short", 0, 0.003, 5), made.run("as it is", 0, 0.003, 5)
    assert (short.length, whole.length) == (8, 16) and short.key != whole.key
    assert short.pretraining == [{**SMALL["pretraining"], "max_seq_length": 8}]
    assert whole.pretraining == [SMALL["pretraining"]]
    assert short.config.max_position_embeddings == 8


def test_shares_make_up_the_study():
    """Guards: the shares of several machines have every shape once, with its whole grid."""
    made = load_study("heads", "tiny")
    parts = [made.places((number, 3)) for number in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(made.places()) and len(made.places()) == 12
    assert parse_share("2/3") == (2, 3)


def test_a_training_that_stands_twice_is_done_once(tmp_path):
    """Guards: where two series have the same shape, its line is copied under the name of the second."""
    series = {"standard": {"num_attention_heads": [4, 8], "attention_head_size": None}}
    series["fixed"] = {"num_attention_heads": [4, 8], "attention_head_size": 8}
    lines = RunLog(tmp_path, table(series=series), (1, 1))
    assert [(run.series, run.point) for run in lines.ready()] == [("standard", 0), ("standard", 1), ("fixed", 1)]
    for run in lines.ready():
        lines.add(run, line_of(lines.study, run, 1.0))
    assert lines.ready() == [] and lines.done == lines.total
    places = ("standard", 0), ("standard", 1), ("fixed", 1)
    assert lines.done == sum(lines.study.run(*place, 0.003, 5).training_flops for place in places)
    written = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [(line["series"], line["point"]) for line in written] == [
        ("standard", 0), ("standard", 1), ("fixed", 1), ("fixed", 0)
    ]  # fmt: skip
    assert written[0]["key"] == written[3]["key"]
    # Half a line, of a process that was killed, is cut off.
    whole = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(whole + whole[:50])
    assert RunLog(tmp_path, lines.study, (1, 1)).records == written
    assert (tmp_path / "runs.jsonl").read_text() == whole
    # What does not change a training can change.
    asked = replace(lines.study, question="Another?", axis="hidden_size")
    assert {(line["question"], line["axis"]) for line in RunLog(tmp_path, asked, (1, 1)).records} == {
        ("Another?", "hidden_size")
    }
    # Lines of shapes that the study no longer has are not mixed with those it has.
    with pytest.raises(InputError, match="standard, shape 1 is not what it was"):
        RunLog(tmp_path, table(series=series, model={**SMALL["model"], "intermediate_size": 38}), (1, 1))


def test_the_total_follows_what_is_known(tmp_path):
    """Guards: an extended grid adds to the total of the bar; a run that ended early counts with what it trained."""
    series = {"fixed": {"num_attention_heads": 5, "attention_head_size": 6}}
    lines = RunLog(tmp_path, table(learning_rates=[0.1, 0.2], seeds=[5, 6], extend_learning_rates=True,
                                   series=series), (1, 1))  # fmt: skip
    whole = lines.study.run("fixed", 0, 0.1, 5).training_flops
    assert (lines.done, lines.total) == (0, 3 * whole)
    for rate, loss, trained in ((0.1, 2.0, whole), (0.2, 1.0, whole - 500)):
        run = lines.study.run("fixed", 0, rate, 5)
        lines.add(run, {**line_of(lines.study, run, loss), "training_flops": trained})
    assert (lines.done, lines.total) == (2 * whole - 500, 4 * whole - 500)
    (beyond,) = lines.ready()
    assert len(lines.left()) == 2  # with the other seed: as many processes have work
    lines.add(beyond, line_of(lines.study, beyond, 3.0))
    (last,) = lines.ready()
    lines.add(last, line_of(lines.study, last, 1.0))
    assert lines.ready() == [] and lines.done == lines.total == 4 * whole - 500


def start(study_file: str, text: str, vocabulary: str, output: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fixedbert", "study", study_file, "--train_file", text, "--processes", "1"]
    command += ["--tokenizer_name", vocabulary, "--output_dir", str(output), *more]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def comparable(folder: Path) -> list[dict]:
    """The lines, but for seconds, in the order of their keys."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return sorted(({**line, "seconds": 0} for line in lines), key=lambda line: line["key"])


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_lines(text, vocabulary, tmp_path):
    """
    Guards: a study of two runs, killed within the second and continued, has the lines of one that was not, with the
    losses along the way.
    """
    evaluated = {**SMALL["pretraining"], "eval_strategy": "steps", "eval_steps": 4}
    file, killed, whole = write(tmp_path, pretraining=evaluated), tmp_path / "killed", tmp_path / "whole"
    process = start(file, text, vocabulary, killed)
    deadline = time.monotonic() + 120
    while (
        not list(killed.glob("unfinished/*/stage-1.partial/checkpoint-10/trainer_state.json"))
        or not (killed / "runs.jsonl").read_text()
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = (killed / "runs.jsonl").read_text()
    assert len(before.splitlines()) == 1
    with open(killed / "runs.jsonl", "a") as opened:
        opened.write(before[:100])
    finished(start(file, text, vocabulary, killed))
    assert (killed / "runs.jsonl").read_text().startswith(before)
    assert json.loads((killed / "runs.jsonl").read_text().splitlines()[1])["seconds"] is None
    finished(start(file, text, vocabulary, whole))
    assert comparable(killed) == comparable(whole) and len(comparable(whole)) == 2
    report = {"report.md", "report.html", "report.png", "differences.png", "curves.png"}
    assert {path.name for path in whole.iterdir()} == {"study.json", "runs.jsonl", *report}

    # The record says what was run.
    line = comparable(whole)[0]
    config = preset_config("tiny", **table().shapes["fixed"][line["point"]])
    assert (line["hidden_size"], line["attention_head_size"], line["intermediate_size"]) == (32, 6, 37)
    assert (line["num_attention_heads"], line["seed"], line["learning_rate"]) == ((5, 3)[line["point"]], 5, 0.003)
    assert 0.95 * 30 * 4 * 16 < line["tokens"] <= 30 * 4 * 16 and line["objective"] == "clm"  # the last row is short
    assert line["training_flops"] == 3 * forward_flops(config, 16) * 30 * 4 * 16
    layer = 4 * 32 * 6 * line["num_attention_heads"] + 3 * 6 * line["num_attention_heads"] + 32
    layer += 2 * 32 * 37 + 37 + 32 + 4 * 32
    vocabulary_size = len(Path(vocabulary).read_text().splitlines())
    head = 32 * 32 + 32 + 2 * 32 + vocabulary_size
    assert line["non_embedding_parameters"] == layer + 2 * 32 + head
    assert line["parameters"] == line["non_embedding_parameters"] + (vocabulary_size + 16 + 2) * 32
    assert len(line["curve"]) == 8 and line["curve"][-1] == [line["tokens"], line["results"]["loss"]]
    assert line["results"]["perplexity"] == pytest.approx(2.718281828 ** line["results"]["loss"])
    assert set(line["versions"]) == {"fixedbert", "torch", "transformers", "python"}

    # What is done is not done again, and other texts do not go into the same folder.
    again = comparable(whole)
    finished(start(file, text, vocabulary, whole))
    assert comparable(whole) == again
    with pytest.raises(InputError, match="another study or other texts"):
        train(file, whole, train_file=[text, text], tokenizer_name=vocabulary)


@pytest.mark.slow
def test_interrupted_runs_save_a_checkpoint(text, vocabulary, tmp_path):
    """Guards: Ctrl-C stops the runs at a checkpoint, without a traceback, and leaves no process behind."""
    steps = {**SMALL["pretraining"], "max_steps": 100_000, "save_steps": 100_000}
    process = start(write(tmp_path, pretraining=steps), text, vocabulary, tmp_path / "out")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/unfinished/*/stage-1.partial")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    log = next(tmp_path.glob("out/unfinished/*.log"))
    while "tokens_per_second" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert len(children) >= 1 and psutil.wait_procs(children, timeout=20)[1] == []
    assert (
        process.returncode == 130
        and "interrupted: the same command goes on with the runs that" in output
        and "Traceback" not in output
    )
    assert len(list(tmp_path.glob("out/unfinished/*/stage-1.partial/checkpoint-*/trainer_state.json"))) == 1


@pytest.mark.slow
def test_shares_and_workers_make_up_the_study(tmp_path):
    """Guards: two workers at once, and two machines with a share each, give the report of the whole study."""
    synthetic = {
        "axis": "attention_head_size",
        "learning_rates": [0.03, 0.1],
        "seeds": [1, 2],
        "model": {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1},
        "pretraining": {"max_seq_length": 5, "total_train_batch_size": 7, "max_steps": 40},
        "series": {"dense": {"objective": "dense", "attention_head_size": [1, 2, 4, 5]}},
    }
    file = write(tmp_path, **synthetic)
    train(file, tmp_path / "whole", processes=2)
    for number in (1, 2):
        train(file, tmp_path / f"share-{number}", processes=1, share=f"{number}/2")
    assert multiprocessing.active_children() == []
    whole, first, second = (tmp_path / name / "runs.jsonl" for name in ("whole", "share-1", "share-2"))
    assert [len(lines.read_text().splitlines()) for lines in (whole, first, second)] == [12, 6, 6]
    texts = [
        report_markdown(report_runs(files, tmp_path / f"report-{len(files)}")) for files in ([whole], [first, second])
    ]
    rows = [[line for line in text.splitlines() if line.startswith(("| ", "- "))] for text in texts]
    assert rows[0] == rows[1] and sum(row.startswith("| ") for row in rows[0]) == 1 + 4
    assert sum(row.startswith("- dense, size of a head 1 to 5: ") for row in rows[0]) == 1


@pytest.mark.slow
def test_a_task_with_a_threshold_is_continued(tmp_path):
    """Guards: a study of a task, killed and continued, has the lines of one that was not, and extends its grids."""
    tiny = {
        "axis": "attention_head_size",
        "objective": "nearest",
        "learning_rates": [0.01, 0.03],
        "extend_learning_rates": True,
        "seeds": [1, 2],
        "model": {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1},
        "pretraining": {"max_seq_length": 8, "total_train_batch_size": 4, "max_steps": 60, "dimension": 3},
        "series": {"one head": {"attention_head_size": [1, 3], "value_head_size": 3}},
    }
    file = write(tmp_path, **tiny)
    train(file, tmp_path / "whole", processes=1)
    whole = (tmp_path / "whole" / "runs.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    assert len(lines) >= 2 * (3 + 1) and len({json.loads(line)["learning_rate"] for line in lines}) >= 3
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "study.json").write_text((tmp_path / "whole" / "study.json").read_text())
    (killed / "runs.jsonl").write_text("".join(lines[:3]) + lines[3][:60])
    train(file, killed, processes=1)
    assert comparable(killed) == comparable(tmp_path / "whole")
    report = (killed / "report.md").read_text()
    assert "- one head: predicted 3, found" in report and "no runs" not in report


@pytest.mark.slow
def test_two_processes_do_one_run_together(text, vocabulary, tmp_path):
    """Guards: under accelerate launch two processes train each run together, and write its line once."""
    file = write(tmp_path, series={"fixed": {"num_attention_heads": 5, "attention_head_size": 6}})
    data = ("--train_file", text, "--tokenizer_name", vocabulary, "--output_dir", str(tmp_path / "out"))
    finished(launch(*TWO_PROCESSES, "-m", "fixedbert", "study", file, *data))
    (line,) = comparable(tmp_path / "out")
    assert 0.95 * 30 * 4 * 16 < line["tokens"] <= 30 * 4 * 16  # as many as on one
    assert (tmp_path / "out" / "report.md").exists()


def test_all_processes_end_where_the_directory_is_refused(tmp_path):
    """Guards: under accelerate launch every process ends by itself, with the sentence of the main process."""
    file = write(tmp_path, objective="dense", pretraining=OF_A_PATTERN)
    with locked(tmp_path / "out"):
        process = launch(*TWO_PROCESSES, "-m", "fixedbert", "study", file, "--output_dir", str(tmp_path / "out"))
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert printed.count(f"error: {tmp_path / 'out'}: another process works there") == 2, printed[-3000:]


def test_two_stages_and_fine_tuning(text, vocabulary, download, questions, tmp_path):
    """Guards: stages go on one from another with other examples; MNLI and SQuAD follow, and all is in the record."""
    (tmp_path / "squad").mkdir()
    paragraphs = []
    for row in map(json.loads, Path(questions).read_text().splitlines()):
        answers = [
            dict(zip(row["answers"], values, strict=True)) for values in zip(*row["answers"].values(), strict=True)
        ]
        if answers:
            asked = {"id": row["id"], "question": row["question"], "answers": answers}
            paragraphs.append({"context": row["context"], "qas": [asked]})
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        file = tmp_path / "squad" / name
        file.write_text(json.dumps({"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}))
    first = {**SMALL["pretraining"], "max_steps": 10}
    tune = {"max_steps": 3, "train_batch_size": 4, "max_seq_length": 32, "bf16": False}
    made = table(
        objective="mlm",
        pretraining=[first, {**first, "max_steps": 5, "max_seq_length": 24}],
        fine_tuning={"mnli": tune, "squad": {**tune, "doc_stride": 8}},
    )
    data = DataSources(
        train_file=[text], tokenizer_name=vocabulary, glue_dir=download, squad_dir=str(tmp_path / "squad")
    )
    data.check(made)
    line = execute(made.run("fixed", 0, 0.003, 5), tmp_path / "run", data)
    summaries = [json.loads((tmp_path / "run" / f"stage-{n}" / "summary.json").read_text()) for n in (1, 2)]
    assert [summary["steps"] for summary in summaries] == [10, 5]
    commands = [json.loads((tmp_path / "run" / f"stage-{n}" / "command.json").read_text()) for n in (1, 2)]
    assert [command[command.index("--seed") + 1] for command in commands] == ["5", "1005"]
    assert str(tmp_path / "run" / "stage-1") in commands[1]
    assert line["tokens"] == sum(summary["real tokens seen"] for summary in summaries)
    assert line["max_seq_length"] == 24
    results = line["results"]
    assert set(results) == {
        "loss", "perplexity", "accuracy", "mnli_accuracy", "mnli_accuracy_mm", "squad_f1", "squad_exact_match"
    }  # fmt: skip
    assert results["loss"] == pytest.approx(summaries[1]["results"]["eval_mlm_loss"])
    for task, name, found in (("mnli", "mnli_accuracy", "eval_accuracy"), ("squad", "squad_f1", "eval_f1")):
        scores = json.loads((tmp_path / "run" / task / "all_results.json").read_text())
        assert results[name] == scores[found]


def test_evaluations_along_the_way(text, vocabulary, tmp_path):
    """Guards: the curve has every evaluation, and evaluations leave the weights as they are, with dropout too."""
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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"question": {"what": "colour"}}, "question: a text is needed"),
        ({"axis": "colour"}, "axis: colour: there are num_attention_heads"),
        ({"seeds": ["1e-3"]}, "seeds: 1e-3 is no number that YAML knows; it takes 1.0e-3 for one"),
        ({"learning_rates": ["1e-3"]}, "learning_rates: 1e-3 is no number"),
        ({"learning_rates": [math.nan]}, "learning_rates: nan is not a finite number above 0"),
        (
            {"pretraining": {**SMALL["pretraining"], "max_steps": 0}},
            "max_steps is missing, or not a whole number above",
        ),
        ({"pretraining": {**SMALL["pretraining"], "seed": 3}}, "pretraining: seed is not for a stage"),
        ({"model": 5}, "model: names with their values"),
        ({"pretraining": 5}, "pretraining: arguments with their values"),
        ({"series": {"a": None}}, "series a: fields with their values"),
        ({"scales": {"tiny": 5}}, "scale is missing: study .* has tiny"),
        ({"series": {"a": {"num_attention_heads": 2, "attention_head_size": [[3, 4]]}}}, "series a: "),
        ({"seeds": []}, "seeds: a list of numbers is needed"),
        ({"seeds": [1, 1]}, "seeds: each can be there once"),
        ({"series": {}}, "series: names with shapes"),
        ({"objective": "rtd"}, "objective rtd: there are"),
        ({"pretraining": {"max_steps": 5}}, "pretraining: max_seq_length is missing"),
        ({"series": {"a": {"num_attention_heads": [1, 2], "attention_head_size": [1, 2, 3]}}}, r"lists of \[2, 3\]"),
        ({"series": {"a": {"num_attention_heads": 2, "equal": "parameters"}}}, "go together"),
        ({"series": {"a": {"num_attention_heads": 2, "equal": "parameters", "to": "b"}}}, "no such series"),
        ({"series": {"a": {"num_attention_heads": 5, "attention_head_size": None}}}, "hidden_size"),
        ({"series": {"a": {"num_attention_heads": 5, "head_width": 3}}}, "head_width is no field"),
        ({"series": {"a": {"attention_head_size": 3}}}, "num_attention_heads is missing"),
        ({"fine_tuning": {"mnli": {}}}, "fine_tuning is for encoders"),
        ({"objective": "mlm", "fine_tuning": {"cola": {}}}, "fine_tuning: cola: there are mnli and squad"),
        (
            {
                "series": {
                    "large": {
                        "num_attention_heads": 50,
                        "attention_head_size": 6,
                        "equal": "parameters",
                        "to": "small",
                    },
                    "small": {"num_attention_heads": 2, "attention_head_size": 6},
                }
            },
            "series large: its shape 1 has more parameters than that of small",
        ),
        (
            {
                "series": {
                    "a": {"num_attention_heads": 4, "attention_head_size": 6, "equal": "flops", "to": "b"},
                    "b": {"num_attention_heads": [2, 3], "attention_head_size": 6},
                }
            },
            "b needs one shape, or one with num_attention_heads 4",
        ),
        ({"colour": "red"}, "colour: no such key"),
        ({"seeds": [True]}, "seeds: True is no number"),
        ({"series": {"a": {"num_attention_heads": []}}}, "series a: a list without values"),
        ({"extend_learning_rates": 3}, "extend_learning_rates: true or false"),
        ({"extend_learning_rates": True}, "extend_learning_rates: a grid of two"),
        ({"grid": 3}, "grid: names with their values"),
        ({"grid": {"max_steps": 30}}, "grid: it changes nothing in series fixed; give max_steps"),
        ({"grid": {"max_steps": 0}}, "series fixed: pretraining: max_steps is missing, or not a whole number"),
        (
            {
                "objective": "sparse",
                "pretraining": OF_A_PATTERN,
                "series": {
                    "small": {
                        "num_attention_heads": 2,
                        "attention_head_size": 3,
                        "equal": "parameters",
                        "to": "large",
                    },
                    "large": {"num_attention_heads": 2, "attention_head_size": 6},
                },
            },
            "series small: equal: sparse has no feed-forward network to widen; leave equal and to out",
        ),
        (
            {"series": {"a": {"num_attention_heads": 2, "pretraining": {"seed": 3}}}},
            "series a: pretraining: seed is not",
        ),
        ({"objective": "recall"}, "series fixed: pretraining: logging_steps: recall has max_seq_length, .*, symbols"),
        (
            {"objective": "dense", "pretraining": [OF_A_PATTERN] * 2},
            "series fixed: pretraining: dense has a single stage",
        ),
        (
            {"objective": "dense", "pretraining": OF_A_PATTERN, "axis": "non_embedding_parameters"},
            "are not counted for",
        ),
        (
            {
                "objective": "dense",
                "pretraining": OF_A_PATTERN,
                "model": {**SMALL["model"], "head_embedding": "mul"},
            },
            "dense has no head embeddings",
        ),
        ({"objective": "average", "pretraining": OF_A_PATTERN}, "subset is missing, which average needs"),
        (
            {"objective": "average", "pretraining": {**OF_A_PATTERN, "subset": 2, "mlp": True}},
            "mlp: True is not a whole number",
        ),
        ({"model": {**SMALL["model"], "value_head_size": [3]}}, "value_head_size: a study's heads are all alike"),
    ],
)
def test_bad_studies(tmp_path, changes, message):
    """Guards: what makes no sense in a study is said in a sentence, with its name and place, before anything runs."""
    with pytest.raises(InputError, match=message):
        main(["study", write(tmp_path, **changes), "--output_dir", str(tmp_path / "out"), "--dataset_name", "sample"])
    assert not (tmp_path / "out").exists()


def add_study(tmp_path, monkeypatch, text: str):
    """Add a study to a copy of studies.yaml."""
    file = tmp_path / "studies.yaml"
    file.write_text(f"{studies.NAMED_STUDIES.read_text(encoding='utf-8')}\n{text}\n", encoding="utf-8")
    monkeypatch.setattr(studies, "NAMED_STUDIES", file)
    monkeypatch.setattr(studies, "named_studies", studies.named_studies.__wrapped__)


ADDED = """
added:
  question: Is it there?
  axis: value_width
  seeds: [1]
  learning_rates: [1.0e-3]
  model: {hidden_size: 64, num_hidden_layers: 1, intermediate_size: 64, num_attention_heads: 2}
  pretraining: {max_seq_length: 8, total_train_batch_size: 4, max_steps: 2}
"""


@pytest.mark.parametrize(
    "text, axes, message",
    [
        ("added:", (), "studies.yaml, study added: question is missing"),
        (ADDED, (), "studies.yaml, study added: series is missing"),
        (ADDED + "  series: {a: {num_attention_heads: 2}}", (), "study added: axis: value_width: there are"),
        (ADDED + "  series: {a: {num_attention_heads: 2}}", ("value_width",), "value_width is no property of"),
    ],
)
def test_incomplete_additions_name_what_is_missing(tmp_path, monkeypatch, text, axes, message):
    """Guards: a study that is added to studies.yaml without one of its parts says which one, as it is loaded."""
    monkeypatch.setattr(studies, "AXES", {**studies.AXES, **dict.fromkeys(axes, "a label")})
    add_study(tmp_path, monkeypatch, text)
    with pytest.raises(InputError, match=message):
        load_study("added")


def test_a_study_is_added_in_one_place(tmp_path, monkeypatch, capsys):
    """Guards: an entry of studies.yaml is all that a study needs."""
    text = ADDED.replace("value_width", "attention_head_size") + "  series: {a: {attention_head_size: [2, 3]}}"
    add_study(tmp_path, monkeypatch, text)
    main(["study", "added", "--dry_run"])
    assert "2 runs: of 2 different shapes" in capsys.readouterr().out


def test_metrics_are_complete():
    """Guards: every task that a study trains has metrics, and every metric is of such a task."""
    tasks = {"pretraining", "synthetic", *studies.FINE_TUNING}
    for name, metric in METRICS.items():
        assert metric.task in tasks, f"METRICS: {name}: no study trains the task {metric.task}"
    for task in tasks:
        reported = [metric for metric in METRICS.values() if metric.task == task and metric.label]
        assert reported, f"METRICS in study/records.py lacks a metric with a label for the task {task}"


def test_named_studies_are_complete():
    """Guards: every study has its scales, and its line in docs/study.md."""
    page = (Path(__file__).parents[1] / "docs" / "study.md").read_text(encoding="utf-8")
    for name, entries in named_studies().items():
        assert f"\n| `{name}` |" in page, f"docs/study.md lacks the study {name}"
        for scale in entries["scales"]:
            assert load_study(name, scale).places()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["heads"], "scale is missing: study heads has tiny, day, small, paper"),
        (["heads", "--scale", "huge"], "scale huge: study heads has tiny, day, small, paper"),
        (["tails"], "study tails: there are heads, head-size"),
        (["none.yaml"], "none.yaml: .*No such file"),
        (["heads", "--scale", "tiny"], "output_dir is missing"),
        (["heads", "--scale", "tiny", "--output_dir", "OUT", "--processes", "0"], "processes 0: at least 1"),
        (["report", "runs.jsonl"], "output_dir is missing"),
        (["heads", "--scale", "tiny", "--output_dir", "OUT"], "no corpus: give train_file"),
        (["heads", "runs.jsonl", "--scale", "tiny"], "only report takes files"),
        (["heads", "--scale", "tiny", "--share", "3/2", "--dry_run"], "share 3/2"),
        (["report", "none.jsonl", "--output_dir", "OUT"], "none.jsonl"),
        (["report", "--output_dir", "OUT"], "no runs to report: give the runs.jsonl of a study"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    """Guards: a wrong name, scale or share ends with a sentence, and writes nothing."""
    output = tmp_path / "out"
    with pytest.raises(InputError, match=message):
        main(["study", *(str(output) if word == "OUT" else word for word in arguments)])
    assert not output.exists()


@pytest.mark.slow
def test_failed_and_killed_runs(text, tmp_path):
    """Guards: a run that cannot be done, and a worker that is killed, end the study with a sentence that says so."""
    with pytest.raises(InputError, match="fixed, shape 1, learning rate 0.003, seed 5: .*none.txt: no such"):
        train(write(tmp_path), tmp_path / "out", processes=1, train_file=[text], tokenizer_name="none.txt")
    # Nothing is done yet: the same folder takes other arguments.
    with pytest.raises(InputError, match="other.txt: no such"):
        train(write(tmp_path), tmp_path / "out", processes=1, train_file=[text], tokenizer_name="other.txt")
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(InputError, match="a run was killed"):
        receive(ours)


def hold(folder: Path, entered):
    with study_directory(folder, table(objective="dense", pretraining=OF_A_PATTERN), DataSources()):
        entered.set()
        time.sleep(300)


def test_one_process_at_a_time(tmp_path, text):
    """Guards: two studies cannot write into one folder, nor one into a folder of something else."""
    context = multiprocessing.get_context("fork")
    entered = context.Event()
    first = context.Process(target=hold, args=(tmp_path / "out", entered))
    first.start()
    try:
        assert entered.wait(60)
        with pytest.raises(InputError, match=rf"out: another process works there \(process {first.pid} on "):
            train(write(tmp_path), tmp_path / "out", train_file=[text])
    finally:
        first.kill()
        first.join()
    lock = {"host": "elsewhere", "process": 7, "since": "2026-11-22 01:02:03+00:00"}
    (tmp_path / "other.lock").write_text(json.dumps(lock))
    with pytest.raises(InputError, match="process 7 on elsewhere.*--take_over_output_dir"):
        train(write(tmp_path), tmp_path / "other", train_file=[text])
    assert not (tmp_path / "other").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        train(write(tmp_path), tmp_path / "other", train_file=[text], take_over_output_dir=True)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine" and not (tmp_path / "other.lock").exists()


def test_workers_share_the_gpus(monkeypatch):
    """Guards: workers get the GPUs that this process may use in turn, and its own environment stays."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for before, expected in (("4,7", ["4", "7", "4"]), (None, ["0", "1", "0"])):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if before:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        found = []
        for number in range(3):
            with visible_gpu(number):
                found.append(os.environ["CUDA_VISIBLE_DEVICES"])
        assert found == expected and os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_plan(capsys):
    """Guards: a dry run says every shape with its counts and the cost, and starts nothing."""
    main(["study", "heads", "--scale", "paper", "--dry_run"])
    printed = capsys.readouterr().out
    assert "318.91 M" in printed and "hours of an H100" in printed
    main(["study", "heads", "--scale", "tiny", "--dry_run"])
    # Twelve shapes, of which two heads of 32 in width 64 stand there twice.
    assert "55 runs: of 11 different shapes each 3 learning rates" in capsys.readouterr().out


def test_commands_and_study_of_the_page(tmp_path, capsys):
    """Guards: the commands of docs/study.md are taken, and the study on it can be made."""
    page = (Path(__file__).parents[1] / "docs" / "study.md").read_text(encoding="utf-8")
    commands = [line.split("#")[0].split() for line in re.findall(r"^    fixedbert (.*)$", page, re.MULTILINE)]
    studies = [command for command in commands if command[1] in NAMES]
    assert len(studies) >= 4
    for command in studies:
        main([*(word for word in command if word != "--dry_run"), "--dry_run"])
        assert "different shapes each" in capsys.readouterr().out
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "own.yaml").write_text(text)
    made = load_study(str(tmp_path / "own.yaml"))
    assert len(made.places()) == 6 and made.axis == "num_attention_heads"


def test_texts_are_looked_at_before_anything_starts(text, questions, download, tmp_path, monkeypatch):
    """Guards: a corpus without its column, a damaged SQuAD file and GLUE's missing tasks are told at once."""

    def none(*_):
        raise AssertionError("workers were started")

    monkeypatch.setattr("fixedbert.study.scheduler.worker_processes", none)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("text\nA sentence.\n")
    (tmp_path / "rows" / "b.csv").write_text("body\nA sentence.\n")
    with pytest.raises(InputError, match="b.csv: no column 'text'.*body"):
        train(write(tmp_path), tmp_path / "out", train_file=[str(tmp_path / "rows")])
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="empty.jsonl: there is no document"):
        train(write(tmp_path), tmp_path / "out", train_file=[str(tmp_path / "empty.jsonl")])
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text('{"data": [{"paragraphs": 3}]}')
    tuned = {"objective": "mlm", "fine_tuning": {"squad": {"max_seq_length": 16}, "mnli": {"max_seq_length": 16}}}
    file = write(tmp_path, **tuned)
    with pytest.raises(InputError, match="train-v1.1.json: "):
        train(file, tmp_path / "out", train_file=[text], squad_dir=str(tmp_path))
    with pytest.raises(InputError, match="train.tsv"):
        train(file, tmp_path / "out", train_file=[text], glue_dir=str(tmp_path))
    with pytest.raises(InputError, match="glue_dir .*: no such folder") as caught:
        train(file, tmp_path / "out", train_file=[text], glue_dir=str(tmp_path / "none"))
    assert caught.value.field == "glue_dir"  # the command line makes a flag of it
    assert not (tmp_path / "out").exists()


def test_texts_are_looked_at_without_reading_them_all(tmp_path, monkeypatch):
    """Guards: of many text files the check reads one; its documents can be empty."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("")
    (tmp_path / "texts" / "b.txt").write_text("A sentence.\n")
    (tmp_path / "texts" / "c.txt").write_bytes(b"\xff")
    (tmp_path / "rows.jsonl").write_text('{"text": ""}\n{"text": "A sentence."}\n')
    table = load_study(write(tmp_path))
    DataSources(train_file=[str(tmp_path / "texts"), str(tmp_path / "rows.jsonl")]).check(table)
    (tmp_path / "texts" / "b.txt").unlink()
    broken = DataSources(train_file=[str(tmp_path / "texts")])
    with pytest.raises(InputError, match="c.txt, line 1: byte 1 is not UTF-8"):
        broken.check(table)


def test_units_of_the_plan():
    """Guards: tokens and time are said in units in which a person can read them."""
    sizes = [in_unit(tokens, TOKENS) for tokens in (640, 20_480, 1_230_000, 25_000_000, 59e9, 123_456e9)]
    assert sizes == ["640 tokens", "20,480 tokens", "1.23 million tokens", "25 million tokens", "59 billion tokens",
                     "123,456 billion tokens"]  # fmt: skip
    times = [in_unit(seconds, TIMES) for seconds in (0.072, 59, 90, 7200, 3_600_000)]
    assert times == ["less than a second", "59 seconds", "1.5 minutes", "2 hours", "1,000 hours"]
    plan = study_cost_text(study_cost(table()))
    assert "; 3,840 tokens, " in plan and ", less than a second of an H100 at " in plan
