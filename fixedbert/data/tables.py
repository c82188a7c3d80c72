"""Lines and rows of files, one by one: what a line, a row and a text may be is decided here for every reader."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow

from ..errors import InputError
from ..files import reason_of

LARGEST_LINE = 2**28  # bytes; a compressed file can hold more in one than there is memory
AGAIN = "mend it, or fetch it again"
TOO_FEW = "fewer fields than the header has columns"
TOO_MANY = "more fields than the header has columns"
KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


def lines_of(stream: io.BufferedIOBase, file: object) -> Iterator[str]:
    """
    Lines of UTF-8 as text, without a byte order mark and carriage returns.

    Raises:
        InputError: a line that is not UTF-8, or longer than LARGEST_LINE.
    """
    number = 0
    while line := stream.readline(LARGEST_LINE + 1):
        number += 1
        if len(line) > LARGEST_LINE:
            raise InputError(f"{file}, line {number}: longer than {LARGEST_LINE >> 20} MiB; cut it into several.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{file}, line {number}: byte {error.start + 1} is not UTF-8 ({error.reason}); convert the file, for "
                "example with iconv."
            ) from error
        yield text.removesuffix("\r\n") + "\n" if text.endswith("\r\n") else text


def table_rows(
    lines: Iterable[str], file: Path, tabs: bool, header: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str | None], str | None]]]:
    """
    The columns of a csv file (quoted as usual) or, with `tabs`, a tsv file (never quoted, as in GLUE), and its rows:
    first line, a value for each column, and what is wrong with their number.

    Args:
        header: names of the columns, if the file has no line of them.

    Raises:
        InputError: not csv, or two columns of one name.
    """
    csv.field_size_limit(LARGEST_LINE)
    # In tsv a quotation mark is a character like others; in csv one that is not closed is an error.
    reader = csv.reader(lines, **({"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}))

    def numbered() -> Iterator[tuple[int, list[str]]]:
        first = 1
        try:
            for row in reader:
                if row:
                    yield first, row
                first = reader.line_num + 1
        except csv.Error as error:
            quotes = (
                "" if tabs else "; a field that begins with a quote has to end with one, and quotes inside are doubled"
            )
            raise InputError(f"{file}, line {first}: not csv: {error}{quotes}.") from error

    rows = numbered()
    if header is None:
        line, names = next(rows, (1, []))
        header = tuple(names)
        check_names(header, f"{file}, line {line}")

    def checked() -> Iterator[tuple[int, list[str | None], str | None]]:
        size = len(header)
        for line, row in rows:
            if len(row) == size:
                yield line, row, None
            else:
                yield line, (row + [None] * size)[:size], TOO_FEW if len(row) < size else TOO_MANY

    return header, checked()


def check_names(names: Iterable[str], place: str):
    """InputError if two columns have one name."""
    seen = set()
    for name in names:
        if name in seen:
            raise InputError(f"{place}: two columns have the same name, {name!r}; rename one of them.")
        seen.add(name)


def json_object(text: str, place: str) -> dict:
    """
    The fields of a line of JSON.

    Raises:
        InputError: not JSON, something else than an object, or a field that is there twice.
    """
    row = json_value(text, place)
    if not isinstance(row, dict):
        raise InputError(f"{place}: not a JSON object; each row has to be one.")
    return row


def json_value(text: str, place: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=fields_of)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({reason_of(error)}); {AGAIN}.") from error


def fields_of(pairs: list[tuple[str, object]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a field twice")
    return fields


def why_no_text(value: object, what: str) -> str | None:
    """What is wrong with a value that has to be text; nothing is wrong with a missing one."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"{what} is {KINDS.get(type(value), type(value).__name__)}, not text"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} of {what} is half of a surrogate pair, which is no text"
    return None


def is_text(column: pyarrow.DataType) -> bool:
    """Whether an Arrow column holds text; old parquet files have bytes."""
    if pyarrow.types.is_dictionary(column):
        column = column.value_type
    names = ("string", "large_string", "binary", "large_binary", "null", "string_view", "binary_view")
    return str(column) in names
