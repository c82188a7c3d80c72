"""Token sequences of a fixed length from continuous text."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from .corpora import Corpus, CorpusReader
from .tokenizers import check_unknown_tokens, encode


def read_sequences(
    sources: list[str], tokenizer: PreTrainedTokenizerBase, length: int, batch_size: int
) -> Iterator[Tensor]:
    """
    Reads text files one line or row at a time and yields batches of token sequences `[CLS] text [SEP]`, (B, length).

    A sequence continues across the ends of lines, rows and files. Tokens left over at the end are dropped. `sources`
    are paths to files or directories, or glob patterns. Raises InputError if too many tokens are unknown.
    """
    tokens: list[int] = []
    unknown = total = 0
    size = length - 2  # without [CLS] and [SEP]

    def batch(ids: list[int]) -> Tensor:
        check_unknown_tokens(", ".join(sources), unknown, total)
        rows = pad(torch.tensor(ids).view(-1, size), (1, 0), value=tokenizer.cls_token_id)
        return pad(rows, (0, 1), value=tokenizer.sep_token_id)

    for line in (line for source in sources for line in CorpusReader(Corpus(source, document_boundary="line"))):
        assert isinstance(line, str)  # only "column" and "sentence_lines" yield lists of sentences
        ids = encode(tokenizer, line, add_special_tokens=False, verbose=False)["input_ids"]
        tokens += ids
        total += len(ids)
        unknown += ids.count(tokenizer.unk_token_id)
        complete = len(tokens) // (batch_size * size) * batch_size * size
        for start in range(0, complete, batch_size * size):
            yield batch(tokens[start : start + batch_size * size])
        tokens = tokens[complete:]
    if len(tokens) >= size:
        yield batch(tokens[: len(tokens) // size * size])
