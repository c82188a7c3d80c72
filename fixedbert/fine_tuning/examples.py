"""Examples and features, for text classification as for question answering: bad rows, cached features, overlap."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState
from datasets.fingerprint import Hasher

from ..support.errors import InputError

FORMAT = 5  # increase it when the same rows would give different features
SHOWN = 20  # skipped rows that are printed
LONGEST_PROBLEM = 300  # characters; a problem can quote a long id or label
ROWS_PER_PROCESS = 10_000  # with fewer rows, starting another process takes longer than it saves


class BadRows:
    """Rows of `name` that cannot be used: each is an error or, with `skip_bad_rows`, counted and printed."""

    def __init__(self, name: str, skip_bad_rows: bool):
        self.name = name
        self.skip_bad_rows = skip_bad_rows
        self.skipped: list[str] = []

    def add(self, row: str, problem: str, skip: bool = False):
        """
        Args:
            row: its kind and number, such as "line 3".
            skip: skip this row in any case.

        Raises:
            InputError: bad rows are not to be skipped.
        """
        if not (self.skip_bad_rows or skip):
            raise InputError(f"{self.name}, {row}: {problem}. Correct it, or skip such rows with `skip_bad_rows`.")
        self.skipped.append(f"{row}: {problem}"[:LONGEST_PROBLEM])

    def print_skipped(self):
        if self.skipped:
            shown = "; ".join(self.skipped[:SHOWN]) + ("; ..." if len(self.skipped) > SHOWN else "")
            PartialState().print(f"{self.name}: skipped {len(self.skipped):,} rows ({shown})")


def make_features(
    rows: datasets.Dataset,
    function: Callable[..., dict],
    settings: dict,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> datasets.Dataset:
    """
    Map batches of rows, which are in memory, to features in the cache of `datasets`. The same rows, function and
    settings give the same file.

    Args:
        function: from a batch, the indices of its rows and `settings` to columns.
        settings: keyword arguments of `function`.
        num_proc: number of processes; by default one per core, but only one for few rows.
    """
    fingerprint = Hasher.hash((FORMAT, rows._fingerprint, function, settings))
    directory = Path(datasets.config.HF_DATASETS_CACHE, "fixedbert")
    directory.mkdir(parents=True, exist_ok=True)
    num_proc = num_proc or min(os.cpu_count() or 1, len(rows) // ROWS_PER_PROCESS)
    return rows.map(
        function,
        with_indices=True,
        batched=True,
        num_proc=num_proc if num_proc > 1 else None,
        remove_columns=rows.column_names,
        fn_kwargs=settings,
        cache_file_name=str(directory / f"{fingerprint}.arrow"),
        load_from_cache_file=not overwrite_cache,
        new_fingerprint=fingerprint,
        desc="Tokenizing",
    )


def first_rows(rows: datasets.Dataset, count: int | None) -> datasets.Dataset:
    """Returns the first `count` rows, or all."""
    return rows if count is None else rows.select(range(min(count, len(rows))))


def longest_first(features: datasets.Dataset) -> tuple[datasets.Dataset, np.ndarray]:
    """Returns the features sorted by decreasing length, and the previous index of each."""
    order = np.argsort(-np.array(features["length"][:]), kind="stable")
    return features.select(order), order


def print_overlap(name: str, train: datasets.Dataset | None, rows: datasets.Dataset, columns: Iterable[str]):
    """Prints how many rows of `name` have the same texts as a training row, regardless of whitespace and labels."""
    if train is None:
        return

    def texts(data: datasets.Dataset) -> list[tuple[str, ...]]:
        names = [name for name in columns if name in data.column_names]
        return [tuple(" ".join(text.split()) for text in row) for row in zip(*(data[n] for n in names), strict=True)]

    known = set(texts(train))
    if same := sum(row in known for row in texts(rows)):
        PartialState().print(
            f"{name}: {same:,} of {len(rows):,} rows have the same texts as training rows, so the metrics are too "
            "optimistic; remove them from one of the two"
        )
