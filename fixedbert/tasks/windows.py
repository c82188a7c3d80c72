"""Splits the contexts of SQuAD questions into overlapping windows."""

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..support.errors import InputError
from .examples import make_features


def squad_windows(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool = True,
) -> datasets.Dataset:
    """
    Splits each context into overlapping windows: [CLS] question [SEP] part of the context [SEP].

    The columns `start_positions` and `end_positions` contain the indices of the first and last token of the first
    answer that lies entirely in the window. If there is no such answer, both are 0, the index of [CLS].

    Windows for evaluation have two more columns. `question` is the index of the row. `offsets` contains two numbers
    per token: its start and end characters in the context, or -1 and -1 if the token is not in the context.

    Raises InputError if the tokenizer pads on the left.
    """
    if tokenizer.padding_side != "right":
        raise InputError("the tokenizer pads on the left; set padding_side to right in its tokenizer_config.json.")
    settings = {"tokenizer": tokenizer, "for_training": for_training}
    settings |= {"max_seq_length": max_seq_length, "doc_stride": doc_stride}
    windows = make_features(rows, make_windows, settings)
    if for_training:
        columns = windows.with_format("numpy")
        labeled = {*columns["question"][:][columns["start_positions"][:] > 0].tolist()}
        answered = {index for index, answers in enumerate(rows["answers"]) if answers["text"]}
        if lost := len(answered - labeled):
            message = f"{lost:,} of {len(rows):,} training questions have no window that contains an answer"
            PartialState().print(f"{message}; training treats them as unanswerable")
        windows = windows.remove_columns("question")
    return windows


def make_windows(
    batch: dict[str, list],
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool,
) -> dict[str, list]:
    """Returns the columns of the windows for a batch of questions. Called by `make_features`."""
    windows = tokenizer(
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        max_length=max_seq_length,
        truncation="only_second",
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    rows, window_offsets = windows.pop("overflow_to_sample_mapping"), []  # each (tokens, 2), -1 outside the context
    offsets_of: dict[int, list[np.ndarray]] = {}
    for window, (row, offset_mapping) in enumerate(zip(rows, windows.pop("offset_mapping"), strict=True)):
        offsets = np.array(offset_mapping, dtype=np.int32)
        offsets[[part != 1 for part in windows.sequence_ids(window)]] = -1
        window_offsets.append(offsets)
        offsets_of.setdefault(row, []).append(offsets)
    characters = {row: answer_characters(np.concatenate(o), batch["answers"][row]) for row, o in offsets_of.items()}
    spans = []
    for row, offsets in zip(rows, window_offsets, strict=True):
        candidates = (token_span(offsets, *answer) for answer in characters[row])
        spans.append(next((span for span in candidates if span is not None), (0, 0)))
    columns = {
        "start_positions": [start for start, _ in spans],
        "end_positions": [end for _, end in spans],
        "length": [len(offsets) for offsets in window_offsets],
        "question": [indices[row] for row in rows],
    }
    if not for_training:
        columns["offsets"] = [offsets.ravel() for offsets in window_offsets]
    return {**windows, **columns}


def answer_characters(offsets: np.ndarray, answers: dict[str, list]) -> list[tuple[int, int]]:
    """
    Returns the first and end character of each answer, expanded to whole tokens according to `offsets` (tokens, 2).

    Answers without a token are omitted.
    """
    spans = []
    for start, text in zip(answers["answer_start"], answers["text"], strict=True):
        tokens = offsets[overlapping(offsets, start, start + len(text))]
        if len(tokens):
            spans.append((int(tokens[:, 0].min()), int(tokens[:, 1].max())))
    return spans


def overlapping(offsets: np.ndarray, start: int, end: int) -> np.ndarray:
    """Returns the indices of the tokens that overlap the characters [start, end). `offsets` has shape (tokens, 2)."""
    firsts, ends = offsets.T
    return np.flatnonzero((firsts < end) & (ends > start) & (ends > firsts))


def token_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and last token for the characters [start, end), or None if the window lacks some of them."""
    tokens = overlapping(offsets, start, end)
    if not len(tokens) or offsets[tokens[0], 0] != start or offsets[tokens[-1], 1] != end:
        return None
    return int(tokens[0]), int(tokens[-1])
