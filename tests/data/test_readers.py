"""Row readers for all supported file formats."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data.readers import READERS, DataFile
from fixedbert.support.errors import InputError


def parquet(row: dict[str, str]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), sink)
    return sink.getvalue().to_pybytes()


def separated(row: dict[str, str], delimiter: str) -> bytes:
    return "\n".join((delimiter.join(row), delimiter.join(row.values()), "")).encode()


# For each format, a function that returns the content of a file with a single row.
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
    """Fields can be quoted in csv but not in tsv, line numbers are correct, and missing fields are None."""
    (tmp_path / "a.csv").write_bytes('\ufeffid,text\r\n1,"Five, ""and"" so\non."\r\n\r\n2\r\n'.encode())
    first, second = DataFile(tmp_path / "a.csv").rows()
    assert (first.number, first.values) == (2, {"id": "1", "text": 'Five, "and" so\non.'})
    assert (second.number, second.values) == (5, {"id": "2", "text": None})
    (tmp_path / "b.tsv").write_text('"Six.\t1\nSeven."\t2\n')
    rows = [row.values for row in DataFile(tmp_path / "b.tsv", header=("text", "id")).rows()]
    assert rows == [{"text": '"Six.', "id": "1"}, {"text": 'Seven."', "id": "2"}]


def test_json_files_are_lines_or_an_array(tmp_path):
    """A .json file may contain one object per line or an array of objects."""
    for content in ('{"a": 1}\n\n{"a": 2}\n', '[{"a": 1},\n {"a": 2}]'):
        (tmp_path / "a.json").write_text(content)
        assert [row.values for row in DataFile(tmp_path / "a.json").rows()] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("suffix, opener", [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_compressed_files(tmp_path, suffix, opener):
    """Compressed files are decompressed, and a truncated file raises InputError."""
    path = tmp_path / f"a.txt{suffix}"
    with opener(path, "wt", encoding="utf-8") as lines:
        lines.writelines(f"{number} {'é' * number}\n" for number in range(500))
    assert len([*DataFile(path).rows()]) == 500
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"a\.txt\{suffix}: cannot be read"):
        list(DataFile(path).rows())


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl, line 2: not valid JSON"),
        ("a.json", b'["x"]', "a.json, row 0: each row must be a JSON object, not str"),
        ("a.csv", b'id,text\n1,"x\n', "a.csv, line 2: not valid csv"),
        ("a.tsv", b"text\ttext\nx\ty\n", "a.tsv, line 1: two columns are named 'text'"),
        ("a.txt", "One.\nTwo é.\n".encode("latin-1"), "a.txt, line 2: not UTF-8"),
        ("a.csv", "text,id\n".encode("utf-16"), "a.csv, line 1: not UTF-8"),
        ("a.parquet", b"PAR1 truncated", "a.parquet: cannot be read"),
        ("a.docx", b"x", "a.docx: unsupported format"),
        ("a.txt.gz", b"x", "a.txt.gz: cannot be read"),
    ],
)
def test_malformed_files_are_reported_with_their_location(tmp_path, name, content, message):
    """The error message for a malformed file contains its path and, if known, the line or row."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(DataFile(tmp_path / name).rows())


def test_zstandard_needs_its_package(tmp_path, monkeypatch):
    """Reading a .zst file without the package zstandard raises InputError."""
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    monkeypatch.setattr("fsspec.compression.compr", {})
    with pytest.raises(InputError, match="install zstandard"):
        list(DataFile(tmp_path / "a.txt.zst").rows())


def test_quoted_tsv(tmp_path):
    """Quoted fields, as pandas writes them, are unquoted. Other quotation marks are part of the text, as in GLUE."""
    file = tmp_path / "a.tsv"
    file.write_text('"text"\tlabel\n"He said ""hi"""\t"neg"\nplain "mid" quote\tpos\n"Yes," he said.\t"\n""\t"""\n')
    rows = [tuple(row.values.values()) for row in DataFile(file).rows()]
    assert rows == [('He said "hi"', "neg"), ('plain "mid" quote', "pos"), ('"Yes," he said.', '"'), ("", '"""')]
    assert [row.values for row in DataFile(file, raw=True).rows()][0] == {
        '"text"': '"He said ""hi"""',
        "label": '"neg"',
    }


def test_integers_with_many_digits(tmp_path):
    """Integers with too many digits are refused with their line, also in nested values."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "x", "n": 12}\n{"text": "x", "n": [{"m": ' + "7" * 300_000 + "}]}\n")
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: not valid JSON .an integer has 300,000 digits"):
        list(DataFile(file).rows())
