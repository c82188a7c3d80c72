"""Tests a sample of the generator of checkpoints, and that it finds faults."""

import random

import pytest
import torch
import transformers

from fixedbert.loading import weights
from soak import checkpoints, damaged_checkpoints
from soak.made_checkpoints import Checkpoint
from soak.trials import trials


@pytest.fixture(autouse=True)
def prepared(tmp_path):
    """Prepares the generator, and restores the settings of the libraries that it changes."""
    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    checkpoints.prepare(tmp_path / "inputs")
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def drawn(number: int) -> Checkpoint:
    return damaged_checkpoints.draw(random.Random(f"0 {number}"))


@pytest.mark.slow
def test_sample(tmp_path):
    """Commands open checkpoints of other libraries with equal outputs, or refuse them in one sentence."""
    cases = [number for number in range(30) if not drawn(number).library][:5]  # importing the library takes seconds
    for _, result in trials(checkpoints.trial, cases, 0, tmp_path):
        assert not result.fault, f"{result.fault}\n{result.reproduction}"


def test_faults_are_found(tmp_path, monkeypatch):
    """Without the check of names, a missing weight is random, which the generator reports."""
    case = next(number for number in range(999) if drawn(number).damage == "a weight is missing")
    monkeypatch.setattr(weights, "check_names", lambda *_: None)
    ((_, result),) = trials(checkpoints.trial, [case], 0, tmp_path)
    assert "convert: succeeded, but should be refused" in result.fault
