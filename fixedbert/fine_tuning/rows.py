"""Rows of csv, tsv, json, jsonl and parquet files and of data sets, and which of them cannot be used, and why."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path

import datasets
from accelerate import PartialState

from ..data.readers import KINDS, TABLES, TOO_FEW, DataFile, file_format, why_no_text
from ..support.errors import InputError

LIST = re.compile(r"\s*[\[{]\s*([\"'\d-].*)?[\]}]\s*", re.DOTALL)  # a list of labels, as csv and tsv have it
NAMED = 20  # places of left-out rows that are printed
LONGEST_PLACE = 300  # characters; an id or a label can be long


@dataclass
class Rows:
    """The rows of a file or data set, for which messages have `name`."""

    name: str
    columns: dict[str, list]  # values as they are in the file; None where a row has none
    lines: list[int]  # the line of each row, or its number
    unit: str = "line"  # what `lines` counts, or "row"
    problems: dict[int, str] = field(default_factory=dict)  # what is wrong with a row, where no column shows it

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, number: int) -> str:
        return f"{self.unit} {self.lines[number]}"

    def check(self, columns: Iterable[str], remedy: str = ""):
        """
        Raises:
            InputError: there is no such column.
        """
        for column in columns:
            if column not in self.columns:
                raise InputError(f"{self.name}: no column {column!r}; there are {', '.join(self.columns)}{remedy}.")

    def text_columns(self, label: str) -> tuple[str, ...]:
        """
        sentence1 and sentence2, or else the first two columns that are neither label nor number. Prints which.

        Raises:
            InputError: there is no such column, it looks like ids, or one of two is the label in other words.
        """
        numbers = ("", "Unnamed: 0", "id", "idx", "index")  # the first two are names that pandas gives
        others = [column for column in self.columns if column != label and column not in numbers]
        if not others:
            raise InputError(f"{self.name}: no text in the columns {', '.join(self.columns)}.")
        texts = ("sentence1", "sentence2") if {"sentence1", "sentence2"} <= set(others) else tuple(others[:2])
        for column in texts:
            if looks_like_id(self.columns[column]):
                raise InputError(
                    f"{self.name}: the column {column!r} holds numbers or ids, not texts; name the columns with the "
                    "texts with `text_column_names`."
                )
        for column in texts if len(texts) == 2 and texts != ("sentence1", "sentence2") else ():
            if fixes(self.columns[column], self.columns.get(label, [])):
                raise InputError(
                    f"{self.name}: the column {column!r} gives the label away, each of its values goes with one; "
                    "name the columns with the texts with `text_column_names`."
                )
        PartialState().print(f"{self.name}: the texts are in {' and '.join(map(repr, texts))}")
        return texts

    def without(self, numbers: Iterable[int]) -> "Rows":
        gone = set(numbers)
        if not gone:
            return self
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
        skip_bad_rows: leave out the others, and print which.
        short_rows: leave out rows without all columns, whatever `skip_bad_rows` is.
        empty_texts: use empty texts as they are.

    Raises:
        InputError: a row cannot be used, without `skip_bad_rows`.
    """
    rows.check((*texts, label) if label else texts)
    if short_rows:
        short = {n: f"{rows.place(n)}: too short" for n, problem in rows.problems.items() if problem == TOO_FEW}
        check_usable(rows.name, short, len(rows), skip_bad_rows=True)
        rows = rows.without(short)
    problems, empty = dict(rows.problems), 0
    for number in range(len(rows)):
        for name in texts:
            text = rows.columns[name][number]
            problem = f"no {name!r}" if text is None else why_no_text(text, repr(name))
            if problem is None and not text.strip():
                empty += 1
                problem = None if empty_texts else f"{name!r} is empty"
            if problem:
                problems.setdefault(number, problem)
        problem = why_no_label(rows.columns[label][number]) if label else None
        if problem:
            problems.setdefault(number, problem)
    if empty and empty_texts:
        PartialState().print(f"{rows.name}: {empty:,} texts are empty, and used as they are")
    rows = without_problems(rows, problems, skip_bad_rows)
    if label:
        rows.columns = {**rows.columns, label: [str(value) for value in rows.columns[label]]}
    return rows


def why_no_label(value: object) -> str | None:
    """What is wrong with a label, which has to be a text or a number; None if nothing is."""
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return "no label"
    if isinstance(value, Number):
        return None
    if not isinstance(value, str) or LIST.fullmatch(value):
        kind = "a list" if isinstance(value, str) else KINDS.get(type(value), type(value).__name__)
        return f"the label is {kind}; a row has one label, a text or a number"
    return why_no_text(value, "the label")


def looks_like_id(values: list) -> bool:
    """Whether a column holds numbers, or words with a digit that are all different."""
    words = [str(value) for value in values if value is not None]
    if None not in map(as_float, words):
        return bool(words)
    different = len(set(words)) == len(words)
    return different and all(
        word.isascii() and any(map(str.isdigit, word)) and not any(map(str.isspace, word)) for word in words
    )


def fixes(values: list, labels: list) -> bool:
    """Whether values go with one label each: they are as many as labels are, or come four times on average."""
    known = {(value, label) for value, label in zip(map(str, values), map(str, labels), strict=False)}
    different, classes = len({value for value, _ in known}), len({label for _, label in known})
    few = different <= len(labels) / 4 or different == classes < len(labels)
    return classes > 1 and len(known) == different and few


def as_float(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def without_problems(rows: Rows, problems: dict[int, str], skip_bad_rows: bool) -> Rows:
    """
    The rows without those that have problems.

    Raises:
        InputError: no row is left, or there are problems, without `skip_bad_rows`.
    """
    places = {number: f"{rows.place(number)}: {problem}" for number, problem in problems.items()}
    check_usable(rows.name, places, len(rows), skip_bad_rows)
    rows = rows.without(problems)
    if not len(rows):
        raise InputError(f"{rows.name}: no rows.")
    return rows


def check_usable(name: str, problems: Mapping[int, str], total: int, skip_bad_rows: bool):
    """
    Print which of the `total` rows of `name` are left out.

    Args:
        problems: the place of a row and what is wrong with it, by its number.

    Raises:
        InputError: there are problems, without `skip_bad_rows`.
    """
    if not problems:
        return
    places = [problems[number][:LONGEST_PLACE] for number in sorted(problems)]
    places = [place.encode(errors="backslashreplace").decode() for place in places]  # surrogates cannot be printed
    if not skip_bad_rows:
        more = f"; {len(places) - 1:,} more rows cannot be used either" if len(places) > 1 else ""
        raise InputError(f"{name}, {places[0]}{more}. Correct it, or leave such rows out with `skip_bad_rows`.")
    if len(places) > NAMED:
        places = [*places[:NAMED], f"and {len(places) - NAMED:,} more"]
    PartialState().print(f"{name}: {len(problems):,} of {total:,} rows left out ({'; '.join(places)})")


def read_rows(path: Path, header: tuple[str, ...] | None = None) -> Rows:
    """
    The rows of a csv (quoted as usual), tsv (never quoted, as in GLUE), jsonl, json or parquet file.

    Args:
        header: names of the columns of a csv or tsv file without a header line.

    Raises:
        InputError: the file cannot be read, with the line, or has no rows.
    """
    file = DataFile(path, header=header)
    if file_format(path) == ".txt":
        raise InputError(f"{path}: a format that cannot be read; give {', '.join(TABLES)}.")
    found = list(file.rows())
    if not found:
        raise InputError(f"{path}: no rows.")
    names = dict.fromkeys(name for row in found for name in row.values)
    columns = {name: [row.values.get(name) for row in found] for name in names}
    problems = {place: row.problem for place, row in enumerate(found) if row.problem}
    return Rows(str(path), columns, [row.number for row in found], file.unit, problems)


def rows_of_dataset(data: datasets.Dataset, name: str) -> Rows:
    columns = {}
    for column, feature in data.features.items():
        values = data[column][:]
        if isinstance(feature, datasets.ClassLabel):  # -1: a test set without labels
            values = [feature.int2str(value) if value is not None and value >= 0 else None for value in values]
        columns[column] = values
    if "idx" in columns:
        columns["index"] = columns.pop("idx")
    return Rows(name, columns, list(range(len(data))), "row")
