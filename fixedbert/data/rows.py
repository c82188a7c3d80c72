"""Rows of csv, tsv, json, jsonl and parquet files and of data sets; those that cannot be used, with their place."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import datasets
import pyarrow
from accelerate import PartialState
from pyarrow import parquet

from ..errors import InputError

NAMED = 20  # of the rows that are left out


@dataclass
class Rows:
    """
    What stands in a file or data set: by column the value of each row, as text, None where there is none; and for each
    row its line, and what is wrong with it that no column shows.
    """

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]
    unit: str = "line"
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, number: int) -> str:
        return f"{self.unit} {self.lines[number]}"

    def of(self, *columns: str) -> list[list[str | None]]:
        """The values of columns, each of which has to be there."""
        for column in columns:
            if column not in self.columns:
                raise InputError(f"{self.name}: no column {column!r}; there are {', '.join(self.columns)}.")
        return [self.columns[column] for column in columns]

    def text_columns(self) -> tuple[str, ...]:
        """sentence1 and sentence2, or else the first two columns that are neither label nor number; says which."""
        numbers = ("", "Unnamed: 0", "id", "idx", "index")  # the first two are how pandas writes its own
        others = [column for column in self.columns if column != "label" and column not in numbers]
        if not others:
            raise InputError(f"{self.name}: no text in the columns {', '.join(self.columns)}.")
        texts = ("sentence1", "sentence2") if {"sentence1", "sentence2"} <= set(others) else tuple(others[:2])
        PartialState().print(f"{self.name}: the texts are in {' and '.join(map(repr, texts))}")
        return texts

    def without(self, numbers: Iterable[int]) -> "Rows":
        gone = set(numbers)
        kept = [number for number in range(len(self)) if number not in gone]
        return Rows(
            self.name,
            {column: [values[number] for number in kept] for column, values in self.columns.items()},
            [self.lines[number] for number in kept],
            self.unit,
            {place: self.problems[number] for place, number in enumerate(kept) if number in self.problems},
        )


def usable_rows(
    rows: Rows,
    texts: tuple[str, ...],
    label: str | None,
    skip_bad_rows: bool = False,
    short_rows: bool = False,
    empty_texts: bool = False,
) -> Rows:
    """
    The rows that have texts and, if there is a label column, a label.

    Args:
        short_rows: leave out rows without all columns whatever `skip_bad_rows` says.
        empty_texts: take them as they are.

    Raises:
        InputError: other rows that are not to be left out.
    """
    columns = rows.of(*texts, *([label] if label else []))
    short = [n for n in range(len(rows)) if any(column[n] is None for column in columns)] if short_rows else []
    check_usable(rows.name, {n: f"{rows.place(n)}: too short" for n in short}, len(rows), skip_bad_rows=True)
    rows = rows.without(short) if short else rows
    problems, empty = dict(rows.problems), 0
    columns = dict(zip(texts, rows.of(*texts), strict=True))
    for number in range(len(rows)):
        for name, column in columns.items():
            if column[number] is None:
                problems.setdefault(number, f"no {name!r}")
            elif not column[number].strip():
                empty += 1
                if not empty_texts:
                    problems.setdefault(number, f"{name!r} is empty")
        if label and not (rows.columns[label][number] or "").strip():
            problems.setdefault(number, "no label")
    if empty and empty_texts:
        PartialState().print(f"{rows.name}: {empty:,} texts are empty, and used as they are")
    return without_problems(rows, problems, skip_bad_rows)


def without_problems(rows: Rows, problems: dict[int, str], skip_bad_rows: bool) -> Rows:
    places = {number: f"{rows.place(number)}: {problem}" for number, problem in problems.items()}
    check_usable(rows.name, places, len(rows), skip_bad_rows)
    rows = rows.without(problems) if problems else rows
    if not len(rows):
        raise InputError(f"{rows.name}: no rows.")
    return rows


def check_usable(name: str, problems: Mapping[int, str], total: int, skip_bad_rows: bool):
    """
    Tell which of the `total` rows of `name` are left out.

    Args:
        problems: by number of the row, its place and what is wrong with it.

    Raises:
        InputError: there are such rows, and they are not to be left out.
    """
    if not problems:
        return
    places = [problems[number] for number in sorted(problems)]
    if not skip_bad_rows:
        more = f"; {len(places) - 1:,} more rows cannot be used either" if len(places) > 1 else ""
        raise InputError(f"{name}, {places[0]}{more}. Mend it, or leave such rows out with --skip_bad_rows.")
    if len(places) > NAMED:
        places = [*places[:NAMED], f"and {len(places) - NAMED:,} more"]
    PartialState().print(f"{name}: {len(problems):,} of {total:,} rows left out ({'; '.join(places)})")


def read_rows(file: Path, header: tuple[str, ...] | None = None) -> Rows:
    """
    A csv (quoted as usual), tsv (never quoted, as in GLUE), jsonl or parquet file.

    Args:
        header: names of the columns, if the file has no line of them.

    Raises:
        InputError: it cannot be read, with the line.
    """
    readers: dict[str, Callable] = {".csv": read_table, ".tsv": read_table, ".jsonl": read_json, ".json": read_json}
    readers[".parquet"] = read_parquet
    if file.suffix not in readers:
        raise InputError(f"{file}: not one of the formats that can be read: .csv, .tsv, .json, .jsonl, .parquet.")
    try:
        rows = readers[file.suffix](file, header)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{file}: {error}") from error
    if not len(rows):
        raise InputError(f"{file}: no rows.")
    return rows


def read_table(file: Path, header: tuple[str, ...] | None) -> Rows:
    options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if file.suffix == ".tsv" else {"strict": True}
    csv.field_size_limit(2**31 - 1)  # a text can be long
    values, lines, problems, last = [], [], {}, 0
    with open(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, **options)
        try:
            for row in reader:
                first, last = last + 1, reader.line_num
                if not row:
                    continue
                if header is None:
                    header = tuple(row)
                    if len(set(header)) < len(header):
                        raise InputError(f"{file}, line {first}: two columns have the same name.")
                    continue
                if len(row) > len(header):
                    problems[len(lines)] = "more fields than the header has columns"
                values.append((row + [None] * len(header))[: len(header)])
                lines.append(first)
        except csv.Error as error:
            quotes = "; a field that begins with a quote has to end with one, and quotes inside are doubled"
            raise InputError(f"{file}, line {last + 1}: {error}{quotes if file.suffix == '.csv' else ''}.") from error
    columns = [list(column) for column in zip(*values, strict=True)] or [[] for _ in header or ()]
    return Rows(str(file), dict(zip(header or (), columns, strict=True)), lines, problems=problems)


def read_json(file: Path, header: None) -> Rows:
    with open(file, encoding="utf-8-sig") as text:
        rows, lines, unit = json_rows(text, file)
    names = dict.fromkeys(name for row in rows for name in row)
    return Rows(str(file), {name: [as_text(row.get(name)) for row in rows] for name in names}, lines, unit)


def json_rows(text: TextIO, file: Path) -> tuple[list[dict], list[int], str]:
    """The objects of a JSON array, or of lines, with the number of each and what the numbers count."""
    rows, numbers, unit = [], [], "line"
    if file.suffix == ".json" and text.read(1) == "[":
        text.seek(0)
        try:
            found = list(enumerate(json.load(text)))
        except json.JSONDecodeError as error:
            raise InputError(f"{file}: not JSON ({error}).") from error
        unit = "row"
    else:
        text.seek(0)
        found = [(number, line) for number, line in enumerate(text, start=1) if line.strip()]
    for number, row in found:
        if isinstance(row, str):
            try:
                row = json.loads(row)
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{file}, line {number}: not JSON ({error}); each line has to be an object."
                ) from error
        if not isinstance(row, dict):
            raise InputError(f"{file}, {unit} {number}: not a JSON object.")
        rows.append(row)
        numbers.append(number)
    return rows, numbers, unit


def read_parquet(file: Path, header: None) -> Rows:
    table = parquet.read_table(file)
    columns = {name: [as_text(value) for value in table[name].to_pylist()] for name in table.column_names}
    return Rows(str(file), columns, list(range(len(table))), "row")


def rows_of_dataset(data: datasets.Dataset, name: str) -> Rows:
    columns = {}
    for column, feature in data.features.items():
        values = data[column][:]
        if isinstance(feature, datasets.ClassLabel):  # -1: a test set without labels
            values = [feature.int2str(value) if value is not None and value >= 0 else None for value in values]
        columns[column] = [as_text(value) for value in values]
    if "idx" in columns:
        columns["index"] = columns.pop("idx")
    return Rows(name, columns, list(range(len(data))), "row")


def as_text(value: object) -> str | None:
    """None where there is no text: a missing value, a list."""
    if value is None or isinstance(value, str):
        return value
    return None if isinstance(value, list | dict) else str(value)
