"""
Output directories that appear when they are complete, and runs that resume.

Before a run goes on, its arguments (`check_same_command`), its checkpoint (`check_readable`) and its data
(`check_same_data`) are compared with what the directory has.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerState

from ..support.checksums import file_sha256
from ..support.errors import InputError, note_what_is_left
from ..support.files import (
    check_output_free,
    move_into_place,
    output_path,
    read_json_object,
    reading,
    to_json,
    write_atomically,
    writing,
)
from ..support.locks import directory_lock
from .arguments import CommonArguments

COMMAND_FILE = "command.json"
DATA_FILE = "data.json"
CHECKSUMS = "checksums.json"  # of a checkpoint's files
STEP = re.compile(r"checkpoint-(\d{1,18})", re.ASCII)
SECRET = ("token", "hub_token")  # written nowhere
# What a run that goes on may be given in another way: its place, and what changes no weights.
NOT_PART_OF_THE_RUN = {
    *("output_dir", "resume_from_checkpoint", "take_over_output_dir", "store_dir", "cache_dir"),
    *("dataloader_num_workers", "dataloader_prefetch_factor", "preprocessing_num_workers"),
    *("report_to", "disable_tqdm"),
}


@contextmanager
def output_directory(training_args: CommonArguments, given: dict[str, Any]) -> Iterator[str | None]:
    """
    Run in `output_dir`.partial, and rename it when the run is complete. One process locks the directory for the run.

    An interrupted run keeps its .partial directory if it has a checkpoint or the trained model. The same command then
    resumes, and the context is the path of the checkpoint. Any other failure leaves nothing.

    Args:
        given: the fields that the run was given, which its command.json keeps.

    Raises:
        InputError: the directory is not empty or cannot be written, another process uses it, an unfinished run there
            has other arguments, or a checkpoint cannot be read.
    """
    final = output_path(training_args.output_dir)
    with output_lock(final, training_args):
        check_output_free(final)
        partial = final.with_name(final.name + ".partial")
        checkpoint = last_checkpoint(partial)
        state = PartialState()
        if state.num_processes > 1 and len({Path(path or "").name for path in gather_object([checkpoint])}) > 1:
            raise InputError(
                f"{partial}: not all machines see the same checkpoints; give an `output_dir` that they share."
            )
        if checkpoint:
            check_same_command(partial, given)
        if str(training_args.resume_from_checkpoint).lower() not in ("none", "true", "false"):
            checkpoint = training_args.resume_from_checkpoint
        if checkpoint and checkpoint != str(partial):
            check_readable(Path(checkpoint), state.num_processes)
        state.wait_for_everyone()  # all processes have read it before one writes
        if state.is_main_process:
            tidy_up(partial, checkpoint)
            if not (partial / COMMAND_FILE).exists():
                write_command(partial, given)
        state.wait_for_everyone()
        training_args.output_dir = str(partial)
        training_args.hub_model_id = training_args.hub_model_id or final.name
        try:
            yield checkpoint
        except BaseException as error:
            last = last_checkpoint(partial)
            left = f"the same command goes on from {last}" if last else f"nothing is left of {final}"
            note_what_is_left(error, left)
            if state.is_main_process and not last:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        finish_directory(partial, final)
        training_args.output_dir = str(final)


def tidy_up(partial: Path, checkpoint: str | None):
    """Make the directory of a run that goes on from `checkpoint`, without what an end in the middle has left there."""
    if partial.is_dir() and not last_checkpoint(partial):
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    for folder in partial.glob("checkpoint-*"):
        if step_of(folder) >= 0 and folder.is_dir() and not is_whole(folder):
            shutil.rmtree(folder)
    if checkpoint and Path(checkpoint).resolve().parent == partial.resolve():
        set_aside_later(partial, Path(checkpoint))


@contextmanager
def output_lock(final: Path, training_args: CommonArguments) -> Iterator[None]:
    """Hold an output directory for all processes, and report what cannot be written there."""
    remedy = "make room or give the right to write there; the same command then goes on"
    with on_main_process(directory_lock(final, training_args.take_over_output_dir)), writing(final, remedy):
        yield


@contextmanager
def on_main_process(context: AbstractContextManager) -> Iterator[None]:
    """
    Enter `context` on the main process alone, while the others wait.

    Raises:
        InputError: on all processes the same, where the main process cannot enter it.
    """
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


def finish_directory(partial: Path, final: Path):
    """Rename a directory when every process is done with it; an empty one of that name is replaced."""
    state = PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        move_into_place(final, partial)
    state.wait_for_everyone()


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint, or the trained model, has all of trainer_state.json, which is written last."""
    file = folder / "trainer_state.json"
    return file.is_file() and file.read_bytes().rstrip().endswith(b"}")


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name; -1 for any other name."""
    found = STEP.fullmatch(checkpoint.name)
    return int(found[1]) if found else -1


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if step_of(path) >= 0 and is_whole(path)), key=step_of)


def set_aside_later(partial: Path, checkpoint: Path):
    """
    Rename the checkpoints after one that the user goes back to, and what says that the model is trained: the run would
    otherwise go on from them when it is stopped, and Trainer keep them instead of its own, for `save_total_limit`.
    """
    later = [path for path in complete_checkpoints(partial) if step_of(path) > step_of(checkpoint)]
    if is_whole(partial):
        later.append(partial / "trainer_state.json")
    for path in later:
        names = (f"_unused{number or ''}-{path.name}" for number in count())  # which Trainer does not push to the Hub
        unused = next(partial / name for name in names if not (partial / name).exists())
        path.rename(unused)
        print(f"{path} is later than {checkpoint}, from which this run goes on; it is now {unused.name}.")


def last_checkpoint(folder: Path) -> str | None:
    """What a run in `folder` resumes from: `folder` itself if it has the trained model, or the newest checkpoint."""
    if is_whole(folder):
        return str(folder)
    return str(complete_checkpoints(folder)[-1]) if complete_checkpoints(folder) else None


def without_secrets(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in SECRET}


def write_command(partial: Path, given: dict[str, Any]):
    """Write what a run was given beside its results, without tokens: a recipe that repeats it."""
    write_atomically(partial / COMMAND_FILE, to_json(without_secrets(given), indent=1, default=str) + "\n")


def check_same_command(partial: Path, given: dict[str, Any]):
    """
    Raises:
        InputError: the unfinished run in `partial` was given something else.
    """
    remedy = f"remove {partial}"
    earlier, now = (
        read_json_object(partial / COMMAND_FILE, remedy),
        json.loads(to_json(without_secrets(given), default=str)),
    )
    names = [name for name in {**earlier, **now} if name not in NOT_PART_OF_THE_RUN]
    if other := [name for name in names if earlier.get(name) != now.get(name)]:
        raise InputError(
            f"{partial}: an unfinished run with other arguments ({', '.join(other)}; its {COMMAND_FILE} has them); "
            "give these again, or another `output_dir`, or remove it."
        )


def check_same_data(output_dir: Path, fingerprint: str):
    """
    Write the fingerprint of a run's data into its directory, or compare it with that of the unfinished run there.

    Raises:
        InputError: the unfinished run has other data.
    """
    state = PartialState()
    file = output_dir / DATA_FILE
    if state.is_main_process and not file.exists():
        write_atomically(file, json.dumps({"fingerprint": fingerprint}) + "\n")
    state.wait_for_everyone()
    if read_json_object(file, f"remove {file.parent}").get("fingerprint") != fingerprint:
        raise InputError(
            f"{file.parent}: the texts, what is made of them, or the teacher are not those that the unfinished run "
            "began with; bring these back, or remove it and start anew."
        )


def check_readable(checkpoint: Path, processes: int):
    """
    Raises:
        InputError: there is no such checkpoint, a file is not as it was written, or a process has no file of its own;
            the message names the checkpoint before. What else cannot be loaded is said when Trainer loads it.
    """
    if not checkpoint.is_dir():
        raise InputError(f"{checkpoint}: no such directory.", "resume_from_checkpoint")
    states = [checkpoint / f"rng_state_{process}.pth" for process in range(processes)] if processes > 1 else []
    problem, remedy = "the checkpoint cannot be read", remedy_for(checkpoint)
    checksums = read_json_object(checkpoint / CHECKSUMS, remedy) if (checkpoint / CHECKSUMS).exists() else {}
    for file in sorted({*states, *(checkpoint / name for name in checksums)}):
        with reading(file, remedy, problem):
            found = file_sha256(file)
            if checksums.get(file.name, found) != found:
                raise ValueError("it is not as it was written")
    with reading(checkpoint / "trainer_state.json", remedy, problem):
        TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def remedy_for(checkpoint: Path) -> str:
    """What to do where a checkpoint cannot be used."""
    step = step_of(checkpoint)
    before = [str(path) for path in complete_checkpoints(checkpoint.parent) if step < 0 or step_of(path) < step]
    if before:
        return f"go on from the one before with `resume_from_checkpoint` {before[-1]}"
    return f"remove {checkpoint.parent} and start anew"


class WriteChecksums(TrainerCallback):
    """Writes the checksums of a checkpoint's files beside them, when all processes have written theirs."""

    def on_save(self, args, state, control, **kwargs):
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        PartialState().wait_for_everyone()
        if state.is_world_process_zero and checkpoint.is_dir():
            (checkpoint / CHECKSUMS).unlink(missing_ok=True)  # of an earlier save of the same step
            found = {file.name: file_sha256(file) for file in sorted(checkpoint.iterdir()) if file.is_file()}
            write_atomically(checkpoint / CHECKSUMS, json.dumps(found, indent=1) + "\n")
