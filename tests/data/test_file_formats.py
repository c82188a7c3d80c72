"""Row readers for all supported file formats."""

import pytest

from fixedbert.data.file_formats import DataFile
from fixedbert.support.errors import InputError


def test_quotation_marks_in_tsv(tmp_path):
    """Quoted fields are unquoted, unless the file is raw. Other quotation marks are text."""
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
    "name, content, message",
    [
        ("a.json", b'["x"]', "a.json, row 0: each row must be a JSON object, not str"),
        ("a.txt", "Three.\n".encode("utf-16-le"), "a.txt, line 1: mostly NUL characters, as in UTF-16"),
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
