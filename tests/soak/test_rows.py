"""The generator of files with rows: a sample of its cases, and that it notices wrong results."""

import pytest

from fixedbert.data import file_formats
from fixedbert.tasks import labels, questions
from soak import rows
from soak.trials import trials


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    rows.prepare(directory / "inputs")
    return directory


def faults(directory, cases):
    for number, case in trials(rows.trial, cases, 0, directory):
        if case.fault:
            yield f"{number}: {case.fault}\n{case.reproduction}"


@pytest.mark.slow
def test_sample(directory):
    """Rows in drawn files are read as written, or refused with file and line; predictions belong to their rows."""
    assert [*faults(directory, range(100))] == []  # two of these cases run a command


@pytest.mark.parametrize(
    "module, name, broken",
    [
        (labels, "check_scores", lambda *_: None),
        (labels, "normalized", lambda value: str(value).lower()),
        (file_formats, "parse_object", dict),
        (questions, "check_question", lambda *_: None),
    ],
)
def test_broken_readers_are_noticed(directory, monkeypatch, module, name, broken):
    """Without a check, or with wrong labels, some cases are faulty."""
    monkeypatch.setattr(module, name, broken)
    assert any(faults(directory, [number for number in range(500) if number % rows.END_TO_END < 49]))
