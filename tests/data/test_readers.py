"""Readers: each has a line in READERS and a file with one row here."""

from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data import readers
from fixedbert.data.corpora import Columns
from fixedbert.data.corpus_files import corpus_files
from fixedbert.data.readers import COMPRESSIONS, READERS, DataFile
from fixedbert.support.errors import InputError


def parquet(row: dict[str, str]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), sink)
    return sink.getvalue().to_pybytes()


def table(row: dict[str, str], delimiter: str) -> bytes:
    return "\n".join((delimiter.join(row), delimiter.join(row.values()), "")).encode()


# A file with the one row {"text": "One.", "book": "a"} in each format.
EXAMPLES: dict[str, Callable[[dict[str, str]], bytes]] = {
    ".txt": lambda row: row["text"].encode(),
    ".jsonl": lambda row: str(row).replace("'", '"').encode(),
    ".json": lambda row: str(row).replace("'", '"').encode(),
    ".csv": lambda row: table(row, ","),
    ".tsv": lambda row: table(row, "\t"),
    ".parquet": parquet,
}


def missing_parts(module, examples: dict) -> list[str]:
    """What has still to be added to readers.py or to this file, a sentence for each."""
    functions = {name: value for name, value in vars(module).items() if name.startswith("read_") and callable(value)}
    unused = [name for name, reader in functions.items() if reader not in READERS.values()]
    return [
        *(f"{name} reads no format: give it a line in READERS." for name in unused),
        *(f"{suffix} has no example: give it one in EXAMPLES." for suffix in READERS if suffix not in examples),
        *(f"{suffix} has an example but no reader: give it one in READERS." for suffix in examples.keys() - READERS),
    ]


def test_every_format_is_complete():
    """Guards: a format has its reader and its example, or the part that is missing is named."""
    assert not missing_parts(readers, EXAMPLES), " ".join(missing_parts(readers, EXAMPLES))


def test_missing_parts_of_a_format_are_named(monkeypatch):
    """Guards: the test above does find a reader without a line, a line without an example, and the other way round."""
    monkeypatch.setattr(readers, "read_xml", lambda file: iter(()), raising=False)
    assert missing_parts(readers, EXAMPLES) == ["read_xml reads no format: give it a line in READERS."]
    monkeypatch.setitem(READERS, ".xml", readers.read_xml)
    assert missing_parts(readers, EXAMPLES) == [".xml has no example: give it one in EXAMPLES."]
    monkeypatch.delitem(READERS, ".csv")
    (found,) = missing_parts(readers, {**EXAMPLES, ".xml": parquet})
    assert found == ".csv has an example but no reader: give it one in READERS."


@pytest.mark.parametrize("suffix", READERS)
def test_rows_of_every_format(tmp_path: Path, suffix: str):
    """Guards: text, document column, progress and a missing column, in each format that can be read."""
    row = {"text": "One.", "book": "a"}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(EXAMPLES[suffix](row))
    assert corpus_files(str(tmp_path)) == [path] and suffix not in COMPRESSIONS
    file = DataFile(path, ("text", "book"))
    has_columns = b"book" in EXAMPLES[suffix](row)
    (found,) = file.rows()
    assert found.values == (row if has_columns else {"text": "One."}) and found.problem is None
    assert file.position == path.stat().st_size
    with pytest.raises(InputError, match=rf"a\{suffix}, (line|row) [0-3]: no column 'body' \(there are text"):
        Columns("body").of(found.values, file.place(found.number))


@pytest.mark.parametrize("suffix", READERS)
def test_damage_in_every_format(tmp_path: Path, suffix: str):
    """Guards: bytes that are no text in any encoding, nor a table, are one sentence with the file."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\xff\xfe\x00\x01" * 50)
    with pytest.raises(InputError, match=rf"a\{suffix}"):
        list(DataFile(path).rows())
