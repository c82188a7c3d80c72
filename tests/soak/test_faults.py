"""Tests that the generator of faults accepts correct commands and detects wrong ones."""

import random
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixedbert.conversion import convert
from fixedbert.support.files import writing
from soak import faults
from soak.children import in_child


@pytest.mark.parametrize(
    "work, outcome",
    [
        (lambda: None, "success"),
        (lambda: sys.stderr.write("error: rows.csv, line 3: no label.\n") and sys.exit(2), "refused"),
        (lambda: {}["text"], "traceback"),
        (lambda: time.sleep(60), "hang"),
    ],
)
def test_outcomes_of_a_command(tmp_path, work, outcome):
    """Success, an error message, a traceback and a hang of a command are distinguished."""
    ending = in_child(work, tmp_path / "run", 0.5 if outcome == "hang" else 60)
    assert ending.outcome == outcome and ending.is_fault == (outcome not in ("success", "refused"))


@pytest.fixture
def inputs(tmp_path_factory, monkeypatch) -> Path:
    """Prepares the generator for a command that takes a second."""
    monkeypatch.setattr(faults, "COMMANDS", {"converting": faults.COMMANDS["converting"]})
    monkeypatch.setattr(faults, "MODULES", ())
    inputs = tmp_path_factory.mktemp("faults") / "inputs"
    faults.prepare(inputs)
    return inputs


def faults_of(inputs: Path, monkeypatch, *kinds) -> str:
    """Returns what was wrong in one case of each kind."""
    found = []
    for number, kind in enumerate(kinds):
        monkeypatch.setattr(faults, "FAULTS", (kind,))
        directory = inputs.with_name(f"case-{number}")
        directory.mkdir(exist_ok=True)
        found.append(faults.trial(number, random.Random(number), directory).fault)
    return "; ".join(filter(None, found))


@pytest.mark.slow
def test_sample(inputs, monkeypatch):
    """A sample of the faults."""
    kinds = (faults.kill, faults.limit_file_size, faults.remove_directory, faults.start_twice, faults.occupy_output)
    assert not faults_of(inputs, monkeypatch, *kinds, faults.fill_disk, faults.turn_clock_back, faults.read_damaged)


def test_incomplete_output_is_detected(inputs, monkeypatch):
    """A command that writes directly to its output directory leaves it incomplete when writing fails."""

    @contextmanager
    def in_place(output_dir):
        with writing(output_dir, "or stop"):
            Path(output_dir).mkdir(exist_ok=True)
            yield Path(output_dir)

    monkeypatch.setattr(convert, "new_directory", in_place)
    assert "incomplete output" in faults_of(inputs, monkeypatch, *[faults.limit_file_size] * 3)
