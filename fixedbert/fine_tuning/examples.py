"""Features for text classification and question answering: bad rows, caching, order, overlap with training rows."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState
from datasets.fingerprint import Hasher

from ..support.errors import InputError

FORMAT = 5  # part of the cache key: increase it when the features for the same rows change
SHOWN = 20  # maximum number of skipped rows to print
LONGEST_PROBLEM = 300  # characters; messages can quote long ids or labels
ROWS_PER_PROCESS = 10_000  # for fewer rows, starting a process takes longer than it saves


def report_bad_rows(name: str, problems: Mapping[str, str], skip: bool):
    """Raises InputError for the first bad row, or prints all of them if `skip` is True. Keys are such as "line 3"."""
    listed = [f"{row}: {problem}"[:LONGEST_PROBLEM] for row, problem in problems.items()]
    if listed and not skip:
        more = f" (and {len(listed) - 1:,} more bad rows)" if len(listed) > 1 else ""
        raise InputError(f"{name}, {listed[0]}{more}. Correct it, or set `skip_bad_rows` to skip such rows.")
    if listed:
        more = "; ..." if len(listed) > SHOWN else ""
        PartialState().print(f"{name}: skipped {len(listed):,} rows ({'; '.join(listed[:SHOWN])}{more})")


def make_features(
    rows: datasets.Dataset,
    function: Callable[..., dict],
    settings: dict,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> datasets.Dataset:
    """
    Maps rows to features and caches them under a hash of the rows, the function and its settings. The function takes a
    batch, the indices of its rows and the settings, and returns columns.
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
    """Returns the first `count` rows, or all rows if `count` is None."""
    return rows if count is None else rows.select(range(min(count, len(rows))))


def longest_first(features: datasets.Dataset) -> tuple[datasets.Dataset, np.ndarray]:
    """Returns the features sorted by decreasing length, and their original indices."""
    order = np.argsort(-np.array(features["length"][:]), kind="stable")
    return features.select(order), order


def print_overlap(name: str, train: datasets.Dataset | None, rows: datasets.Dataset, columns: Iterable[str]):
    """Prints how many rows have the same texts as a training row, ignoring whitespace and labels."""
    if train is None:
        return
    names = [column for column in columns if column in rows.column_names]
    train_texts, texts = (
        [tuple(" ".join(text.split()) for text in row) for row in zip(*(data[name] for name in names), strict=True)]
        for data in (train, rows)
    )
    known = set(train_texts)
    if same := sum(row in known for row in texts):
        PartialState().print(
            f"{name}: {same:,} of {len(rows):,} rows have the same texts as training rows, so the metrics are too "
            "optimistic; remove these rows from one of the two splits"
        )
