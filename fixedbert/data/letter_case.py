"""Case and accents: what the files of a tokenizer say of them, and whether its vocabulary is of that kind."""

import codecs
import json
import re
from pathlib import Path

from accelerate import PartialState
from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedTokenizerBase

from ..support.errors import InputError
from ..support.files import read_object, reading
from .readers import lines_of

# What tokenizer.json calls the settings of BERT's normalizer, and what tokenizer_config.json and BertTokenizer do.
SETTINGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
REMEDY = "give the tokenizer that belongs to the model"
NAMED = 0.001  # of a vocabulary; BERT's has fewer tokens that it never gives
MOST_UNREACHABLE = 0.05
SHOWN = 3  # examples


def file_of(name: str, file: str, revision: str | None = None, cache_dir: str | None = None, **_) -> Path | None:
    """A file of a directory, or of the cache of the Hub; None if it is not there."""
    if Path(name).is_dir():
        return Path(name, file) if Path(name, file).is_file() else None
    found = try_to_load_from_cache(name, file, cache_dir=cache_dir, revision=revision)
    return Path(found) if isinstance(found, str) else None


def settings_of_tokenizer_json(name: str, do_lower_case: bool | None, **options) -> dict[str, bool]:
    """
    The settings of BERT's normalizer that tokenizer.json has and tokenizer_config.json has not. transformers 5 ignores
    them: it would lower-case the text of a cased tokenizer.json.

    Args:
        do_lower_case: what is asked for, whatever the files say.
        options: of from_pretrained.

    Raises:
        InputError: the two files disagree.
    """
    paths = [file_of(name, file, **options) for file in ("tokenizer.json", "tokenizer_config.json")]
    tokenizer, config = (read_object(path, REMEDY) if path else {} for path in paths)
    normalizer = tokenizer.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return {}
    asked = {"do_lower_case"} if do_lower_case is not None else set()
    found = {
        key: normalizer[key] for key in SETTINGS if normalizer.get(key) is not None and SETTINGS[key] not in asked
    }
    for key, value in found.items():
        if config.get(SETTINGS[key]) not in (None, value):
            raise InputError(
                f"{name}: {SETTINGS[key]} is {config[SETTINGS[key]]} in tokenizer_config.json, and {key} is {value} "
                "in tokenizer.json; correct the one that is not the model's."
            )
    return {SETTINGS[key]: value for key, value in found.items() if config.get(SETTINGS[key]) is None}


def has_settings(tokenizer: PreTrainedTokenizerBase, settings: dict[str, bool]) -> bool:
    """Whether a tokenizer has these, or is none whose settings BertTokenizer's arguments change."""
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"] or {}
    given = {key: settings[setting] for key, setting in SETTINGS.items() if setting in settings}
    return normalizer.get("type") != "BertNormalizer" or normalizer | given == normalizer


def tokens_of_file(file: Path) -> list[str]:
    """The lines of a vocab.txt, without blank ones at the end."""
    with reading(file, "give a vocabulary with one token a line, in UTF-8"), open(file, "rb") as stream:
        return "".join(lines_of(stream, file)).rstrip("\n").split("\n")


def check_vocabulary_files(name: str, **options):
    """
    Raises:
        InputError: a directory has a tokenizer.json, which is read, and beside it a vocab.txt with other tokens; or a
            vocab.txt alone that begins with a byte order mark, which transformers takes for a part of the first token.
    """
    content_file, vocabulary_file = (file_of(name, file, **options) for file in ("tokenizer.json", "vocab.txt"))
    if vocabulary_file is None:
        return
    if content_file is None and vocabulary_file.read_bytes().startswith(codecs.BOM_UTF8):
        raise InputError(f"{vocabulary_file}: begins with a byte order mark, in its first token; remove the mark.")
    content = read_object(content_file, REMEDY) if content_file else {}
    model = content.get("model") or {}
    if model.get("type") != "WordPiece":
        return
    lines = {token: number for number, token in enumerate(tokens_of_file(vocabulary_file))}
    added = {"", *(token["content"] for token in content.get("added_tokens") or [])}
    tokens = {**lines, **model["vocab"]}.keys() - added
    if differing := sorted(token for token in tokens if lines.get(token) != model["vocab"].get(token)):
        raise InputError(
            f"{name}: vocab.txt has other tokens than tokenizer.json, {len(differing):,} of them, such as "
            f"{differing[0]!r}; remove the file that is not the model's."
        )


def check_case(name: str, tokenizer: PreTrainedTokenizerBase, do_lower_case: bool | None):
    """
    Print which tokens a WordPiece vocabulary has in vain, because of case or accents.

    Args:
        do_lower_case: what was asked for; None if nothing was.

    Raises:
        InputError: the tokenizer does not do what was asked for; or, unasked, changes case or accents of many of its
            tokens.
    """
    backend = tokenizer.backend_tokenizer
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    lowers = normalize("A") == "a"
    if do_lower_case is not None and lowers != do_lower_case:
        raise InputError(
            f"{name}: `do_lower_case` {str(do_lower_case).lower()} (`cased`) cannot be kept: the tokenizer is not "
            "BERT's own, and has no such setting; leave it out."
        )
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "WordPiece":
        return
    special = set(tokenizer.all_special_tokens)
    words = {
        token: token.removeprefix(model["continuing_subword_prefix"])
        for token in model["vocab"]
        if token not in special and not re.fullmatch(r"\[.+\]", token)  # [unused0] and the like are no text
    }
    never = [token for token, word in words.items() if normalize(word).replace(" ", "") != word.replace(" ", "")]
    share = len(never) / max(len(words), 1)
    examples = ", ".join(map(repr, never[:SHOWN]))
    if share > MOST_UNREACHABLE and do_lower_case is None:
        raise InputError(
            f"{name}: the tokenizer changes case or accents, so that {share:.0%} of its tokens never come, such as "
            f"{examples}; give `do_lower_case` false (`cased` for convert and shrink), or set do_lower_case and "
            "strip_accents in its tokenizer_config.json."
        )
    if share > NAMED:
        PartialState().print(
            f"{name}: {len(never):,} of {len(words):,} tokens never come, such as {examples}, because the tokenizer "
            "changes case or accents"
        )
