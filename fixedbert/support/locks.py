"""Locks: one process at a time works on a directory, also if several machines share it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from socket import gethostname

from filelock import SoftFileLock, Timeout

from .errors import InputError
from .files import writing

PATIENCE = 0.2  # seconds; removing the lock of a dead process can take a second look


@contextmanager
def locked(folder: Path, take_over: bool = False) -> Iterator[None]:
    """
    Lock `folder`, which need not exist, for this process, by a file beside it that names process and machine.

    The lock of a process that has ended is removed, if it was on this machine.

    Args:
        take_over: take the lock from a process on another machine, which must have ended.

    Raises:
        InputError: another process holds it.
    """
    folder = Path(os.path.abspath(folder))
    path = folder.with_name(f"{folder.name}.lock")
    lock = SoftFileLock(path, timeout=PATIENCE)
    with writing(folder, "choose another `output_dir`"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            if problem := problem_of_holder(path, take_over):
                raise InputError(f"{folder}: another process works there {problem}") from error
            path.unlink(missing_ok=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def problem_of_holder(path: Path, take_over: bool) -> str | None:
    """Who holds the lock, and what to do; None for a process on another machine where its lock is taken over."""
    process, host, since = "?", "an unknown host", "?"
    with suppress(OSError, ValueError):  # it can be released meanwhile, or have no text
        since = datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat(" ", "seconds")
        process, host, *_ = path.read_text().split()
    host = host.partition("?")[0]  # filelock adds the namespace of a container's processes
    who = f"(process {process} on {host}, since {since})"
    if host == gethostname():
        return f"{who}; wait until it ends, or give another `output_dir`."
    return None if take_over else f"{who}; if it is dead, give `take_over_output_dir`, or else another `output_dir`."
