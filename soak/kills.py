"""Kills commands at random moments and repeats them. The results must equal those of an uninterrupted run."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .runs import KILLED, TIMEOUT, end, log_of, reference, results_of, start, wait

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130}
REACTION = 60  # seconds within which a command must end after a signal


def run(directory: Path, inputs: Path, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Kills `count` commands, and yields the name and faults of each trial."""
    for number in range(count):
        name = list(KILLED)[number % len(KILLED)]
        sent = SIGNALS[(number // len(KILLED) + number) % len(SIGNALS)]
        trial = directory / f"kill-{number}"
        shutil.rmtree(trial, ignore_errors=True)
        log_of(trial).unlink(missing_ok=True)
        faults = kill_and_repeat(name, inputs, trial, sent, random.Random(f"{seed} {number}"))
        yield f"kill {number}, {name}, {sent.name}", faults
        if not faults:
            shutil.rmtree(trial)


def kill_and_repeat(name: str, inputs: Path, directory: Path, sent: signal.Signals, rng: random.Random) -> list[str]:
    """Kills a command once or twice at random moments, repeats it until it succeeds, and returns the faults."""
    expected = reference(name, inputs)
    faults = []
    for _ in range(rng.choice((1, 1, 2))):
        command = start(name, inputs, directory)
        if wait(command, rng.uniform(0, expected["seconds"])) is not None:
            break
        before, began = log_of(directory).stat().st_size, time.monotonic()
        whole_group = sent == signal.SIGINT or name == "two processes"  # a terminal sends Ctrl-C to the whole group
        (os.killpg if whole_group else os.kill)(command.pid, sent)
        status = wait(command, REACTION)
        end(command)
        if status is None:
            faults.append(f"still running {REACTION} s after {sent.name}")
        elif name != "two processes":  # its launcher prints tracebacks too
            printed = log_of(directory).read_bytes()[before:].decode(errors="replace")
            faults += faults_of(sent, status, printed, time.monotonic() - began)
    return faults + faults_of_results(name, inputs, directory, expected["results"], command)


def faults_of(sent: signal.Signals, status: int, printed: str, seconds: float) -> list[str]:
    """Returns the faults in how a command ended after a signal."""
    if sent == signal.SIGKILL or status == 0 and seconds < 5:  # it may have finished before the signal
        return []
    faults = []
    if status not in (STATUS[sent], -sent):
        faults.append(f"exit status {status} after {sent.name}")
    if "Traceback" in printed:
        faults.append(f"a traceback after {sent.name}")
    return faults


def faults_of_results(
    name: str, inputs: Path, directory: Path, expected: dict, command: subprocess.Popen
) -> list[str]:
    """Repeats an interrupted command and returns the files that differ from those of an uninterrupted run."""
    is_done = name != "study" and (directory / "out").exists()  # a study works in its output directory
    if command.returncode != 0 and not is_done:
        command = start(name, inputs, directory)
        status = wait(command, TIMEOUT)
        end(command)
        if status != 0:
            return [f"the repeated command failed with status {status}: {log_of(directory)}"]
    results = results_of(directory)
    return [f"{file} differs" for file in expected.keys() | results.keys() if expected.get(file) != results.get(file)]
