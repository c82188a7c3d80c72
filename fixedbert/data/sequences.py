"""Text without a break, cut into sequences of one length."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .corpora import Corpus, CorpusReader
from .encoding import encode
from .token_report import Tokenized, report_tokens


def sequences(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, batch: int) -> Iterator[Tensor]:
    """
    Batches (B, length) of [CLS], text, [SEP], from files, folders or globs. Text goes on over the ends of lines, rows
    and files; what is too short for a last sequence is left out. Only one line or row is in memory.

    Args:
        tokenizer: as `load_tokenizer` gives it, with those tokens.

    Raises:
        InputError: a file cannot be read.
    """
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows, tokens = [], []
    for _, ids in lines_and_ids(texts, tokenizer):
        tokens += ids
        whole = len(tokens) // (length - 2) * (length - 2)
        for start in range(0, whole, length - 2):
            rows.append([first, *tokens[start : start + length - 2], last])
            if len(rows) == batch:
                yield torch.tensor(rows)
                rows = []
        tokens = tokens[whole:]
    if rows:
        yield torch.tensor(rows)


def lines_and_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, list[int]]]:
    for text in texts:
        for line in CorpusReader(Corpus(text, document_boundary="line")):
            assert isinstance(line, str)  # by this boundary
            yield line, encode(tokenizer, line, add_special_tokens=False, verbose=False)["input_ids"]


def report_sequences(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, most: int):
    """
    Report on the tokens of the first `most` of the `sequences`.

    Raises:
        InputError: a file cannot be read, or far too many tokens are unknown.
    """
    found = Tokenized()
    for line, ids in lines_and_ids(texts, tokenizer):
        found.add(line, ids, tokenizer)
        if found.tokens >= most * (length - 2):
            break
    report_tokens(", ".join(texts), found, tokenizer)
