"""Hashes of data and settings, and files with checksums, which reveal damage."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import write_atomically


def stable_hash(*parts: object) -> str:
    """Returns 16 hexadecimal digits that depend only on the content of `parts`."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


@contextmanager
def write_with_checksum(path: Path) -> Iterator[Path]:
    """Yields a temporary path. At the end, renames it to `path` and writes the checksum next to it."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        write_atomically(checksum_path(path), file_sha256(partial))
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def has_valid_checksum(path: Path) -> bool:
    """Returns True if a file exists and matches its checksum. Reads the complete file."""
    checksum = checksum_path(path)
    return checksum.is_file() and path.is_file() and checksum.read_bytes() == file_sha256(path).encode()
