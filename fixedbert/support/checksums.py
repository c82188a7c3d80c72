"""Fingerprints of data and settings, and checksums beside files, by which damage is found."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import write_whole


def fingerprint_of(*parts: object) -> str:
    """A name for what depends on `parts` alone: 16 hexadecimal digits."""
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


@contextmanager
def sealing(file: Path) -> Iterator[Path]:
    """A path to write to. At the end the file is sealed as `file`, or removed when something fails."""
    partial = file.with_name(file.name + ".partial")
    try:
        yield partial
        seal(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def seal(partial: Path, file: Path):
    """Give a complete file its name, with its checksum beside it."""
    write_whole(checksum_file(file), content_hash_of(partial))
    os.replace(partial, file)


def write_sealed(file: Path, content: str):
    """Write a file, whole or not at all, with its checksum beside it."""
    write_whole(checksum_file(file), hashlib.sha256(content.encode()).hexdigest())
    write_whole(file, content)


def is_sealed(file: Path) -> bool:
    """Whether a file exists and has its checksum. Reads all of it."""
    if not (file.is_file() and checksum_file(file).is_file()):
        return False
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
