"""Output directories that appear whole or not at all, and runs that continue where they stopped."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import PartialState
from transformers import TrainingArguments

from ..errors import InputError

COMMAND_FILE = "command.json"
NOT_PART_OF_THE_RUN = ("--output_dir", "--resume_from_checkpoint")


@contextmanager
def output_directory(training_args: TrainingArguments, command: list[str]) -> Iterator[str | None]:
    """
    Do a run in `output_dir`.partial and give that its final name when all is done.

    An interrupted run keeps its .partial directory if there is a checkpoint in it; the same command continues from
    there, on which the context gives the checkpoint's path. Everything else that fails leaves nothing behind. The
    flags of the run stay beside its results, in command.json.

    Raises:
        InputError: the directory is there and not empty, or an unfinished run with other arguments stands in the way.
    """
    final = Path(training_args.output_dir)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"{final}: the output directory is not empty; give another --output_dir, or remove it.")
    partial = final.with_name(final.name + ".partial")
    checkpoint = last_checkpoint(partial)
    state = PartialState()
    if checkpoint and run_arguments(json.loads((partial / COMMAND_FILE).read_text())) != run_arguments(command):
        raise InputError(
            f"{partial}: an unfinished run with other arguments (its {COMMAND_FILE} has them); remove it, or give "
            "another --output_dir."
        )
    state.wait_for_everyone()  # all have looked before one writes
    if state.is_main_process:
        if partial.is_dir() and not checkpoint:
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        for broken in set(partial.glob("checkpoint-*")) - set(whole_checkpoints(partial)):
            shutil.rmtree(broken)
        (partial / COMMAND_FILE).write_text(json.dumps(command, indent=1) + "\n")
    state.wait_for_everyone()
    training_args.output_dir = str(partial)
    training_args.hub_model_id = training_args.hub_model_id or final.name
    asked = training_args.resume_from_checkpoint
    try:
        yield checkpoint if str(asked).lower() in ("none", "true", "false") else asked
    except BaseException:
        if state.is_main_process and not last_checkpoint(partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    state.wait_for_everyone()
    if state.is_main_process:
        if final.exists():
            final.rmdir()
        partial.rename(final)
    state.wait_for_everyone()
    training_args.output_dir = str(final)


def whole_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints with trainer_state.json, which Trainer writes last, oldest first."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return sorted(whole, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def last_checkpoint(folder: Path) -> str | None:
    return str(whole_checkpoints(folder)[-1]) if whole_checkpoints(folder) else None


def run_arguments(command: list[str]) -> list[str]:
    """The flags that decide what a run computes."""
    kept, skip = [], False
    for word in command:
        if word.startswith("--"):
            skip = word.split("=")[0] in NOT_PART_OF_THE_RUN
        if not skip:
            kept.append(word)
    return kept
