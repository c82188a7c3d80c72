"""Output directories: one run at a time, what is kept when a run ends early, and what cannot be written."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from helpers import ROOT, fork_server
from helpers.tiny_tasks import glue, glue_arguments
from safetensors.torch import load_file, save_file

from fixedbert.fine_tuning import glue as glue_task
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.sweep import sweep_directory
from fixedbert.fine_tuning.trainer import FineTuningArguments, FineTuningTrainer
from fixedbert.support import files
from fixedbert.support.checksums import file_sha256
from fixedbert.support.errors import InputError, exit_on_input_error
from fixedbert.support.files import new_directory, writing
from fixedbert.support.locks import directory_lock
from fixedbert.training.arguments import CommonArguments, read_arguments
from fixedbert.training.output import (
    check_same_command,
    complete_checkpoints,
    last_checkpoint,
    output_directory,
    write_command,
)

TRAIN = ("--do_train", "--do_eval", "--max_steps", "3")
SAVE = (*TRAIN, "--save_strategy", "steps", "--save_steps", "1")
OTHER_HOST = "7\nelsewhere\n"  # the lock of a process on another machine

pytestmark = pytest.mark.usefixtures("same_signals")


def hold(directory, output: str, command: list[str], entered):
    """In another process: be at work in an output directory until killed."""
    given = read_arguments(command, *TextClassification.arguments)
    with directory(FineTuningArguments(output_dir=output, use_cpu=True), given):
        entered.set()
        time.sleep(300)


@pytest.mark.parametrize("seeds", [(), ("--seeds", "1", "2")])
def test_one_run_at_a_time(model, download, tmp_path, seeds):
    """Guards: a second run, or sweep, is refused and touches nothing; where the first was killed it goes on."""
    output = tmp_path / "out"
    directory = sweep_directory if seeds else output_directory
    command = glue_arguments(model, download, output, *TRAIN, *seeds)
    context = multiprocessing.get_context("fork")
    entered = context.Event()
    first = context.Process(target=hold, args=(directory, str(output), command, entered))
    first.start()
    try:
        assert entered.wait(60)
        (tmp_path / "out.partial" / "mine.txt").write_text("of the first run")
        holder = f"out: process {first.pid} on {re.escape(socket.gethostname())} is using it"
        with pytest.raises(InputError, match=holder):
            run_glue(command)
        with pytest.raises(InputError, match=holder):  # that one lives
            run_glue([*command, "--take_over_output_dir"])
        assert (tmp_path / "out.partial" / "mine.txt").read_text() == "of the first run"
    finally:
        first.kill()
        first.join()
    assert (tmp_path / "out.lock").exists()
    run_glue(command)
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not list(output.rglob("*.lock"))


def test_lock_of_another_host(model, download, tmp_path, monkeypatch):
    """Guards: a run on another machine keeps its directory until a flag frees it; the new lock names its holder."""
    lock = tmp_path / "out.lock"
    lock.write_text(OTHER_HOST)
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    with pytest.raises(InputError, match=r"process 7 on elsewhere .*`take_over_output_dir`"):
        glue(model, download, tmp_path / "out", *TRAIN)
    assert lock.read_text() == OTHER_HOST and lock.stat().st_mtime == 1_700_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["out.lock"]

    monkeypatch.setattr(
        glue_task.TextClassification, "evaluate", lambda *_: said.extend(lock.read_text().splitlines()[:1])
    )
    said: list[str] = []
    glue(model, download, tmp_path / "out", *TRAIN, "--take_over_output_dir")
    assert said == [str(os.getpid())] and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_lock_that_was_taken_over_is_not_removed(tmp_path):
    """Guards: a holder whose lock another machine has taken over leaves the new one alone; its own it removes."""
    lock = tmp_path / "out.lock"
    with directory_lock(tmp_path / "out"):
        lock.unlink()
        lock.write_text(OTHER_HOST)
    assert lock.read_text() == OTHER_HOST
    with directory_lock(tmp_path / "other"):
        assert (tmp_path / "other.lock").exists()
    assert not (tmp_path / "other.lock").exists()


def test_errors_of_other_files_pass(tmp_path):
    """Guards: what a run cannot read beside its output directory is not said to be a place for writing."""
    for name, passes in (("vocab.txt", True), ("out.partial/config.json", False), ("out.7.partial/a/b", False)):
        error = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / name))
        with pytest.raises(FileNotFoundError if passes else InputError), writing(tmp_path / "out", "make room"):
            raise error


def test_every_run_can_take_over_a_directory(tmp_path):
    """Guards: the flag that frees a directory belongs to all training arguments."""
    (tmp_path / "out.lock").write_text(OTHER_HOST)
    arguments = CommonArguments(output_dir=str(tmp_path / "out"), use_cpu=True, take_over_output_dir=True)
    with output_directory(arguments, {}):
        assert (tmp_path / "out.lock").read_text().startswith(f"{os.getpid()}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_no_process_waits_for_a_lock(model, download, tmp_path, tmp_path_factory):
    """Guards: where the main process cannot have the directory all end with the sentence, and none hangs."""
    (tmp_path / "out.lock").write_text(OTHER_HOST)
    arguments = glue_arguments(model, download, tmp_path / "out", *TRAIN)
    for done in fork_server.Pair(ROOT / "run_glue.py", arguments, tmp_path_factory.mktemp("printed")).ended():
        assert done.returncode == 1 and done.stderr.count("error: ") == 1 and "process 7 on elsewhere" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.lock"]


def counted(monkeypatch) -> list[int]:
    """The steps of training from now on."""
    original, calls = FineTuningTrainer.training_step, []

    def training_step(self, *args, **kwargs):
        calls.append(self.state.global_step)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", training_step)
    return calls


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_trained_weights_are_kept(model, download, tmp_path, monkeypatch, error):
    """Guards: an end in the evaluation after training, without any checkpoint, costs no training."""
    whole = glue(model, download, tmp_path / "whole", *TRAIN)
    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(FineTuningTrainer, "evaluate", lambda *_, **__: (_ for _ in ()).throw(error()))
        glue(model, download, tmp_path / "cut", *TRAIN)
    assert (tmp_path / "cut.partial" / "model.safetensors").exists()
    calls = counted(monkeypatch)
    again = glue(model, download, tmp_path / "cut", *TRAIN)
    assert calls == []
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert again.keys() - {"eval_model_preparation_time"} == whole.keys()  # it is in training that Trainer saves it
    assert all(again[name] == whole[name] for name in ("eval_accuracy", "eval_loss", "epoch", "train_loss"))


def ended(arguments: list[str], capsys) -> tuple[int, str]:
    """Exit status and last words of a run that a signal ends."""
    with pytest.raises(SystemExit) as end:
        exit_on_input_error(lambda: run_glue(arguments))
    return end.value.code, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("moment", ["last step", "evaluation in training", "evaluation", "preparation"])
def test_sigterm_at_any_time(model, download, tmp_path, monkeypatch, capsys, moment):
    """Guards: SIGTERM ends a sweep with status 143 whenever it comes, and the same command does only what is left."""
    steps = (*TRAIN, "--seeds", "1", "2", "--eval_strategy", "steps", "--eval_steps", "2")
    command = glue_arguments(model, download, tmp_path / "out", *steps)
    calls = counted(monkeypatch)
    owner, name = {
        "last step": (FineTuningTrainer, "training_step"),
        "preparation": (glue_task, "load_texts"),
    }.get(moment, (FineTuningTrainer, "evaluation_loop"))
    original = getattr(owner, name)

    def signalled(*args, **kwargs):
        at = {"last step": len(calls) == 2, "evaluation in training": len(calls) == 2, "evaluation": len(calls) == 3}
        if at.get(moment, True):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        status, said = ended(command, capsys)
    assert status == 143 and said.startswith("stopped by SIGTERM: ")
    assert len(calls) == {"last step": 3, "evaluation in training": 2, "evaluation": 3, "preparation": 0}[moment]
    run_glue(command)
    assert len(calls) == 6
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["runs"]) == 2


def test_interrupted_run_saves_a_checkpoint(model, download, tmp_path, monkeypatch, capsys):
    """Guards: the first Ctrl-C saves the step under way and says so with status 130; a second ends at once."""
    original, calls = FineTuningTrainer.training_step, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        for _ in range({2: 1, 3: 2}.get(len(calls), 0)):
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", interrupted)
    command = glue_arguments(model, download, tmp_path / "out", "--do_train", "--max_steps", "4")
    last = f"the same command goes on from {tmp_path}/out.partial/checkpoint-2"
    assert ended(command, capsys) == (130, f"interrupted: {last}")
    assert ended(command, capsys) == (130, f"interrupted: {last}") and len(calls) == 3
    run_glue(command)
    assert len(calls) == 5


def test_interrupted_commands_say_what_is_true(tmp_path, capsys):
    """Guards: a command without checkpoints speaks of none, on a line of its own, and leaves nothing."""

    def main():
        with new_directory(tmp_path / "out") as folder:
            (folder / "half").write_text("a")
            raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        exit_on_input_error(main)
    assert capsys.readouterr().err == f"\ninterrupted: nothing is left of {tmp_path}/out\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["weights", "optimizer", "state", "results", "picture"])
def test_full_disk(model, download, tmp_path, monkeypatch, full_disk, what):
    """Guards: a run that can write no more names folder and remedy; checkpoints stay; the same command goes on."""
    owner, name, size = {
        "weights": (FineTuningTrainer, "_save", 20_000),
        "optimizer": (FineTuningTrainer, "_save_optimizer_and_scheduler", 20_000),
        "state": (FineTuningTrainer, "_save_rng_state", 300),
        "results": (FineTuningTrainer, "log_metrics", 100),
        "picture": (glue_task, "draw_glue", 3000),
    }[what]
    original, calls = getattr(owner, name), counted(monkeypatch)

    def limited(*args, **kwargs):
        if len(calls) == 3 or name == "_save" and len(calls) == 2:
            full_disk(size)
        return original(*args, **kwargs)

    try:
        with monkeypatch.context() as patch, pytest.raises(InputError) as said:
            patch.setattr(owner, name, limited)
            if what == "state":
                patch.setattr(owner, name, lambda *args: (original(*args), len(calls) == 3 and full_disk(size)))
            glue(model, download, tmp_path / "out", *SAVE)
    finally:
        full_disk()
    reason = r"no space left \(\d+\.\d GiB free\)"
    assert re.fullmatch(
        rf"{tmp_path}.*: {reason}; make room or give the right to write there; the same command then goes on\.",
        str(said.value),
    )
    whole = [path.name for path in complete_checkpoints(tmp_path / "out.partial")]
    assert whole[-1] == {"weights": "checkpoint-1", "optimizer": "checkpoint-2", "state": "checkpoint-2"}.get(
        what, "checkpoint-3"
    )
    before = len(calls)
    glue(model, download, tmp_path / "out", *SAVE)
    assert len(calls) - before == {"weights": 2, "optimizer": 1, "state": 1}.get(what, 0)


def test_final_name_that_cannot_be_given(model, download, tmp_path, monkeypatch):
    """Guards: what is done stays where the last rename fails, and the same command only gives the name."""
    calls = counted(monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(InputError, match="out.*: no space left .*the same command"):

        def rename(self, target):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))

        patch.setattr(Path, "rename", rename)
        glue(model, download, tmp_path / "out", *TRAIN)
    glue(model, download, tmp_path / "out", *TRAIN)
    assert len(calls) == 3


def test_the_place_that_cannot_be_written(tmp_path, monkeypatch, full_disk):
    """Guards: a read-only file system is named, and a full disk that a library says in its own way; others pass."""
    with pytest.raises(InputError, match=f"{tmp_path}/a: cannot be written .Read-only file system.; do this"):
        with writing(tmp_path, "do this"):
            raise OSError(errno.EROFS, "Read-only file system", f"{tmp_path}/a")

    others = (ConnectionRefusedError(111, "Connection refused"), RuntimeError("mat1 and mat2"), OSError("no model"))
    for error in others:
        with pytest.raises(type(error), match=str(error.args[-1])), writing(tmp_path, "do this"):
            raise error

    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"{tmp_path}/file/out: cannot be written .Not a directory.; do this"):
        with writing(tmp_path / "file" / "out", "do this"):
            raise RuntimeError("unexpected pos 576 vs 534")

    def said_of(save) -> str:
        full_disk(20_000)
        try:
            with pytest.raises(InputError) as said, writing(tmp_path, "do this"):
                save({"a": torch.zeros(10_000)}, tmp_path / "out")
        finally:
            full_disk()
        return str(said.value)

    for save in (save_file, torch.save):
        assert re.fullmatch(rf"{tmp_path}: no space left \(\d+\.\d GiB free\); do this\.", said_of(save))
    monkeypatch.setattr(files, "TRIED", 20_000)  # as where safetensors has removed what filled the disk
    sentence = rf"{tmp_path}: weights cannot be written \(.*File too large .*\); do this\."
    assert re.fullmatch(sentence, said_of(save_file))


def test_damaged_checkpoints_are_said(tmp_path):
    """
    Guards: an unreadable newest checkpoint is named with the one before, which --resume_from_checkpoint takes; the
    newest is then set aside, since the run would go on from it the next time.
    """
    partial = tmp_path / "run.partial"
    for step in (5, 10):
        folder = partial / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file({"a": torch.zeros(1000)}, folder / "model.safetensors")
        torch.save({"a": torch.zeros(1000)}, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        checksums = {file.name: file_sha256(file) for file in folder.iterdir()}
        (folder / "checksums.json").write_text(json.dumps(checksums))
    command = {"output_dir": str(tmp_path / "run")}
    (partial / "command.json").write_text(json.dumps(command))
    newest = partial / "checkpoint-10"

    def start(**options):
        arguments = CommonArguments(output_dir=str(tmp_path / "run"), use_cpu=True, **options)
        with output_directory(arguments, command) as checkpoint:
            raise KeyboardInterrupt(checkpoint)

    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        whole = (newest / name).read_bytes()
        (newest / name).write_bytes(b"{[}" if name.endswith("json") else whole[: len(whole) // 2])
        with pytest.raises(InputError, match=rf"checkpoint-10/{name}.*`resume_from_checkpoint` .*checkpoint-5"):
            start()
        with pytest.raises(KeyboardInterrupt, match="checkpoint-5"):
            start(resume_from_checkpoint=str(partial / "checkpoint-5"))
        assert not newest.exists()
        (partial / "_unused-checkpoint-10").rename(newest)
        (newest / name).write_bytes(whole)
    with pytest.raises(KeyboardInterrupt, match="checkpoint-10"):
        start()
    shutil.copytree(partial / "checkpoint-5", tmp_path / "copies" / "checkpoint-5")
    with pytest.raises(KeyboardInterrupt, match="copies/checkpoint-5"):
        start(resume_from_checkpoint=str(tmp_path / "copies" / "checkpoint-5"))
    assert newest.exists()  # of another folder none is later

    (partial / "_unused-checkpoint-10").mkdir()
    shutil.copy(newest / "trainer_state.json", partial)  # the model was trained, and the evaluation stopped
    with pytest.raises(KeyboardInterrupt, match="checkpoint-5"):
        start(resume_from_checkpoint=str(partial / "checkpoint-5"))
    assert last_checkpoint(partial) == str(partial / "checkpoint-5")
    assert (partial / "_unused1-checkpoint-10" / "model.safetensors").exists()


def test_output_directory_appears_whole_or_not_at_all(tmp_path):
    """Guards: a failed run leaves nothing, one with a checkpoint keeps it and is continued, a whole one is renamed."""
    final, partial = tmp_path / "run", tmp_path / "run.partial"
    command = {"output_dir": str(final), "seed": 1}

    def arguments():
        return CommonArguments(output_dir=str(final), use_cpu=True)

    with pytest.raises(RuntimeError), output_directory(arguments(), command) as checkpoint:
        assert checkpoint is None
        raise RuntimeError
    assert not list(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt), output_directory(arguments(), command):
        (partial / "checkpoint-5").mkdir()
        (partial / "checkpoint-5" / "trainer_state.json").write_text("{}")
        (partial / "model.safetensors").touch(0o600)
        (partial / "checkpoint-10").mkdir()  # killed while it was written
        raise KeyboardInterrupt
    assert not final.exists()

    with output_directory(arguments(), command) as checkpoint:
        assert checkpoint == str(partial / "checkpoint-5") and not (partial / "checkpoint-10").exists()
        assert not final.exists()
    assert (final / "checkpoint-5").exists() and not partial.exists()
    assert (final / "model.safetensors").stat().st_mode & 0o777 == final.stat().st_mode & 0o666  # as its directory

    with pytest.raises(InputError, match="not empty"), output_directory(arguments(), command):
        pass


def test_what_makes_a_run_another_one(tmp_path):
    """Guards: a run continues what was given the same fields, wherever and from where; a token is written nowhere."""
    write_command(tmp_path, {"output_dir": "x", "seed": 1, "config_overrides": {"a": None}, "hub_token": "hf_write"})
    assert "hf_write" not in (tmp_path / "command.json").read_text()
    same = {"config_overrides": {"a": None}, "seed": 1, "resume_from_checkpoint": "y", "bf16": None, "token": "hf"}
    check_same_command(tmp_path, same | {"dataloader_num_workers": 3, "store_dir": "z"})  # which change no weights
    other = (
        r"other arguments \(seed, bf16; its command.json has them\); give these again, or another `output_dir`, or "
    )
    with pytest.raises(InputError, match=other):
        check_same_command(tmp_path, {"config_overrides": {"a": None}, "bf16": False})
