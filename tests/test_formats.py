"""Formats of a corpus's files: each has a reader in FORMATS and a file with one row here."""

from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data import formats
from fixedbert.data.formats import COMPRESSIONS, FORMATS, Columns, CorpusFile, corpus_files, rows_of_file
from fixedbert.errors import InputError


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
    """What has still to be added to formats.py or to this file, a sentence for each."""
    readers = {name: value for name, value in vars(module).items() if name.startswith("read_") and callable(value)}
    unused = [name for name, reader in readers.items() if reader not in FORMATS.values()]
    return [
        *(f"{name} reads no format: give it a line in FORMATS." for name in unused),
        *(f"{suffix} has no example: give it one in EXAMPLES." for suffix in FORMATS if suffix not in examples),
        *(f"{suffix} has an example but no reader: give it one in FORMATS." for suffix in examples.keys() - FORMATS),
    ]


def test_every_format_is_complete():
    """Guards: a format has its reader and its example, or the part that is missing is named."""
    assert not missing_parts(formats, EXAMPLES), " ".join(missing_parts(formats, EXAMPLES))


def test_missing_parts_of_a_format_are_named(monkeypatch):
    """Guards: the test above does find a reader without a line, a line without an example, and the other way round."""
    monkeypatch.setattr(formats, "read_xml", lambda file: iter(()), raising=False)
    assert missing_parts(formats, EXAMPLES) == ["read_xml reads no format: give it a line in FORMATS."]
    monkeypatch.setitem(FORMATS, ".xml", formats.read_xml)
    assert missing_parts(formats, EXAMPLES) == [".xml has no example: give it one in EXAMPLES."]
    monkeypatch.delitem(FORMATS, ".csv")
    (found,) = missing_parts(formats, {**EXAMPLES, ".xml": parquet})
    assert found == ".csv has an example but no reader: give it one in FORMATS."


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_of_every_format(tmp_path: Path, suffix: str):
    """Guards: text, document column, progress and a missing column, in each format that can be read."""
    row = {"text": "One.", "book": "a"}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(EXAMPLES[suffix](row))
    assert corpus_files(str(tmp_path)) == [path] and suffix not in COMPRESSIONS
    file = CorpusFile(path, Columns("text", "book"))
    has_columns = b"book" in EXAMPLES[suffix](row)
    assert list(rows_of_file(file)) == [("One.", "a" if has_columns else None)]
    assert file.position == path.stat().st_size
    if has_columns:
        with pytest.raises(InputError, match=rf"a\{suffix}.*: no column 'body' \(there are text, book\)"):
            list(rows_of_file(CorpusFile(path, Columns("body"))))


@pytest.mark.parametrize("suffix", FORMATS)
def test_damage_in_every_format(tmp_path: Path, suffix: str):
    """Guards: bytes that are no text in any encoding, nor a table, are one sentence with the file."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\xff\xfe\x00\x01" * 50)
    with pytest.raises(InputError, match=rf"a\{suffix}"):
        list(rows_of_file(CorpusFile(path, Columns("text"))))
