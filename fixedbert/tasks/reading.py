"""Files and Hub datasets from which rows are read, and the loop that validates rows of all kinds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import datasets
from accelerate import PartialState

from ..data.file_formats import DataFile, FileRow, check_columns, file_format, load_from_hub
from ..options import FineTuningDataOptions
from ..support.errors import InputError
from .labels import MAX_CHARACTERS, shorten

COLUMN_ROWS = 100  # the columns are those of the first rows, because a row of a .jsonl file can lack some
Row = TypeVar("Row")
Parsed = TypeVar("Parsed")


class RowSource:
    """The rows of a file or dataset. Messages contain its `name`, and the `unit` of its rows: "line" or "row"."""

    def __init__(self, name: str, rows: Iterator[FileRow], unit: str = "row"):
        first = [*islice(rows, COLUMN_ROWS)]
        if not first:
            raise InputError(f"{name} contains no rows.")
        self.columns = [*dict.fromkeys(chain.from_iterable(row.values for row in first))]
        self.name, self.rows, self.unit = name, chain(first, rows), unit

    @classmethod
    def from_file(cls, path: str | Path, **options) -> "RowSource":
        """Opens a file. `options` are fields of DataFile."""
        file = DataFile(Path(path), **options)
        source = cls(str(path), file.rows())
        source.unit = file.unit  # the reader sets it when it reads the first row
        return source

    def check_columns(self, **columns: Sequence[str]):
        """Raises InputError if a column does not exist. Each keyword is the option that names the columns."""
        options = {name: option for option, names in columns.items() for name in names}
        check_columns(options, self.columns, self.name)

    def numbered_rows(self) -> Iterator[tuple[str, FileRow]]:
        """Yields the place of each row, and the row. In a .txt file, skips blank lines, and strips the others."""
        is_text = file_format(Path(self.name)) == ".txt"
        for position, row in enumerate(self.rows):
            if is_text:
                row = row._replace(values={"text": row.values["text"].strip()})
            if not is_text or row.values["text"]:
                yield f"{self.unit} {row.number}", row._replace(position=position)


def dataset_rows(data: datasets.Dataset) -> Iterator[FileRow]:
    """Yields the rows of a dataset. Label ids become label names, or None for -1, which stands for a missing label."""

    def decode(kind, value):
        if isinstance(value, list):
            return [decode(kind, item) for item in value]
        return None if value is None or value < 0 else kind.int2str(value)

    kinds = {name: getattr(feature, "feature", feature) for name, feature in data.features.items()}
    classes = {name: kind for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)}
    batches = data.iter(1000)
    rows = (dict(zip(batch, values, strict=True)) for batch in batches for values in zip(*batch.values(), strict=True))
    for number, row in enumerate(rows):
        yield FileRow(number, row | {name: decode(kind, row[name]) for name, kind in classes.items()})


def data_sources(data_args: FineTuningDataOptions, splits: Mapping[str, str], **hub_options) -> dict[str, RowSource]:
    """
    Returns the rows of each split, from a file or from a dataset on the Hub.

    `splits` maps "train", "validation" and "test" to the names of these splits on the Hub. Raises InputError if a
    split is missing.
    """
    name = data_args.dataset_name
    if not name:
        files = {kind: getattr(data_args, f"{kind}_file") for kind in splits}
        if absent := [f"`{kind}_file`" for kind, file in files.items() if file is None]:
            options = " or ".join(f"`{name}`" for name in data_args.alternatives)
            raise InputError(f"no data specified; set {options}, or set {' and '.join(absent)}.")
        return {kind: RowSource.from_file(file) for kind, file in files.items()}
    hub = load_from_hub(name, data_args.dataset_config_name, **hub_options)
    if absent := [split for split in splits.values() if split not in hub]:
        raise InputError(f"{name} has no split {absent[0]!r}; available splits: {', '.join(hub)}.")
    return {kind: RowSource(f"{name}, {split}", dataset_rows(hub[split])) for kind, split in splits.items()}


def valid_rows(
    name: str, rows: Iterable[tuple[str, Row]], parse: Callable[[Row], Parsed], skip: bool, unit: str = "rows"
) -> tuple[list[Parsed], list[Row]]:
    """
    Parses the rows of a file or dataset, whose name occurs in messages.

    Args:
        rows: Pairs of the place of a row, such as "line 3", and the row.
        parse: Raises ValueError, which says what is wrong, if a row is invalid.
        skip: Print invalid rows and skip them instead of raising InputError for the first one.

    Returns:
        The parsed rows, and the rows that were skipped.
    """
    valid: list[Parsed] = []
    skipped: list[Row] = []
    problems = []
    for place, row in rows:
        try:
            valid.append(parse(row))
        except ValueError as error:
            skipped.append(row)
            problems.append(f"{place}: {error}"[:MAX_CHARACTERS])
    if problems and not skip:
        more = f" (and {len(problems) - 1:,} more invalid rows)" if len(problems) > 1 else ""
        raise InputError(
            f"{name}, {problems[0]}{more}. Correct the data, or set `skip_bad_rows` to skip invalid rows."
        )
    if problems:
        PartialState().print(f"{name}: skipped {len(problems):,} rows ({shorten(problems, '; ')})")
    if not valid:
        raise InputError(f"{name} contains no valid {unit}.")
    return valid, skipped
