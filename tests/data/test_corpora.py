"""Corpus readers yield the documents in each type of source."""

import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data.corpora import Corpus, CorpusReader, corpus_files
from fixedbert.support.errors import InputError


def documents(source, **options) -> list:
    reader = CorpusReader(Corpus(str(source), **options))
    found = list(reader)
    assert reader.position == reader.size
    return found


def test_text_files(tmp_path):
    """By default, a text file is one document. The byte order mark and carriage returns are removed."""
    (tmp_path / "a.txt").write_bytes("\ufeffOne.\r\n\r\nTwo – é.\r\n".encode())
    (tmp_path / "b.TXT").write_text("Th\0ree.\n")  # a single NUL remains, and the tokenizer removes it
    (tmp_path / "c.txt").write_text("")
    assert documents(tmp_path) == ["One.\n\nTwo – é.\n", "Th\0ree.\n"]
    assert documents(tmp_path / "a.txt", document_boundary="blank_line") == ["One.\n", "Two – é.\n"]
    assert documents(tmp_path, document_boundary="line") == ["One.\n", "\n", "Two – é.\n", "Th\0ree.\n"]


def test_one_sentence_per_line(tmp_path):
    """With sentence_lines, as in BERT's own files, each line is a sentence, even without a period."""
    (tmp_path / "a.txt").write_text("the first line\nthe second one\n\nnext document\n \n\nlast\nend")
    found = documents(tmp_path / "a.txt", document_boundary="sentence_lines")
    assert found == [["the first line", "the second one"], ["next document"], ["last", "end"]]


def test_end_of_a_file_ends_a_document(tmp_path):
    """The end of a file ends a document, regardless of the document boundary."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"One {name}.\n\nTwo {name}.")
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"{name}.", "book": "same"}))
    found = documents(tmp_path / "*.txt", document_boundary="blank_line")
    assert found == ["One a.\n", "Two a.\n", "One b.\n", "Two b.\n"]
    assert documents(tmp_path / "*.jsonl", document_boundary="column", document_column="book") == [["a."], ["b."]]


def test_formats_directories_and_globs(tmp_path):
    """Directories are searched recursively for all formats, and glob patterns match files and directories."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text('{"text": "One.", "id": 1}\n\n{"text": "Two.", "other": 2}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["Three.", None], "url": ["x", "y"]}), tmp_path / "b.parquet")
    (tmp_path / "c[1].txt").write_text("Four.\n")
    (tmp_path / "d.tsv").write_text("text\tid\nFive.\t1\n")
    (tmp_path / ".cache").mkdir()
    for name in ("ignored.md", ".hidden.txt", ".cache/b.txt", "deep/archive.zip"):
        (tmp_path / name).write_text("Not this.")
    ignored = [str(path.relative_to(tmp_path)) for path in CorpusReader(Corpus(str(tmp_path))).ignored]
    assert ignored == [".cache", ".hidden.txt", "deep/archive.zip", "ignored.md"]
    assert sorted(documents(tmp_path)) == ["", "Five.", "Four.\n", "One.", "Three.", "Two."]
    assert documents(tmp_path / "**" / "*.jsonl") == documents(tmp_path / "d*p") == ["One.", "Two."]
    assert documents(tmp_path / "c[1].txt") == ["Four.\n"]  # an existing path is not a glob pattern
    (tmp_path / "empty").mkdir()
    for source in ("empty", "missing.txt", "*.csv"):
        with pytest.raises(InputError, match="no files found"):
            corpus_files(str(tmp_path / source))
    with pytest.raises(InputError, match="ignored.md: unsupported format"):
        documents(tmp_path / "ignored.md")


def test_links_to_directories(tmp_path):
    """Links to directories are followed, each directory is read once, and a broken link raises InputError."""
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
    assert corpus_files(str(corpus)) == files
    assert documents(corpus) == ["Three.\n", "Two.\n", "One.\n"]
    assert documents(corpus / "l*") == ["Two.\n", "One.\n", "Three.\n"]  # linked/back/real comes before linked/deep
    (other / "back").unlink()
    assert documents(corpus / "*" / "*.txt") == ["Three.\n", "One.\n", "Two.\n"]
    assert len(corpus_files(f"{corpus}/**/*.txt")) == len(corpus_files(f"{corpus}/**")) == 3
    (other / "missing").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="linked/missing: a broken link"):
        documents(corpus)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every directory")
def test_unreadable_directory(tmp_path):
    """A directory that cannot be read raises InputError instead of being left out."""
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(InputError, match="closed: cannot be read .Permission denied"):
        documents(tmp_path)


def test_document_columns_and_empty_rows(tmp_path):
    """Consecutive rows with the same value in the document column form a document. Empty rows can end a document."""
    rows = [("a", "One."), ("a", "Two."), ("b", "Three."), ("a", ""), ("a", "Four.")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"book": b, "text": t}) + "\n" for b, t in rows))
    table = pyarrow.table({"book": [b for b, _ in rows], "text": [t for _, t in rows]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    for file in ("a.jsonl", "b.parquet"):
        found = documents(tmp_path / file, document_boundary="column", document_column="book")
        assert found == [["One.", "Two."], ["Three."], ["Four."]]
        assert documents(tmp_path / file, document_boundary="blank_line") == ["One.\nTwo.\nThree.\n", "Four.\n"]
    with pytest.raises(InputError, match="has no column 'volume' .`document_column_name`.; available columns: "):
        documents(tmp_path / "b.parquet", document_boundary="column", document_column="volume")
    with pytest.raises(InputError, match="requires `document_column_name`"):
        Corpus("a.jsonl", document_boundary="column")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", '{"body": "x"}', r"line 1 has no column 'text' \(`text_column_name`\); available columns: body"),
        ("a.jsonl", '{"text": "x"}\n{"text": 7}', "line 2: 'text' must be text, not int"),
        ("a.jsonl", '{"text": "x \\ud83d"}', "line 1: character 3 in 'text' is an unpaired surrogate"),
        ("a.csv", "id,text\n1,x\n2,y,z\n", "line 3: more fields than the header has columns"),
        ("a.parquet", {"text": [["x"]]}, "row 0: 'text' must be text, not list"),
    ],
)
def test_invalid_rows(tmp_path, name, content, message):
    """Fields that are not text, and rows with too many fields, raise InputError."""
    if isinstance(content, dict):
        pyarrow.parquet.write_table(pyarrow.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=f"{name}, {message}"):
        documents(tmp_path / name)


def test_only_regular_files_are_read(tmp_path):
    """A named pipe raises InputError, because reading it would block forever."""
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(InputError, match="a.txt: not a regular file"):
        documents(tmp_path)


def test_oversized_document(tmp_path, monkeypatch):
    """An oversized document raises InputError with a suggestion to change the document boundary."""
    monkeypatch.setattr("fixedbert.data.corpora.MAX_DOCUMENT_SIZE", 2**20)
    line = "x" * 1023
    (tmp_path / "a.txt").write_text(f"{line}\n" * 1025)
    (tmp_path / "b.csv").write_text("text,id\n" + f"{line},1\n" * 1026)
    column = {"document_boundary": "column", "document_column": "id"}
    for name, options in (("a.txt", {}), ("a.txt", {"document_boundary": "blank_line"}), ("b.csv", column)):
        with pytest.raises(InputError, match=rf"{name}: a document exceeds 1,048,576 characters; set "):
            documents(tmp_path / name, **options)


def test_hub_datasets(tmp_path):
    """The rows of a dataset that `load_dataset` can load (here a local directory) are read in order."""
    pyarrow.parquet.write_table(
        pyarrow.table({"text": [f"row {n}" for n in range(2500)], "doc": [n // 1000 for n in range(2500)]}),
        tmp_path / "train-00000-of-00001.parquet",
    )
    assert documents(tmp_path, on_hub=True) == [f"row {n}" for n in range(2500)]
    found = documents(tmp_path, on_hub=True, document_boundary="column", document_column="doc")
    assert [len(sentences) for sentences in found] == [1000, 1000, 500]
    with pytest.raises(InputError, match="has no column 'body'"):
        documents(tmp_path, on_hub=True, text_column="body")
    with pytest.raises(InputError, match="nobody/nothing: could not load the dataset"):
        documents("nobody/nothing", on_hub=True)
