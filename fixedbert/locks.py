"""Locks: one process at a time works on a directory, on any machine that sees it."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from socket import gethostname

from .errors import InputError
from .files import writing

SIGN_OF_LIFE = 30  # seconds; how often a process touches the lock that it holds
HELD: set[int] = set()  # the open lock files of this process


@contextmanager
def locked(folder: Path, take_over: bool = False) -> Iterator[None]:
    """
    Hold `folder`, which need not be there, for this process, in a lock file beside it.

    The kernel frees the lock when the process ends, however it ends. For other machines, whose kernels know nothing of
    it, the file says who holds it, and is touched again and again.

    Args:
        take_over: take it from a process on another machine, which has to be dead.

    Raises:
        InputError: another process holds it.
    """
    folder = Path(os.path.abspath(folder))
    path = folder.with_name(f"{folder.name}.lock")
    done = threading.Event()
    signs = threading.Thread(target=give_signs_of_life, args=(path, done), daemon=True)
    with writing(folder, "choose another --output_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file, free = open_lock(path)
    HELD.add(file)
    mine = b""
    try:
        check_holder(file, free, folder, take_over)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        mine = json.dumps({"host": gethostname(), "process": os.getpid(), "since": since}).encode()
        with writing(folder, "make room, or choose another --output_dir"):
            os.truncate(file, 0)
            os.pwrite(file, mine, 0)
        signs.start()
        yield
    finally:
        done.set()
        if signs.is_alive():
            signs.join()
        # Not that of a process that has taken it over.
        if mine and is_named(file, path) and os.pread(file, 4096, 0) == mine:
            with suppress(OSError):  # of a file system that is read-only by now
                path.unlink()
        HELD.remove(file)
        os.close(file)


def open_lock(path: Path) -> tuple[int, bool]:
    """The open lock file, and whether no living process of this machine holds it, which then this one does."""
    import fcntl  # not on Windows, where the rest of the package can be used

    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return file, False
        except OSError as error:
            os.close(file)
            raise InputError(
                f"{path}: its file system has no locks ({error.strerror}); give an output directory on another."
            ) from error
        if is_named(file, path):
            return file, True
        os.close(file)  # its holder has removed it in between


def is_named(file: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def check_holder(file: int, free: bool, folder: Path, take_over: bool):
    """Raises InputError where a lock cannot be had: from a living process, or from another machine unless told to."""
    said = re.search(
        r'^{"host": "(.*)", "process": (\d+), "since": "(.*)"}$', os.pread(file, 4096, 0).decode(errors="replace")
    )
    host, process, since = said.groups() if said else ("an unknown host", "?", "?")
    who = f"{folder}: another process works there (process {process} on {host}, since {since}"
    if not free:
        raise InputError(f"{who}); wait until it ends, or give another --output_dir.")
    if said and host != gethostname() and not take_over:
        sign = datetime.fromtimestamp(os.fstat(file).st_mtime).astimezone().isoformat(" ", "seconds")
        raise InputError(
            f"{who}, last sign of life {sign}); if it is dead, give --take_over_output_dir, or else another "
            "--output_dir."
        )


def give_signs_of_life(path: Path, done: threading.Event):
    while not done.wait(SIGN_OF_LIFE):
        with suppress(OSError):  # the run says itself what it cannot write
            os.utime(path)


def forget_locks():
    """In a process that was forked: the lock is not its own, and must not outlive the one that holds it."""
    while HELD:
        os.close(HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_locks)
