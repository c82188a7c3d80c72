"""Corpus readers yield the documents in each type of source."""

import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data.corpora import Corpus, CorpusReader, find_files
from fixedbert.support.errors import InputError


def documents(source, **options) -> list:
    reader = CorpusReader(Corpus(str(source), **options))
    found = list(reader)
    assert reader.position == reader.size
    return found


def test_glob_patterns(tmp_path):
    """Glob patterns match files and directories. Sources without files, and other formats, raise InputError."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text('{"text": "One.", "id": 1}\n\n{"text": "Two.", "other": 2}\n')
    (tmp_path / "c[1].txt").write_text("Four.\n")
    (tmp_path / "ignored.md").write_text("Not this.")
    assert documents(tmp_path / "**" / "*.jsonl") == documents(tmp_path / "d*p") == ["One.", "Two."]
    assert documents(tmp_path / "c[1].txt") == ["Four.\n"]  # an existing path is not a glob pattern
    (tmp_path / "empty").mkdir()
    for source in ("empty", "missing.txt", "*.csv"):
        with pytest.raises(InputError, match="no files found"):
            find_files(str(tmp_path / source))
    with pytest.raises(InputError, match="ignored.md: unsupported format"):
        documents(tmp_path / "ignored.md")


def test_links_to_directories(tmp_path):
    """Links to directories are followed, and each directory is read once."""
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    (corpus / "real").mkdir(parents=True)
    (other / "deep").mkdir(parents=True)
    (corpus / "real" / "a.txt").write_text("One.\n")
    (other / "b.txt").write_text("Two.\n")
    (other / "deep" / "c.txt").write_text("Three.\n")
    for name, target in (("linked", other), ("again", other / "deep"), ("alias", corpus / "real"), ("cycle", corpus)):
        (corpus / name).symlink_to(target)
    (other / "back").symlink_to(corpus)
    files = [corpus / "again" / "c.txt", corpus / "linked" / "b.txt", corpus / "real" / "a.txt"]
    assert find_files(str(corpus))[0] == files
    assert documents(corpus) == ["Three.\n", "Two.\n", "One.\n"]
    assert documents(corpus / "l*") == ["Two.\n", "One.\n", "Three.\n"]  # linked/back/real comes before linked/deep
    (other / "back").unlink()
    assert documents(corpus / "*" / "*.txt") == ["Three.\n", "One.\n", "Two.\n"]
    assert len(find_files(f"{corpus}/**/*.txt")[0]) == len(find_files(f"{corpus}/**")[0]) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every directory")
def test_unreadable_directory(tmp_path):
    """A directory that cannot be read raises InputError instead of being left out."""
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(InputError, match="closed: cannot be read .Permission denied"):
        documents(tmp_path)


def test_empty_rows(tmp_path):
    """Empty rows can end a document."""
    texts = ["One.", "Two.", "Three.", "", "Four."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "b.parquet")
    for file in ("a.jsonl", "b.parquet"):
        assert documents(tmp_path / file, document_boundary="blank_line") == ["One.\nTwo.\nThree.\n", "Four.\n"]
    with pytest.raises(InputError, match="has no column 'body' .`text_column_name`.; available columns: text"):
        documents(tmp_path / "b.parquet", text_column="body")


def test_invalid_rows(tmp_path):
    """Fields that are not text raise InputError."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": 7}')
    with pytest.raises(InputError, match="a.jsonl, line 2: 'text' must be text, not int"):
        documents(tmp_path / "a.jsonl")


def test_oversized_document(tmp_path, monkeypatch):
    """An oversized document raises InputError with a suggestion to change the document boundary."""
    monkeypatch.setattr("fixedbert.data.corpora.MAX_DOCUMENT_SIZE", 2**20)
    line = "x" * 1023
    (tmp_path / "a.txt").write_text(f"{line}\n" * 1025)
    (tmp_path / "b.csv").write_text("text,id\n" + f"{line},1\n" * 1026)
    blank = {"document_boundary": "blank_line"}
    for name, options in (("a.txt", {}), ("a.txt", blank), ("b.csv", blank)):
        with pytest.raises(InputError, match=rf"{name}: a document exceeds 1,048,576 characters; set "):
            documents(tmp_path / name, **options)


def test_hub_datasets(tmp_path):
    """The rows of a dataset that `load_dataset` can load (here a local directory) are read in order."""
    pyarrow.parquet.write_table(
        pyarrow.table({"text": [f"row {n}" if n % 1000 else "" for n in range(2500)], "doc": [*range(2500)]}),
        tmp_path / "train-00000-of-00001.parquet",
    )
    assert documents(tmp_path, on_hub=True)[998:1002] == ["row 998", "row 999", "", "row 1001"]
    found = documents(tmp_path, on_hub=True, document_boundary="sentence_lines")
    assert [len(sentences) for sentences in found] == [999, 999, 499]
    with pytest.raises(InputError, match="nobody/nothing: could not load the dataset"):
        documents("nobody/nothing", on_hub=True)
