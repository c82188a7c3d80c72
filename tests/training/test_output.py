"""Output directories: locks, interrupted runs, and arguments that may change when a run resumes."""

import json
import os
import signal
from pathlib import Path

import pytest
from helpers import ROOT, fork_server
from helpers.outputs import results, same_weights
from helpers.tiny_tasks import glue, glue_arguments

from fixedbert.fine_tuning.trainer import FineTuningTrainer
from fixedbert.support.errors import InputError, exit_on_input_error
from fixedbert.support.files import directory_lock
from fixedbert.training.arguments import CommonArguments
from fixedbert.training.output import check_same_command, command_of, output_directory
from run_glue import main as run_glue

TRAIN = ("--do_train", "--do_eval", "--max_steps", "3")
OTHER_HOST = "7\nelsewhere\n"  # the lock of a process on a different machine

pytestmark = pytest.mark.usefixtures("same_signals")


def test_lock_of_a_different_machine(tmp_path):
    """A lock from a different machine is removed only if a flag is set. A process releases only its own lock."""
    lock = tmp_path / "out.lock"
    lock.write_text(OTHER_HOST)
    arguments = CommonArguments(output_dir=str(tmp_path / "out"), use_cpu=True)
    with pytest.raises(InputError, match=r"in use by process 7 on elsewhere; .*`take_over_output_dir`"):
        with output_directory(arguments, {}):
            pass
    assert lock.read_text() == OTHER_HOST and [path.name for path in tmp_path.iterdir()] == ["out.lock"]
    arguments.take_over_output_dir = True
    with output_directory(arguments, {}):
        assert lock.read_text().startswith(f"{os.getpid()}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with directory_lock(tmp_path / "out"):
        lock.unlink()
        lock.write_text(OTHER_HOST)  # as a process on a different machine would
    assert lock.read_text() == OTHER_HOST


@pytest.mark.slow
def test_no_process_waits_for_a_lock(model, download, tmp_path, tmp_path_factory):
    """If the main process cannot lock the directory, all processes end with the error message."""
    (tmp_path / "out.lock").write_text(OTHER_HOST)
    arguments = glue_arguments(model, download, tmp_path / "out", *TRAIN)
    for done in fork_server.Pair(ROOT / "run_glue.py", arguments, tmp_path_factory.mktemp("printed")).ended():
        assert done.returncode == 2 and done.stderr.count("error: ") == 1 and "process 7 on elsewhere" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.lock"]


def count_steps(monkeypatch) -> list[int]:
    """Returns a list to which every later training step is appended."""
    original, calls = FineTuningTrainer.training_step, []

    def training_step(self, *args, **kwargs):
        calls.append(self.state.global_step)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", training_step)
    return calls


def test_complete_run_is_not_repeated(model, download, tmp_path, monkeypatch, capsys):
    """If a run is complete, its command only reports this. A command with different arguments is rejected."""
    expected = glue(model, download, tmp_path / "out", *TRAIN)
    calls = count_steps(monkeypatch)
    assert glue(model, download, tmp_path / "out", *TRAIN) == expected and not calls
    assert f"{tmp_path}/out: already complete" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"out: contains a complete run with different arguments \(seed; "):
        glue(model, download, tmp_path / "out", *TRAIN, "--seed", "7")


def ended(arguments: list[str], capsys) -> tuple[int, str]:
    """Returns the exit status and standard error of a run that a signal ends."""
    with pytest.raises(SystemExit) as end:
        exit_on_input_error(lambda: run_glue(arguments))
    return end.value.code, capsys.readouterr().err


def test_sigterm_in_a_sweep(model, download, tmp_path, monkeypatch, capsys):
    """SIGTERM ends a sweep with status 143. The same command then completes only the remaining work."""
    command = glue_arguments(model, download, tmp_path / "out", *TRAIN, "--seeds", "1", "2")
    calls, original = count_steps(monkeypatch), FineTuningTrainer.training_step

    def signalled(*args, **kwargs):
        if len(calls) == 5:  # before the last step of the second run
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningTrainer, "training_step", signalled)
        status, printed = ended(command, capsys)
    assert status == 143 and printed.endswith("\nstopped by SIGTERM\n")
    run_glue(command)
    assert len(calls) == 6 and "seed-1: already complete" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["runs"]) == 2
    one, two = (tmp_path / "out/rte" / seed for seed in ("seed-1", "seed-2"))
    assert not same_weights(one, two) and results(one).keys() == results(two).keys()


def test_interrupted_run_saves_a_checkpoint(model, download, tmp_path, monkeypatch, capsys):
    """
    The first Ctrl-C saves a checkpoint after the current step, a second exits immediately. Training restores handlers.
    """
    original, calls = FineTuningTrainer.training_step, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        for _ in range({2: 1, 3: 2}.get(len(calls), 0)):
            signal.raise_signal(signal.SIGINT)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", interrupted)
    command = glue_arguments(model, download, tmp_path / "out", "--do_train", "--max_steps", "4")
    for steps in (2, 3):
        status, printed = ended(command, capsys)
        assert status == 130 and len(calls) == steps
        assert f"run the same command to resume from {tmp_path}/out.partial/checkpoint-2\n\ninterrupted\n" in printed
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run_glue(command)
    assert len(calls) == 5
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


SAVE = ("--save_strategy", "steps", "--save_steps", "1")
BEST = (*SAVE, "--eval_strategy", "steps", "--eval_steps", "1", "--load_best_model_at_end")


@pytest.mark.parametrize(
    "moment, flags, change, problem",
    [
        ("checkpoint", SAVE, ("--max_eval_samples", "5"), None),
        ("checkpoint", SAVE, ("--max_steps", "4"), None),
        ("checkpoint", SAVE, ("--max_steps", "2"), "already done 3 steps, more than the 2 requested"),
        ("checkpoint", BEST, ("--max_eval_samples", "5"), "the data has changed"),
        ("evaluation", SAVE, ("--max_steps", "4"), r"different arguments \(max_steps;"),
        ("second run", ("--seeds", "1", "2"), ("--max_eval_samples", "5"), r"different arguments \(max_eval_samples;"),
    ],
)
def test_changed_length_or_evaluation(model, download, tmp_path, monkeypatch, capsys, moment, flags, change, problem):
    """Length and evaluation may change when a run resumes, unless they would change, or not change, what is done."""
    name = "save_model" if moment == "checkpoint" else "evaluation_loop"
    original, calls = getattr(FineTuningTrainer, name), []

    def interrupted(self, output_dir=None, *args, **kwargs):
        calls.append(output_dir)
        if (
            moment == "checkpoint"
            and output_dir is None
            or moment == "evaluation"
            or len(calls) == 2
            and SAVE[0] not in flags
        ):
            raise KeyboardInterrupt
        return original(self, output_dir, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FineTuningTrainer, name, interrupted)
        glue(model, download, tmp_path / "out", *TRAIN, *flags)
    if problem and "requested" not in problem:
        with pytest.raises(InputError, match=problem):
            glue(model, download, tmp_path / "out", *TRAIN, *flags, *change)
        return
    results = glue(model, download, tmp_path / "out", *TRAIN, *flags, *change)
    assert (problem or "") in capsys.readouterr().out
    assert results["eval_samples"] == (5 if "--max_eval_samples" in change else 13)


def test_output_directory_appears_complete_or_not_at_all(tmp_path):
    """The output directory appears only when a run is complete. An interrupted run with a checkpoint can resume."""
    final, partial = tmp_path / "run", tmp_path / "run.partial"
    command = {"output_dir": str(final), "seed": 1}

    def arguments():
        return CommonArguments(output_dir=str(final), use_cpu=True)

    with pytest.raises(RuntimeError), output_directory(arguments(), command) as checkpoint:
        assert checkpoint is None
        raise RuntimeError
    assert not list(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt), output_directory(arguments(), command):
        for name, state in (
            ("checkpoint-5", "{}"),
            ("checkpoint-40", "{}"),
            ("checkpoint-best", "{}"),
            ("checkpoint-41", "{"),
        ):
            (partial / name).mkdir()
            (partial / name / "trainer_state.json").write_text(state)
        (partial / "model.safetensors").touch(0o600)
        (partial / "checkpoint-50").mkdir()  # incomplete
        raise KeyboardInterrupt
    assert not final.exists()

    with output_directory(arguments(), command) as checkpoint:
        assert checkpoint == str(partial / "checkpoint-40") and not final.exists()
        kept = {path.name for path in partial.iterdir()}
        assert kept == {"checkpoint-5", "checkpoint-40", "checkpoint-best", "command.json", "model.safetensors"}
    assert (final / "checkpoint-5").exists() and not partial.exists()
    assert (final / "model.safetensors").stat().st_mode & 0o777 == final.stat().st_mode & 0o666

    with pytest.raises(InputError, match="not empty"), output_directory(arguments(), command):
        pass


@pytest.mark.parametrize("saved", ["checkpoint-5/trainer_state.json", "seed-1.partial/command.json"])
def test_runs_and_sweeps_do_not_remove_each_other(tmp_path, saved):
    """An unfinished run or sweep in the output directory is kept, and different arguments raise an error."""
    file = tmp_path / "out.partial" / saved
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (tmp_path / "out.partial" / "command.json").write_text('{"seed": 1}')
    arguments = CommonArguments(output_dir=str(tmp_path / "out"), use_cpu=True)
    with pytest.raises(InputError, match=r"different arguments \(seed, seeds"):
        with output_directory(arguments, {"seeds": [1, 2]}):
            pass
    assert file.exists()


def test_arguments_of_a_resumed_run(tmp_path):
    """Arguments that do not affect the training steps may change when a run resumes. Others cause an error."""
    earlier = {"output_dir": Path("x"), "seed": 1, "config_overrides": {"a": None}, "token": "hf_write"}
    (tmp_path / "command.json").write_text(json.dumps(command_of(earlier)))
    assert "hf_write" not in (tmp_path / "command.json").read_text()
    same = {"config_overrides": {"a": None}, "seed": 1, "take_over_output_dir": True, "bf16": None, "token": "hf"}
    free = {"save_total_limit": 2, "logging_steps": 7, "per_device_eval_batch_size": 3, "num_train_epochs": 9}
    check_same_command(tmp_path, same | free | {"dataloader_num_workers": 3, "store_dir": "z"})
    with pytest.raises(InputError, match=r"different arguments \(seed, bf16; see command.json\)"):
        check_same_command(tmp_path, {"config_overrides": {"a": None}, "bf16": False})
