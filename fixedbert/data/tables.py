"""Lines and rows of files, one by one: the rules of all readers for what a line, a row and a text are."""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow

from ..errors import InputError
from ..files import reason_of

LARGEST_LINE = 2**28  # bytes; a compressed file can hold more in one than there is memory
DAMAGED = "correct it, or download it again"
TOO_FEW = "fewer fields than the header has columns"
TOO_MANY = "more fields than the header has columns"
KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


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


def table_rows(
    lines: Iterable[str], file: Path, tabs: bool, header: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str | None], str | None]]]:
    """
    The columns and rows of a csv file (quoted as usual; what separates fields is seen in its first line) or, with
    `tabs`, a tsv file (never quoted, as in GLUE).

    Args:
        header: names of the columns, if the file has no header line.

    Returns:
        The names, and for each row its first line, a value for each column, and what is wrong with their number.

    Raises:
        InputError: not csv, or two columns have the same name.
    """
    csv.field_size_limit(LARGEST_LINE)
    lines, skipped, delimiter = iter(lines), 0, "\t" if tabs else ","
    if not tabs:
        first = next(lines, "")
        delimiter, skipped = delimiter_of(first)
        lines = lines if skipped else chain([first], lines)
    # In tsv a quotation mark is an ordinary character; in csv one that is not closed is an error.
    if tabs:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True, delimiter=delimiter)

    def numbered() -> Iterator[tuple[int, list[str]]]:
        first = skipped + 1
        try:
            for row in reader:
                if row:
                    yield first, row
                first = skipped + reader.line_num + 1
        except csv.Error as error:
            quotes = "" if tabs else "; a field that begins with a quote ends with one, and quotes inside are doubled"
            raise InputError(f"{file}, line {first}: not csv: {error}{quotes}.") from error

    rows = numbered()
    if header is None:
        line, names = next(rows, (1, []))
        header = tuple(names)
        check_names(header, f"{file}, line {line}")
    size = len(header)

    def checked() -> Iterator[tuple[int, list[str | None], str | None]]:
        for line, row in rows:
            values: list[str | None] = [*row[:size], *[None] * (size - len(row))]
            problem = TOO_FEW if len(row) < size else TOO_MANY if len(row) > size else None
            yield line, values, problem

    return header, checked()


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
    seen = set()
    for name in names:
        if name in seen:
            raise InputError(f"{place}: two columns have the same name, {name!r}; rename one of them.")
        seen.add(name)


def json_object(text: str, place: str) -> dict:
    """
    The fields of a line of JSON.

    Raises:
        InputError: not JSON, not an object, or an object with a field twice.
    """
    row = json_value(text, place)
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


def is_text(column: pyarrow.DataType) -> bool:
    """Whether an Arrow column holds text; old parquet files have bytes."""
    if pyarrow.types.is_dictionary(column):
        column = column.value_type
    names = ("string", "large_string", "binary", "large_binary", "null", "string_view", "binary_view")
    return str(column) in names
