"""Conversion of a whole checkpoint into a new directory: weights, tokenizer, sentence pooling and card."""

import logging
import os
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..counts import head_counts, head_sizes, neuron_counts, size_text, value_head_sizes
from ..data.tokenizers import TOKENIZER_FILES, check_size, load_tokenizer, tokenizer_files
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import checkpoint_card, read_card
from ..support.arguments import checked
from ..support.errors import InputError
from ..support.files import new_directory, read_object, reading, reason_of
from . import growing
from .checkpoints import SENTENCE_FILES, files_of, is_tensorflow, load_bert, model_directory
from .families import fixed_head_config
from .to_bert import to_bert

logger = logging.getLogger(__name__)

CARD = "README.md"
IDS = re.compile(r"[\w.-]+(/[\w.-]+)?")
ACCEPTED = {  # fields of a card that are true of converted weights too, with what the Hub takes as their value
    "license": re.compile(r"[a-z0-9.+-]+"),
    "license_name": re.compile(r".+"),
    "license_link": re.compile(r".+"),
    "language": re.compile(r"[a-z]{2,3}|code|multilingual"),
    "datasets": IDS,
    "base_model": IDS,
}


@checked
def convert(  # noqa: PLR0913  the options of the command
    model: str | Path | PreTrainedModel,
    output_dir: str | Path | None = None,
    attention_head_size: int | list[int] | None = None,
    num_attention_heads: int | list[int] | None = None,
    num_hidden_layers: int | None = None,
    value_head_size: int | list[int] | None = None,
    intermediate_size: int | list[int] | None = None,
    bert: bool = False,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
    do_lower_case: bool | None = None,
    architecture: str | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> PreTrainedModel:
    """
    Give a BERT larger heads, more heads or wider feed-forward networks, with the same function.

    Args:
        model: a model, or the directory or Hub id of one: BERT, RoBERTa and its like, DistilBERT, ELECTRA or
            FixedHeadBert.
        output_dir: a new directory for the result, with its tokenizer and a card.
        attention_head_size, num_attention_heads, num_hidden_layers, value_head_size, intermediate_size: sizes of
            `fixedbert.conversion.growing.convert`.
        bert: make a BERT of a FixedHeadBert instead.
        seed: for the random numbers in what is new.
        tokenizer: of a model in memory, for `output_dir`.
        do_lower_case: whether the tokenizer lowers letters; by default as it says.
        architecture: class of a checkpoint whose config.json names none of transformers.
        revision, cache_dir, token: for a model on the Hub.

    Returns:
        The new model. With `output_dir` a sentence is printed with both shapes and the difference between the outputs.

    Raises:
        InputError: no such model, a size below its own, or an `output_dir` that is not empty.
    """
    sizes: dict[str, Any] = {
        "attention_head_size": attention_head_size,
        "num_attention_heads": num_attention_heads,
        "num_hidden_layers": num_hidden_layers,
        "value_head_size": value_head_size,
        "intermediate_size": intermediate_size,
    }
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    if output_dir is None:
        for name, given in (("tokenizer", tokenizer), ("do_lower_case", do_lower_case)):
            if given is not None:
                raise InputError("is for a new directory: give `output_dir` too.", name)
        found = model if isinstance(model, PreTrainedModel) else load_bert(model, architecture, **hub_options)
        return resized(found, bert, seed, **sizes)
    with new_directory(output_dir) as folder, model_directory(model, tokenizer) as source:
        found = load_bert(source, architecture, **hub_options)
        try:
            new = resized(found, bert, seed, **sizes)
            if new.config.num_hidden_layers == found.config.num_hidden_layers:
                difference = f"largest difference of outputs {check_same_function(found, new):.1g}"
            else:
                difference = "not the same function"
            done = f"{shape_of(found)} -> {shape_of(new)}; {difference}"
        except (RuntimeError, ValueError, OverflowError) as error:  # of a shape, of memory, of a seed
            raise InputError(f"{source}: {reason_of(error)}") from error
        del found
        new.save_pretrained(folder)
        origin, metadata = copy_beside(source, files_beside(source, **hub_options), folder, do_lower_case)
        making, count = f"Converted from `{origin}`: {done}.", new.num_parameters()
        names = (type(new).__name__, Path(output_dir).name)
        checkpoint_card(new.config, *names, making, count=count, **metadata).save(folder / CARD)
    PartialState().print(done)
    return new


def resized(model: PreTrainedModel, bert: bool, seed: int, **sizes: Any) -> PreTrainedModel:
    """The model with other sizes, as a FixedHeadBert or as a BERT."""
    if bert and not isinstance(model, FixedHeadBertPreTrainedModel):
        raise InputError(f"of the type {model.config.model_type}; only a FixedHeadBert can become a BERT again.")
    unchanged = bert and all(size is None for size in sizes.values())
    larger = model if unchanged else growing.convert(model, **sizes, seed=seed)
    return to_bert(larger) if bert else larger


def shape_of(model: PreTrainedModel) -> str:
    config = fixed_head_config(model.config)
    sizes = value_head_sizes(config)
    values = "" if sizes == head_sizes(config) else f" with values of {size_text(sizes)}"
    return (
        f"{type(model).__name__}, {config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{size_text(head_counts(config))} heads of {size_text(head_sizes(config))}{values}, feed-forward "
        f"{size_text(neuron_counts(config))}, {model.num_parameters() / 1e6:.1f} M parameters"
    )


@torch.no_grad()
def check_same_function(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """The largest difference between the models' outputs for two texts of 16 random tokens: rounding, or an error."""
    config = one.config
    length = min(16, other.config.max_position_embeddings)
    shape = (2, 2, length) if "MultipleChoice" in type(one).__name__ else (2, length)
    ids = torch.randint(config.vocab_size - 1, shape, generator=torch.Generator().manual_seed(0))
    ids += ids >= (config.pad_token_id or 0)  # RoBERTa gives padding no position
    options = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
    outputs = (model.eval()(input_ids=ids, **options).to_tuple() for model in (one, other))
    pairs = [(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, torch.Tensor)]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    if not difference <= 100 * torch.finfo(one.dtype).eps * max(1, largest):
        raise InputError(f"outputs up to {largest:.3g} differ by {difference:.3g} after conversion.")
    return difference


def files_beside(source: str | Path, **hub_options) -> Path:
    """The folder of the small files beside the weights, downloaded where it is on the Hub."""
    if Path(source).is_dir():
        return Path(source)
    if is_tensorflow(source):
        return Path(source).parent
    patterns = [*SENTENCE_FILES, *TOKENIZER_FILES, "config.json", CARD]
    remedy = "check its name and the connection to the Hub"
    with reading(source, remedy, "the files beside the weights cannot be downloaded"):
        return Path(snapshot_download(str(source), allow_patterns=patterns, **hub_options))


def copy_beside(
    source: str | Path, beside: Path, folder: Path, do_lower_case: bool | None = None
) -> tuple[str, dict[str, Any]]:
    """
    Copy tokenizer and pooling of sentences from `beside` the weights of `source` into `folder`.

    Returns:
        For a card, the name of the source, without a path of this machine, and what the source's card says.
    """
    copy_tokenizer(beside, folder, do_lower_case)
    copy_sentence_modules(beside, folder)
    metadata = metadata_of(beside)
    if Path(source).exists() or is_tensorflow(source):
        return Path(source).name, metadata
    return str(source), metadata | {"base_model": str(source)}


def copy_tokenizer(source: Path, folder: Path, do_lower_case: bool | None):
    """Save a tokenizer beside the model in `folder`, which needs embeddings for all of its tokens."""
    files = tokenizer_files(str(source))
    if not files:
        logger.warning("%s has no tokenizer, so the new directory has none.", source)
        return
    bare = is_tensorflow(source) or (
        files == ["vocab.txt"] and "model_type" not in read_object(source / "config.json", "copy it again")
    )  # of a BERT, though nothing says so
    vocabulary = source / "vocab.txt" if bare else source
    tokenizer = load_tokenizer(str(vocabulary), do_lower_case, trust_remote_code=False)
    check_size(tokenizer, read_object(folder / "config.json", "convert it again")["vocab_size"], source)
    tokenizer.save_pretrained(folder)


def copy_sentence_modules(source: Path, folder: Path):
    """The files that tell sentence-transformers how to pool the encoder's output."""
    if not (source / "modules.json").is_file():
        return
    for file in files_of(source):
        name = file.relative_to(source).as_posix()
        if file.is_file() and any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, folder / name)


def accepted_by_hub(field: str, value: object) -> str | None:
    """A value of a card's metadata in the form that the Hub takes, None if there is none."""
    if field == "language" and value is False:  # "no" in YAML
        return "no"
    text = str(value).strip() if isinstance(value, str) else ""
    if field in ("license", "language"):
        text = text.lower().replace(" ", "-")
    if field == "language" and text not in ("code", "multilingual"):
        text = re.sub("[-_].*", "", text)  # a region or a script
    return text if ACCEPTED[field].fullmatch(text) and text.lower() not in ("noinfo", "none", "null", "nan") else None


def metadata_of(source: Path) -> dict:
    """Fields of the source's card that are true of converted weights too."""
    card = source / CARD
    if not os.path.lexists(card):
        return {}
    try:
        data = read_card(card).data
    except InputError as error:
        logger.warning("%s The new card does not have its licence, language and data sets.", error)
        return {}
    found: dict[str, Any] = {}
    for name in ACCEPTED:
        value = data.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        kept = [accepted_by_hub(name, one) for one in values]
        for old, new in zip(values, kept, strict=True):
            if old != new or new is None:
                change = f"becomes {new!r}" if new else "is left out"
                PartialState().print(f"{card}: {name} {old!r} {change}, as the Hub does not take it")
        if taken := [one for one in dict.fromkeys(kept) if one]:
            found[name] = taken if isinstance(value, list) else taken[0]
    if (source / "modules.json").is_file():
        found |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
        found["tags"] = ["sentence-transformers", "sentence-similarity"]
    return found
