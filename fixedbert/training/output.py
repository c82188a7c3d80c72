"""Output directories that appear whole or not at all, and runs that continue where they stopped."""

import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import safe_open
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from ..errors import InputError, Stopped
from ..files import content_hash_of, read_object, reading, write_whole, writing
from ..locks import locked

COMMAND_FILE = "command.json"
DATA_FILE = "data.json"
CHECKSUMS = "checksums.json"  # of a checkpoint's files
STEP = re.compile(r"checkpoint-(\d{1,18})", re.ASCII)
SECRET = ("--token", "--hub_token")  # written nowhere
LOADING = (  # Trainer's methods that read parts of a checkpoint
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_scaler",
    "_load_rng_state",
    "_load_callback_state",
)
NOT_PART_OF_THE_RUN = ("--output_dir", "--resume_from_checkpoint", "--take_over_output_dir", *SECRET)


@contextmanager
def output_directory(training_args: TrainingArguments, command: list[str]) -> Iterator[str | None]:
    """
    Do a run in `output_dir`.partial and give that its final name when all is done.

    An interrupted run keeps its .partial directory if there is a checkpoint or the trained model in it; the same
    command continues from there, on which the context gives the path of that. Everything else that fails leaves
    nothing behind. The flags of the run stay beside its results, in command.json. One process holds the directory from
    before it is looked at until all is done.

    Raises:
        InputError: the directory is there and not empty, another process works there, it cannot be written, an
            unfinished run with other arguments stands in the way, or a checkpoint cannot be read.
    """
    final = named(training_args.output_dir)
    with held(final, training_args):
        check_free(final)
        partial = final.with_name(final.name + ".partial")
        checkpoint = last_checkpoint(partial)
        state = PartialState()
        if state.num_processes > 1 and len({Path(path or "").name for path in gather_object([checkpoint])}) > 1:
            raise InputError(
                f"{partial}: not all machines see the same checkpoints; give an --output_dir that they share."
            )
        if checkpoint and run_arguments(read_command(partial)) != run_arguments(command):
            raise InputError(
                f"{partial}: an unfinished run with other arguments (its {COMMAND_FILE} has them); remove it, or give "
                "another --output_dir."
            )
        if str(training_args.resume_from_checkpoint).lower() not in ("none", "true", "false"):
            checkpoint = training_args.resume_from_checkpoint
        if checkpoint and checkpoint != str(partial):
            check_readable(Path(checkpoint), state.num_processes)
        state.wait_for_everyone()  # all have looked before one writes
        if state.is_main_process:
            if partial.is_dir() and not last_checkpoint(partial):
                shutil.rmtree(partial)
            partial.mkdir(parents=True, exist_ok=True)
            for folder in partial.glob("checkpoint-*"):
                if STEP.fullmatch(folder.name) and folder.is_dir() and not is_whole(folder):
                    shutil.rmtree(folder)
            if not (partial / COMMAND_FILE).exists():
                write_command(partial, command)
        state.wait_for_everyone()
        training_args.output_dir = str(partial)
        training_args.hub_model_id = training_args.hub_model_id or final.name
        try:
            yield checkpoint
        except BaseException as error:
            last = last_checkpoint(partial)
            error.left = f"the same command goes on from {last}" if last else f"nothing is left of {final}"
            if state.is_main_process and not last:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        give_final_name(partial, final)
        training_args.output_dir = str(final)


@contextmanager
def held(final: Path, training_args: TrainingArguments) -> Iterator[None]:
    """Hold an output directory for all processes, and report what cannot be written there."""
    remedy = "make room or give the right to write there; the same command then goes on"
    with on_main_process(locked(final, training_args.take_over_output_dir)), writing(final, remedy):
        yield


@contextmanager
def on_main_process(context: AbstractContextManager) -> Iterator[None]:
    """
    Enter `context` on the main process alone, while the others wait.

    Raises:
        InputError: on all processes, with the same sentence, where the main process cannot enter it.
    """
    problem: str | None = None
    with ExitStack() as stack:
        if PartialState().is_main_process:
            try:
                stack.enter_context(context)
            except InputError as error:
                problem = str(error)
        (problem,) = broadcast_object_list([problem])
        if problem:
            raise InputError(problem)
        yield


@contextmanager
def new_directory(output_dir: str | Path) -> Iterator[Path]:
    """
    A folder to fill, which becomes `output_dir` when all is done, and vanishes when something fails.

    Raises:
        InputError: there is something in `output_dir`.
    """
    final = named(output_dir)
    check_free(final)
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")  # a run of that name keeps its own
    try:
        with writing(final, "make room, or choose another output directory"):
            partial.mkdir(parents=True)
            yield partial
            give_final_name(partial, final)
    except (KeyboardInterrupt, Stopped) as error:
        error.left = f"nothing is left of {final}"
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def named(output_dir: str | Path | None) -> Path:
    """The path of an output directory; InputError if there is none."""
    if output_dir is None:
        raise InputError("no --output_dir: say where weights and results are to go.")
    return Path(output_dir)


def check_free(final: Path):
    """Raises InputError if there is something in an output directory."""
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"{final}: the output directory is not empty; give another one, or remove it.")


def give_final_name(partial: Path, final: Path):
    """Rename a directory in which every process is done, in the place of an empty one."""
    state = PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        if final.exists():
            final.rmdir()
        partial.rename(final)
    state.wait_for_everyone()


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint, or the trained model, has all of trainer_state.json, which is written last."""
    file = folder / "trainer_state.json"
    return file.is_file() and file.read_bytes().rstrip().endswith(b"}")


def whole_checkpoints(folder: Path) -> list[Path]:
    """Those with all their files, oldest first."""
    steps = {path: STEP.fullmatch(path.name) for path in folder.glob("checkpoint-*") if is_whole(path)}
    return sorted((path for path, step in steps.items() if step), key=lambda path: int(steps[path][1]))


def last_checkpoint(folder: Path) -> str | None:
    """What a run in `folder` goes on from: `folder` itself if the trained model is there, or the newest checkpoint."""
    if is_whole(folder):
        return str(folder)
    return str(whole_checkpoints(folder)[-1]) if whole_checkpoints(folder) else None


def write_command(partial: Path, command: list[str]):
    """The flags of a run, but for tokens, beside its results."""
    write_whole(partial / COMMAND_FILE, json.dumps(run_arguments(command, left_out=SECRET), indent=1) + "\n")


def read_command(partial: Path) -> list[str]:
    file, remedy = partial / COMMAND_FILE, f"remove {partial}"
    with reading(file, remedy):
        command = json.loads(file.read_bytes().decode("utf-8"))
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise InputError(f"{file}: not the words of a command; {remedy}.")
    return command


def check_same_data(output_dir: str, fingerprint: str):
    """
    Write into a run's directory what it is trained on; where an unfinished run has left that, compare.

    Raises:
        InputError: the unfinished run began with other data.
    """
    state = PartialState()
    file = Path(output_dir, DATA_FILE)
    if state.is_main_process and not file.exists():
        write_whole(file, json.dumps({"fingerprint": fingerprint}) + "\n")
    state.wait_for_everyone()
    if read_object(file, f"remove {file.parent}").get("fingerprint") != fingerprint:
        raise InputError(
            f"{file.parent}: the texts, or what is made of them, are not those that the unfinished run began with; "
            "bring these back, or remove it and start anew."
        )


def check_readable(checkpoint: Path, processes: int):
    """
    Raises:
        InputError: there is no such checkpoint, or a file is broken or, with several processes, was not written for
            each of them; it names the checkpoint before.
    """
    if not checkpoint.is_dir():
        raise InputError(f"--resume_from_checkpoint {checkpoint}: no such directory.")
    states = [checkpoint / f"rng_state_{process}.pth" for process in range(processes)] if processes > 1 else []
    problem, remedy = "the checkpoint cannot be read", remedy_for(checkpoint)
    checksums = read_object(checkpoint / CHECKSUMS, remedy) if (checkpoint / CHECKSUMS).exists() else {}
    for file in sorted({*checkpoint.iterdir(), *states, *(checkpoint / name for name in checksums)}):
        with reading(file, remedy, problem):
            if file.name in checksums:
                if content_hash_of(file) != checksums[file.name]:
                    raise ValueError("it is not as it was written")
            elif file.suffix == ".safetensors":
                with safe_open(file, framework="np") as tensors:  # its header says how long the file must be
                    tensors.keys()
            elif file.suffix in (".pt", ".pth", ".bin"):  # torch's files are zip files, with check sums
                with zipfile.ZipFile(file) as parts:
                    if parts.testzip() is not None:
                        raise zipfile.BadZipFile(f"{parts.testzip()} is damaged")
            elif file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
    with reading(checkpoint / "trainer_state.json", remedy, problem):
        check_state(checkpoint / "trainer_state.json")


def check_state(file: Path):
    """Raises an error of any kind where trainer_state.json lacks a field, or has another type, that Trainer needs."""
    found, fresh = TrainerState.load_from_json(file), TrainerState()
    for field in fields(TrainerState):
        value, usual = getattr(found, field.name), getattr(fresh, field.name)
        kinds = {int: int | float, bool: bool, list: list, dict: dict}.get(type(usual))
        if kinds and (not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(usual, bool)):
            raise ValueError(f"{field.name}: {str(value)[:100]}")
    if not (isinstance(found.global_step, int) and 0 <= found.global_step and 0 <= found.epoch < math.inf):
        raise ValueError(f"global_step {found.global_step}, epoch {found.epoch}")
    if not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in found.log_history):
        raise ValueError("log_history: not the entries of a log")


def remedy_for(checkpoint: Path) -> str:
    """What to do where a checkpoint cannot be used."""
    before = [str(path) for path in whole_checkpoints(checkpoint.parent) if path != checkpoint]
    if before:
        return f"go on from the one before with --resume_from_checkpoint {before[-1]}"
    return f"remove {checkpoint.parent} and start anew"


def guard_loading(trainer: Trainer, checkpoint: str):
    """Make an InputError of whatever the parts of a checkpoint raise while Trainer loads them."""
    boundary = reading(checkpoint, remedy_for(Path(checkpoint)), "the checkpoint cannot be loaded")
    for name in LOADING:
        setattr(trainer, name, boundary(getattr(trainer, name)))


class WriteChecksums(TrainerCallback):
    """Writes the checksums of a checkpoint's files beside them, when all processes have written theirs."""

    def on_save(self, args, state, control, **kwargs):
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        PartialState().wait_for_everyone()
        if state.is_world_process_zero and checkpoint.is_dir():
            found = {file.name: content_hash_of(file) for file in sorted(checkpoint.iterdir()) if file.is_file()}
            write_whole(checkpoint / CHECKSUMS, json.dumps(found, indent=1) + "\n")


def run_arguments(command: list[str], left_out: tuple[str, ...] = NOT_PART_OF_THE_RUN) -> list[str]:
    """The flags that decide what a run computes: all but those to be left out, with their values."""
    kept, skip = [], False
    for word in command:
        if word.startswith("--"):
            skip = "--" + word.split("=")[0].removeprefix("--").replace("-", "_") in left_out
        if not skip:
            kept.append(word)
    return kept
