"""Readers that yield the documents in text corpora: files and Hub datasets."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..options import BOUNDARIES
from ..support.errors import InputError
from ..support.files import reading
from .file_formats import READERS, REDOWNLOAD, DataFile, check_columns, file_format, load_from_hub, text_problem

MAX_DOCUMENT_SIZE = 2**28  # characters; a larger document indicates that the wrong boundary was chosen

Document = str | list[str]  # a text to split into sentences, or a list of sentences


@dataclass(frozen=True)
class Corpus:
    """
    A text source and the rule for dividing it into documents. The end of a file always ends a document.

    With the document boundary "sentence_lines", each line must contain one sentence. With the other boundaries,
    `prepare_store` splits the text into sentences.
    """

    source: str  # a path or glob pattern; with `on_hub`, a dataset id
    on_hub: bool = False
    config_name: str | None = None  # configuration of the Hub dataset
    text_column: str = "text"  # ignored for .txt files
    document_boundary: str = "row"  # a key of BOUNDARIES
    hub_options: dict[str, Any] = field(default_factory=dict, hash=False)  # `cache_dir` and `token` for load_dataset

    def description(self) -> str:
        """Returns a one-line description of the source and its document boundary."""
        config = f" ({self.config_name})" if self.config_name else ""
        return f"{self.source}{config}: a document ends at {BOUNDARIES[self.document_boundary]}"


class CorpusReader:
    """
    Iterable over the documents in a corpus, in the order of its files and rows. It reads one document at a time.

    Attributes:
        size: Number of bytes in all files, or number of rows in a dataset.
        position: Number of bytes or rows read in the current iteration.
        ignored: Hidden files and directories, and files in unsupported formats, which are not read.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.position = 0
        self.files: list[DataFile] = []
        self.ignored: list[Path] = []
        if corpus.on_hub:
            self.dataset = load_from_hub(corpus.source, corpus.config_name, split="train", **corpus.hub_options)
            check_columns({corpus.text_column: "text_column_name"}, self.dataset.column_names, corpus.source)
            self.size = len(self.dataset)
        else:
            with reading(corpus.source, REDOWNLOAD):
                files, self.ignored = find_files(corpus.source)
                for path in files:
                    text_column = "text" if file_format(path) == ".txt" else corpus.text_column
                    self.files.append(DataFile(path, [text_column]))
                self.size = sum(file.path.stat().st_size for file in self.files)

    def fingerprint(self, hash_file: Callable[[Path], str]) -> list[object]:
        """Returns values that identify the content: text column, document boundary and hashes, but no file paths."""
        files = [(file_format(file.path), hash_file(file.path)) for file in self.files]
        content = self.dataset._fingerprint if self.corpus.on_hub else files
        return [self.corpus.text_column, self.corpus.document_boundary, content]

    def __iter__(self) -> Iterator[Document]:
        corpus = self.corpus
        self.position = finished = 0
        if corpus.on_hub:
            yield from split_into_documents(self.rows(), corpus.document_boundary, corpus.source)
        for file in self.files:
            is_text = file_format(file.path) == ".txt"
            boundary = "file" if is_text and corpus.document_boundary == "row" else corpus.document_boundary
            for document in split_into_documents(self.file_rows(file), boundary, str(file.path)):
                self.position = finished + file.position
                yield document
            finished += file.path.stat().st_size
            self.position = finished

    def rows(self) -> Iterator[str]:
        """Yields the texts of a dataset."""
        column = self.corpus.text_column
        for batch in self.dataset.select_columns(column).with_format("arrow").iter(1000):
            for row in batch.to_pylist():
                yield parse_row(row, column, f"{self.corpus.source}, row {self.position}")
                self.position += 1

    def file_rows(self, file: DataFile) -> Iterator[str]:
        assert file.columns is not None
        for row in file.rows():
            if row.problem:
                raise InputError(f"{file.location(row.number)}: {row.problem}; {REDOWNLOAD}.")
            yield parse_row(row.values, file.columns[0], file.location(row.number))


def find_files(source: str) -> tuple[list[Path], list[Path]]:
    """
    Returns the sorted paths of the files in `source`, which is a file, a directory or a glob pattern for either, and
    the paths to ignore below directories: hidden ones and files in unsupported formats.

    Directories are searched recursively. Links to directories are followed. Raises InputError if no files are found.
    """
    matches = without_aliases(map(Path, [source] if Path(source).exists() else glob.glob(source, recursive=True)))
    directories = [path for path in matches if path.is_dir()]
    files = [path for path in matches if not path.is_dir()]
    below = without_aliases(files_below(directories))
    ignored = {path for path in below if path.name.startswith(".") or file_format(path) not in READERS}
    files = without_aliases({*files, *below} - ignored)
    if not files:
        raise InputError(f"{source}: no files found; supported formats are {', '.join(READERS)}.")
    return sorted(files), sorted(ignored)


def without_aliases(paths: Iterable[Path]) -> list[Path]:
    """Returns one of the shortest paths for each entry of a directory, to which links can lead in several ways."""
    entries: dict[tuple[str, str], Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        entries.setdefault((os.path.realpath(path.parent), path.name), path)
    return list(entries.values())


def files_below(directories: list[Path]) -> Iterator[Path]:
    """
    Yields the files and hidden directories below directories. Follows links to directories, after the directories
    without links, and visits each directory once, except hidden ones.

    Raises InputError if a directory cannot be read or a link is broken.
    """
    visited: set[str] = set()
    pending = [str(directory) for directory in directories]
    while pending:
        for parent, children, names in os.walk(pending.pop(0), onerror=refuse_directory):
            real = os.path.realpath(parent)
            if real in visited:
                children.clear()
                continue
            visited.add(real)
            names += (name for name in children if name.startswith("."))
            children[:] = sorted({*children} - {*names})  # os.walk continues in this order, and does not follow links
            pending += [path for path in (os.path.join(parent, name) for name in children) if os.path.islink(path)]
            for file in (Path(parent, name) for name in names):
                if file.is_symlink() and not file.exists() and not file.name.startswith("."):
                    raise InputError(f"{file}: a broken link; correct or remove it.")
                yield file


def refuse_directory(error: OSError):
    raise InputError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def parse_row(values: dict[str, Any], column: str, location: str) -> str:
    """
    Returns the text in a row, or "" if it is missing.

    Raises InputError if the column does not exist, or if the value is not text.
    """
    check_columns({column: "text_column_name"}, values, location)
    if problem := text_problem(values[column], repr(column)):
        raise InputError(f"{location}: {problem}; correct it or set `text_column_name`.")
    return values[column] or ""


def split_into_documents(rows: Iterable[str], boundary: str, source: str) -> Iterator[Document]:
    """
    Joins the rows of a file or dataset into documents and yields them.

    `boundary` is a key of BOUNDARIES, or "file" to join all rows. Raises InputError, with the name of the
    `source`, if a document exceeds MAX_DOCUMENT_SIZE.
    """
    texts: list[str] = []
    size, is_split = 0, boundary == "sentence_lines"
    for text in rows:
        if boundary in ("row", "line"):
            yield text
            continue
        is_blank = not text.strip()
        if texts and is_blank and boundary != "file":
            yield texts if is_split else join_lines(texts)
            texts, size = [], 0
        if not is_blank or boundary == "file":
            texts.append(text.removesuffix("\n") if is_split else text)
            size += len(text)
        if size > MAX_DOCUMENT_SIZE:
            limit = f"{MAX_DOCUMENT_SIZE:,} characters"
            raise InputError(f"{source}: a document exceeds {limit}; set `document_boundary`, for example to line.")
    if texts:
        yield texts if is_split else join_lines(texts)


def join_lines(lines: list[str]) -> str:
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def iterate_documents(readers: list[CorpusReader], description: str) -> Iterator[Document]:
    """Yields the documents of all corpora and shows a progress bar."""
    total = sum(reader.size for reader in readers)
    with tqdm(total=total, unit="B", unit_scale=True, desc=description, disable=None) as progress:
        for reader in readers:
            for document in reader:
                yield document
                progress.update(sum(reader.position for reader in readers) - progress.n)
