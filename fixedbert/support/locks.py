"""Locks: one process at a time works in a directory, even if several machines share it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from filelock import SoftFileLock, Timeout

from .errors import InputError
from .files import writing

TIMEOUT = 0.2  # seconds; removing the lock of a dead process can take a second attempt


@contextmanager
def directory_lock(directory: Path, take_over: bool = False) -> Iterator[None]:
    """
    Locks `directory`, which need not exist, with a file next to it that names this process and machine.

    The lock of a dead process on this machine is removed.

    Args:
        take_over: remove the lock of a process on a different machine, which must be dead.

    Raises:
        InputError: a different process holds the lock.
    """
    directory = Path(os.path.abspath(directory))
    file = directory.with_name(f"{directory.name}.lock")
    with writing(directory, "choose another `output_dir`"):
        file.parent.mkdir(parents=True, exist_ok=True)
    lock = SoftFileLock(file, timeout=TIMEOUT)
    try:
        lock.acquire()
    except Timeout as error:
        process, host, *_ = [*file.read_text(errors="replace").split(), "?", "?"]
        if not take_over or host == gethostname():
            raise InputError(
                f"{directory}: process {process} on {host} is using it; give a different `output_dir`, or "
                "`take_over_output_dir` if that process is dead."
            ) from error
        file.unlink(missing_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
