"""Hashes that identify data and settings, and checksum files that detect corruption."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import atomic_path, write_atomically


def stable_hash(*parts: object) -> str:
    """Returns 16 hexadecimal digits that depend only on the content of `parts`, unlike `hash`."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 hash of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


@contextmanager
def write_with_checksum(path: Path) -> Iterator[Path]:
    """Context manager like `atomic_path` that also writes the file's checksum to `path`.sha256."""
    with atomic_path(path) as partial:
        yield partial
        write_atomically(checksum_path(path), file_sha256(partial))


def has_valid_checksum(path: Path) -> bool:
    """Returns True if a file exists and matches its checksum. Reads the entire file."""
    checksum = checksum_path(path)
    return checksum.is_file() and path.is_file() and checksum.read_bytes() == file_sha256(path).encode()
