"""Reads, compares and changes model directories and the output directories of runs."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback


def results(output: Path) -> dict:
    return json.loads((output / "all_results.json").read_text())


def log_of(output: Path) -> list[dict]:
    return json.loads((output / "trainer_state.json").read_text())["log_history"]


def record(output: Path, *excluded: str) -> list[dict]:
    """Returns the log and final metrics of a run, without times, speeds and the entries `excluded`."""
    return [
        {
            name: x
            for name, x in entry.items()
            if name not in excluded and not name.endswith(("_runtime", "_per_second"))
        }
        for entry in (*log_of(output), results(output))
    ]


def weights_in(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    """Returns True if two directories contain bit-identical weights."""
    first, second = weights_in(one), weights_in(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def configure(directory: Path, **fields):
    """Changes fields in config.json."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


class StopAfter(TrainerCallback):
    """Callback that interrupts a run after a given step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt
