"""
The output directory of a run, with its lock, checkpoints and results.

A run writes to OUTPUT.partial, which is renamed to OUTPUT when the run is complete. An interrupted run resumes from
OUTPUT.partial if its arguments and a fingerprint of its data, saved in command.json and data.json, have not changed.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import Trainer

from ..support.errors import InputError
from ..support.files import (
    check_output_free,
    directory_lock,
    finite,
    move_into_place,
    output_path,
    read_json_object,
    reading,
    to_json,
    write_atomically,
    writing,
)
from .arguments import CommonArguments

COMMAND_FILE, DATA_FILE = "command.json", "data.json"
# Arguments with these prefixes may differ when a run resumes, because they do not affect the training steps.
UNCHECKED_PREFIXES = (
    *("output_dir", "store_dir", "cache_dir", "logging_", "save_", "per_device_eval_"),
    *("dataloader_", "preprocessing_", "report_to", "run_name", "disable_tqdm"),
)
LENGTH = ("num_train_epochs", "max_steps")  # may differ as long as no training is complete
EVALUATION = ("eval_", "do_eval", "do_predict", "max_eval_", "max_predict_")  # unless a run of a sweep is complete


def already_complete(output_dir: str | Path | None, given: dict[str, Any]) -> bool:
    """
    Returns True and prints a message if the output directory contains a complete run or sweep with the same arguments.

    Returns False if the directory is empty or does not exist. Does not check whether the data changed.

    Raises:
        InputError: If the output directory contains anything else.
    """
    final = output_path(output_dir)
    file = final / COMMAND_FILE
    if os.path.isfile(file):
        if changed := [name for name in changed_arguments(file, given) if name != "output_dir"]:
            problem = f"contains a complete run with different arguments ({', '.join(changed)}; see {COMMAND_FILE})"
            raise InputError(f"{final}: {problem}; choose a different `output_dir`.")
        PartialState().print(
            f"{final}: already complete; to run the command again, for example after the data changed, remove {final}"
        )
        return True
    check_output_free(final)
    return False


def changed_arguments(file: Path, given: dict[str, Any]) -> list[str]:
    """Returns the names of the arguments that differ between command.json and `given`."""
    earlier, now = read_own(file), command_of(given)
    return [name for name in earlier | now if earlier.get(name) != now.get(name)]


def read_own(file: Path) -> dict[str, Any]:
    """Reads command.json or data.json."""
    return read_json_object(file, f"remove {file.parent} to start again")


def command_of(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments as saved in command.json, without access tokens or arguments that only affect resuming."""
    left_out = ("token", "take_over_output_dir")
    return {name: value for name, value in json.loads(to_json(given, default=str)).items() if name not in left_out}


def last_checkpoint(directory: Path) -> str | None:
    """Returns `directory` if training is complete, else its last complete checkpoint, or None if there is none."""
    if is_complete_checkpoint(directory):
        return str(directory)
    return next(map(str, reversed(complete_checkpoints(directory))), None)


def find_progress(directory: Path) -> str | None:
    """Returns the path from which a run or sweep in `directory` can resume, or None if it has saved nothing."""
    has_runs = any(directory.glob(f"*/**/{COMMAND_FILE}"))
    return last_checkpoint(directory) or (str(directory) if has_runs else None)


@contextmanager
def output_directory(training_args: CommonArguments, given: dict[str, Any]) -> Iterator[str | None]:
    """
    Context manager that locks an output directory, and renames OUTPUT.partial to OUTPUT at the end.

    Yields the checkpoint to resume from, or None for a new run. Inside the context, `training_args.output_dir` is
    OUTPUT.partial. After an interruption, OUTPUT.partial is kept if the run can resume from it, and removed otherwise.

    Args:
        given: The arguments, which are written to command.json.

    Raises:
        InputError: If the directory is not empty, not writable or in use, or if OUTPUT.partial contains an unfinished
            run with different arguments.
    """
    final = output_path(training_args.output_dir)
    lock = directory_lock(final, training_args.take_over_output_dir)
    partial, state = final.with_name(final.name + ".partial"), PartialState()
    write_errors = writing(final, "and run the same command to resume")
    with on_main_process(lock), write_errors:
        check_output_free(final)
        check_own(partial)
        (checkpoint,) = broadcast_object_list([find_progress(partial)])
        if checkpoint:
            check_same_command(partial, given)
        state.wait_for_everyone()  # all processes must have read the directory before it changes
        if state.is_main_process:
            if not find_progress(partial):
                shutil.rmtree(partial, ignore_errors=True)
            for directory in {*checkpoints(partial)} - {*complete_checkpoints(partial)}:  # of a killed run
                shutil.rmtree(directory)
            partial.mkdir(parents=True, exist_ok=True)
            # This file is also a recipe for repeating the run.
            write_atomically(partial / COMMAND_FILE, to_json(command_of(given), indent=1) + "\n")
        state.wait_for_everyone()
        training_args.output_dir = str(partial)
        try:
            yield checkpoint
        except BaseException:
            if state.is_main_process and (last := last_checkpoint(partial)):
                print(f"\nrun the same command to resume from {last}", file=sys.stderr)
            elif state.is_main_process and not find_progress(partial):
                shutil.rmtree(partial, ignore_errors=True)
            raise
        state.wait_for_everyone()
        if state.is_main_process:
            move_into_place(final, partial)
        state.wait_for_everyone()
        training_args.output_dir = str(final)


def check_own(partial: Path):
    """Raises InputError if `partial` exists and is not the directory of an unfinished run."""
    own = (COMMAND_FILE, f"{COMMAND_FILE}.partial")  # the files that a run writes first
    is_own = partial.is_dir() and not partial.is_symlink() and not any(partial.iterdir())
    if os.path.lexists(partial) and not (is_own or any((partial / name).is_file() for name in own)):
        raise InputError(f"{partial}: not from an unfinished run; move it, or choose a different `output_dir`.")


def check_same_command(partial: Path, given: dict[str, Any]):
    """
    Raises InputError if `given` and the unfinished run or sweep in `partial` differ in arguments that affect training,
    or if the number of processes has changed.
    """
    here = PartialState().num_processes
    for file in partial.glob(f"**/{DATA_FILE}"):  # one per run of a sweep
        if (processes := read_own(file).get("processes", here)) != here:
            problem = f"the number of processes has changed from {processes} to {here}"
            raise InputError(f"{partial}: {problem}; use as many as before, or remove {partial}.")
    trained = [file.parent for file in partial.glob(f"**/{COMMAND_FILE}") if is_complete_checkpoint(file.parent)]
    unchecked = UNCHECKED_PREFIXES + (() if trained else LENGTH) + (EVALUATION if trained in ([], [partial]) else ())
    names = changed_arguments(partial / COMMAND_FILE, given)
    if changed := [name for name in names if not name.startswith(unchecked)]:
        raise InputError(
            f"{partial}: the unfinished run has different arguments ({', '.join(changed)}; see {COMMAND_FILE}); "
            f"restore them, choose a different `output_dir`, or remove {partial}."
        )


def check_same_data(output_dir: Path, fingerprint: str):
    """
    Writes the data fingerprint and the number of processes to data.json when a run starts.

    Raises:
        InputError: If the fingerprint differs from that of a resumed run, or of other runs of the same sweep.
    """
    state, file = PartialState(), output_dir / DATA_FILE
    if state.is_main_process and not file.exists():
        content = {"fingerprint": fingerprint, "processes": state.num_processes}
        write_atomically(file, json.dumps(content) + "\n")
    state.wait_for_everyone()
    commands = [parent / COMMAND_FILE for parent in [*output_dir.parents][:2]]
    in_sweep = any(read_own(command).get("seeds") for command in commands if command.exists())
    for each in [file, *(output_dir.parent.glob(f"seed-*/{DATA_FILE}") if in_sweep else ())]:
        if read_own(each).get("fingerprint") != fingerprint:
            remedy = f"restore the original version, or remove {each.parent}"
            raise InputError(f"{each.parent}: the data has changed since this run started; {remedy}.")


@contextmanager
def on_main_process(context: AbstractContextManager) -> Iterator[None]:
    """Context manager that enters `context` on the main process only. If this raises InputError, all processes do."""
    problem: InputError | None = None
    with ExitStack() as stack:
        if PartialState().is_main_process:
            try:
                stack.enter_context(context)
            except InputError as error:
                problem = error
        (problem,) = broadcast_object_list([problem])
        if problem is not None:
            raise problem
        yield


def is_complete_checkpoint(directory: Path) -> bool:
    """Returns True if a checkpoint or trained model contains an intact trainer_state.json, which is written last."""
    file = directory / "trainer_state.json"
    return file.is_file() and file.read_bytes().rstrip().endswith(b"}")


def checkpoint_step(directory: Path) -> int:
    """Returns the step in the name of a checkpoint directory, or -1 if the directory is not a checkpoint."""
    match = re.fullmatch(r"checkpoint-(\d+)", directory.name, re.ASCII)
    return int(match[1]) if match else -1


def checkpoints(directory: Path) -> list[Path]:
    """Returns the checkpoints in `directory`, oldest first."""
    return sorted((path for path in directory.glob("checkpoint-*") if checkpoint_step(path) >= 0), key=checkpoint_step)


def complete_checkpoints(directory: Path) -> list[Path]:
    return list(filter(is_complete_checkpoint, checkpoints(directory)))


@dataclass(frozen=True, repr=False)
class Trained:
    """The output directory of a completed run or sweep, and the metrics from its all_results.json or results.json."""

    folder: Path
    results: dict[str, Any]

    def __repr__(self) -> str:
        metrics = [name for name in self.results if name.startswith("eval_")]
        numbers = [(name, self.results[name]) for name in metrics if not ("_runtime" in name or "_per_second" in name)]
        shown = [f"{name} {value:.4g}" for name, value in numbers if isinstance(value, float)]
        return f"{self.folder}: {', '.join(shown) or 'done'}"


def read_result(directory: Path) -> Trained:
    """Reads the results in the output directory of a run or sweep. If no results file exists, `results` is empty."""
    files = [file for file in (directory / "all_results.json", directory / "results.json") if file.exists()]
    return Trained(directory, read_json_object(files[0]) if files else {})


def record_metrics(trainer: Trainer, split: str, metrics: dict[str, float]):
    """Prints metrics and writes them to SPLIT_results.json and all_results.json, with null for NaN and infinity."""
    trainer.log_metrics(split, metrics)
    with reading(Path(str(trainer.args.output_dir)) / "all_results.json", "remove it and run the same command again"):
        trainer.save_metrics(split, finite(metrics))
