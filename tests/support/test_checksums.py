"""Fingerprints, and files with their checksums beside them."""

import hashlib

import pytest

from fixedbert.support.checksums import checksum_file, fingerprint_of, is_sealed, seal, sealing, write_sealed


def test_fingerprints_stay_the_same():
    """Guards: stores, plans and features of earlier versions are found by their names."""
    assert fingerprint_of("pairs", 42, None, [1.5], {"b": 1, "a": (2,)}) == "598c15b942c7229e"
    assert fingerprint_of({"a": 1, "b": 2}) == fingerprint_of({"b": 2, "a": 1}) != fingerprint_of({"a": 2, "b": 1})


def test_sealed_files_are_whole(tmp_path):
    """Guards: a file gets its name with its checksum when all is written, and nothing is left where writing fails."""
    file = tmp_path / "plan"
    with sealing(file) as partial:
        partial.write_bytes(b"rows")
        assert not file.exists() and not is_sealed(file)
    assert file.read_bytes() == b"rows" and is_sealed(file)
    assert checksum_file(file).read_text() == hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(OSError, match="full"), sealing(file) as partial:
        partial.write_bytes(b"ro")
        raise OSError("full")
    assert file.read_bytes() == b"rows" and is_sealed(file)
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "plan.sha256"}


def test_damage_is_seen(tmp_path):
    """Guards: another content, or a missing checksum, is no sealed file; sealing it again makes it one."""
    file = tmp_path / "store.json"
    write_sealed(file, "{}")
    assert is_sealed(file)
    file.write_text("[]")
    assert not is_sealed(file)
    seal(file, file)
    assert is_sealed(file)
    checksum_file(file).unlink()
    assert not is_sealed(file) and not is_sealed(tmp_path / "absent")
