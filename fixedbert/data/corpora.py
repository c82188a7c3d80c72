"""Corpora: documents of plain text from files, folders, globs, the Hub, or the built-in sample, read one by one."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..support.checksums import content_hash_of
from ..support.errors import InputError
from ..support.files import reading
from . import sample
from .boundaries import DOCUMENT_BOUNDARIES, Document, Row, documents_of
from .corpus_files import corpus_files
from .hub import load_from_hub
from .readers import DAMAGED, DataFile, arrow_rows, file_format, why_no_text


@dataclass(frozen=True)
class Columns:
    """The columns of a corpus that are read: the text, and one with another value for each document."""

    text: str
    document: str | None = None

    def names(self) -> list[str]:
        return [self.text, *([self.document] if self.document else [])]

    def check(self, place: object, there: Collection[str]):
        """
        Raises:
            InputError: one of the columns is not `there`.
        """
        for column, argument in ((self.text, "text_column_name"), (self.document, "document_column_name")):
            if column is not None and column not in there:
                raise InputError(
                    f"{place}: no column {column!r} (there are {', '.join(there) or 'none'}); name the right one "
                    f"with `{argument}`."
                )

    def of(self, values: dict[str, Any], place: str) -> Row:
        """
        The text and the document of a row.

        Raises:
            InputError: a column is missing, or the text is none.
        """
        self.check(place, values)
        text = values[self.text]
        if problem := why_no_text(text, repr(self.text)):
            raise InputError(
                f"{place}: {problem}; correct it, or name the column with the text with `text_column_name`."
            )
        return text or "", values[self.document] if self.document else None


@dataclass(frozen=True)
class Corpus:
    """
    One source of text, and what its documents are.

    By the boundaries "column" and "inferred" every row is a sentence; else text is split into sentences.
    """

    source: str  # a file, folder or glob; or on the Hub the id of a data set, or "sample" for the built-in sample
    on_hub: bool = False
    config_name: str | None = None  # of the Hub's data set
    text_column: str = "text"  # for all but .txt files
    document_boundary: str = "row"  # one of DOCUMENT_BOUNDARIES
    document_column: str | None = None  # for the boundary "column"
    hub_options: dict[str, Any] = field(default_factory=dict, hash=False)  # `cache_dir` and `token`

    def __post_init__(self):
        if self.document_boundary not in DOCUMENT_BOUNDARIES:
            raise InputError(
                f"{self.document_boundary}: there are {', '.join(DOCUMENT_BOUNDARIES)}.", "document_boundary"
            )
        if (self.document_boundary == "column") != (self.document_column is not None):
            raise InputError(
                f"{self.source}: `document_boundary` column and `document_column_name` go together; one is missing."
            )

    @property
    def is_sample(self) -> bool:
        return self.source == "sample" and self.on_hub

    def description(self) -> str:
        """Where the text comes from and what ends its documents, in one line."""
        ends = DOCUMENT_BOUNDARIES[self.document_boundary].replace(
            "the document column", f"the column {self.document_column!r}"
        )
        return f"{self.source}{f' ({self.config_name})' if self.config_name else ''}: a document ends with {ends}"


class CorpusReader:
    """
    Iterates over the documents of a corpus, in the order of its files and rows, with only one of them in memory.

    `size` is how much there is to read and `position` how much has been read: bytes of files, or rows of the Hub's
    data. `empty_files` counts files without a row.

    Raises:
        InputError: there is no such source, format or column, or a file cannot be read.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.columns = Columns(corpus.text_column, corpus.document_column)
        self.position = self.empty_files = 0
        self.files: list[Path] = []
        if corpus.is_sample:
            self.texts = sample.documents()
            self.size = len(self.texts)
        elif corpus.on_hub:
            self.dataset = load_from_hub(corpus.source, corpus.config_name, split="train", **corpus.hub_options)
            self.columns.check(corpus.source, self.dataset.column_names)
            self.size = len(self.dataset)
        else:
            self.files = corpus_files(corpus.source)
            with reading(corpus.source, DAMAGED):
                self.size = sum(file.stat().st_size for file in self.files)

    def fingerprint(self, hash_of: Callable[[Path], str] = content_hash_of) -> list[object]:
        """
        What the documents depend on: the content of the files, wherever they are, and how it is read.

        Args:
            hash_of: gives the hash of a file's content.
        """
        content: object
        if self.corpus.is_sample:
            content = hashlib.sha256("\0".join(self.texts).encode()).hexdigest()
        elif self.corpus.on_hub:
            content = self.dataset._fingerprint
        else:
            content = [(file_format(file), hash_of(file)) for file in self.files]
        return [self.columns.text, self.corpus.document_boundary, self.columns.document, content]

    def __iter__(self) -> Iterator[Document]:
        return documents_of(self.rows(), self.corpus.document_boundary, self.corpus.source)

    def rows(self) -> Iterator[Row]:
        if self.corpus.is_sample:
            for text in self.texts:
                self.position += 1
                yield text, None
        elif self.corpus.on_hub:
            yield from self.hub_rows()
        else:
            yield from self.file_rows()

    def hub_rows(self) -> Iterator[Row]:
        for batch in self.dataset.select_columns(self.columns.names()).with_format("arrow").iter(1000):
            with reading(self.corpus.source, "remove it from the cache, and load it again"):
                for values in arrow_rows(batch):
                    self.position += 1
                    yield self.columns.of(values, f"{self.corpus.source}, row {self.position}")

    def file_rows(self) -> Iterator[Row]:
        done = 0
        for path in self.files:
            # A text file has neither another column nor another name for it.
            columns = Columns("text") if file_format(path) == ".txt" else self.columns
            file = DataFile(path, columns.names(), whole=self.corpus.document_boundary == "row")
            rows = 0
            for number, values, problem in file.rows():
                if problem:
                    raise InputError(f"{file.place(number)}: {problem}; {DAMAGED}.")
                rows += 1
                self.position = done + file.position
                yield columns.of(values, file.place(number))
            self.empty_files += rows == 0
            done += path.stat().st_size
            self.position = done


def all_documents(readers: list[CorpusReader], desc: str) -> Iterator[tuple[Document, int]]:
    """The documents of several corpora, each with the number of its corpus, with a progress bar."""
    total = sum(reader.size for reader in readers)
    with tqdm(total=total, unit="B", unit_scale=True, desc=desc, disable=None) as bar:
        for number, reader in enumerate(readers):
            for document in reader:
                yield document, number
                bar.update(sum(reader.position for reader in readers) - bar.n)
