"""Locks: one process at a time works on a directory, also if several machines share it."""

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

HEARTBEAT = 30  # seconds; how often a process touches the lock that it holds
HELD: set[int] = set()  # the open lock files of this process


@contextmanager
def locked(folder: Path, take_over: bool = False) -> Iterator[None]:
    """
    Lock `folder`, which need not exist, for this process, by a lock file beside it.

    The kernel frees the lock when the process ends in any way. It does not lock for other machines, so the file also
    names its holder, and is touched every HEARTBEAT.

    Args:
        take_over: take the lock from a process on another machine, which must have ended.

    Raises:
        InputError: another process holds it.
    """
    folder = Path(os.path.abspath(folder))
    path = folder.with_name(f"{folder.name}.lock")
    done = threading.Event()
    heart = threading.Thread(target=beat, args=(path, done), daemon=True)
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
        heart.start()
        yield
    finally:
        done.set()
        if heart.is_alive():
            heart.join()
        # Another process may have taken the lock over; its file stays.
        if mine and is_named(file, path) and os.pread(file, 4096, 0) == mine:
            with suppress(OSError):  # the file system can be read-only by now
                path.unlink()
        HELD.remove(file)
        os.close(file)


def open_lock(path: Path) -> tuple[int, bool]:
    """The open lock file, and whether this process got its lock, which no other on this machine then holds."""
    import fcntl  # not on Windows, where the rest of the package works

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
        os.close(file)  # its holder removed it meanwhile


def is_named(file: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def check_holder(file: int, free: bool, folder: Path, take_over: bool):
    """
    Raises:
        InputError: a living process holds the lock, or one on another machine without `take_over`.
    """
    holder = re.search(
        r'^{"host": "(.*)", "process": (\d+), "since": "(.*)"}$', os.pread(file, 4096, 0).decode(errors="replace")
    )
    host, process, since = holder.groups() if holder else ("an unknown host", "?", "?")
    who = f"{folder}: another process works there (process {process} on {host}, since {since}"
    if not free:
        raise InputError(f"{who}); wait until it ends, or give another --output_dir.")
    if holder and host != gethostname() and not take_over:
        beaten = datetime.fromtimestamp(os.fstat(file).st_mtime).astimezone().isoformat(" ", "seconds")
        raise InputError(
            f"{who}, last heartbeat {beaten}); if it is dead, give --take_over_output_dir, or else another "
            "--output_dir."
        )


def beat(path: Path, done: threading.Event):
    while not done.wait(HEARTBEAT):
        with suppress(OSError):  # the run reports it when it cannot write
            os.utime(path)


def forget_locks():
    """In a forked process, which must not keep the lock when its parent has ended."""
    while HELD:
        os.close(HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_locks)
