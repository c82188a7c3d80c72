"""
Readers for .txt, .csv, .tsv, .json, .jsonl and .parquet files, which may be compressed, and for Hub datasets.

To add a format, write a reader, register it in READERS and add an example to tests/data/test_file_formats.py. A reader
takes a DataFile, updates its `position` and yields its rows. It raises InputError for malformed rows.
"""

import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow.parquet
from huggingface_hub.errors import HfHubHTTPError

from ..support.errors import InputError
from ..support.files import error_reason, reading

DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".zst": partial(pyarrow.CompressedInputStream, compression="zstd"),
}
QUOTED = re.compile(r'"((?:[^"]|"")*)"')
MAX_FIELD_SIZE = 2**28  # characters in a csv field
REDOWNLOAD = "correct it or download it again"
TOO_FEW = "fewer fields than the header has columns"
TOO_MANY = "more fields than the header has columns"


class FileRow(NamedTuple):
    """A row in a data file or dataset."""

    number: int  # line or row number
    values: dict[str, Any]  # by column name
    problem: str | None = None  # such as TOO_FEW or TOO_MANY
    position: int = 0  # 0-based index among all rows


@dataclass
class DataFile:
    """A data file and the current reading position. Raises InputError if its format is not supported."""

    path: Path
    columns: list[str] | None = None  # required columns; rows may contain others; None reads all
    header: tuple[str, ...] | None = None  # column names if a csv or tsv file has no header line
    raw: bool = False  # True if all quotation marks in a tsv file are part of the text, as in GLUE's files
    unit: str = "line"  # "line" or "row", for error messages
    position: int = 0  # number of bytes read

    def __post_init__(self):
        if file_format(self.path) not in READERS:
            raise InputError(f"{self.path}: unsupported format; supported formats are {', '.join(READERS)}.")

    def location(self, number: int) -> str:
        """Returns the path with a line or row number, for error messages."""
        return f"{self.path}, {self.unit} {number}"

    def lines(self) -> Iterator[str]:
        """Yields the lines of the file as text, decompressed if necessary."""
        decompress = DECOMPRESSORS.get(self.path.suffix.lower())
        with open(self.path, "rb") as raw:
            stream = raw if decompress is None else io.BufferedReader(decompress(raw))
            for line in decode_lines(stream, self.path):
                self.position = raw.tell()
                yield line

    def rows(self) -> Iterator[FileRow]:
        """Yields the rows of the file. In a .txt file, each line is a row with a single column `text`."""
        with reading(self.path, REDOWNLOAD):
            yield from READERS[file_format(self.path)](self)


def file_format(file: Path) -> str:
    """Returns the lowercased suffix without the compression suffix, for example .txt for a.txt and A.TXT.gz."""
    return (Path(file.stem) if file.suffix.lower() in DECOMPRESSORS else file).suffix.lower()


def decode_lines(stream: Iterable[bytes], file: Path) -> Iterator[str]:
    """
    Decodes and yields all lines. Converts CRLF line endings to LF, and removes byte order marks, which can be at the
    start of any line if files were concatenated. Raises InputError if the text is not UTF-8, or has so many NUL
    characters that it must be UTF-16. Single ones remain, and BERT's tokenizer removes them.
    """
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            text = line.decode("utf-8-sig")
            if (count := text.count("\0")) > 1 and 3 * count > len(text):
                remedy = "convert the file to UTF-8, or remove such characters with tr -d '\\0'"
                raise InputError(f"{file}, line {number}: mostly NUL characters, as in UTF-16; {remedy}.")
            if number == 1 and "\r" in text.rstrip("\r\n"):
                raise InputError(f"{file}: lines end with carriage returns; convert the line endings to line feeds.")
            yield text[:-2] + "\n" if text.endswith("\r\n") else text
    except UnicodeDecodeError as error:
        remedy = "convert the file to UTF-8, or remove such bytes with iconv -c"
        raise InputError(f"{file}, line {number}: not UTF-8 ({error.reason}); {remedy}.") from error


def read_text(file: DataFile) -> Iterator[FileRow]:
    for number, line in enumerate(file.lines(), 1):
        yield FileRow(number, {"text": line})


def read_separated(file: DataFile) -> Iterator[FileRow]:
    """
    Reads csv or tsv. Missing trailing fields become None.

    In a tsv file, each line is a row. Fields that a csv writer has enclosed in quotation marks are unquoted. All other
    quotation marks are part of the text.
    """
    csv.field_size_limit(MAX_FIELD_SIZE)
    is_tsv = file_format(file.path) == ".tsv"
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    reader = csv.reader(file.lines(), **options)
    header, line = file.header, 1
    try:
        for fields in reader:
            if is_tsv and not file.raw:
                fields = [m[1].replace('""', '"') if (m := QUOTED.fullmatch(field)) else field for field in fields]
            if fields and header is None:
                header = tuple(name.strip() for name in fields)
                check_unique(header, file.location(line))
            elif fields:
                columns = header or ()
                problem = TOO_FEW if len(fields) < len(columns) else TOO_MANY if len(fields) > len(columns) else None
                if line > 1 and tuple(map(str.strip, fields)) == columns:
                    problem = "repeats the header"
                if is_tsv and not file.raw and len(columns) == 1 and fields[0][0] == '"' and fields[0].count('"') % 2:
                    problem = "begins with an unpaired quotation mark; remove it, or write the text on one line"
                yield FileRow(line, dict(zip_longest(columns, fields[: len(columns)])), problem)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{file.location(line)}: not valid csv ({error}).") from error


def check_unique(names: Iterable[str], location: str):
    """Raises InputError if a column name occurs more than once."""
    (name, count), *_ = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise InputError(f"{location}: two columns are named {name!r}; rename one of them.")


def read_json(file: DataFile) -> Iterator[FileRow]:
    """Reads one JSON object per line. A .json file may instead contain one object or an array, on several lines."""
    lines, begin = file.lines(), list[str]()
    while not "".join(begin).strip() and (line := next(lines, "")):
        begin.append(line)
    first = "".join(begin).strip()
    if file_format(file.path) == ".json" and (first.startswith("[") or not first.endswith("}")):
        file.unit = "row"
        document = parse_json("".join(chain(begin, lines)), str(file.path)) if first else []
        for number, row in enumerate(document if isinstance(document, list) else [document]):
            yield FileRow(number, check_object(row, file.location(number)))
        return
    for number, line in enumerate(chain(begin, lines), 1):
        if line.strip():
            location = file.location(number)
            yield FileRow(number, check_object(parse_json(line, location), location))


def check_object(row: object, location: str) -> dict:
    if not isinstance(row, dict):
        raise InputError(f"{location}: each row must be a JSON object, not {type(row).__name__}.")
    return row


def parse_json(text: str, location: str) -> Any:
    """Parses JSON from `location`. Raises InputError if it is invalid or an object has duplicate keys."""
    try:
        return json.loads(text, object_pairs_hook=parse_object)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not valid JSON ({error_reason(error)}); {REDOWNLOAD}.") from error


def parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Converts the key-value pairs of a JSON object to a dict. Raises ValueError if there are duplicate keys."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"duplicate key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r}")
    return values


def read_parquet(file: DataFile) -> Iterator[FileRow]:
    file.unit = "row"
    with pyarrow.parquet.ParquetFile(file.path) as table:
        names = table.schema_arrow.names
        check_unique(names, str(file.path))
        # If a column is missing, read all columns so that the caller can list them in its error message.
        columns = file.columns if file.columns and {*file.columns} <= {*names} else None
        size, number = file.path.stat().st_size, 0
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for values in batch.to_pylist():
                yield FileRow(number, values)
                number += 1
            file.position = size * number // table.metadata.num_rows


def check_columns(options: Mapping[str, str], existing: Collection[str], source: str):
    """Raises InputError if a column does not exist. `options` maps each column to the option that names it."""
    for column, option in options.items():
        if column not in existing:
            names = ", ".join(existing)
            raise InputError(f"{source} has no column {column!r} (`{option}`); available columns: {names}.")


def text_problem(value: object, name: str) -> str | None:
    """Returns the reason why `value` is not valid text, or None if `value` is valid or missing."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"{name} must be text, not {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} in {name} is an unpaired surrogate"
    return None


def load_from_hub(name: str, config: str | None = None, **options: Any):
    """Calls `datasets.load_dataset`. Raises InputError if the dataset is not found or cannot be loaded."""
    import datasets  # here because importing it takes a second

    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError, HfHubHTTPError) as error:
        raise InputError(f"{name}: could not load the dataset: {error}") from error


READERS: dict[str, Callable[[DataFile], Iterator[FileRow]]] = {
    ".txt": read_text,
    ".csv": read_separated,
    ".tsv": read_separated,
    ".json": read_json,
    ".jsonl": read_json,
    ".parquet": read_parquet,
}
