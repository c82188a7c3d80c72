"""Tokenizers: an existing one, a vocabulary file, or WordPiece trained on the corpus."""

import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub import list_repo_files
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from ..support.checksums import fingerprint_of
from ..support.errors import InputError
from ..support.files import reading
from .corpora import Corpus, CorpusReader, all_documents
from .hub import check_place
from .letter_case import (
    check_case,
    check_vocabulary_files,
    has_settings,
    settings_of_tokenizer_json,
    tokens_of_file,
)
from .store import corpus_fingerprints, default_store_dir, only_one_writes
from .token_report import LONGEST_WORD

FORMAT = 2  # raise it when the same corpus would give another vocabulary
SMALLEST_VOCABULARY = 7  # the special tokens, and a letter at the beginning of words and inside
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model",
)  # fmt: skip


def load_tokenizer(name_or_path: str | None, do_lower_case: bool | None = None, **options) -> PreTrainedTokenizerBase:
    """
    The tokenizer of a directory or Hub id, or BERT's with the tokens of a vocab.txt, one in each line.

    Args:
        do_lower_case: by default what its files say, and where they do not, yes.
        options: of from_pretrained.

    Raises:
        InputError: no tokenizer is given or found, it is damaged, it is not one for BERT, its files contradict each
            other, or its vocabulary is not of the case that it gives.
    """
    if name_or_path is None:
        raise InputError("no tokenizer: give `tokenizer_name` with a directory, a Hub id or a vocab.txt.")
    if Path(name_or_path).suffix == ".txt" and not Path(name_or_path).is_dir():
        tokenizer: PreTrainedTokenizerBase = vocabulary_tokenizer(name_or_path, do_lower_case is not False)
    else:
        tokenizer = pretrained_tokenizer(name_or_path, do_lower_case, **{"trust_remote_code": False} | options)
    check_case(name_or_path, tokenizer, do_lower_case)
    return tokenizer


def pretrained_tokenizer(name: str, do_lower_case: bool | None, **options) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or Hub id, checked for what `load_tokenizer` refuses, but for its case."""
    check_place(name)
    problem = "give the tokenizer that belongs to the model", "no tokenizer could be loaded from it"
    with reading(name, *problem):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    settings: dict[str, Any] = settings_of_tokenizer_json(name, do_lower_case, **options)
    if do_lower_case is not None:
        settings["do_lower_case"] = do_lower_case
    with reading(name, *problem):
        if not has_settings(tokenizer, settings):
            tokenizer = type(tokenizer).from_pretrained(name, **options, **settings)
        tokenizer("a \U0001f9ff")  # which reads the remaining settings, also the unknown token
    # If a directory has no tokenizer, transformers 5 makes one of special tokens alone.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        if not tokenizer_files(name, **options):
            raise InputError(
                f"{name}: there is no tokenizer in it; save the model's there, or name one with `tokenizer_name`."
            )
        raise InputError(
            f"{name}: its tokenizer has special tokens alone, as BertTokenizer(vocab_file=...) gives one in "
            "transformers 5; make it with BertTokenizer(vocab=...), and save it again."
        )
    absent = [role for role in ("cls", "sep", "pad", "mask") if getattr(tokenizer, f"{role}_token_id") is None]
    if absent:
        raise InputError(f"{name}: not a tokenizer for BERT, it has no {' and no '.join(absent)} token.")
    check_vocabulary_files(name, **options)
    return tokenizer


def check_size(tokenizer: PreTrainedTokenizerBase, rows: int, model: object):
    """
    Raises:
        InputError: the tokenizer gives ids for which the model's table of `rows` embeddings has no row.
    """
    needed = max(tokenizer.get_vocab().values()) + 1
    if needed > rows:
        raise InputError(f"{model}: the tokenizer has {needed} tokens and the model {rows}: give the model's own.")


def vocabulary_tokenizer(file: str, do_lower_case: bool) -> BertTokenizer:
    if not Path(file).is_file():
        raise InputError(f"{file}: no such vocabulary file.")
    line_of: dict[str, int] = {}
    for number, token in enumerate(tokens_of_file(Path(file)), start=1):
        if not token.strip() or line_of.setdefault(token, number) != number:
            problem = f"the token of line {line_of[token]} again" if token.strip() else "no token"
            raise InputError(f"{file}, line {number}: {problem}; each line needs one of its own.")
    with reading(file, "give a vocabulary of BERT"):
        vocabulary = {token: number - 1 for token, number in line_of.items()}
        tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=do_lower_case)
    # BertTokenizer adds special tokens that the file lacks, with ids that no model has.
    absent = [token for token in tokenizer.all_special_tokens if token not in line_of]
    if absent:
        raise InputError(f"{file}: not a BERT vocabulary, it lacks {', '.join(absent)}.")
    return tokenizer


def check_same_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str, model: str | None, **options):
    """
    Raises:
        InputError: the tokenizer `name` has other ids for tokens than the one of `model`, or that cannot be loaded.
    """
    if model is None or model == name:
        return
    try:
        own = load_tokenizer(model, **options)
    except InputError:
        if tokenizer_files(model, **options):
            raise
        return  # it has none
    if own.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"{name}: its vocabulary ({len(tokenizer)} tokens) is not that of "
            f"{model} ({len(own)}), whose weights expect their own; leave `tokenizer_name` out."
        )


def tokenizer_files(model: str, revision: str | None = None, token: str | None = None, **_) -> list[str]:
    """
    Names from TOKENIZER_FILES that a directory or Hub id has.

    Raises:
        InputError: the Hub cannot be reached.
    """
    if Path(model).is_dir():
        return [name for name in TOKENIZER_FILES if Path(model, name).exists()]
    problem = "the Hub does not say whether it has a tokenizer of its own"
    with reading(model, "run the command again with the Hub in reach", problem):
        found = list_repo_files(model, revision=revision, token=token)
    return [name for name in TOKENIZER_FILES if name in found]


def trained_tokenizer(
    corpora: list[Corpus],
    vocab_size: int,
    do_lower_case: bool = True,
    share: float = 1.0,
    store_dir: str | Path | None = None,
) -> PreTrainedTokenizerBase:
    """
    BERT's WordPiece tokenizer with at most `vocab_size` tokens, trained on a share of the documents.

    Each training gives other ids to the tokens, so a trained tokenizer is kept in `store_dir` for the same corpora and
    settings. Only one process trains, others wait for it.

    Raises:
        InputError: a corpus cannot be read or has no text.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"{vocab_size}: no room for special tokens and letters; {SMALLEST_VOCABULARY} is the least.", "vocab_size"
        )
    readers = [CorpusReader(corpus) for corpus in corpora]
    store_dir = Path(store_dir or default_store_dir())
    contents = corpus_fingerprints(readers, store_dir)
    settings = (FORMAT, contents, vocab_size, do_lower_case, share, version("tokenizers"))
    folder = store_dir / f"tokenizer-{fingerprint_of(settings)}"
    with only_one_writes(folder):
        if not folder.exists():
            tokenizer = train(readers, vocab_size, do_lower_case, share)
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            tokenizer.save_pretrained(partial)
            partial.rename(folder)
    return AutoTokenizer.from_pretrained(folder)


def train(readers: list[CorpusReader], vocab_size: int, do_lower_case: bool, share: float) -> PreTrainedTokenizerBase:
    untrained = BertTokenizer(do_lower_case=do_lower_case)
    shortened = without_long_words(untrained)
    sources = ", ".join(reader.corpus.source for reader in readers)

    def trained(**options) -> PreTrainedTokenizerBase:
        texts = (shortened(text) for text in texts_of(readers) if in_share(text, share))
        first = next(texts, None)
        if first is None:
            reason = "the corpus is empty."
            if share < 1:
                reason = f"no text in a share of {share} of its documents; give a larger `tokenizer_train_share`."
            raise InputError(f"{sources}: {reason}")
        return untrained.train_new_from_iterator(chain([first], texts), vocab_size, show_progress=False, **options)

    tokenizer = trained()
    if len(tokenizer) > vocab_size:  # the trainer takes every character, at the beginning of words and inside
        inside, room = sum(token.startswith("##") for token in tokenizer.get_vocab()), vocab_size - len(untrained)
        tokenizer = trained(limit_alphabet=max(room // 2, room - inside))
    if len(tokenizer) == len(untrained):
        raise InputError(
            f"{sources}: all words have more than {LONGEST_WORD} characters; put blanks between their parts."
        )
    return tokenizer


def without_long_words(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """A function that leaves out the words of a text that WordPiece never looks into. Training on one takes hours."""
    backend = tokenizer.backend_tokenizer
    long = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")

    def short_words(run: re.Match) -> str:
        words = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(run[0]))
        return " ".join(word for word, _ in words if len(word) <= LONGEST_WORD)

    return lambda text: long.sub(short_words, text)


def texts_of(readers: list[CorpusReader]) -> Iterator[str]:
    """The documents that are not empty, with a progress bar."""
    for document, _ in all_documents(readers, "Training a tokenizer"):
        text = document if isinstance(document, str) else "\n".join(document)
        if text and not text.isspace():
            yield text


def in_share(text: str, share: float) -> bool:
    """Whether a text is in the share to train on: always the same texts, spread over the corpus."""
    return share >= 1 or zlib.crc32(text[:1000].encode()) < share * 2**32
