"""Loads texts that are split into words, with or without a label for each word, and tokenizes them."""

from collections.abc import Sequence
from pathlib import Path

import datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.file_formats import FileRow, text_problem
from ..support.errors import InputError
from .examples import report_bad_rows
from .label_columns import label_sort_key
from .labels import default_names, match_names, shorten
from .texts import Columns, RowSource

WORDS, LABELS = "tokens", ("ner_tags", "labels")  # default names of the columns, as in transformers' run_ner.py
NO_LABEL = (None, -100, "-100")  # values for words that are not labeled, such as transformers' ignore_index


def has_words(file: str, column: str = WORDS) -> bool:
    """Returns True if a column in the file contains lists of words instead of texts."""
    return isinstance(next(RowSource.from_file(Path(file)).rows).values.get(column), list)


def load_words(
    file: str, column: str = WORDS, label_column: str | None = None, skip_bad_rows: bool = False
) -> datasets.Dataset:
    """
    Loads rows such as {"tokens": [...], "ner_tags": [...]} from a .json, .jsonl or .parquet file.

    Args:
        label_column: Column with a label for each word. By default, "ner_tags" or "labels", if the file contains one
            of them.
        skip_bad_rows: Print and skip invalid rows instead of raising InputError.

    Returns:
        A dataset with the columns `words` and `row` (the 0-based index in the file). If the file contains labels,
        there is a third column `labels` ("" for words without a label).
    """
    source = RowSource.from_file(Path(file))
    known = [name for name in LABELS if name in source.columns]
    if label_column is None and len(known) > 1:
        raise InputError(f"must be set for {file}; available columns: {', '.join(known)}.", "label_column_name")
    label = label_column or (known[0] if known else None)
    Columns((column,), (label,) if label else ()).check(file, source.columns)
    rows, bad_rows = [], {}
    for position, row in enumerate(source.rows):
        if problem := problem_in_words(row, column, label):
            bad_rows[f"{source.unit} {row.number}"] = problem
            continue
        entry = {"words": row.values[column], "row": position}
        if label:
            entry["labels"] = ["" if name in NO_LABEL else str(name) for name in row.values[label]]
        rows.append(entry)
    report_bad_rows(file, bad_rows, skip_bad_rows)
    if not rows:
        raise InputError(f"{file} contains no valid rows.")
    return datasets.Dataset.from_list(rows)


def problem_in_words(row: FileRow, column: str, label: str | None) -> str | None:
    """Returns the problem with a row that lacks words or a label for each word, or None if the row is valid."""
    words = row.values.get(column)
    if not isinstance(words, list) or not words:
        return row.problem or f"{column!r} is not a list of words"
    if problem := next(filter(None, (text_problem(word, repr(column)) for word in words)), None):
        return problem
    if None in words:
        return f"a word in {column!r} is missing"
    labels = row.values.get(label) if label else words
    if not isinstance(labels, list) or len(labels) != len(words):
        return f"{label!r} is not a list with a label for each of the {len(words)} words"
    return None


def align_word_labels(rows: datasets.Dataset, config: PreTrainedConfig, file: str) -> datasets.Dataset:
    """
    Replaces the label names in the column `labels` with the model's label ids, or -1 for words without a label.

    Raises:
        InputError: If the rows contain a label that the model does not have.
    """
    if "labels" not in rows.column_names:
        return rows
    names = sorted({name for labels in rows["labels"] for name in labels if name}, key=label_sort_key)
    known = default_names(config)
    matched = match_names(names, known)
    if matched is None:
        raise InputError(
            f"{file}: the labels are {shorten(names)}, but the model predicts {shorten(known)}; use data with the "
            "same labels, or correct id2label in the model's config.json."
        )
    label_ids = dict(zip(names, matched, strict=True))
    ids = [[label_ids.get(name, -1) for name in labels] for labels in rows["labels"]]
    return rows.remove_columns("labels").add_column("labels", ids)


def check_splits_words(tokenizer: PreTrainedTokenizerBase):
    """Raises InputError if a tokenizer joins the words in a list, as RoBERTa's does without add_prefix_space."""
    if tokenizer(["a", "b"], is_split_into_words=True)["input_ids"] != tokenizer("a b")["input_ids"]:
        raise InputError(
            "the tokenizer joins the words in a list; save it with add_prefix_space=True, as run_ner.py does."
        )


def encode_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str], max_length: int) -> dict:
    """
    Returns the tokens for a list of words.

    The entry `first_tokens` contains the index of the first token of each word, or -1 if a word has no tokens, because
    truncation or the tokenizer removes all of its characters. `truncated` is True if the row is truncated.
    """
    encoded = tokenizer([*words], is_split_into_words=True, max_length=max_length, truncation=True)
    first = [-1] * len(words)
    for token, word in reversed([*enumerate(encoded.word_ids())]):
        if word is not None:
            first[word] = token
    return {**encoded, "first_tokens": first, "truncated": any(part.overflowing for part in encoded.encodings or ())}
