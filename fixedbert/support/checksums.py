"""Fingerprints of data and settings, and checksums beside files, by which damage is found."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import write_atomically


def stable_hash(*parts: object) -> str:
    """A name for what depends on `parts` alone: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_sha256(file: Path) -> str:
    """SHA-256 of a file, read in blocks: 64 hexadecimal digits."""
    found = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(2**20):
            found.update(block)
    return found.hexdigest()


def checksum_path(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


@contextmanager
def write_with_checksum(file: Path) -> Iterator[Path]:
    """Yields a path to write to, which is renamed to `file` at the end. Writes the checksum next to it."""
    partial = file.with_name(file.name + ".partial")
    try:
        yield partial
        add_checksum(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def add_checksum(partial: Path, file: Path):
    """Renames a complete file and writes its checksum next to it."""
    write_atomically(checksum_path(file), file_sha256(partial))
    os.replace(partial, file)


def has_valid_checksum(file: Path) -> bool:
    """Returns True if a file exists and matches its checksum. Reads all of it."""
    if not (file.is_file() and checksum_path(file).is_file()):
        return False
    try:
        return checksum_path(file).read_bytes() == file_sha256(file).encode()
    except OSError:
        return False
