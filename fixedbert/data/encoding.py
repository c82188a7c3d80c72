"""Texts as tokens, by one rule for what a text says of special tokens."""

from transformers import BatchEncoding, PreTrainedTokenizerBase


def encode(tokenizer: PreTrainedTokenizerBase, *texts: str | list[str], **options) -> BatchEncoding:
    """
    What the tokenizer gives for texts or pairs of texts. "[SEP]" or "<mask>" in a text is text, as in pretraining:
    it has the tokens of its characters.

    Args:
        options: of the tokenizer's call.
    """
    return tokenizer(*texts, split_special_tokens=True, **options)
