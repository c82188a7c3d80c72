"""Runs of the scripts that are killed, stopped or broken off, and continued: to the same bits, or refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from helpers import ROOT, fork_server
from helpers.script_arguments import glue_of, pretraining, results
from packaging.version import Version
from safetensors.torch import load_file
from transformers import TrainerCallback

import run_glue
import run_pretraining
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import read_arguments
from fixedbert.training.interruption import train
from fixedbert.training.output import complete_checkpoints, write_command


def interrupted(arguments: list[str], output: Path, checkpoint: str, kill: int) -> Path:
    """Start a run, send it a signal when it has a checkpoint of that name, and give its newest one."""
    run = fork_server.start(ROOT / "run_pretraining.py", arguments, output.parent, output.parent)
    partial = output.with_name(output.name + ".partial")
    began = time.monotonic()
    while run.is_alive() and not list(partial.glob(f"{checkpoint}/trainer_state.json")):
        assert time.monotonic() - began < 300
        time.sleep(0.02)
    os.kill(run.pid, kill)
    run.join(timeout=120)
    assert run.exitcode == (128 + signal.SIGTERM if kill == signal.SIGTERM else -kill)
    assert partial.exists() and not output.exists()
    return complete_checkpoints(partial)[-1]


def same_weights(one: Path, other: Path) -> bool:
    one, other = (load_file(folder / "model.safetensors") for folder in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("objective", ["mlm+nsp", "clm"])
def test_killed_run_continues_to_the_same_weights(corpus, pretrained, tmp_path, objective):
    """Guards: the same command after SIGKILL, with other workers, continues in a later epoch to the same bits."""
    fixed = ("--max_steps", "120", "--save_steps", "5", "--tokenizer_name", str(pretrained), "--objective", objective)
    run_pretraining.main(pretraining(corpus, tmp_path / "whole", *fixed))
    command = pretraining(corpus, tmp_path / "cut", *fixed)
    checkpoint = interrupted(command, tmp_path / "cut", "checkpoint-[34]5", signal.SIGKILL)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert 1 < state["epoch"] and state["global_step"] < 120
    with pytest.raises(InputError, match="unfinished run with other arguments"):
        run_pretraining.main(pretraining(corpus, tmp_path / "cut", *fixed, "--learning_rate", "0.5"))
    assert checkpoint.exists()
    done = fork_server.run(
        ROOT / "run_pretraining.py", [*command, "--dataloader_num_workers", "1"], tmp_path, tmp_path
    )
    assert done.returncode == 0 and f"resuming from step {state['global_step']} ({checkpoint})" in done.stdout
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert not (tmp_path / "cut.partial").exists()


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_and_the_run_goes_on(corpus, pretrained, tmp_path):
    """Guards: on SIGTERM the step under way is finished and saved, accumulation and all; nothing is done twice."""
    fixed = ("--max_steps", "100", "--save_steps", "7", "--tokenizer_name", str(pretrained))
    fixed += ("--total_train_batch_size", "6", "--per_device_train_batch_size", "4")  # 2 x 3
    fixed += ("--dataloader_num_workers", "1")
    run_pretraining.main(pretraining(corpus, tmp_path / "whole", *fixed))
    command = pretraining(corpus, tmp_path / "cut", *fixed)
    checkpoint = interrupted(command, tmp_path / "cut", "checkpoint-14", signal.SIGTERM)
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 14 <= step < 100
    assert fork_server.run(ROOT / "run_pretraining.py", command, tmp_path, tmp_path).returncode == 0
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


class StopAfter(TrainerCallback):
    """Breaks a run off after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def record(output: Path) -> list[dict]:
    """All that is written down of a run, but times and speeds."""
    entries = [*json.loads((output / "trainer_state.json").read_text())["log_history"], results(output)]
    return [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in entries
    ]


@pytest.mark.parametrize(
    "name, stopped, strategy",
    [
        ("pretraining", 10, "steps"),
        ("pretraining", 23, "steps"),
        ("pretraining", 18, "epoch"),
        ("glue", 10, "steps"),
        ("glue", 23, "steps"),
    ],
)
def test_continued_run_has_the_record_of_a_whole_one(
    corpus, pretrained, tasks, tmp_path, monkeypatch, name, stopped, strategy
):
    """Guards: a run broken off between two logs, or in its last evaluation, ends with the same log, results and
    weights, bit for bit; one that has all its steps trains no more."""
    fixed = ("--max_steps", "23", "--logging_steps", "3", "--save_steps", "4", "--eval_strategy", strategy)
    fixed += (
        "--logging_strategy",
        strategy,
        "--eval_steps",
        "5",
        "--lr_scheduler_type",
        "constant",
        "--tokenizer_name",
        str(pretrained),
    )

    def run(output):
        if name == "pretraining":
            run_pretraining.main(pretraining(corpus, output, *fixed))
        else:
            run_glue.main(glue_of(pretrained, tasks, output, *fixed))

    def interrupt(*_):
        raise KeyboardInterrupt

    def stop(trainer, *args, **kwargs):
        trainer.add_callback(StopAfter(stopped))
        train(trainer, *args, **kwargs)

    module = "pretraining.pretrain" if name == "pretraining" else "fine_tuning.glue"
    run(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if stopped == 23:
            patch.setattr(f"fixedbert.{module}.record_metrics", interrupt)
        else:
            patch.setattr(f"fixedbert.{module.replace('glue', 'fine_tune')}.train", stop)
        run(tmp_path / "cut")
    saved = {10: 8, 18: 16, 23: 23}[stopped]
    assert complete_checkpoints(tmp_path / "cut.partial")[-1].name == f"checkpoint-{saved}"
    run(tmp_path / "cut")
    assert record(tmp_path / "cut") == record(tmp_path / "whole")
    logged = [entry["step"] for entry in record(tmp_path / "cut") if "loss" in entry]
    assert logged == ([11, 22, 23] if strategy == "epoch" else list(range(3, 23, 3)))
    assert same_weights(tmp_path / "cut", tmp_path / "whole")


def test_damaged_checkpoint_is_one_sentence(corpus, pretrained, tmp_path):
    """Guards: the script says which checkpoint cannot be read, and goes on from the one before when told to."""
    fixed = ("--max_steps", "20", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    command = pretraining(corpus, tmp_path / "run", *fixed)

    def stop(trainer, checkpoint):
        trainer.args.max_steps = 10
        trainer.train(resume_from_checkpoint=checkpoint)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.pretraining.pretrain.train", stop)
        run_pretraining.main(command)
    weights = tmp_path / "run.partial" / "checkpoint-10" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="checkpoint-10: the checkpoint cannot be loaded") as said:
        run_pretraining.main(command)
    before = str(said.value).split("`resume_from_checkpoint` ")[1].rstrip(".")
    run_pretraining.main([*command, "--resume_from_checkpoint", before])
    assert results(tmp_path / "run")["train_loss"] > 0


def test_another_text_is_not_continued_on(corpus, pretrained, tmp_path, monkeypatch):
    """Guards: after a file was rewritten with the same size and time, an unfinished run says so and trains no step."""
    texts = shutil.copytree(corpus, tmp_path / "texts")
    fixed = ("--save_steps", "1", "--tokenizer_name", str(pretrained))
    command = pretraining(str(texts), tmp_path / "run", *fixed)

    def stop(trainer, checkpoint):
        trainer.train(resume_from_checkpoint=checkpoint)
        raise KeyboardInterrupt

    monkeypatch.setattr("fixedbert.pretraining.pretrain.train", stop)
    with pytest.raises(KeyboardInterrupt):
        run_pretraining.main(command)
    file, changed = texts / "03.txt", (texts / "03.txt").stat()
    content = file.read_text()
    file.write_text(content.replace("document", "tnemucod"))
    os.utime(file, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    with pytest.raises(
        InputError, match="run.partial: the texts, .* are not those that the unfinished run began with"
    ):
        run_pretraining.main(command)
    file.write_text(content)
    with pytest.raises(KeyboardInterrupt):  # it goes on
        run_pretraining.main(command)


def test_continued_run_keeps_its_trained_tokenizer(corpus, tmp_path, monkeypatch):
    """Guards: training a tokenizer anew would give other numbers to the tokens that the weights were trained with."""
    command = pretraining(corpus, tmp_path / "run", "--save_steps", "1", "--store_dir", str(tmp_path / "store"))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.pretraining.pretrain.train", lambda trainer, *_, **__: (trainer.train(), interrupt()))
        run_pretraining.main(command)
    checkpoint = complete_checkpoints(tmp_path / "run.partial")[-1]
    before = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    stores = {path.name for path in (tmp_path / "store").glob("store-*") if path.is_dir()}
    monkeypatch.setattr("fixedbert.pretraining.examples.prepare_tokenizer", interrupt)
    run_pretraining.main(command)
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"] == before
    assert {path.name for path in (tmp_path / "store").glob("store-*") if path.is_dir()} == stores


@pytest.mark.slow
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="Trainer loads a checkpoint of several CPU processes to cpu:0, where torch puts nothing",
)
def test_sigterm_stops_all_processes_at_the_same_step(corpus, pretrained, tmp_path):
    """Guards: a scheduler's SIGTERM reaches processes at different steps; all stop with one checkpoint, and go on."""
    fixed = ("--max_steps", "2000", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    arguments = pretraining(corpus, tmp_path / "run", *fixed)
    pair = fork_server.Pair(ROOT / "run_pretraining.py", arguments, tmp_path / "stopped")
    partial = tmp_path / "run.partial"
    began = time.monotonic()
    while all(process.is_alive() for process in pair.processes) and not list(
        partial.glob("checkpoint-5/trainer_state.json")
    ):
        assert time.monotonic() - began < 300
        time.sleep(0.02)
    for process in pair.processes:
        process.terminate()
        time.sleep(0.05)  # some steps
    done = pair.ended()
    step = int(complete_checkpoints(partial)[-1].name.removeprefix("checkpoint-"))
    assert [one.returncode for one in done] == [128 + signal.SIGTERM] * 2 and 5 <= step < 2000
    assert "stopped by SIGTERM" in done[0].stderr
    more = (*fixed, "--max_steps", str(step + 3))
    arguments = pretraining(corpus, tmp_path / "run", *more)
    write_command(partial, read_arguments(arguments, *ARGUMENTS))
    fork_server.Pair(ROOT / "run_pretraining.py", arguments, tmp_path / "continued").finished()
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == step + 3


STUBS = {
    "srun": 'echo $$ > srun.pid; shift; exec "$@"',
    "scontrol": 'echo "$@" >> scontrol.txt',
    "accelerate": f'shift; exec {sys.executable} -m accelerate.commands.launch --main_process_port 0 "$@"',
}


@pytest.mark.slow
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="Trainer loads a checkpoint of several CPU processes to cpu:0, where torch puts nothing",
)
def test_a_job_of_slurm_is_queued_again(corpus, pretrained, tmp_path):
    """Guards: recipes/slurm.sh, stopped as Slurm stops a job, is queued again, goes on, and then is not."""
    (tmp_path / "bin").mkdir()
    for name, line in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("fixedbert", "run_pretraining.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}
    environment["ACCELERATE_CONFIG"] = "fixedbert/recipes/accelerate/cpu.yaml"
    fixed = ("--max_steps", "200", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    command = [
        "bash",
        "fixedbert/recipes/slurm.sh",
        "run_pretraining.py",
        *pretraining(corpus, tmp_path / "run", *fixed),
    ]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while job.poll() is None and not list(tmp_path.glob("run.partial/checkpoint-5/trainer_state.json")):
        time.sleep(0.02)
    os.kill(int((tmp_path / "srun.pid").read_text()), signal.SIGTERM)
    assert job.wait(timeout=120) != 0
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n" and not (tmp_path / "run").exists()
    subprocess.run(command, cwd=tmp_path, env=environment | {"SLURM_RESTART_COUNT": "1"}, check=True, timeout=300)
    assert "resuming from step" in (tmp_path / "slurm-7-1.log").read_text() and (tmp_path / "run").exists()
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
    wrong = subprocess.run([*command, "--learning_rat", "1"], cwd=tmp_path, env=environment, capture_output=True)
    assert wrong.returncode != 0 and (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
