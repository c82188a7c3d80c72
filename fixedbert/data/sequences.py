"""Token sequences of a fixed length from continuous text."""

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from .corpora import Corpus, CorpusReader
from .tokenizers import check_unknown_tokens


def read_sequences(
    sources: list[str], tokenizer: PreTrainedTokenizerBase, length: int, maximum: int, text_column: str = "text"
) -> Tensor:
    """
    Returns the int64 token ids (sequences, length) of at most `maximum` sequences `[CLS] text [SEP]` from text files.

    `sources` are paths to files or directories, or glob patterns. A sequence can span several lines, rows and files.
    Tokens left over at the end are dropped. Raises InputError if too many tokens are unknown.
    """
    tokens: list[int] = []
    size = length - 2  # without [CLS] and [SEP]
    corpora = [Corpus(source, text_column=text_column, document_boundary="line") for source in sources]
    for line in (line for corpus in corpora for line in CorpusReader(corpus)):
        assert isinstance(line, str)  # only "sentence_lines" yields lists of sentences
        tokens += tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) >= maximum * size:
            break
    check_unknown_tokens(", ".join(sources), tokens.count(tokenizer.unk_token_id), len(tokens))
    count = min(len(tokens) // size, maximum)
    sequences = torch.tensor(tokens[: count * size], dtype=torch.long).view(count, size)
    return pad(pad(sequences, (1, 0), value=tokenizer.cls_token_id), (0, 1), value=tokenizer.sep_token_id)
