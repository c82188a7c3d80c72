"""Files and directories: one boundary for reading and one for writing; what is written appears whole."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST_REASON = 300  # characters; some libraries put the content of a file into their errors


def reason_of(error: BaseException) -> str:
    """The first line of what an error, or the one below it, says."""
    lines = str(error.__cause__ or error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


@contextmanager
def reading(file: object, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """
    The boundary around reading one kind of file: whatever a damaged one raises becomes an InputError that names it.

    Args:
        file: where, for the message.
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # every library, and every kind of damage, has its own
        raise InputError(f"{file}: {problem} ({reason_of(error)}); {remedy}.") from error


@contextmanager
def writing(folder: str | Path, remedy: str) -> Iterator[None]:
    """
    The boundary around writing below `folder`: a full disk, no permission, a read-only file system.

    Args:
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: {not_written(Path(folder), error)}; {remedy}.") from error


def not_written(folder: Path, error: OSError) -> str:
    """Why nothing can be written below `folder`, with the free space where that is the reason."""
    if error.errno not in NO_SPACE:
        return f"cannot be written ({error.strerror or reason_of(error)})"
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return f"no space left ({shutil.disk_usage(there).free / 2**30:.1f} GiB free)"


def check_regular(file: Path):
    """
    Raises:
        InputError: it is there, but opening it could wait forever: a pipe, a device, a socket; or it is a folder.
    """
    if file.exists() and not file.is_file():
        raise InputError(f"{file}: not a regular file; give one, not a pipe, a device or a folder.")


def write_whole(path: Path, content: str | bytes):
    """Write a file that is never seen in part."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_object(file: Path, remedy: str) -> dict:
    """
    The fields of a JSON file.

    Raises:
        InputError: it is not there, damaged, or holds something else.
    """
    with reading(file, remedy):
        found = json.loads(file.read_bytes().decode("utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no fields; {remedy}.")
    return found


def fingerprint_of(*parts: object) -> str:
    """A name for whatever depends on `parts` alone: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def content_hash_of(file: Path) -> str:
    """SHA-256 of a file, read in blocks: 64 hexadecimal digits."""
    found = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(2**20):
            found.update(block)
    return found.hexdigest()


def checksum_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def seal(partial: Path, file: Path):
    """Give a complete file its name, with its checksum beside it."""
    write_whole(checksum_file(file), content_hash_of(partial))
    os.replace(partial, file)


def write_sealed(file: Path, content: str):
    """Write a file that is never seen in part, with its checksum beside it."""
    write_whole(checksum_file(file), hashlib.sha256(content.encode()).hexdigest())
    write_whole(file, content)


def is_sealed(file: Path) -> bool:
    """Whether a file is there and as `seal` left it. Reads all of it."""
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
