"""Row readers for all supported file formats."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data.file_formats import READERS, DataFile
from fixedbert.support.errors import InputError


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, "zstd", asbytes=True)


def parquet(row: dict[str, str]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), sink)
    return sink.getvalue().to_pybytes()


def separated(row: dict[str, str], delimiter: str) -> bytes:
    return "\n".join((delimiter.join(row), delimiter.join(row.values()), "")).encode()


# For each format, a function that returns the content of a file with the given row.
EXAMPLES: dict[str, Callable[[dict[str, str]], bytes]] = {
    ".txt": lambda row: row["text"].encode(),
    ".jsonl": lambda row: str(row).replace("'", '"').encode(),
    ".json": lambda row: str(row).replace("'", '"').encode(),
    ".csv": lambda row: separated(row, ","),
    ".tsv": lambda row: separated(row, "\t"),
    ".parquet": parquet,
}


@pytest.mark.parametrize("suffix", READERS)
def test_rows_of_every_format(tmp_path: Path, suffix: str):
    """Each reader yields the columns of its format and updates the position."""
    row = {"text": "One.", "book": "a"}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(EXAMPLES[suffix](row))
    file = DataFile(path, ["text", "book"])
    (found,) = file.rows()
    assert found.values == (row if b"book" in EXAMPLES[suffix](row) else {"text": "One."})
    assert file.position == path.stat().st_size


def test_fields_of_csv_and_tsv(tmp_path):
    """Quoted fields are unquoted, other quotation marks in .tsv files are text, and missing fields are None."""
    (tmp_path / "a.csv").write_bytes('\ufeffid,text\r\n1,"Five, ""and"" so\non."\r\n\r\n2\r\n'.encode())
    first, second = DataFile(tmp_path / "a.csv").rows()
    assert (first.number, first.values) == (2, {"id": "1", "text": 'Five, "and" so\non.'})
    assert (second.number, second.values) == (5, {"id": "2", "text": None})
    texts = ['"Six.', '"Seven."', '"He said ""hi"""', '"He" or "she"', 'a "stray" mark', '"', '""']
    (tmp_path / "b.tsv").write_text('"text"\t"id"\n' + "".join(f"{text}\t1\n" for text in texts))
    unquoted = ['"Six.', "Seven.", 'He said "hi"', '"He" or "she"', 'a "stray" mark', '"', ""]
    for raw, expected in ((False, unquoted), (True, texts)):  # GLUE's files are raw
        rows = [row.values for row in DataFile(tmp_path / "b.tsv", header=("text", "id"), raw=raw).rows()][1:]
        assert rows == [{"text": text, "id": "1"} for text in expected]
    assert next(DataFile(tmp_path / "b.tsv").rows()).values == {"text": '"Six.', "id": "1"}
    (tmp_path / "c.tsv").write_text('text\tid\n"two\nlines"\t1\n"a\ttab"\t1\n')
    problems = [row.problem or "" for row in DataFile(tmp_path / "c.tsv").rows()]
    assert [problem.split()[0] for problem in problems if problem] == ["fewer", "more"]
    (tmp_path / "d.tsv").write_text('text\n"two\nlines"\n')
    assert "unpaired quotation mark" in next(DataFile(tmp_path / "d.tsv").rows()).problem


@pytest.mark.parametrize(
    "suffix, compress", [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)]
)
def test_compressed_files(tmp_path, suffix, compress):
    """Compressed files, also in several parts, are decompressed, and a truncated file raises InputError."""
    path = tmp_path / f"a.txt{suffix}"
    parts = ["".join(f"{number} {'é' * number}\n" for number in range(start, start + 500)) for start in (0, 500)]
    content = b"".join(compress(part.encode()) for part in parts)
    path.write_bytes(content)
    file = DataFile(path)
    assert "".join(row.values["text"] for row in file.rows()) == "".join(parts) and file.position == len(content)
    path.write_bytes(content[:-20])
    with pytest.raises(InputError, match=rf"a\.txt\{suffix}: cannot be read"):
        list(DataFile(path).rows())


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.json", b'["x"]', "a.json, row 0: each row must be a JSON object, not str"),
        ("a.parquet", b"PAR1 truncated", "a.parquet: cannot be read"),
        ("a.docx", b"x", "a.docx: unsupported format"),
        ("a.txt", "Three.\n".encode("utf-16-le"), "a.txt, line 1: mostly NUL characters, as in UTF-16"),
        ("a.csv", "text\nx\n".encode("utf-16-be"), "a.csv, line 1: mostly NUL"),
        ("a.csv", b"text;label\nx, y;1\n", "a.csv, line 1: 'text;label' is read as a single column; use commas"),
        ("a.csv", b"text, text\nx,y\n", "a.csv, line 1: two columns are named 'text'"),
        ("a.jsonl", b'{"text": "x", "text": "y"}', "a.jsonl, line 1: .*duplicate key 'text'"),
    ],
)
def test_malformed_files_are_reported_with_their_location(tmp_path, name, content, message):
    """The error message for a malformed file contains its path and, if known, the line or row."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(DataFile(tmp_path / name).rows())


def test_concatenated_files(tmp_path):
    """Byte order marks at the start of any line are removed. Repeated header lines are reported as problems."""
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        content = "\ufefftext, label \none,x\n\ufefftext,label\ntwo,y\n".replace(",", delimiter)
        (tmp_path / name).write_text(content, encoding="utf-8")
        rows = [*DataFile(tmp_path / name).rows()]
        assert rows[0].values == {"text": "one", "label": "x"} and rows[2].values == {"text": "two", "label": "y"}
        assert [row.problem for row in rows] == [None, "repeats the header", None]
    (tmp_path / "a.jsonl").write_text('\ufeff{"a": 1}\n\ufeff{"a": 2}\n', encoding="utf-8")
    assert [row.values for row in DataFile(tmp_path / "a.jsonl").rows()] == [{"a": 1}, {"a": 2}]
