"""What tokenizing did to texts, in one line for every flow: unknown words, rows that were cut, headings left out."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import datasets
import numpy as np
import pyarrow
from accelerate import PartialState
from tokenizers.normalizers import BertNormalizer
from transformers import PreTrainedTokenizerBase

from ..support.errors import InputError
from .encoding import encode

# By BERT's vocabulary at most 0.02 % of the tokens of English text are unknown. Where capitals are kept that it lacks,
# 10 % of novels are, and 17 % of news; of Thai and DNA all.
MOST_UNKNOWN = 0.08
FEWEST_TOKENS = 200  # of fewer tokens the share says little
SHOWN = 3  # examples
SEARCHED = 2000  # texts in which they are looked for, each tokenized again
LONGEST_SHOWN = 24  # characters of an example
LONGEST_WORD = 100  # characters, beyond which WordPiece gives [UNK]


@dataclass
class Tokenized:
    """Counts of texts that became tokens."""

    tokens: int = 0  # without padding
    unknown: int = 0
    unknown_words: list[str] = field(default_factory=list)  # examples
    rows: int | None = None  # if each text is one
    cut: int = 0  # rows that were longer than `length` tokens
    length: int | None = None
    headings: int = 0  # that were left out
    heading_lines: list[str] = field(default_factory=list)  # examples

    def add(self, text: str, ids: list[int], tokenizer: PreTrainedTokenizerBase):
        """Count the tokens of a text, which are not cut."""
        unknown = ids.count(tokenizer.unk_token_id)
        self.tokens += len(ids)
        self.unknown += unknown
        if unknown and len(self.unknown_words) < SHOWN:
            self.unknown_words = unknown_words([text], tokenizer, self.unknown_words)


def tokenized_features(
    features: datasets.Dataset, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int | None = None
) -> Tokenized:
    """
    Counts of features that `prepare_features` made of `texts`.

    Args:
        length: the most tokens of a row, if longer ones were cut; then the features have a column `cut`.
    """
    columns = ["input_ids", *(["cut"] if length else [])]
    table = features.select_columns(columns).with_format("arrow")[:]
    ids = pyarrow.compute.list_flatten(table["input_ids"]).to_numpy()
    unknown = int((ids == tokenizer.unk_token_id).sum())
    words = unknown_words(texts, tokenizer) if unknown else []
    cut = int(np.sum(table["cut"].to_numpy())) if length else 0
    return Tokenized(len(ids), unknown, words, len(features), cut, length)


def unknown_words(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, known: Iterable[str] = ()) -> list[str]:
    """The first SHOWN words without a token, those in `known` among them; fewer, if the first SEARCHED texts have."""
    words = dict.fromkeys(known)
    for text in islice(texts, SEARCHED):
        encoded = encode(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for number, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if number == tokenizer.unk_token_id:
                words[text[start:end]] = None
                if len(words) == SHOWN:
                    return [*words]
    return [*words]


def report_tokens(place: str, found: Tokenized, tokenizer: PreTrainedTokenizerBase):
    """
    Print one line about the texts of `place`.

    Raises:
        InputError: far too many tokens are unknown, with the likely reason.
    """
    share = found.unknown / max(found.tokens, 1)
    examples = f", such as {shown(found.unknown_words)}" if found.unknown_words else ""
    if share > MOST_UNKNOWN and found.tokens >= FEWEST_TOKENS:
        raise InputError(
            f"{place}: {share:.0%} of {found.tokens:,} tokens are unknown{examples}: "
            f"{why_unknown(found.unknown_words, tokenizer)}."
        )
    parts = [] if found.rows is None else [f"{found.rows:,} rows"]
    parts.append(f"{found.tokens:,} tokens, {share:.2%} of them unknown{examples}")
    if found.length is not None:
        parts.append(f"{found.cut:,} rows ({found.cut / max(found.rows or 0, 1):.1%}) cut to {found.length} tokens")
    if found.headings:
        parts.append(f"{found.headings:,} headings left out, such as {shown(found.heading_lines)}")
    PartialState().print(f"{place}: {'; '.join(parts)}")


def shown(words: Iterable[str]) -> str:
    cut = (word if len(word) <= LONGEST_SHOWN else f"{word[:LONGEST_SHOWN]}..." for word in words)
    return ", ".join(map(repr, cut))


def why_unknown(words: list[str], tokenizer: PreTrainedTokenizerBase) -> str:
    """The likely reason why a tokenizer does not know words, and what to do."""
    vocabulary = tokenizer.get_vocab()
    if words and all(len(word) > LONGEST_WORD for word in words):
        return f"words of more than {LONGEST_WORD} characters are not looked into; put blanks between their parts"
    if any(word in vocabulary for word in words):
        return "the vocabulary has them, but the tokenizer changes case or accents; give `do_lower_case` false"
    plain = BertNormalizer(strip_accents=True, lowercase=True).normalize_str
    if words and not unknown_words(map(plain, words), tokenizer):
        return "the vocabulary has them in lower case and without accents alone; give `do_lower_case` true"
    return "it lacks their letters; give a tokenizer whose vocabulary is of such text, or train one on it"
