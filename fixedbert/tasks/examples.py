"""Functions that tokenize examples, sort features, report invalid rows, and compare splits."""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState

from ..data.file_formats import load_from_hub
from ..options import FineTuningDataOptions
from ..support.errors import InputError
from .labels import MAX_CHARACTERS, shorten

SAMPLE_SEED = 42  # for `max_*_samples` and `validation_split_percentage`, unless `data_seed` is set


def report_bad_rows(name: str, problems: Mapping[str, str], skip: bool):
    """
    Raises InputError for the first invalid row, or prints the invalid rows if `skip` is True.

    `problems` maps each invalid row, for example "line 3", to a description of its problem.
    """
    listed = [f"{row}: {problem}"[:MAX_CHARACTERS] for row, problem in problems.items()]
    if listed and not skip:
        more = f" (and {len(listed) - 1:,} more invalid rows)" if len(listed) > 1 else ""
        raise InputError(f"{name}, {listed[0]}{more}. Correct the data, or set `skip_bad_rows` to skip invalid rows.")
    if listed:
        PartialState().print(f"{name}: skipped {len(listed):,} rows ({shorten(listed, '; ')})")


def make_features(
    rows: datasets.Dataset,
    function: Callable[..., dict],
    settings: dict,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> datasets.Dataset:
    """
    Tokenizes rows. The fingerprint of the features depends only on the rows, the function and its settings.

    `function` takes a batch of rows, their indices and the keyword arguments `settings`, and returns feature columns.
    """
    return rows.map(
        function,
        with_indices=True,
        batched=True,
        num_proc=num_proc,
        remove_columns=rows.column_names,
        fn_kwargs=settings,
        load_from_cache_file=not overwrite_cache,
        desc="Tokenizing",
    )


def sampled_indices(total: int, count: int | None, seed: int) -> list[int]:
    """Returns `count` of the indices below `total`, drawn at random and sorted, or all of them if `count` is None."""
    count = total if count is None else min(count, total)
    return sorted(random.Random(seed).sample(range(total), count))


def sample_rows(rows: datasets.Dataset, count: int | None, seed: int) -> datasets.Dataset:
    """Returns `count` rows drawn at random, in the order of the dataset, or all rows if `count` is None."""
    return rows if count is None else rows.select(sampled_indices(len(rows), count, seed))


def longest_first(features: datasets.Dataset) -> datasets.Dataset:
    """Returns the features sorted by decreasing length."""
    return features.select(np.argsort(-np.array(features["length"][:]), kind="stable"))


def warn_of_overlap(name: str, train: datasets.Dataset | None, rows: datasets.Dataset, columns: Iterable[str]):
    """Prints a warning if rows have the same texts as training rows, regardless of labels and whitespace."""
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
            f"{name}: {same:,} of {len(rows):,} rows also occur in the training data, which makes the metrics too "
            "optimistic; remove them from one of the two splits"
        )


def map_options(data_args: FineTuningDataOptions) -> dict[str, Any]:
    """Returns `num_proc` and `overwrite_cache` for `make_features`."""
    return {"num_proc": data_args.preprocessing_num_workers, "overwrite_cache": data_args.overwrite_cache}


def max_samples(data_args: FineTuningDataOptions, kind: str) -> int | None:
    """Returns the maximum number of "train", "validation" or "test" examples, or None to use all of them."""
    names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
    return getattr(data_args, names[kind])


def data_sources(
    data_args: FineTuningDataOptions, splits: Mapping[str, str], **hub_options
) -> dict[str, tuple[str, datasets.Dataset | None]]:
    """
    Returns the source of each split: the path to a file and None, or a name and the rows of a dataset on the Hub.

    `splits` maps "train", "validation" and "test" to the names of these splits on the Hub. Raises InputError if a
    split is missing.
    """
    name = data_args.dataset_name
    if not name:
        files = {kind: getattr(data_args, f"{kind}_file") for kind in splits}
        if absent := [f"`{kind}_file`" for kind, file in files.items() if file is None]:
            options = " or ".join(f"`{name}`" for name in data_args.alternatives)
            raise InputError(f"no data specified; set {options}, or set {' and '.join(absent)}.")
        return {kind: (file, None) for kind, file in files.items()}
    hub = load_from_hub(name, data_args.dataset_config_name, **hub_options)
    if absent := [split for split in splits.values() if split not in hub]:
        raise InputError(f"{name} has no split {absent[0]!r}; available splits: {', '.join(hub)}.")
    return {kind: (f"{name}, {split}", hub[split]) for kind, split in splits.items()}
