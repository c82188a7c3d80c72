"""Corpora: documents of plain text from files, folders, globs, the Hub, or the built-in sample, read one by one."""

import glob
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fsspec.compression
import fsspec.utils
import pyarrow
import pyarrow.parquet

from ..errors import InputError
from ..files import content_hash_of, reading
from . import sample
from .hub import load_from_hub
from .tables import AGAIN, check_names, is_text, json_object, lines_of, table_rows, why_no_text

FORMATS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
DOCUMENT_BOUNDARIES = {
    "row": "a row of jsonl, csv, parquet or the Hub, a whole text file",
    "line": "a line of a text file",
    "blank_line": "a blank line, an empty row",
    "column": "another value in --document_column_name",
    "inferred": "a row that looks like the beginning of a chapter, or else 500 rows",
}
LARGEST_DOCUMENT = 2**28  # bytes; whoever has more in one has missed its boundaries
NAME_COLUMN = "name the column with the text with --text_column_name"
INFERRED_LENGTH = 500  # sentences of a document whose end nothing tells: about a chapter
CHAPTER = re.compile(
    r"\W*(chapter|prologue|epilogue|preface|foreword|part|book|volume|copyright|isbn|table of contents|contents)\b",
    re.I,
)

Document = str | list[str]  # text to be split into sentences, or its sentences


@dataclass(frozen=True)
class Corpus:
    """
    One source of text and how documents come out of it.

    Args:
        source: "sample" for the built-in sample, a file, folder or glob, or the Hub id of a data set.
        on_hub: whether `source` is a Hub id.
        config_name: configuration of the Hub's data set.
        text_column: column with the text, of everything but .txt files.
        document_boundary: what ends a document, one of DOCUMENT_BOUNDARIES. By "column" and "inferred" every row is a
            sentence; else text is split into sentences.
        document_column: the column that "column" goes by.
    """

    source: str
    on_hub: bool = False
    config_name: str | None = None
    text_column: str = "text"
    document_boundary: str = "row"
    document_column: str | None = None
    hub_options: dict = field(default_factory=dict, hash=False)  # cache_dir and token

    def __post_init__(self):
        if self.document_boundary not in DOCUMENT_BOUNDARIES:
            raise InputError(
                f"--document_boundary {self.document_boundary}: there are {', '.join(DOCUMENT_BOUNDARIES)}."
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


def corpus_files(pattern: str) -> list[Path]:
    """The files that a path, a folder (searched whole) or a glob stands for, sorted."""
    if Path(pattern).is_dir():
        files = [path for path in Path(pattern).rglob("*") if file_format(path) in FORMATS and path.is_file()]
    else:
        files = [Path(file) for file in glob.glob(pattern, recursive=True)]
        files = files or [path for path in [Path(pattern)] if path.is_file()]
    if not files:
        raise InputError(f"{pattern}: no such file, and no folder or glob with {', '.join(FORMATS)} files in it.")
    for file in files:
        if file_format(file) not in FORMATS:
            raise InputError(
                f"{file}: not one of the formats that can be read: {', '.join(FORMATS)}, also compressed "
                f"({', '.join(COMPRESSIONS)})."
            )
    return sorted(files)


def file_format(file: Path) -> str:
    """.txt of a.txt and of a.txt.gz."""
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


class CorpusReader:
    """
    Iterates over the documents of a corpus, in the order of its files and rows, without holding more than one.

    `size` is what there is to read and `position` how much of it has been: bytes of files, or rows of the Hub's data.
    `empty_files` counts files without a row.

    Raises:
        InputError: nothing there, a format or column that is not there, a file that cannot be read.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.position = self.empty_files = 0
        self.files: list[Path] = []
        if corpus.is_sample:
            self.texts = sample.documents()
            self.size = len(self.texts)
        elif corpus.on_hub:
            self.dataset = load_from_hub(corpus.source, corpus.config_name, split="train", **corpus.hub_options)
            self.check_columns(corpus.source, self.dataset.column_names)
            self.size = len(self.dataset)
        else:
            self.files = corpus_files(corpus.source)
            with reading(corpus.source, AGAIN):
                self.size = sum(file.stat().st_size for file in self.files)

    def fingerprint(self, hash_of: Callable[[Path], str] = content_hash_of) -> list:
        """
        What the documents depend on: the content of the files, wherever they are, and how it is read.

        Args:
            hash_of: gives the hash of a file's content.
        """
        corpus = self.corpus
        if corpus.is_sample:
            content = hashlib.sha256("\0".join(self.texts).encode()).hexdigest()
        elif corpus.on_hub:
            content = self.dataset._fingerprint
        else:
            content = [(file_format(file), hash_of(file)) for file in self.files]
        return [corpus.text_column, corpus.document_boundary, corpus.document_column, content]

    def __iter__(self) -> Iterator[Document]:
        boundary = self.corpus.document_boundary
        if boundary in ("row", "line"):
            yield from (text for text, _ in self.rows())
        elif boundary == "blank_line":
            yield from joined_until_blank(self.rows(), self.corpus.source)
        elif boundary == "column":
            yield from grouped_by_value(self.rows(), self.corpus.source)
        else:
            yield from cut_at_chapters(self.rows(), self.corpus.source)

    def rows(self) -> Iterator[tuple[str, object]]:
        """Text and value of the document column, row by row."""
        corpus = self.corpus
        if corpus.is_sample:
            for text in self.texts:
                self.position += 1
                yield text, None
        elif corpus.on_hub:
            columns = [corpus.text_column, *([corpus.document_column] if corpus.document_column else [])]
            for batch in self.dataset.select_columns(columns).with_format("arrow").iter(1000):
                place = f"{corpus.source}, rows {self.position + 1} to {self.position + len(batch)}"
                with reading(place, "remove it from the cache, and load it again"):
                    yield from self.arrow_rows(place, batch)
                self.position += len(batch)
        else:
            done = 0
            for file in self.files:
                rows = 0
                for row in self.rows_of(file, done):
                    rows += 1
                    yield row
                self.empty_files += rows == 0
                done += file.stat().st_size
                self.position = done

    def rows_of(self, file: Path, done: int) -> Iterator[tuple[str, object]]:
        kind = file_format(file)
        with reading(file, AGAIN):
            if kind == ".parquet":
                yield from self.parquet_rows(file, done)
                return
            with open(file, "rb") as raw:
                stream = raw
                if file.suffix in COMPRESSIONS:
                    decompressor = fsspec.compression.compr.get(fsspec.utils.infer_compression(str(file)))
                    if decompressor is None:
                        raise InputError(f"{file}: nothing is installed that reads {file.suffix}; install zstandard.")
                    stream = io.BufferedReader(decompressor(raw, mode="rb"))
                for row in self.text_rows(file, kind, lines_of(stream, file)):
                    self.position = done + raw.tell()
                    yield row

    def parquet_rows(self, file: Path, done: int) -> Iterator[tuple[str, object]]:
        with pyarrow.parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            self.check_columns(file, names)
            check_names(filter(self.uses, names), str(file))
            read = 0
            for batch in table.iter_batches(batch_size=256, columns=[name for name in names if self.uses(name)]):
                yield from self.arrow_rows(file, batch)
                read += len(batch)
                self.position = done + file.stat().st_size * read // table.metadata.num_rows

    def arrow_rows(self, place: object, table) -> Iterator[tuple[str, object]]:
        corpus = self.corpus
        texts = table.column(corpus.text_column)
        if not is_text(texts.type):
            raise InputError(f"{place}: the column {corpus.text_column!r} is {texts.type}, not text; {NAME_COLUMN}.")
        texts = texts.cast(pyarrow.string()).to_pylist()
        values = table.column(corpus.document_column).to_pylist() if corpus.document_column else [None] * len(texts)
        for text, value in zip(texts, values, strict=True):
            yield text or "", value

    def text_rows(self, file: Path, kind: str, lines: Iterator[str]) -> Iterator[tuple[str, object]]:
        corpus = self.corpus
        if kind == ".txt" and corpus.document_boundary == "row":
            document, size = [], 0
            for line in lines:
                document.append(line)
                size += len(line)
                check_document(size, file)
            if document:
                yield "".join(document), None
        elif kind == ".txt":
            yield from ((line, None) for line in lines)
        elif kind in (".csv", ".tsv"):
            names, rows = table_rows(lines, file, tabs=kind == ".tsv")
            if names:
                self.check_columns(file, names)
            for line, row, problem in rows:
                if problem:
                    raise InputError(f"{file}, line {line}: {problem}; {AGAIN}.")
                row = dict(zip(names, row, strict=True))
                yield row[corpus.text_column], row.get(corpus.document_column)
        else:
            for number, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                place = f"{file}, line {number}"
                row = json_object(line, place)
                self.check_columns(place, row)
                text = row[corpus.text_column]
                problem = why_no_text(text, repr(corpus.text_column))
                if problem:
                    raise InputError(f"{place}: {problem}; mend it, or {NAME_COLUMN}.")
                yield text or "", row.get(corpus.document_column)

    def uses(self, column: str) -> bool:
        return column in (self.corpus.text_column, self.corpus.document_column)

    def check_columns(self, place: object, columns: Iterable[str]):
        corpus = self.corpus
        for column, argument in (
            (corpus.text_column, "--text_column_name"),
            (corpus.document_column, "--document_column_name"),
        ):
            if column is not None and column not in columns:
                raise InputError(
                    f"{place}: no column {column!r} (there are {', '.join(columns) or 'none'}); name the right one "
                    f"with {argument}."
                )


def check_document(size: int, source: object):
    if size > LARGEST_DOCUMENT:
        raise InputError(
            f"{source}: more than {LARGEST_DOCUMENT >> 20} MiB in one document; say what ends one in it with "
            "--document_boundary line, blank_line or inferred."
        )


def joined_until_blank(rows, source: str) -> Iterator[str]:
    lines, size = [], 0
    for text, _ in rows:
        if text.strip():
            lines.append(text if text.endswith("\n") else text + "\n")
            size += len(text)
            check_document(size, source)
        elif lines:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def grouped_by_value(rows, source: str) -> Iterator[list[str]]:
    sentences, current, size = [], None, 0
    for text, value in rows:
        if value != current and sentences:
            yield sentences
            sentences, size = [], 0
        current = value
        sentences.append(text)
        size += len(text)
        check_document(size, source)
    if sentences:
        yield sentences


def cut_at_chapters(rows, source: str) -> Iterator[list[str]]:
    """Sentences of a stream without boundaries, as for the copies of BookCorpus on the Hub."""
    sentences, size = [], 0
    for text, _ in rows:
        chapter = len(text) < 60 and CHAPTER.match(text)
        if sentences and (chapter or len(sentences) == INFERRED_LENGTH):
            yield sentences
            sentences, size = [], 0
        if text.strip():
            sentences.append(text)
            size += len(text)
            check_document(size, source)
    if sentences:
        yield sentences
