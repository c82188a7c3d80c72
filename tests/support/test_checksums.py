"""Fingerprints, and files with their checksums beside them."""

import hashlib

import pytest

from fixedbert.support.checksums import checksum_path, has_valid_checksum, stable_hash, write_with_checksum


def test_fingerprints_stay_the_same():
    """Guards: stores, plans and features of earlier versions are found by their names."""
    assert stable_hash("pairs", 42, None, [1.5], {"b": 1, "a": (2,)}) == "598c15b942c7229e"
    assert stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1}) != stable_hash({"a": 2, "b": 1})


def test_files_with_checksum_are_complete(tmp_path):
    """Guards: a file gets its name with its checksum when all is written, and nothing is left where writing fails."""
    file = tmp_path / "plan"
    with write_with_checksum(file) as partial:
        partial.write_bytes(b"rows")
        assert not file.exists() and not has_valid_checksum(file)
    assert file.read_bytes() == b"rows" and has_valid_checksum(file)
    assert checksum_path(file).read_text() == hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(OSError, match="full"), write_with_checksum(file) as partial:
        partial.write_bytes(b"ro")
        raise OSError("full")
    assert file.read_bytes() == b"rows" and has_valid_checksum(file)
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "plan.sha256"}


def test_damage_is_seen(tmp_path):
    """Guards: another content, or a missing checksum, makes the checksum invalid until the file is written again."""
    file = tmp_path / "store.json"
    with write_with_checksum(file) as partial:
        partial.write_text("{}")
    assert has_valid_checksum(file)
    file.write_text("[]")
    assert not has_valid_checksum(file)
    file.write_text("{}")
    assert has_valid_checksum(file)
    checksum_path(file).unlink()
    assert not has_valid_checksum(file) and not has_valid_checksum(tmp_path / "absent")
