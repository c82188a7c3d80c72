"""
Readers: the rows of text, csv, tsv, json, jsonl and parquet files, one by one, by one set of rules for every command.

To add a format, write its reader and give it a line in READERS, and a file with one row in EXAMPLES of
tests/data/test_readers.py. A reader takes a DataFile and yields its rows. It raises an InputError with the place for a
row that is damaged, and keeps `position` up to date.
"""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec.compression
import fsspec.utils
import pyarrow
import pyarrow.parquet

from ..support.errors import InputError
from ..support.files import reading, reason_of
from .boundaries import check_document

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
LARGEST_LINE = 2**28  # bytes; a compressed file can hold more in one than there is memory
DAMAGED = "correct it, or download it again"
TOO_FEW = "fewer fields than the header has columns"
TOO_MANY = "more fields than the header has columns"
KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
TEXTS = ("string", "large_string", "binary", "large_binary", "null", "string_view", "binary_view")  # of Arrow


class FileRow(NamedTuple):
    """A row of a file: its line or number, its values by column, and what is wrong with their number, if anything."""

    number: int
    values: dict[str, Any]
    problem: str | None = None


@dataclass
class DataFile:
    """A file that is read."""

    path: Path
    columns: Collection[str] | None = None  # that are needed; None for all. A reader may give others too
    header: tuple[str, ...] | None = None  # the columns of a csv or tsv file without a header line
    whole: bool = True  # whether a text file is one row, and not a row for each line
    unit: str = "line"  # what the numbers of its rows count, or "row"
    position: int = 0  # bytes of the file that have been read

    def place(self, number: int) -> str:
        return f"{self.path}, {self.unit} {number}"

    def lines(self) -> Iterator[str]:
        """Lines of the decompressed text."""
        with open(self.path, "rb") as raw:
            for line in lines_of(decompressed(raw, self.path), self.path):
                self.position = raw.tell()
                yield line

    def rows(self) -> Iterator[FileRow]:
        """
        Rows of a file in one of READERS.

        Raises:
            InputError: the file is in another format, or cannot be read, with the line.
        """
        if file_format(self.path) not in READERS:
            raise InputError(f"{self.path}: a format that cannot be read; give {', '.join(TABLES)}.")
        with reading(self.path, DAMAGED):
            yield from READERS[file_format(self.path)](self)


def file_format(file: Path) -> str:
    """.txt of a.txt and of a.txt.gz."""
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


def decompressed(raw: BinaryIO, file: Path) -> io.BufferedIOBase | BinaryIO:
    if file.suffix not in COMPRESSIONS:
        return raw
    decompressor = fsspec.compression.compr.get(fsspec.utils.infer_compression(str(file)))
    if decompressor is None:
        raise InputError(f"{file}: nothing is installed that reads {file.suffix}; install zstandard.")
    return io.BufferedReader(decompressor(raw, mode="rb"))


def lines_of(stream: io.BufferedIOBase | BinaryIO, file: object) -> Iterator[str]:
    """
    Lines of UTF-8 as text, without byte order mark and carriage returns. In a file without a single line feed, as on
    old Macs, carriage returns end lines.

    Raises:
        InputError: a line is not UTF-8, or longer than LARGEST_LINE.
    """
    number = 0
    while line := stream.readline(LARGEST_LINE + 1):
        number += 1
        if len(line) > LARGEST_LINE:
            raise InputError(f"{file}, line {number}: longer than {LARGEST_LINE >> 20} MiB; cut it into several.")
        if number == 1 and (line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line[:4]):
            raise InputError(f"{file}: UTF-16 or UTF-32, not UTF-8; convert the file, with iconv -f UTF-16 -t UTF-8.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{file}, line {number}: byte {error.start + 1} is not UTF-8 ({error.reason}); convert the file, for "
                "example with iconv."
            ) from error
        if number == 1 and "\r" in text and not text.endswith("\n"):
            yield from (part + "\n" for part in text.removesuffix("\r").split("\r"))
        else:
            yield text.removesuffix("\r\n") + "\n" if text.endswith("\r\n") else text


def read_text(file: DataFile) -> Iterator[FileRow]:
    """The column `text`: the whole file, or each of its lines."""
    if not file.whole:
        yield from (FileRow(number, {"text": line}) for number, line in enumerate(file.lines(), 1))
        return
    document, size = [], 0
    for line in file.lines():
        document.append(line)
        size += len(line)
        check_document(size, file.path)
    if document:
        yield FileRow(1, {"text": "".join(document)})


def read_table(file: DataFile) -> Iterator[FileRow]:
    """
    csv, quoted as usual, whose first line shows what separates fields, or tsv, never quoted, as in GLUE. Values that a
    short row lacks are None.
    """
    csv.field_size_limit(LARGEST_LINE)
    lines, skipped, delimiter = file.lines(), 0, "\t"
    if tabs := file_format(file.path) == ".tsv":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)  # a quotation mark is a character
    else:
        first = next(lines, "")
        delimiter, skipped = delimiter_of(first)
        reader = csv.reader(lines if skipped else chain([first], lines), strict=True, delimiter=delimiter)
    header, begin = file.header, skipped + 1
    try:
        for fields in reader:
            if fields and header is None:
                header = tuple(fields)
                check_names(header, file.place(begin))
            elif fields:
                size, columns = len(fields), header or ()
                problem = TOO_FEW if size < len(columns) else TOO_MANY if size > len(columns) else None
                yield FileRow(begin, dict(zip_longest(columns, fields[: len(columns)])), problem)
            begin = skipped + reader.line_num + 1
    except csv.Error as error:
        quotes = "" if tabs else "; a field that begins with a quote ends with one, and quotes inside are doubled"
        raise InputError(f"{file.place(begin)}: not csv: {error}{quotes}.") from error


def delimiter_of(line: str) -> tuple[str, int]:
    """What separates the fields of a csv file with this first line, and whether that line only says so."""
    if said := re.fullmatch(r'"?sep=(.)"?\s*', line):
        return said[1], 1
    names = re.sub(r'"[^"]*"', "", line)
    found = [mark for mark in ",;\t|" if mark in names]
    return found[0] if found else ",", 0


def check_names(names: Iterable[str], place: str):
    """
    Raises:
        InputError: two columns have the same name.
    """
    (name, count), *_ = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise InputError(f"{place}: two columns have the same name, {name!r}; rename one of them.")


def read_json(file: DataFile) -> Iterator[FileRow]:
    """An object in each line, or in .json one array of objects."""
    lines = file.lines()
    first = next(lines, "")
    if file_format(file.path) == ".json" and first.startswith("["):
        file.unit = "row"
        for number, row in enumerate(json_value("".join([first, *lines]), str(file.path))):
            yield FileRow(number, checked_object(row, file.place(number)))
        return
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip():
            yield FileRow(number, json_object(line, file.place(number)))


def json_object(text: str, place: str) -> dict:
    """
    The fields of a line of JSON.

    Raises:
        InputError: not JSON, not an object, or an object with a field twice.
    """
    return checked_object(json_value(text, place), place)


def checked_object(row: object, place: str) -> dict:
    if not isinstance(row, dict):
        raise InputError(f"{place}: not a JSON object; each row has to be one.")
    return row


def json_value(text: str, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=fields_of)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({reason_of(error)}); {DAMAGED}.") from error


def fields_of(pairs: list[tuple[str, object]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a field twice")
    return fields


def read_parquet(file: DataFile) -> Iterator[FileRow]:
    file.unit = "row"
    with pyarrow.parquet.ParquetFile(file.path) as table:
        names = table.schema_arrow.names
        wanted = [name for name in names if file.columns is None or name in file.columns]
        check_names(wanted, str(file.path))
        if file.columns is not None and not {*file.columns} <= {*wanted}:
            wanted = names  # so that a message can say what there is
        size, read = file.path.stat().st_size, 0
        for batch in table.iter_batches(batch_size=256, columns=wanted):
            for values in arrow_rows(batch):
                yield FileRow(read, values)
                read += 1
            file.position = size * read // table.metadata.num_rows


def arrow_rows(batch: pyarrow.RecordBatch | pyarrow.Table) -> Iterator[dict[str, Any]]:
    """Rows of a batch, with bytes of text, as old parquet files have them, decoded."""
    columns = []
    for column in batch.columns:
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        columns.append((column.cast(pyarrow.string()) if str(kind) in TEXTS else column).to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def why_no_text(value: object, what: str) -> str | None:
    """What is wrong with a value that has to be text; None if nothing is, or the value is missing."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"{what} is {KINDS.get(type(value), type(value).__name__)}, not text"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} of {what} is half of a surrogate pair, which is not text"
    return None


READERS: dict[str, Callable[[DataFile], Iterator[FileRow]]] = {
    ".txt": read_text,
    ".csv": read_table,
    ".tsv": read_table,
    ".json": read_json,
    ".jsonl": read_json,
    ".parquet": read_parquet,
}
TABLES = [suffix for suffix in READERS if suffix != ".txt"]
