"""Calibration data: loads unlabeled rows for a model's task and returns them as batches of token ids."""

import random
from glob import glob
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.sequences import read_sequences
from ..loading.loaded_model import LoadedModel, head_name
from ..options import CalibrationOptions, ShrinkOptions
from ..support.errors import InputError
from .heads import row_length, unlabeled_rows
from .predictions import MASKED_LM, MASKED_POSITIONS, Batch
from .rows import Rows

MASKED = 0.15  # fraction of the tokens that are masked for a masked LM
HELD_OUT = 6  # there are at most `max_train_samples` / 6 held-out rows


def check_files(options: CalibrationOptions):
    """Raises InputError if a file of calibration data does not exist."""
    for file in options.train_file or ():
        if not (Path(file).exists() or glob(file, recursive=True)):
            raise InputError(f"{file}: file not found.")


def load_batches(
    options: ShrinkOptions, loaded: LoadedModel, distillation_rows: int
) -> tuple[list[Batch], list[Batch], list[Batch]]:
    """
    Returns calibration, held-out and distillation batches. Calibration and distillation batches can share rows.
    Held-out rows come from the validation split of a GLUE task, or from the files. No other batch contains them.
    """
    maximum = options.max_train_samples
    rows = task_rows(options, loaded, max(maximum, distillation_rows))
    if options.task_name is None:
        count = max(1, min(len(rows), maximum) // HELD_OUT)
        held_out, rows = rows[:count], rows[count:]
    else:
        held_out = task_rows(options, loaded, max(1, maximum // HELD_OUT), "validation")
    parts = (rows[:maximum], held_out, rows[:distillation_rows])
    calibration, held_out_batches, distillation = (batches_of(options, loaded, part) for part in parts)
    return calibration, held_out_batches, distillation


def task_rows(options: CalibrationOptions, loaded: LoadedModel, count: int, split: str = "train") -> list[dict]:
    """
    Returns at most `count` tokenized rows for the model's task, in random order, without their labels.

    Files contain texts or text pairs (.csv, .tsv, .jsonl, .parquet, or .txt with one text per line), lists of words
    for token classification, questions in SQuAD format, or running text for a masked LM or an encoder without pooling.

    Raises:
        InputError: If the model is for multiple choice, or if the rows are unsuitable for its task head.
    """
    head, tokenizer = head_name(loaded.model), loaded.tokenizer
    length = row_length(options.max_seq_length, [(loaded.model.config, tokenizer)])
    if head == "MultipleChoice":
        raise InputError("multiple-choice models have no calibration data.")
    if options.train_file and (head in MASKED_LM or not (head or loaded.pooling)):
        sequences = read_sequences(options.train_file, tokenizer, length, 4 * count)
        tokenized = [{"input_ids": ids, "attention_mask": [1] * length} for ids in sequences.tolist()]
    else:
        separate = head in MASKED_LM or not head  # each text of a pair becomes a row
        parts = unlabeled_rows(options, head, tokenizer, length, split, separate)
        tokenized = tokenize(parts, loaded, length)
    random.Random(options.seed).shuffle(tokenized)
    return tokenized[:count]


def tokenize(parts: list[Rows], loaded: LoadedModel, length: int) -> list[dict]:
    """Returns the tokens of rows, or of the windows of questions. Prints how many rows are truncated."""
    names, windows, truncated = loaded.tokenizer.model_input_names, list[dict](), 0
    for rows in parts:
        features, count = rows.features(loaded.tokenizer, loaded.settings, length)
        windows += [{name: window[name] for name in names if name in window} for row in features for window in row]
        truncated += count
    if truncated:
        PartialState().print(f"{truncated:,} of {len(windows):,} calibration rows were truncated to {length:,} tokens")
    return windows


def batches_of(options: ShrinkOptions, loaded: LoadedModel, rows: list[dict]) -> list[Batch]:
    """Returns rows, sorted by length, as padded batches on the model's device. Masks tokens for a masked LM."""
    rows, size = sorted(rows, key=lambda row: len(row["input_ids"])), options.batch_size
    generator = torch.Generator().manual_seed(options.seed)
    batches = []
    for begin in range(0, len(rows), size):
        batch: Batch = dict(loaded.tokenizer.pad(rows[begin : begin + size], return_tensors="pt"))
        if head_name(loaded.model) in MASKED_LM:
            batch = mask_randomly(batch, loaded.tokenizer, generator)
        batches.append({name: x.to(loaded.model.device) for name, x in batch.items()})
    return batches


def mask_randomly(batch: Batch, tokenizer: PreTrainedTokenizerBase, generator: torch.Generator) -> Batch:
    """Masks 15% of the tokens, at least one per row. Adds a mask (B, L) of their positions as `MASKED_POSITIONS`."""
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chances = torch.rand(ids.shape, generator=generator).masked_fill(special, 2.0)
    positions = (chances < MASKED) | (chances == chances.min(dim=1, keepdim=True).values) & ~special
    masked = ids.masked_fill(positions, int(tokenizer.mask_token_id))
    return batch | {"input_ids": masked, MASKED_POSITIONS: positions}


def mean_tokens(batches: list[Batch]) -> float:
    """Returns the average number of non-padding tokens per row."""
    masks = [batch["attention_mask"] for batch in batches]
    return sum(int(mask.sum()) for mask in masks) / sum(len(mask) for mask in masks)
