"""Corpora: documents of plain text from files, folders, globs, the Hub, or the built-in sample, read one by one."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checksums import content_hash_of
from ..errors import InputError
from ..files import reading
from . import sample
from .boundaries import DOCUMENT_BOUNDARIES, Document, Row, documents_of
from .formats import Columns, CorpusFile, arrow_rows, corpus_files, file_format, rows_of_file
from .hub import load_from_hub
from .tables import DAMAGED


@dataclass(frozen=True)
class Corpus:
    """
    One source of text, and what its documents are.

    Args:
        source: "sample" for the built-in sample, a file, folder or glob, or the Hub id of a data set.
        on_hub: whether `source` is a Hub id.
        config_name: configuration of the Hub's data set.
        text_column: column with the text, for all but .txt files.
        document_boundary: what ends a document, one of DOCUMENT_BOUNDARIES. By "column" and "inferred" every row is a
            sentence; else text is split into sentences.
        document_column: the column for the boundary "column".
        hub_options: `cache_dir` and `token` for the Hub.
    """

    source: str
    on_hub: bool = False
    config_name: str | None = None
    text_column: str = "text"
    document_boundary: str = "row"
    document_column: str | None = None
    hub_options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        if self.document_boundary not in DOCUMENT_BOUNDARIES:
            raise InputError(
                f"{self.document_boundary}: there are {', '.join(DOCUMENT_BOUNDARIES)}.", "document_boundary"
            )
        if (self.document_boundary == "column") != (self.document_column is not None):
            raise InputError(
                f"{self.source}: --document_boundary column and --document_column_name go together; one is missing."
            )

    @property
    def is_sample(self) -> bool:
        return self.source == "sample" and self.on_hub

    def description(self) -> str:
        """Where the text comes from and what ends its documents, in one line."""
        ends = DOCUMENT_BOUNDARIES[self.document_boundary].replace(
            "--document_column_name", f"{self.document_column!r}"
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
        columns = [self.columns.text, *([self.columns.document] if self.columns.document else [])]
        for batch in self.dataset.select_columns(columns).with_format("arrow").iter(1000):
            place = f"{self.corpus.source}, rows {self.position + 1} to {self.position + len(batch)}"
            with reading(place, "remove it from the cache, and load it again"):
                yield from arrow_rows(place, batch, self.columns)
            self.position += len(batch)

    def file_rows(self) -> Iterator[Row]:
        done = 0
        for path in self.files:
            file = CorpusFile(path, self.columns, whole=self.corpus.document_boundary == "row")
            rows = 0
            for row in rows_of_file(file):
                rows += 1
                self.position = done + file.position
                yield row
            self.empty_files += rows == 0
            done += path.stat().st_size
            self.position = done
