"""Checks that a resumed run has the same arguments and data as the interrupted run."""

import json
from pathlib import Path
from typing import Any

from accelerate import PartialState

from ..support.errors import InputError
from ..support.files import read_json_object, to_json, write_atomically

COMMAND_FILE, DATA_FILE = "command.json", "data.json"
# Arguments with these prefixes may differ when a run resumes, because they do not affect the training steps.
UNCHECKED_PREFIXES = (
    *("output_dir", "resume_from_checkpoint", "take_over_output_dir", "store_dir", "cache_dir", "token", "hub_"),
    *("logging_", "save_", "eval_", "per_device_eval_", "do_eval", "do_predict", "max_eval_", "max_predict_", "push_"),
    *("num_train_epochs", "max_steps", "dataloader_", "preprocessing_", "report_to", "run_name", "disable_tqdm"),
)


def without_secrets(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments without access tokens."""
    return {name: value for name, value in given.items() if name not in ("token", "hub_token")}


def write_command(partial: Path, given: dict[str, Any]):
    """Writes the arguments, except access tokens, to command.json. The file is also a recipe for repeating the run."""
    write_atomically(partial / COMMAND_FILE, to_json(without_secrets(given), indent=1, default=str) + "\n")


def is_same_command(directory: Path, given: dict[str, Any]) -> bool:
    """Returns True if the arguments in the command.json of a complete run are equal to `given`."""
    file = directory / COMMAND_FILE
    return file.is_file() and read_json_object(file) == json.loads(to_json(without_secrets(given), default=str))


def check_same_command(partial: Path, given: dict[str, Any]):
    """Raises InputError if `given` and the unfinished run in `partial` differ in arguments that affect training."""
    earlier, now = read_json_object(partial / COMMAND_FILE), json.loads(to_json(given, default=str))
    names = [name for name in earlier | now if not name.startswith(UNCHECKED_PREFIXES)]
    if changed := [name for name in names if earlier.get(name) != now.get(name)]:
        raise InputError(
            f"{partial}: the unfinished run has different arguments ({', '.join(changed)}; see {COMMAND_FILE}); "
            "restore them, choose a different `output_dir`, or remove this directory."
        )


def check_same_data(output_dir: Path, fingerprint: str):
    """Writes the data fingerprint to data.json when a run starts. Raises InputError if it differs in a resumed run."""
    state, file = PartialState(), output_dir / DATA_FILE
    if state.is_main_process and not file.exists():
        write_atomically(file, json.dumps({"fingerprint": fingerprint}) + "\n")
    state.wait_for_everyone()
    if read_json_object(file).get("fingerprint") != fingerprint:
        raise InputError(
            f"{output_dir}: the data or the teacher has changed since the unfinished run started; restore the "
            "original version, or remove this directory."
        )
