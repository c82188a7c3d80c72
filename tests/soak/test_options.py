"""The generator of options."""

import random

import pytest

from fixedbert import option_values
from soak import options
from soak.trials import run


@pytest.fixture(scope="module", autouse=True)
def inputs(tmp_path_factory):
    options.prepare(tmp_path_factory.mktemp("inputs"))


def test_sample(tmp_path):
    """Options alone and in combination lead to complete results, or to one sentence and no files."""
    assert run(options.trial, range(12), 0, tmp_path) == []


def test_faults_are_found(tmp_path, monkeypatch):
    """Without the check of ranges, the generator reports a traceback for a batch size of 0."""
    number = options.plan().index(("glue", {"per_device_train_batch_size": "0"}))
    assert options.trial(number, random.Random(0), tmp_path / "checked").fault == ""
    monkeypatch.setattr(option_values, "check_range", lambda *_: None)
    assert options.trial(number, random.Random(0), tmp_path / "unchecked").fault.startswith("traceback: ")
