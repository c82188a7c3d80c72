"""Calls functions in forked processes, which have imported everything already, and tells how they ended."""

import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from tqdm import tqdm

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


class Child:
    """
    A forked process that calls `work` in `directory`, which is created if necessary.

    Args:
        log: File for everything that is printed. By default, `directory`.log.
        environment: Environment variables.
    """

    def __init__(self, work: Callable[[], object], directory: Path, log: Path | None = None, **environment: str):
        directory.mkdir(parents=True, exist_ok=True)
        self.log = log or directory.with_name(f"{directory.name}.log")
        self.results, theirs = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=report, args=(work, directory, self.log, theirs, environment))
        self.process.start()
        theirs.close()

    def has_ended(self, timeout: float) -> bool:
        """Waits until the process ends, or until the timeout, in seconds."""
        return bool(wait([self.results, self.process.sentinel], timeout))

    def end(self):
        end(self.process)

    def ending(self, timeout: float = TIMEOUT) -> Ending:
        """Waits for the process, kills it and its group after the timeout, and returns how it ended."""
        try:
            has_ended = self.has_ended(timeout)
            outcome, details = self.results.recv() if has_ended else ("hang", f"more than {timeout} s")
        except EOFError:
            self.process.join()
            outcome, details = "crash", f"exit code {self.process.exitcode}"
        finally:
            end(self.process)
        return Ending(outcome, details, self.log.read_text(errors="replace") if self.log.exists() else "")


def in_child(work: Callable[[], object], directory: Path, timeout: float = TIMEOUT) -> Ending:
    """Calls `work` in a forked process in `directory`, which is created if necessary."""
    return Child(work, directory).ending(timeout)


def end(child):
    """Kills a process and its group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()
    child.join()


def report(work: Callable[[], object], directory: Path, log: Path, pipe, environment: dict[str, str]):
    os.setsid()
    os.environ.update(environment)
    tqdm.set_lock(RLock())  # the default is shared by all processes, and a killed one may hold it forever
    os.chdir(directory)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # not pytest's
    try:
        ending = "success", work()
    except SystemExit as exit:
        flush()
        ending = ending_of(exit.code, log.read_text(errors="replace"))
    except BaseException:
        ending = "traceback", " ".join(traceback.format_exc().split())[-700:]
    flush()
    pipe.send(ending)


def flush():
    with suppress(OSError):  # of a full disk
        sys.stdout.flush()
        sys.stderr.flush()


def ending_of(status: object, printed: str) -> tuple[str, str]:
    """Returns the outcome and its details for an exit status."""
    if not status:
        return "success", ""
    message = printed[printed.rfind("\nerror: ") + 1 :].strip()
    is_clear = message.startswith("error: ") and "\n" not in message and len(message) <= MAX_MESSAGE_LENGTH
    if status == 2 and is_clear and "Traceback" not in printed:
        return "refused", message
    return "status", f"status {status}: {printed[-700:]}"


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
