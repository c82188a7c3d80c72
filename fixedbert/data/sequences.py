"""Token sequences of a fixed length from continuous text."""

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
    Reads text files one line or row at a time and yields batches of token sequences `[CLS] text [SEP]`, (B, length).

    A sequence continues across the ends of lines, rows and files. Tokens left over at the end are dropped.

    Args:
        sources: Paths to files or directories, or glob patterns.

    Raises:
        InputError: If a file cannot be read, or if too many tokens are unknown to the tokenizer.
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
            assert isinstance(line, str)  # only "column" yields lists of sentences
            yield encode(tokenizer, line, add_special_tokens=False, verbose=False)["input_ids"]
