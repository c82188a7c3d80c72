"""
Formats of a corpus's files: how the rows of each are read.

To add a format, write its reader and give it a line in FORMATS, and a file with one row in EXAMPLES of
tests/test_formats.py. A reader takes a CorpusFile and yields the rows: text, and the value of the document column. It
reads row by row, raises an InputError with the place for a row that is damaged or lacks a column, and keeps
`position` up to date.
"""

import fnmatch
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import fsspec.compression
import fsspec.utils
import pyarrow
import pyarrow.parquet

from ..errors import InputError
from ..files import reading
from .boundaries import Row, check_document
from .tables import DAMAGED, check_names, is_text, json_object, lines_of, table_rows, why_no_text

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
NAME_COLUMN = "name the column with the text with --text_column_name"


@dataclass(frozen=True)
class Columns:
    """The columns of a corpus that are read: that of the text, and one with another value for each document."""

    text: str
    document: str | None = None

    def __contains__(self, name: str) -> bool:
        return name in (self.text, self.document)

    def check(self, place: object, there: Iterable[str]):
        """
        Raises:
            InputError: one of the columns is not `there`.
        """
        for column, argument in ((self.text, "--text_column_name"), (self.document, "--document_column_name")):
            if column is not None and column not in there:
                raise InputError(
                    f"{place}: no column {column!r} (there are {', '.join(there) or 'none'}); name the right one "
                    f"with {argument}."
                )


@dataclass
class CorpusFile:
    """
    A file that is read.

    Args:
        whole: whether a text file is one document, and not its lines.
        position: bytes of the file that have been read.
    """

    path: Path
    columns: Columns
    whole: bool = True
    position: int = 0

    def lines(self) -> Iterator[str]:
        """Lines of the decompressed text."""
        with open(self.path, "rb") as raw:
            for line in lines_of(decompressed(raw, self.path), self.path):
                self.position = raw.tell()
                yield line


def decompressed(raw: BinaryIO, file: Path) -> io.BufferedIOBase | BinaryIO:
    if file.suffix not in COMPRESSIONS:
        return raw
    decompressor = fsspec.compression.compr.get(fsspec.utils.infer_compression(str(file)))
    if decompressor is None:
        raise InputError(f"{file}: nothing is installed that reads {file.suffix}; install zstandard.")
    return io.BufferedReader(decompressor(raw, mode="rb"))


def read_text(file: CorpusFile) -> Iterator[Row]:
    if not file.whole:
        yield from ((line, None) for line in file.lines())
        return
    document, size = [], 0
    for line in file.lines():
        document.append(line)
        size += len(line)
        check_document(size, file.path)
    if document:
        yield "".join(document), None


def read_table(file: CorpusFile) -> Iterator[Row]:
    """csv, or tsv without quoting."""
    names, rows = table_rows(file.lines(), file.path, tabs=file_format(file.path) == ".tsv")
    if names:
        file.columns.check(file.path, names)
    for line, values, problem in rows:
        if problem:
            raise InputError(f"{file.path}, line {line}: {problem}; {DAMAGED}.")
        row = dict(zip(names, values, strict=True))
        yield row[file.columns.text] or "", row[file.columns.document] if file.columns.document else None


def read_json_lines(file: CorpusFile) -> Iterator[Row]:
    for number, line in enumerate(file.lines(), 1):
        if line.isspace():
            continue
        place = f"{file.path}, line {number}"
        row = json_object(line, place)
        file.columns.check(place, row)
        text = row[file.columns.text]
        problem = why_no_text(text, repr(file.columns.text))
        if problem:
            raise InputError(f"{place}: {problem}; correct it, or {NAME_COLUMN}.")
        yield text or "", row[file.columns.document] if file.columns.document else None


def read_parquet(file: CorpusFile) -> Iterator[Row]:
    with pyarrow.parquet.ParquetFile(file.path) as table:
        there = table.schema_arrow.names
        file.columns.check(file.path, there)
        names = [name for name in there if name in file.columns]
        check_names(names, str(file.path))
        size, read = file.path.stat().st_size, 0
        for batch in table.iter_batches(batch_size=256, columns=names):
            yield from arrow_rows(file.path, batch, file.columns)
            read += len(batch)
            file.position = size * read // table.metadata.num_rows


def arrow_rows(place: object, batch: pyarrow.RecordBatch | pyarrow.Table, columns: Columns) -> Iterator[Row]:
    texts = batch.column(columns.text)
    if not is_text(texts.type):
        raise InputError(f"{place}: the column {columns.text!r} is {texts.type}, not text; {NAME_COLUMN}.")
    texts = texts.cast(pyarrow.string()).to_pylist()
    values = batch.column(columns.document).to_pylist() if columns.document else [None] * len(texts)
    for text, value in zip(texts, values, strict=True):
        yield text or "", value


FORMATS: dict[str, Callable[[CorpusFile], Iterator[Row]]] = {
    ".txt": read_text,
    ".jsonl": read_json_lines,
    ".json": read_json_lines,
    ".csv": read_table,
    ".tsv": read_table,
    ".parquet": read_parquet,
}


def file_format(file: Path) -> str:
    """.txt of a.txt and of a.txt.gz."""
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


def rows_of_file(file: CorpusFile) -> Iterator[Row]:
    """The rows of a file in one of FORMATS."""
    with reading(file.path, DAMAGED):
        yield from FORMATS[file_format(file.path)](file)


def corpus_files(pattern: str) -> list[Path]:
    """
    The files of a path, a folder (with all below it) or, only if there is no such path, a glob, sorted.

    Links to folders are followed. A file that is reached in several ways is there once.

    Raises:
        InputError: there is none, one in another format, or a link that leads nowhere.
    """
    with reading(pattern, DAMAGED):
        start = Path(Path(pattern).anchor)
        files: dict[str, Path] = {}
        found = matches(start, Path(pattern).relative_to(start).parts)
        for file in (file for match in found for file in files_below(match)):
            own = os.path.realpath(file)
            if own not in files or os.path.abspath(file) == own:  # a file's own name comes before that of a link
                files[own] = file
    if not files:
        raise InputError(f"{pattern}: no such file, and no folder or glob with {', '.join(FORMATS)} files in it.")
    for file in files.values():
        if not os.path.exists(file):
            raise InputError(f"{file}: a link to {os.readlink(file)}, which is not there; correct or remove it.")
        if file_format(file) not in FORMATS:
            raise InputError(
                f"{file}: a format that cannot be read; give {', '.join(FORMATS)}, also compressed "
                f"({', '.join(COMPRESSIONS)})."
            )
    return sorted(files.values())


def matches(base: Path, parts: tuple[str, ...]) -> list[Path]:
    """The paths in `base` of a glob's parts. A part that is the name of something is that, and no pattern."""
    if not parts:
        return [base]
    part, rest = parts[0], parts[1:]
    found = matches(base / part, rest) if os.path.lexists(base / part) else []
    if found or not base.is_dir():
        return found
    if part == "**":
        folders = [folder for folder in folders_below(base) if not is_hidden(folder.relative_to(base))]
        return [path for folder in folders for path in matches(folder, rest or ("*",))]
    names = [name for name in os.listdir(base) if part.startswith(".") or not name.startswith(".")]
    return [path for name in fnmatch.filter(names, part) for path in matches(base / name, rest)]


def is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def folders_below(base: Path) -> list[Path]:
    """A folder and all below it, through links too, each once: not by a link, where it can be reached without."""
    found: dict[str, Path] = {}
    folders: list[Path] = [base]
    links: list[Path] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop()
        if os.path.realpath(folder) not in found:
            found[os.path.realpath(folder)] = folder
            for entry in sorted(folder.iterdir()):
                if entry.is_dir():
                    (links if entry.is_symlink() else folders).append(entry)
    return [*found.values()]


def files_below(place: Path) -> list[Path]:
    """The files in a folder that can be part of a corpus, and links that lead nowhere, which might have been."""
    if not place.is_dir():
        return [place]
    entries = [entry for folder in folders_below(place) for entry in folder.iterdir() if not entry.is_dir()]
    return [
        entry
        for entry in entries
        if (file_format(entry) in FORMATS if entry.exists() else not is_hidden(entry.relative_to(place)))
    ]
