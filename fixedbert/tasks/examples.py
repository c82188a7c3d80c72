"""Functions that draw, tokenize, sort and compare the examples of splits."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import datasets
import numpy as np
from accelerate import PartialState

from ..options import FineTuningDataOptions

Row = TypeVar("Row")
SAMPLE_SEED = 42  # for `max_*_samples` and `validation_split_percentage`, unless `data_seed` is set

REMOVE = "remove them from one of the two splits"


def make_features(rows: datasets.Dataset, function: Callable[..., dict], settings: dict) -> datasets.Dataset:
    """
    Tokenizes rows. The fingerprint of the features depends only on the rows, the function and its settings.

    `function` takes a batch of rows, their indices and the keyword arguments `settings`, and returns feature columns.
    """
    return rows.map(
        function,
        with_indices=True,
        batched=True,
        remove_columns=rows.column_names,
        fn_kwargs=settings,
        desc="Tokenizing",
    )


def drawn(rows: Iterable[Row], count: int | None, seed: int, group: Callable[[Row], str] | None = None) -> list[Row]:
    """
    Returns `count` rows drawn at random, in their order, or all rows if `count` is None.

    With `group`, which returns the group of a row, draws whole groups: at most `count` rows, but at least one group.
    """
    found = [*rows]
    if count is None or count >= len(found):
        return found
    generator = random.Random(seed)
    if group is None:
        return [found[index] for index in sorted(generator.sample(range(len(found)), count))]
    members: dict[str, list[int]] = {}
    for index, row in enumerate(found):
        members.setdefault(group(row), []).append(index)
    chosen: list[int] = []
    for name in generator.sample([*members], len(members)):
        if chosen and len(chosen) + len(members[name]) > count:
            break
        chosen += members[name]
    return [found[index] for index in sorted(chosen)]


def sample_rows(rows: datasets.Dataset, count: int | None, seed: int) -> datasets.Dataset:
    """Returns `count` rows drawn at random, in the order of the dataset, or all rows if `count` is None."""
    return rows if count is None else rows.select(drawn(range(len(rows)), count, seed))


def longest_first(features: datasets.Dataset) -> datasets.Dataset:
    """Returns the features sorted by decreasing length."""
    return features.select(np.argsort(-np.array(features["length"][:]), kind="stable"))


def warn_of_overlap(
    name: str, train: datasets.Dataset, rows: datasets.Dataset, names: Sequence[str], remedy: str = REMOVE
):
    """Prints a warning if rows have the same texts as training rows, regardless of labels and whitespace."""
    train_texts, texts = (
        [tuple(" ".join(text.split()) for text in row) for row in zip(*(data[name] for name in names), strict=True)]
        for data in (train, rows)
    )
    known = set(train_texts)
    if same := sum(row in known for row in texts):
        PartialState().print(
            f"{name}: {same:,} of {len(rows):,} rows also occur in the training data, which can make the metrics too "
            f"optimistic; {remedy}"
        )


def max_samples(data_args: FineTuningDataOptions, kind: str) -> int | None:
    """Returns the maximum number of "train", "validation" or "test" examples, or None to use all of them."""
    names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
    return getattr(data_args, names[kind])
