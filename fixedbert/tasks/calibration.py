"""Calibration data: loads unlabeled rows for a model's task and returns them as batches of token ids."""

import random
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.file_formats import DataFile, file_format
from ..data.sequences import read_sequences
from ..loading.families import max_tokens
from ..loading.loaded_model import LoadedModel, head_name
from ..options import CalibrationOptions
from ..support.errors import InputError
from .columns import split_names
from .predictions import MASKED_LM, MASKED_POSITIONS, Batch
from .questions import load_squad
from .windows import squad_windows
from .texts import load_files, load_task
from .words import WORDS, check_splits_words, has_words, load_words

MAX_LENGTH = 512  # default for the maximum number of tokens per row
MASKED = 0.15  # fraction of the tokens that are masked for a masked LM
HELD_OUT = 6  # there are at most `max_train_samples` / 6 held-out rows
DOC_STRIDE = 128  # overlap of consecutive windows of a SQuAD paragraph, in tokens


def check_files(options: CalibrationOptions):
    """Raises InputError if a file of calibration data does not exist."""
    for file in options.train_file or ():
        if not (Path(file).exists() or glob(file, recursive=True)):
            raise InputError(f"{file}: file not found.")


def load_batches(
    options: CalibrationOptions, loaded: LoadedModel, distillation_rows: int
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
    if head == "QuestionAnswering":
        features = questions(options, tokenizer, length)
    elif options.train_file and (head in MASKED_LM or not (head or loaded.pooling)):
        sequences = read_sequences(options.train_file, tokenizer, length, 4 * count)
        features = ({"input_ids": ids, "attention_mask": [1] * length} for ids in sequences.tolist())
    else:
        separate = bool(loaded.pooling) or head in MASKED_LM or not head  # each text of a pair becomes a row
        rows = texts(options, split, head == "TokenClassification")
        separated = ((loaded.settings.prompt + text,) for row in rows for text in row) if separate else rows
        features = tokenize_rows(separated, tokenizer, length)
    tokenized = list(features)
    random.Random(options.seed).shuffle(tokenized)
    return tokenized[:count]


def texts(options: CalibrationOptions, split: str, can_be_words: bool) -> Iterator[tuple]:
    """Yields texts or text pairs from the GLUE task or files. If `can_be_words`, texts can be lists of words."""
    skip, columns = options.skip_bad_rows, split_names(options.text_column_names) or None
    if options.task_name is not None:
        for dataset in load_task(options.task_name.lower(), options.data_dir, (split,), skip).splits.values():
            yield from texts_of(dataset)
    for file in options.train_file or ():
        column = WORDS if columns is None else columns[0]
        if file_format(Path(file)) == ".txt":
            yield from ((line,) for _, line in lines_of(Path(file)))
        elif can_be_words and has_words(file, column):
            yield from ((words,) for words in load_words(file, column, skip_bad_rows=skip)["words"])
        else:
            data = load_files({"test": file}, text_columns=columns, skip_bad_rows=skip)
            yield from texts_of(data.splits["test"])


def questions(options: CalibrationOptions, tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[dict]:
    """Yields tokenized questions, each with one of the overlapping windows into which its paragraph is split."""
    if options.train_file is None:
        raise InputError("does not support question answering; use a `train_file` in SQuAD format.", "task_name")
    for file in options.train_file:
        settings = {"version_2_with_negative": True, "answered": False, "skip_bad_rows": options.skip_bad_rows}
        examples = load_squad(file, **settings)
        windows = squad_windows(examples, tokenizer, length, min(DOC_STRIDE, length // 2), for_training=False)
        names = [name for name in tokenizer.model_input_names if name in windows.column_names]
        yield from windows.select_columns(names)


def batches_of(options: CalibrationOptions, loaded: LoadedModel, rows: list[dict]) -> list[Batch]:
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


def row_length(max_seq_length: int | None, models: Iterable[tuple[PreTrainedConfig, PreTrainedTokenizerBase]]) -> int:
    """
    Returns the maximum tokens per row, by default the lowest limit of all models and tokenizers, but at most 512.

    Raises:
        InputError: If `max_seq_length` is less than 3, or exceeds the limit of a model.
    """
    configs, tokenizers = zip(*models, strict=True)
    longest = min(map(max_tokens, configs))
    length = max_seq_length
    if length is None:
        length = min(MAX_LENGTH, longest, *(tokenizer.model_max_length for tokenizer in tokenizers))
    if not 3 <= length <= longest:
        raise InputError(f"{length}: must be between 3 and {longest}, the maximum number of tokens.", "max_seq_length")
    return length


def tokenize_rows(texts: Iterable[tuple], tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[dict]:
    """Yields tokenized texts, text pairs or lists of words of up to `length` tokens. Prints how many are truncated."""
    count = truncated = 0
    for row in texts:
        are_words = isinstance(row[0], list)
        if are_words and count == 0:
            check_splits_words(tokenizer)
        encoded = tokenizer(*row, max_length=length, truncation=True, is_split_into_words=are_words)
        count, truncated = count + 1, truncated + bool(encoded[0].overflowing)
        yield dict(encoded)
    if truncated:
        PartialState().print(f"{truncated:,} of {count:,} calibration rows were truncated to {length:,} tokens")


def texts_of(dataset: Dataset) -> list[tuple[str, ...]]:
    """Returns the texts or text pairs in a dataset."""
    names = [name for name in ("sentence1", "sentence2") if name in dataset.column_names]
    return list(zip(*(dataset[name] for name in names), strict=True))


def lines_of(file: Path) -> list[tuple[int, str]]:
    """Returns the 0-based index and the text of each non-blank line in a text file. Blank lines are counted, too."""
    lines = [(position, row.values["text"].strip()) for position, row in enumerate(DataFile(file).rows())]
    if not any(text for _, text in lines):
        raise InputError(f"{file} contains no text.")
    return [(position, text) for position, text in lines if text]


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
