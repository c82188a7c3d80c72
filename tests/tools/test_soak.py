"""Tests that the soak tests detect faults."""

import os
import signal
import time

import pytest

from soak import damage, kills


@pytest.mark.parametrize(
    "work, outcome",
    [
        (lambda: None, "done"),
        (lambda: damage.sys.exit("error: rows.csv, line 3: no label."), "error"),
        (lambda: {}["text"], "traceback"),
        (lambda: time.sleep(60), "hang"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash"),
    ],
)
def test_outcomes_of_a_command(tmp_path, monkeypatch, work, outcome):
    """The soak tests distinguish success, error message, traceback, hang and crash of a command."""
    monkeypatch.setattr(damage, "TIMEOUT", 0.5 if outcome == "hang" else 60)
    assert damage.in_child(work, tmp_path / "trial")[0] == outcome


def test_faults():
    """Unclear messages, hangs, tracebacks, and undetected changes to the package's files are faults."""
    shard = next(name for name in damage.WRITTEN_FILES if name.endswith(".arrow"))
    assert damage.faults_of("rows.csv", "done", "a", "b") == damage.faults_of(shard, "done", "a", "a") == []
    assert damage.faults_of("rows.csv", "error", "error: rows.csv, line 3: no label.", "") == []
    for fault in ((shard, "done", "a"), ("rows.csv", "error", "error: wrong."), ("rows.csv", "hang", "60 s")):
        assert damage.faults_of(*fault, "b")
    assert kills.faults_of(signal.SIGTERM, 143, "stopped by SIGTERM", 9) == []
    assert kills.faults_of(signal.SIGTERM, 0, "", 9) and kills.faults_of(signal.SIGINT, 130, "Traceback", 9)
