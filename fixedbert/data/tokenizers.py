"""Loads, checks, trains and applies tokenizers."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from ..support.checksums import stable_hash
from ..support.errors import InputError
from ..support.files import reading
from ..support.layouts import transformer_directory

if TYPE_CHECKING:
    import datasets

MAX_UNREACHABLE = 0.05  # maximum fraction of unreachable tokens in a vocabulary; BERT's has less than 0.001
# With BERT's vocabulary, at most 0.02% of the tokens in English text are unknown. If the text is not lowercased, 10%
# are unknown in novels and 17% in news. In Thai text or DNA sequences, nearly all tokens are unknown.
MAX_UNKNOWN = 0.08  # maximum fraction of unknown tokens
MIN_COUNTED = 200  # tokens; with fewer, the fraction is unreliable
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model",
)  # fmt: skip


def load_tokenizer(
    name_or_path: str | None, do_lower_case: bool | None = None, strip_accents: bool | None = None, **options
) -> PreTrainedTokenizerBase:
    """
    Loads a tokenizer from a directory, the Hub or a vocab.txt file.

    Args:
        do_lower_case: Whether a tokenizer for a vocab.txt lowercases text. The default is True.
        strip_accents: Whether a tokenizer for a vocab.txt removes accents and other marks. By default it does so if it
            lowercases text, as in BERT.
        options: Passed to `from_pretrained`.

    Raises:
        InputError: If no tokenizer can be loaded, or if the tokenizer has no fast implementation, lacks one of BERT's
            special tokens, or has a normalizer that does not match the vocabulary.
    """
    if name_or_path is None:
        raise InputError("no tokenizer specified; set `tokenizer_name` to a directory, a Hub id or a vocab.txt file.")
    if Path(name_or_path).suffix == ".txt" and not Path(name_or_path).is_dir():
        vocabulary = read_vocabulary(Path(name_or_path))
        tokenizer: PreTrainedTokenizerBase = BertTokenizer(
            vocab=vocabulary, do_lower_case=do_lower_case is not False, strip_accents=strip_accents
        )
    else:
        for name, value in (("do_lower_case", do_lower_case), ("strip_accents", strip_accents)):
            if value is not None:
                raise InputError("is only for a new vocabulary or a vocab.txt; edit tokenizer_config.json.", name)
        remedy = "set `tokenizer_name` to a directory or a vocab.txt file"
        with reading(name_or_path, remedy, "could not load a tokenizer"):
            options = {"trust_remote_code": False} | options
            directory = transformer_directory(name_or_path, **options)
            if (file := Path(directory) / "vocab.txt").is_file() and not file.with_name("tokenizer.json").exists():
                read_vocabulary(file)
            tokenizer = AutoTokenizer.from_pretrained(directory, **options)
        if not options["trust_remote_code"]:  # a copy must not name code that was not loaded
            tokenizer.init_kwargs.pop("auto_map", None)
        # If there are no tokenizer files, transformers 5 returns a tokenizer that contains only special tokens.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise InputError(f"{name_or_path}: contains no tokenizer; add its files, for example tokenizer.json.")
    if not tokenizer.is_fast:
        reason = "is not supported because it has no fast implementation, which tokenizer.json contains"
        raise InputError(f"{name_or_path}: {type(tokenizer).__name__} {reason}; use a different tokenizer.")
    missing = [role for role in ("cls", "sep", "pad", "mask") if getattr(tokenizer, f"{role}_token_id") is None]
    if missing:
        raise InputError(f"{name_or_path}: not a BERT tokenizer; missing special tokens: {', '.join(missing)}.")
    check_case(name_or_path, tokenizer)
    return tokenizer


def read_vocabulary(file: Path) -> dict[str, int]:
    """Reads a vocab.txt with one token per line. Raises InputError for an empty, divided or repeated token."""
    vocabulary: dict[str, int] = {}
    with reading(file, "use a BERT vocabulary file"):
        lines = file.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    for number, token in enumerate(lines, start=1):
        if not token or " " in token or "\t" in token:
            raise InputError(f"{file}, line {number}: {token!r} is not a token; write only one per line.")
        if token in vocabulary:
            raise InputError(f"{file}, line {number}: {token!r} is already on line {vocabulary[token] + 1}.")
        vocabulary[token] = number - 1
    return vocabulary


def check_case(name: str, tokenizer: PreTrainedTokenizerBase):
    """
    Checks that the tokenizer's normalizer matches the vocabulary.

    At most MAX_UNREACHABLE of the tokens in a WordPiece vocabulary may be unreachable, such as "Paris" in a tokenizer
    that lowercases text.
    """
    backend = tokenizer.backend_tokenizer
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "WordPiece":
        return
    if model["unk_token"] not in model["vocab"]:
        raise InputError(f"{name}: the vocabulary does not contain the unknown token {model['unk_token']}; add it.")
    special = set(tokenizer.all_special_tokens)
    words = [
        token.removeprefix(model["continuing_subword_prefix"])
        for token in model["vocab"]
        if token not in special and not re.fullmatch(r"\[.+\]", token)  # [unused0] and the like
    ]
    unreachable = [word for word in words if normalize(word).replace(" ", "") != word.replace(" ", "")]
    if len(unreachable) > MAX_UNREACHABLE * len(words):
        some = f"{len(unreachable) / len(words):.0%} of the tokens (such as {', '.join(map(repr, unreachable[:3]))})"
        raise InputError(
            f"{name}: {some} are unreachable because the tokenizer changes case or accents; correct do_lower_case and "
            "strip_accents in tokenizer_config.json, or set `do_lower_case` or `strip_accents` to false."
        )


def count_losses(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Counter[str]:
    """
    Counts what the tokenizer's normalizer changes besides case: `changed_characters`, which lose an accent or vowel
    sign or are split into letters (as in Korean), and `removed_characters`.
    """
    characters: Counter[str] = Counter()
    for text in texts:
        if not (text.isascii() and text.isprintable()):
            characters.update(text)
    normalizer = tokenizer.backend_tokenizer.normalizer
    losses = Counter(changed_characters=0, removed_characters=0)
    for character, count in characters.items():
        normalized = (normalizer.normalize_str(character) if normalizer else character).strip()
        if marks_in(normalized) < marks_in(character) or not unicodedata.is_normalized("NFC", normalized):
            losses["changed_characters"] += count
        elif character.strip() and not normalized:
            losses["removed_characters"] += count
    return losses


def marks_in(text: str) -> int:
    return sum(unicodedata.category(character).startswith("M") for character in unicodedata.normalize("NFD", text))


def check_vocab_size(tokenizer: PreTrainedTokenizerBase, vocab_size: int, model: object):
    """Raises InputError if the tokenizer contains token ids that are out of range for the model's embeddings."""
    required = max(tokenizer.get_vocab().values()) + 1
    if required > vocab_size:
        problem = f"the tokenizer has {required} token ids, but the model has only {vocab_size} embeddings"
        raise InputError(f"{model}: {problem}; use the original tokenizer, or call resize_token_embeddings.")


def check_same_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str | None, model: str | None, **options):
    """Raises InputError if `tokenizer` lacks a token of the tokenizer in `model`, or has a different id for it."""
    if model is None or model == name:
        return
    try:
        own = load_tokenizer(model, **options)
    except InputError:
        return  # the model includes no tokenizer
    if not own.get_vocab().items() <= tokenizer.get_vocab().items():
        raise InputError(f"{name}: the vocabulary differs from that of {model}; omit `tokenizer_name`.")


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a hash of everything that determines how a tokenizer splits text into tokens."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
    return stable_hash([state[part] for part in parts], tokenizer.sep_token)


def check_unknown_tokens(source: str, unknown: int, total: int):
    """Raises InputError if the fraction of unknown tokens in a text exceeds MAX_UNKNOWN."""
    if total >= MIN_COUNTED and unknown > MAX_UNKNOWN * total:
        remedy = "use a tokenizer for this kind of text, or correct its do_lower_case"
        raise InputError(f"{source}: {unknown / total:.0%} of {total:,} tokens are unknown; {remedy}.")


def check_features(source: str, features: "datasets.Dataset", tokenizer: PreTrainedTokenizerBase):
    """Calls `check_unknown_tokens` for the column `input_ids` of a dataset."""
    ids = features.with_format("arrow")[:]["input_ids"].combine_chunks().flatten().to_numpy()
    check_unknown_tokens(source, int(np.count_nonzero(ids == tokenizer.unk_token_id)), len(ids))


def train_tokenizer(
    texts: Callable[[], Iterator[str]], vocab_size: int, do_lower_case: bool, strip_accents: bool | None = None
) -> BertTokenizer:
    """
    Trains a BERT WordPiece tokenizer with at most `vocab_size` tokens.

    `texts` returns a new iterator over the texts on each call. Raises InputError if the texts contain no words.
    """
    untrained = BertTokenizer(do_lower_case=do_lower_case, strip_accents=strip_accents)

    def train(**options: Any) -> BertTokenizer:
        non_blank = (text for text in texts() if text and not text.isspace())
        first = next(non_blank, "")  # training never ends if the iterator is empty
        return untrained.train_new_from_iterator(chain([first], non_blank), vocab_size, show_progress=False, **options)

    tokenizer = train()
    if len(tokenizer) > vocab_size:  # by default all characters are included, with and without ##
        continuing = sum(token.startswith("##") for token in tokenizer.get_vocab())
        room = vocab_size - len(untrained)
        tokenizer = train(limit_alphabet=max(room // 2, room - continuing))
    if len(tokenizer) == len(untrained):
        raise InputError("the corpus contains no words; add text or set `tokenizer_name`.")
    return tokenizer
