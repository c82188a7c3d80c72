"""Special tokens that are written in a text, such as "[SEP]" in one about BERT, are text."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase


def as_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """A function that parts the special tokens in a text: "[ SEP]" has the tokens of its characters."""
    special = [token for token in tokenizer.all_special_tokens if len(token) > 1]

    def parted(text: str) -> str:
        for token in special:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    return parted
