"""Calibration data: loads unlabeled rows for a model's task and returns them as batches of token ids."""

import random
from collections import Counter
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.sequences import read_sequences
from ..loading.loaded_model import LoadedModel
from ..options import CalibrationOptions, ShrinkOptions
from ..support.errors import InputError
from .predictions import MASKED_LM, PREDICTED_POSITIONS, QUERIES, Batch
from .rows import Rows
from .task_heads import row_length, unlabeled_rows

MASKED = 0.15  # fraction of the tokens that are masked for a masked LM
HELD_OUT = 6  # there are at most `max_train_samples` / 6 held-out rows
FEWEST_ROWS, MOST_ROWS = 1500, 8000  # that are used if `max_train_samples` is not set
ENOUGH_TOKENS = 64_000  # in the rows, for least-squares fits in layers with 1,536 neurons; fewer lose more
CPU_TOKENS = 1024  # in a batch on a CPU; larger batches are hardly faster, and need more memory


class TokenizedRow(NamedTuple):
    """The tokens of a row, or of a window of a question, and its texts; the first one can occur in several rows."""

    tokens: dict
    texts: tuple
    first_tokens: list[int] = []  # index of the first token of each word, for token classification


def load_batches(
    options: ShrinkOptions, loaded: LoadedModel, distillation_rows: int
) -> tuple[list[Batch], list[Batch], list[Batch]]:
    """
    Returns calibration, held-out and distillation batches. Calibration and distillation batches can share rows.
    Held-out rows come from the validation split of a GLUE task, or from the files. No other batch contains them.
    """
    rows = task_rows(options, loaded, max(options.max_train_samples or MOST_ROWS, distillation_rows))
    if options.query_column_name:
        sizes = Counter(row.texts[0] for row in rows)
        rows = [row for row in rows if sizes[row.texts[0]] > 1]  # others have no ranking that could change
        if not rows:
            raise InputError("has no value that occurs in several rows.", "query_column_name")
    maximum = options.max_train_samples or enough_rows(rows)
    if options.task_name is None:
        count = max(1, min(len(rows), maximum) // HELD_OUT)
        held_out, rows = hold_out(rows, count, by_query=options.query_column_name is not None)
    else:
        held_out = task_rows(options, loaded, max(1, maximum // HELD_OUT), "validation")
    tokens = CPU_TOKENS if loaded.model.device.type == "cpu" else inf
    return (
        batches_of(options, loaded, rows[:maximum], tokens),
        batches_of(options, loaded, held_out, tokens),
        batches_of(options, loaded, rows[:distillation_rows]),
    )


def enough_rows(rows: list[TokenizedRow]) -> int:
    """Returns how many rows contain `ENOUGH_TOKENS`, but at least `FEWEST_ROWS` and at most `MOST_ROWS`."""
    tokens = np.cumsum([len(row.tokens["input_ids"]) for row in rows])
    return min(MOST_ROWS, max(FEWEST_ROWS, int(np.searchsorted(tokens, ENOUGH_TOKENS)) + 1))


def hold_out(
    rows: list[TokenizedRow], count: int, by_query: bool = False
) -> tuple[list[TokenizedRow], list[TokenizedRow]]:
    """
    Splits `rows`, which are in random order, into about `count` held-out rows and the rest.

    Rows with the same first text, such as the context of questions, are on one side. If the first text occurs in so
    many rows that it says little about a row, only rows in which all texts are the same are on one side. The rows of a
    query are on one side in any case.

    Raises:
        InputError: If all rows have the same texts.
    """
    by_first = Counter(row.texts[0] for row in rows)
    groups = [row.texts[:1] if by_query or by_first[row.texts[0]] <= count // 4 else row.texts for row in rows]
    sizes, held_out, left = Counter(groups), set(), count
    if len(sizes) == 1:
        raise InputError(f"all {len(rows):,} calibration rows have the same context or text; add rows with others.")
    for group, size in sizes.items():
        if size <= left:
            held_out.add(group)
            left -= size
    held_out = held_out or {min(sizes, key=lambda group: sizes[group])}
    pairs = list(zip(rows, (group in held_out for group in groups), strict=True))
    return [row for row, is_held_out in pairs if is_held_out], [row for row, is_held_out in pairs if not is_held_out]


def task_rows(
    options: CalibrationOptions, loaded: LoadedModel, count: int, split: str = "train"
) -> list[TokenizedRow]:
    """
    Draws at most `count` rows for the model's task, and returns them tokenized, in random order, without their labels.

    Files contain texts or text pairs (.csv, .tsv, .jsonl, .parquet, or .txt with one text per line), lists of words
    for token classification, questions in SQuAD format, or running text for a masked LM or an encoder without pooling.

    Raises:
        InputError: If the model is for multiple choice, or if the rows are unsuitable for its task head.
    """
    head, tokenizer = loaded.head, loaded.tokenizer
    length = row_length(options.max_seq_length, [(loaded.model.config, tokenizer)])
    if head == "MultipleChoice":
        raise InputError("multiple-choice models have no calibration data.")
    if options.train_file and (head in MASKED_LM or not (head or loaded.pooling)):
        column = options.text_column_names or "text"
        sequences = read_sequences(options.train_file, tokenizer, length, 4 * count, column).tolist()
        inputs = ({"input_ids": ids, "attention_mask": [1] * length} for ids in sequences)
        tokenized = [TokenizedRow(tokens, (number,)) for number, tokens in enumerate(inputs)]
    else:
        parts = unlabeled_rows(options, head, (loaded.model.config, tokenizer), length, split, count)
        tokenized = tokenize(parts, loaded, length)
    random.Random(options.seed).shuffle(tokenized)
    return tokenized[:count]


def tokenize(parts: list[Rows], loaded: LoadedModel, length: int) -> list[TokenizedRow]:
    """Tokenizes rows, or the windows of questions. Prints how many rows are truncated."""
    names, windows, truncated = loaded.tokenizer.model_input_names, list[TokenizedRow](), 0
    for rows in parts:
        features, count = rows.features(loaded.tokenizer, loaded.settings, length)
        for row, texts in zip(features, rows.texts(), strict=True):
            for window in row:
                tokens = {name: window[name] for name in names if name in window}
                first = [index for index in window.get("first_tokens", ()) if index >= 0]
                if first or "first_tokens" not in window:  # without a word, there is nothing to predict
                    windows.append(TokenizedRow(tokens, texts, first))
        truncated += count
    if truncated:
        PartialState().print(f"{truncated:,} of {len(windows):,} calibration rows were truncated to {length:,} tokens")
    return windows


def batches_of(
    options: ShrinkOptions, loaded: LoadedModel, rows: list[TokenizedRow], tokens: float = inf
) -> list[Batch]:
    """
    Returns rows, sorted by length, as padded batches on the model's device. A batch has at most `batch_size` rows and,
    if it has several, at most this number of tokens. Masks tokens for a masked LM.
    """
    parts: list[list[TokenizedRow]] = []
    for row in sorted(rows, key=lambda row: len(row.tokens["input_ids"])):
        size = len(parts[-1]) if parts else options.batch_size
        if size == options.batch_size or (size + 1) * len(row.tokens["input_ids"]) > tokens:
            parts.append([])
        parts[-1].append(row)
    generator = torch.Generator().manual_seed(options.seed)
    batches, queries = [], dict[str, int]()
    for part in parts:
        batch: Batch = dict(loaded.tokenizer.pad([row.tokens for row in part], return_tensors="pt"))
        if loaded.head in MASKED_LM:
            batch = mask_randomly(batch, loaded.tokenizer, generator)
        elif part[0].first_tokens:
            batch[PREDICTED_POSITIONS] = first_token_mask(batch["attention_mask"], part)
        elif options.query_column_name:
            batch[QUERIES] = torch.tensor([queries.setdefault(row.texts[0], len(queries)) for row in part])
        batches.append({name: x.to(loaded.model.device) for name, x in batch.items()})
    return batches


def first_token_mask(attention_mask: Tensor, rows: list[TokenizedRow]) -> Tensor:
    """Returns a mask (B, L) of the first token of each word, after padding on either side."""
    mask, begins = torch.zeros_like(attention_mask, dtype=torch.bool), attention_mask.int().argmax(dim=1).tolist()
    for row, begin, words in zip(mask, begins, rows, strict=True):
        row[[begin + index for index in words.first_tokens]] = True
    return mask


def mask_randomly(batch: Batch, tokenizer: PreTrainedTokenizerBase, generator: torch.Generator) -> Batch:
    """Masks 15% of the tokens, at least one per row. Adds the mask (B, L) `PREDICTED_POSITIONS`."""
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chances = torch.rand(ids.shape, generator=generator).masked_fill(special, 2.0)
    positions = (chances < MASKED) | (chances == chances.min(dim=1, keepdim=True).values) & ~special
    masked = ids.masked_fill(positions, int(tokenizer.mask_token_id))
    return batch | {"input_ids": masked, PREDICTED_POSITIONS: positions}


def mean_tokens(batches: list[Batch]) -> float:
    """Returns the average number of non-padding tokens per row."""
    masks = [batch["attention_mask"] for batch in batches]
    return sum(int(mask.sum()) for mask in masks) / sum(len(mask) for mask in masks)
