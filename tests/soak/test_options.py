"""The generator of options."""

import random

import pytest

from fixedbert import option_values
from fixedbert.training import trainer
from soak import options
from soak.trials import run


@pytest.fixture(scope="module", autouse=True)
def inputs(tmp_path_factory):
    options.prepare(tmp_path_factory.mktemp("inputs"))


@pytest.mark.slow
def test_sample(tmp_path):
    """Options alone and in combination lead to complete results, or to one sentence and no files."""
    assert run(options.trial, range(12), 0, tmp_path) == []


@pytest.mark.parametrize(
    "case, module, guard, fault",
    [
        (("compare", {"batch_size": "0"}), option_values, "check_range", "traceback: "),
        (("glue", {"weight_decay": "0.0"}), trainer, "create_model_card", "success, but ['README.md'] is missing"),
    ],
)
def test_faults_are_found(case, module, guard, fault, tmp_path, monkeypatch):
    """The generator reports tracebacks and incomplete results: without a check of ranges, and without a model card."""
    number = options.plan().index(case)
    assert options.trial(number, random.Random(0), tmp_path / "right").fault == ""
    monkeypatch.setattr(module, guard, lambda *_: None)
    assert options.trial(number, random.Random(0), tmp_path / "wrong").fault.startswith(fault)
