"""Running text as token sequences of one length."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .corpora import Corpus, CorpusReader
from .tokenizers import check_unknown_tokens, encode


def read_sequences(
    sources: list[str], tokenizer: PreTrainedTokenizerBase, length: int, batch_size: int
) -> Iterator[Tensor]:
    """
    Yields batches (B, length) of `[CLS] text [SEP]` from files, directories or globs. The text continues across lines,
    rows and files, and a remainder too short for a sequence is dropped. Only one line or row is in memory.

    Raises:
        InputError: a file cannot be read, or too many tokens are unknown.
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows: list[list[int]] = []
    tokens: list[int] = []
    unknown = total = 0
    for ids in tokenize_lines(sources, tokenizer):
        tokens += ids
        total += len(ids)
        unknown += ids.count(tokenizer.unk_token_id)
        complete = len(tokens) // (length - 2) * (length - 2)
        for start in range(0, complete, length - 2):
            rows.append([cls, *tokens[start : start + length - 2], sep])
            if len(rows) == batch_size:
                check_unknown_tokens(", ".join(sources), unknown, total)
                yield torch.tensor(rows)
                rows = []
        tokens = tokens[complete:]
    if rows:
        check_unknown_tokens(", ".join(sources), unknown, total)
        yield torch.tensor(rows)


def tokenize_lines(sources: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    for source in sources:
        for line in CorpusReader(Corpus(source, document_boundary="line")):
            assert isinstance(line, str)  # with this boundary
            yield encode(tokenizer, line, add_special_tokens=False, verbose=False)["input_ids"]
