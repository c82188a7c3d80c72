"""Calls functions in forked processes, which have imported everything already, and tells how they ended."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fixedbert_cli

TIMEOUT = 60  # seconds for a command on tiny inputs, which usually takes two
MAX_MESSAGE_LENGTH = 1500  # characters
FORK = multiprocessing.get_context("fork")


class Ending(NamedTuple):
    """
    How a function ended.

    Attributes:
        outcome: "success"; "refused", if it exited with status 2 after one line that begins with "error: "; else
            "status", "traceback", "hang" or "crash".
        details: What the function returned, the message, or a description.
        printed: Everything that was printed.
    """

    outcome: str
    details: object
    printed: str = ""

    @property
    def is_fault(self) -> bool:
        return self.outcome not in ("success", "refused")


def command(line: list[str]):
    """Runs fixedbert's command line in this process."""
    sys.argv = ["fixedbert", *line]
    fixedbert_cli.entry_point()


def in_child(work: Callable[[], object], directory: Path, timeout: float = TIMEOUT) -> Ending:
    """Calls `work` in a forked process in `directory`, which is created if necessary."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory.with_name(f"{directory.name}.log")
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=report, args=(work, directory, log, theirs))
    child.start()
    theirs.close()
    try:
        outcome, details = ours.recv() if ours.poll(timeout) else ("hang", f"more than {timeout} s")
    except EOFError:
        child.join()
        outcome, details = "crash", f"exit code {child.exitcode}"
    finally:
        end(child)
    return Ending(outcome, details, log.read_text(errors="replace") if log.exists() else "")


def end(child):
    """Kills a process and its group."""
    if child.is_alive():
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            child.kill()
    child.join()


def report(work: Callable[[], object], directory: Path, log: Path, pipe):
    os.setsid()
    os.chdir(directory)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(output, "w")  # the parent's may write to a file of pytest
    try:
        ending = "success", work()
    except SystemExit as exit:
        sys.stdout.flush()
        ending = ending_of(exit.code, log.read_text(errors="replace"))
    except BaseException:
        ending = "traceback", " ".join(traceback.format_exc().split())[-700:]
    pipe.send(ending)
    sys.stdout.flush()


def ending_of(status: object, printed: str) -> tuple[str, str]:
    """Returns the outcome and its details for an exit status."""
    if not status:
        return "success", ""
    message = printed[printed.rfind("\nerror: ") + 1 :].strip()
    is_clear = message.startswith("error: ") and "\n" not in message and len(message) <= MAX_MESSAGE_LENGTH
    if status == 2 and is_clear and "Traceback" not in printed:
        return "refused", message
    return "status", f"status {status}: {printed[-700:]}"
