"""Tokenizers: an existing one, a vocabulary file, or WordPiece trained on the corpus."""

from pathlib import Path

import datasets
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from ..errors import InputError


def load_tokenizer(name_or_path: str | None, do_lower_case: bool = True, **options) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or Hub id, or BERT's over a vocab.txt (one token a line)."""
    if name_or_path is None:
        raise InputError("no tokenizer: give --tokenizer_name with a directory, a Hub id or a vocab.txt.")
    if Path(name_or_path).suffix == ".txt":
        if not Path(name_or_path).is_file():
            raise InputError(f"{name_or_path}: no such vocabulary file.")
        tokenizer = BertTokenizer(vocab=name_or_path, do_lower_case=do_lower_case)
        # BertTokenizer appends special tokens that the file lacks, with ids that no model has.
        lines = set(Path(name_or_path).read_text(encoding="utf-8").splitlines())
        absent = [token for token in tokenizer.all_special_tokens if token not in lines]
        if absent:
            raise InputError(f"{name_or_path}: not a BERT vocabulary, it lacks {', '.join(absent)}.")
        return tokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **options)
    except (OSError, ValueError) as error:
        raise InputError(f"{name_or_path}: no tokenizer could be loaded from it: {error}") from error
    absent = [role for role in ("cls", "sep", "pad", "mask") if getattr(tokenizer, f"{role}_token_id") is None]
    if absent:
        raise InputError(f"{name_or_path}: not a tokenizer for BERT, it has no {' and no '.join(absent)} token.")
    return tokenizer


def train_tokenizer(corpus: datasets.Dataset, vocab_size: int, do_lower_case: bool = True) -> PreTrainedTokenizerBase:
    """BERT's WordPiece tokenizer with at most `vocab_size` tokens, trained on the column "text"."""
    batches = (batch["text"] for batch in corpus.iter(100))
    return BertTokenizer(do_lower_case=do_lower_case).train_new_from_iterator(batches, vocab_size, show_progress=False)
