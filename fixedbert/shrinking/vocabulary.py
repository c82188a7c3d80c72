"""
A smaller vocabulary: the tokens that a text uses, with the tokenizer and the model of these alone.

The text has the same tokens as before, and so the same outputs. Any other text is split into more pieces, none of them
unknown that was not, because all single characters stay:

- WordPiece takes the longest token that fits, which is among those that stay. A character has two tokens, at the
  beginning of a word and within.
- BPE merges characters in the order of its list. A token needs all tokens that it is merged from, and a merge stays
  where the token that it makes does.
- Unigram takes the most probable pieces. The lowest score, by which the unknown token is weighed, stays too.

A token with a character that has no token of its own stays as well.
"""

import copy
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..conversion.checkpoints import load_bert
from ..conversion.convert import CARD, copy_beside, files_beside
from ..conversion.families import build
from ..conversion.growing import convert
from ..data.corpus_files import corpus_files
from ..data.encoding import encode
from ..data.readers import DAMAGED, DataFile, why_no_text
from ..data.tokenizers import tokenizer_files
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError
from ..support.files import json_text, new_directory, output_path, read_object
from .rows import Rows
from .text import RESULTS, Vocabulary, shown, vocabulary_text

BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token for one byte of a character that has none
BATCH = 1000  # texts
ROWS = ("word_embeddings.weight", "predictions.bias", "predictions.decoder.weight", "predictions.decoder.bias")
PROMPTS = "config_sentence_transformers.json"  # what sentence-transformers puts before texts
TOKENIZER, SAVE_AGAIN = "tokenizer.json", "save the tokenizer again"


@dataclass(frozen=True)
class Text:
    """
    The text whose tokens stay, read anew by each iteration: lines of .txt, and all strings in the rows of other files
    but those called id.

    Args:
        files: files, folders or globs.
        rows: whose text it is too, all of it.
    """

    files: list[str]
    rows: Rows | None = None

    def __post_init__(self):
        if not self.files and self.rows is None:
            raise InputError("needs files with text, or `task_name` or `train_file`.", "vocabulary")

    @cached_property
    def of_task(self) -> list[str]:
        if self.rows is None or self.rows.task_name is None:
            return []
        return [text for texts in self.rows.raw_texts() for text in texts]

    def __iter__(self) -> Iterator[str]:
        yield from self.of_task
        files = [*self.files, *((self.rows and self.rows.files) or ())]
        for file in (DataFile(path, whole=False) for pattern in files for path in corpus_files(pattern)):
            for number, values, problem in file.rows():
                texts = [*strings_in(values)]
                problems = filter(None, [problem, *(why_no_text(text, "a text") for text in texts)])
                if found := next(problems, None):
                    raise InputError(f"{file.place(number)}: {found}; {DAMAGED}.")
                yield from texts


def strings_in(value: object) -> Iterator[str]:
    """The strings in a value, and in its lists and objects, but those called id."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        inner = value if isinstance(value, list) else [one for name, one in value.items() if name != "id"]
        yield from (text for one in inner for text in strings_in(one))


def shrink_vocabulary(
    model: str | Path, output_dir: str | Path | None, text: Text, do_lower_case: bool | None = None, **hub_options
) -> Vocabulary:
    """
    Leave a model with the tokens of a text, and write it into a new directory as a FixedHeadBert, with its tokenizer,
    a card and shrinking.json. Its outputs for the text stay the same.

    Args:
        model: directory or Hub id of one that `load_bert` takes.
        do_lower_case: as in `load_tokenizer`; a TensorFlow checkpoint does not say.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no such model, a tokenizer that cannot be cut, or a file that cannot be read.
    """
    name = output_path(output_dir).name
    with new_directory(output_dir) as folder:
        found, beside = load_bert(model, **hub_options), files_beside(model, **hub_options)
        if not tokenizer_files(str(beside)):
            raise InputError(f"{model}: there is no tokenizer in it; save the model's there.")
        fixed = found if isinstance(found, FixedHeadBertPreTrainedModel) else convert(found)
        fixed.config.save_pretrained(folder)
        origin, metadata = copy_beside(model, beside, folder, do_lower_case)
        cut, left = cut_vocabulary(fixed, folder, text)
        cut.save_pretrained(folder)
        written = {"model": shown(str(model)), "vocabulary": left.fields()}
        (folder / RESULTS).write_text(json_text(written, indent=1) + "\n")
        names, making = (type(cut).__name__, name), f"Made of `{origin}`: {vocabulary_text(left)}"
        checkpoint_card(cut.config, *names, making, count=cut.num_parameters(), **metadata).save(folder / CARD)
    return replace(left, folder=str(output_dir))


def cut_vocabulary(
    model: FixedHeadBertPreTrainedModel, folder: Path, text: Text
) -> tuple[FixedHeadBertPreTrainedModel, Vocabulary]:
    """
    A model with the tokens of a text alone. The tokenizer in `folder` is replaced by one of these tokens.

    Raises:
        InputError: a tokenizer of another kind, or one that would read the text differently; or no text.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_kind(tokenizer)
    parts = read_object(folder / TOKENIZER, SAVE_AGAIN)
    ids = tokenizer.get_vocab()
    prompts = read_object(folder / PROMPTS, "remove it").get("prompts") if (folder / PROMPTS).is_file() else []
    used, seen = read(tokenizer, chain(strings_in(prompts), text), [*range(max(ids.values()) + 1)])
    if not used:
        raise InputError("there is no text in the files.", "vocabulary")
    special = {token["id"] for token in parts["added_tokens"]} | special_ids(model)
    kept = sorted(used | special | tokens_that_stay(parts["model"], used))
    new_ids = {old: new for new, old in enumerate(kept)}
    renumber_tokenizer(parts, new_ids)
    (folder / TOKENIZER).write_text(json_text(parts, ensure_ascii=False), encoding="utf-8")
    smaller = AutoTokenizer.from_pretrained(folder)
    same = json.loads(smaller.backend_tokenizer.to_str())["model"] == parts["model"]
    same &= smaller.get_vocab() == {token: new_ids[old] for token, old in ids.items() if old in new_ids}
    if not same or read(smaller, chain(strings_in(prompts), text), kept)[1] != seen:
        raise InputError("is impossible: a tokenizer of its tokens alone reads the text differently.", "vocabulary")
    cut = with_tokens(model, new_ids)
    before, after = (sum(x.numel() * x.element_size() for x in one.parameters()) for one in (model, cut))
    parameters = (model.num_parameters(), cut.num_parameters())
    return cut, Vocabulary(len(used), (len(ids), len(smaller)), parameters, (before, after))


def check_kind(tokenizer: PreTrainedTokenizerBase):
    """Refuse a tokenizer that is not of the three kinds above."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # not one in Python
    kind = type(tokenizer if backend is None else backend.model).__name__
    if kind not in ("WordPiece", "BPE", "Unigram"):
        raise InputError(f"is for the tokens of WordPiece, BPE and Unigram, and these are of {kind}.", "vocabulary")


def read(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], old_ids: list[int]) -> tuple[set[int], str]:
    """The tokens of texts by `old_ids`, and a hash of all of these in their order."""
    old, digest = np.array(old_ids), hashlib.sha256()
    used: set[int] = set()
    left = iter(tqdm(texts, desc="Tokens of the text", unit=" texts", disable=None))
    while batch := [*islice(left, BATCH)]:
        rows = encode(tokenizer, batch, return_attention_mask=False, verbose=False)["input_ids"]
        ids = old.take([*chain.from_iterable(rows)], mode="clip")  # what is no id is seen by the hash
        used.update(np.unique(ids).tolist())
        digest.update(ids.tobytes())
    return used, digest.hexdigest()


def tokens_that_stay(model: dict[str, Any], used: set[int]) -> set[int]:
    """The ids of the tokens that a tokenizer's model needs, beside special ones, to give the `used` tokens again."""
    kind, pieces = model["type"], model["vocab"]
    ids = {token: number for number, (token, _) in enumerate(pieces)} if kind == "Unigram" else pieces
    kept = {token for token, number in ids.items() if number in used or token == model.get("unk_token")}
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    kept |= {x for x in ids if len(x.removeprefix(prefix).removesuffix(suffix)) <= 1 or BYTE.fullmatch(x)}
    if kind == "BPE":
        return {ids[token] for token in with_parts(kept, model["merges"], prefix)}
    kept |= {token for token in ids if not characters(token, prefix) <= ids.keys()}
    found = {ids[token] for token in kept}
    if kind == "Unigram":
        lowest = min(range(len(pieces)), key=lambda number: pieces[number][1])
        found |= {lowest} if model["unk_id"] is None else {lowest, model["unk_id"]}
    return found


def characters(token: str, prefix: str) -> set[str]:
    """The tokens of the characters of a token; `prefix` is before those within a word."""
    word = token.removeprefix(prefix)
    return {token[: len(token) - len(word) + 1], *(prefix + character for character in word[1:])}


def with_parts(tokens: set[str], merges: list[list[str]], prefix: str) -> set[str]:
    """Tokens of BPE, and all that they are merged from, in whatever way."""
    parts: dict[str, set[str]] = defaultdict(set)
    for one, other in merges:
        parts[one + other[len(prefix) :]] |= {one, other}
    found, left = set(tokens), [*tokens]
    while left:
        new = parts[left.pop()] - found
        found |= new
        left += new
    return found


def renumber_tokenizer(parts: dict[str, Any], new_ids: dict[int, int]):
    """Leave the tokens with `new_ids`, by their old ones, in the content of a tokenizer.json."""
    model = parts["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [piece for number, piece in enumerate(model["vocab"]) if number in new_ids]
        model["unk_id"] = new_ids.get(model["unk_id"])
    else:
        model["vocab"] = {token: new_ids[old] for token, old in model["vocab"].items() if old in new_ids}
    if model["type"] == "BPE":
        start, tokens = len(model["continuing_subword_prefix"] or ""), model["vocab"]
        model["merges"] = [[one, other] for one, other in model["merges"] if one + other[start:] in tokens]
    for token in parts["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    parts["padding"] = None  # transformers sets it with each call
    processor = parts.get("post_processor") or {}
    for one in (processor, *processor.get("processors", ())):
        for token in one.get("special_tokens", {}).values():
            token["ids"] = [new_ids[old] for old in token["ids"]]
        one |= {role: [one[role][0], new_ids[one[role][1]]] for role in ("sep", "cls") if role in one}


def special_ids(model: FixedHeadBertPreTrainedModel) -> set[int]:
    """The ids of tokens that a model's settings name."""
    found = (one for settings in settings_of(model) for one in ids_by_field(settings).values())
    ids = {number for one in found for number in (one if isinstance(one, list) else [one])}
    return ids & {*range(model.config.vocab_size)}


def settings_of(model: FixedHeadBertPreTrainedModel) -> list[Any]:
    return [model.config, model.generation_config] if model.can_generate() else [model.config]


def ids_by_field(settings: Any) -> dict[str, int | list[int]]:
    return {name: x for name, x in vars(settings).items() if name.endswith("_token_id") and x is not None}


def renumber(settings: Any, new_ids: dict[int, int]):
    for name, x in ids_by_field(settings).items():
        setattr(settings, name, [*map(new_ids.get, x)] if isinstance(x, list) else new_ids.get(x))


def with_tokens(model: FixedHeadBertPreTrainedModel, new_ids: dict[int, int]) -> FixedHeadBertPreTrainedModel:
    """A model with the embeddings of the tokens with `new_ids` alone, and with their predictions if it has any."""
    config, rows = copy.deepcopy(model.config), torch.tensor([*new_ids], device=model.device)
    config.vocab_size = len(rows)
    renumber(config, new_ids)
    tensors = {name: x[rows] if name.endswith(ROWS) else x for name, x in model.state_dict().items()}
    cut = build(type(model), config, tensors, model).eval()
    if cut.can_generate():
        renumber(cut.generation_config, new_ids)
    return cut
