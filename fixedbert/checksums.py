"""Fingerprints of data and settings, and checksums beside files, by which damage is found."""

import hashlib
import json
import os
from pathlib import Path

from .files import write_whole


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
    if not (file.is_file() and checksum_file(file).is_file()):
        return False
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
