"""
Row readers for txt, csv, tsv, json, jsonl and parquet files, optionally compressed, and datasets from the Hub.

To add a format, write its reader, register it in READERS and add an example to tests/data/test_readers.py. A reader
takes a DataFile, yields its rows, updates `position`, and raises InputError with the location of a damaged row.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec.compression
import fsspec.utils
import pyarrow.parquet
from huggingface_hub.errors import HfHubHTTPError

from ..support.errors import InputError
from ..support.files import error_reason, reading

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
MAX_FIELD_SIZE = 2**28  # characters in a csv field
REDOWNLOAD = "correct it, or download it again"
TOO_FEW = "fewer fields than the header has columns"
TOO_MANY = "more fields than the header has columns"


class FileRow(NamedTuple):
    """A row: its line or row number, its values by column, and whether it has too few or too many fields."""

    number: int
    values: dict[str, Any]
    problem: str | None = None


@dataclass
class DataFile:
    """A data file and the reading position in it. Raises InputError if its format is unknown."""

    path: Path
    columns: list[str] | None = None  # columns needed; None for all. Readers may return more
    header: tuple[str, ...] | None = None  # column names for a csv or tsv file without a header line
    unit: str = "line"  # what row numbers count: "line" or "row"
    position: int = 0  # bytes read

    def __post_init__(self):
        if file_format(self.path) not in READERS:
            raise InputError(f"{self.path}: unknown format; supported formats are {', '.join(READERS)}.")

    def location(self, number: int) -> str:
        """Returns the file and the line or row number, for messages."""
        return f"{self.path}, {self.unit} {number}"

    def lines(self) -> Iterator[str]:
        """Yields the lines of the decompressed text."""
        with open(self.path, "rb") as raw:
            for line in decode_lines(decompress(raw, self.path), self.path):
                self.position = raw.tell()
                yield line

    def rows(self) -> Iterator[FileRow]:
        """
        Yields the rows of the file. In a .txt file each line is a row with the column `text`.

        Raises:
            InputError: the file cannot be read.
        """
        with reading(self.path, REDOWNLOAD):
            yield from READERS[file_format(self.path)](self)


def file_format(file: Path) -> str:
    """Returns the suffix without the compression: .txt for a.txt and a.txt.gz."""
    return Path(file.stem).suffix if file.suffix in COMPRESSIONS else file.suffix


def decompress(raw: BinaryIO, file: Path) -> io.BufferedIOBase | BinaryIO:
    if file.suffix not in COMPRESSIONS:
        return raw
    decompressor = fsspec.compression.compr.get(fsspec.utils.infer_compression(str(file)))
    if decompressor is None:
        raise InputError(f"{file}: install zstandard to read {file.suffix} files.")
    return io.BufferedReader(decompressor(raw, mode="rb"))


def decode_lines(stream: io.BufferedIOBase | BinaryIO, file: Path) -> Iterator[str]:
    """
    Yields lines of UTF-8 text without a byte order mark, ending with a line feed.

    Raises:
        InputError: the text is not UTF-8.
    """
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text[:-2] + "\n" if text.endswith("\r\n") else text
    except UnicodeDecodeError as error:
        raise InputError(f"{file}, line {number}: not UTF-8 ({error.reason}); convert it, e.g. with iconv.") from error


def read_text(file: DataFile) -> Iterator[FileRow]:
    for number, line in enumerate(file.lines(), 1):
        yield FileRow(number, {"text": line})


def read_separated(file: DataFile) -> Iterator[FileRow]:
    """Reads csv with the usual quoting, or tsv without quoting as in GLUE. Missing fields at the end are None."""
    csv.field_size_limit(MAX_FIELD_SIZE)
    if file_format(file.path) == ".tsv":
        reader = csv.reader(file.lines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(file.lines(), strict=True)
    header, line = file.header, 1
    try:
        for fields in reader:
            if fields and header is None:
                header = tuple(fields)
                check_unique(header, file.location(line))
            elif fields:
                columns = header or ()
                problem = TOO_FEW if len(fields) < len(columns) else TOO_MANY if len(fields) > len(columns) else None
                yield FileRow(line, dict(zip_longest(columns, fields[: len(columns)])), problem)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{file.location(line)}: not valid csv ({error}).") from error


def check_unique(names: Iterable[str], location: str):
    """Raises InputError if two columns have the same name."""
    (name, count), *_ = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise InputError(f"{location}: two columns are named {name!r}; rename one of them.")


def read_json(file: DataFile) -> Iterator[FileRow]:
    """Reads one object per line, or in a .json file an array of objects."""
    lines = file.lines()
    first = next(lines, "")
    if file_format(file.path) == ".json" and first.startswith("["):
        file.unit = "row"
        for number, row in enumerate(parse_json("".join([first, *lines]), str(file.path))):
            yield FileRow(number, check_object(row, file.location(number)))
        return
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip():
            yield FileRow(number, json_object(line, file.location(number)))


def json_object(text: str, location: str) -> dict:
    """Parses a JSON object. Raises InputError if it is not one."""
    return check_object(parse_json(text, location), location)


def check_object(row: object, location: str) -> dict:
    if not isinstance(row, dict):
        raise InputError(f"{location}: not a JSON object; each row must be one.")
    return row


def parse_json(text: str, location: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not valid JSON ({error_reason(error)}); {REDOWNLOAD}.") from error


def read_parquet(file: DataFile) -> Iterator[FileRow]:
    file.unit = "row"
    with pyarrow.parquet.ParquetFile(file.path) as table:
        names = table.schema_arrow.names
        check_unique(names, str(file.path))
        # If a column is missing, all are read, so that the caller's message can list them.
        columns = file.columns if file.columns and {*file.columns} <= {*names} else None
        size, number = file.path.stat().st_size, 0
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for values in batch.to_pylist():
                yield FileRow(number, values)
                number += 1
            file.position = size * number // table.metadata.num_rows


def text_problem(value: object, name: str) -> str | None:
    """Returns why a value is not valid text, or None if it is valid or missing."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"{name} must be text, not {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} of {name} is half of a surrogate pair"
    return None


def load_from_hub(name: str, config: str | None = None, **options: Any):
    """Calls `datasets.load_dataset`. Raises InputError if the dataset does not exist or cannot be downloaded."""
    import datasets  # takes a second

    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError, HfHubHTTPError) as error:
        raise InputError(f"{name}: the dataset could not be loaded: {error}") from error


READERS: dict[str, Callable[[DataFile], Iterator[FileRow]]] = {
    ".txt": read_text,
    ".csv": read_separated,
    ".tsv": read_separated,
    ".json": read_json,
    ".jsonl": read_json,
    ".parquet": read_parquet,
}
TABLE_FORMATS = [suffix for suffix in READERS if suffix != ".txt"]
