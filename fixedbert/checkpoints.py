"""Checkpoints of BERT in the formats there are: read, converted, and written as a directory like any other."""

import logging
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from pickle import UnpicklingError

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_fixed_head_bert
from .analysis.counts import head_sizes, size_text
from .conversion import FAMILIES, build, convert, fixed_head_config, head_of, to_bert
from .data.tokenizers import TOKENIZER_FILES, load_tokenizer, tokenizer_files
from .errors import InputError
from .files import check_place, check_regular, read_object, reading, reason_of
from .model_card import checkpoint_card, read_card
from .tensorflow_checkpoint import listed, read_bert
from .training.output import new_directory

logger = logging.getLogger(__name__)

CARD = "README.md"
HEADS_BY_PART = {"seq_relationship": "ForPreTraining", "cls.": "ForMaskedLM", "lm_head": "ForMaskedLM"}
# What makes a sentence-transformers model of an encoder: how tokens are pooled, and how long a text can be.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")


def read_config(source: str | Path, **options) -> PreTrainedConfig:
    """
    The configuration of a directory or Hub id, for all that read a model. It never decides which attention computes:
    a name there can be that of a kernel on the Hub, which transformers would fetch and run.

    Args:
        options: those of from_pretrained.
    """
    config = AutoConfig.from_pretrained(source, **{"trust_remote_code": False} | options)
    config._attn_implementation = None
    return config


def files_of(source: Path) -> Iterator[Path]:
    """What is read of a model's directory: all that is directly in it, and the modules of sentence-transformers."""
    for file in source.rglob("*"):
        name = file.relative_to(source).as_posix()
        if "/" not in name or any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            yield file


def check_inside(source: Path):
    """
    Raises:
        InputError: a link, or an entry of an index, leads out of the directory. Links of the Hub's cache lead to its
            blobs.
    """
    home = os.path.realpath(source)  # of a link to itself, the link
    home = Path(home).parent.parent if Path(home).parent.name == "snapshots" else Path(home)
    for file in files_of(source):
        if not Path(os.path.realpath(file)).is_relative_to(home):
            raise InputError(f"{file}: a link out of the directory is not followed; copy the file there.")
    for index in source.glob("*.index.json"):
        weight_map = read_object(index, "get it anew").get("weight_map")
        for name in weight_map.values() if isinstance(weight_map, dict) else [None]:
            if not isinstance(name, str) or Path(name).name != name:
                raise InputError(f"{index}: weight_map names no file beside it ({str(name)[:100]}); get it anew.")


def load_bert(source: str | Path, **hub_options) -> PreTrainedModel:
    """
    The model that can be converted in a directory or on the Hub, with the head that it was saved with.

    transformers' checkpoints in safetensors, or in pytorch_model.bin, of which nothing but tensors is read; Google's
    in TensorFlow's format (bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001).

    Args:
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no BERT, or a file that is damaged or has too few, too many or wrongly shaped tensors.
    """
    check_regular(source)
    if is_tensorflow(source):
        return build(transformers.BertForPreTraining, *read_bert(Path(source)))
    check_place(str(source))
    if Path(source).is_dir():
        check_inside(Path(source))
        if (Path(source) / "adapter_config.json").exists():  # names another model, which transformers would load
            raise InputError(f"{source}: an adapter; merge it into its model first, by PEFT's merge_and_unload.")
    try:
        config = read_config(source, **hub_options)
        fixed_head_config(config)
        architecture = (config.architectures or [f"{FAMILIES[config.model_type]}Model"])[0]
        head_of(architecture, config.model_type)
        model, unexpected = load_tensors(architecture, source, config, **hub_options)
        # Some hold two heads and name one in config.json, or hold one and name none: Google's own uploads do.
        for part, head in HEADS_BY_PART.items():
            if any(part in key for key in unexpected):
                architecture = f"{FAMILIES[config.model_type]}{head}"
                model, unexpected = load_tensors(architecture, source, config, **hub_options)
                break
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    except UnpicklingError as error:
        raise InputError(f"{source}: the pickle is damaged or holds more than tensors; it was not run.") from error
    except SafetensorError as error:
        raise InputError(f"{source}: the weights are damaged or not whole ({error}).") from error
    except Exception as error:  # every unusable value and damaged file has its own
        raise InputError(f"{source}: no BERT can be read from it: {reason_of(error)}") from error
    if unexpected:
        raise InputError(f"{source}: a {architecture}, as config.json says, has no place for {listed(unexpected)}.")
    return model


def load_tensors(
    architecture: str, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of the tensors for which it has no place."""
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    options = {"config": config, "dtype": "auto", "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, loaded = getattr(library, architecture).from_pretrained(source, **options, **hub_options)
    missing = sorted(loaded["missing_keys"])
    if missing and architecture.endswith("Model") and all("pooler" in key for key in missing):
        model, loaded = getattr(library, architecture).from_pretrained(
            source, add_pooling_layer=False, **options, **hub_options
        )
        missing = []
    for key, there, wanted in sorted(loaded["mismatched_keys"]):
        raise InputError(f"{key} has the shape {tuple(there)} where config.json asks for {tuple(wanted)}.")
    if missing:
        raise InputError(f"there are no weights for {listed(missing)}; the file is not whole, or of another model.")
    return model, sorted(loaded["unexpected_keys"])


def is_tensorflow(source: str | Path) -> bool:
    return Path(f"{source}.index").is_file() or any(Path(source).glob("*.index"))


def convert_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    attention_head_size: int | list[int] | None = None,
    num_attention_heads: int | None = None,
    num_hidden_layers: int | None = None,
    bert: bool = False,
    seed: int = 0,
    do_lower_case: bool = True,
    **hub_options,
) -> str:
    """
    Convert a checkpoint, with its tokenizer and, of a sentence-transformers model, its pooling, into a new directory.

    Args:
        bert: convert a FixedHeadBert to transformers' BERT instead.
        do_lower_case: of the tokenizer of a TensorFlow checkpoint, which does not say.

    Returns:
        What was done, in a sentence, with the largest difference that was found between the two models.

    Raises:
        InputError: as `load_bert`, `convert` and `to_bert`; or `output_dir` is there and not empty.
    """
    with new_directory(output_dir) as folder:
        model = load_bert(source, **hub_options)
        if bert and model.config.model_type != "fixed_head_bert":
            raise InputError(
                f"{source}: it is a {model.config.model_type} model; only a FixedHeadBert goes back to BERT."
            )
        if isinstance(attention_head_size, list) and len(attention_head_size) == 1:
            (attention_head_size,) = attention_head_size
        sizes = attention_head_size, num_attention_heads, num_hidden_layers
        try:
            grow = not bert or any(size is not None for size in sizes)
            converted = convert(model, *sizes, seed=seed) if grow else model
            converted = to_bert(converted) if bert else converted
            if converted.config.num_hidden_layers == model.config.num_hidden_layers:
                found = f"largest difference of outputs {check_same_function(model, converted):.1g}"
            else:
                found = "not the same function"
        except (RuntimeError, ValueError, OverflowError) as error:  # of a shape, of memory, of a seed
            raise InputError(f"{source}: {reason_of(error)}") from error
        done = f"{shape_of(model)} -> {shape_of(converted)}; {found}"
        del model
        converted.save_pretrained(folder)
        beside = files_beside(source, **hub_options)
        copy_tokenizer(beside, folder, do_lower_case)
        copy_sentence_modules(beside, folder)
        origin = {} if Path(source).exists() or is_tensorflow(source) else {"base_model": str(source)}
        card = checkpoint_card(
            converted.config,
            type(converted).__name__,
            Path(output_dir).name,
            making=f"Converted from `{source if origin else Path(source).name}`: {done}.",
            count=converted.num_parameters(),
            **metadata_of(beside) | origin,
        )
        card.save(folder / CARD)
    return done


def shape_of(model: PreTrainedModel) -> str:
    config = model.config
    return (
        f"{type(model).__name__}, {config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} heads of {size_text(head_sizes(config))}, "
        f"{model.num_parameters() / 1e6:.1f} M parameters"
    )


@torch.no_grad()
def check_same_function(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """
    The largest difference between any two outputs of the models for the same two texts of 16 random tokens.

    Raises:
        InputError: it is more than rounding, or no number, as where weights are not.
    """
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
    with reading(
        source, "look whether it is there, and the Hub in reach", "the files beside the weights cannot be had"
    ):
        return Path(snapshot_download(str(source), allow_patterns=patterns, **hub_options))


def copy_tokenizer(source: Path, folder: Path, do_lower_case: bool):
    if not tokenizer_files(str(source)):
        logger.warning("%s has no tokenizer, and the new directory none.", source)
    elif is_tensorflow(source):
        load_tokenizer(str(source / "vocab.txt"), do_lower_case).save_pretrained(folder)
    else:
        load_tokenizer(str(source), trust_remote_code=False).save_pretrained(folder)


def copy_sentence_modules(source: Path, folder: Path):
    """Of a sentence-transformers model, what it does with the encoder's output."""
    if is_tensorflow(source) or not (source / "modules.json").is_file():
        return
    for file in files_of(source):
        name = file.relative_to(source).as_posix()
        if file.is_file() and any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, folder / name)


def metadata_of(source: Path) -> dict:
    """What the card there says that holds for all that is made of its weights."""
    if not os.path.lexists(source / CARD):
        return {}
    try:
        data = read_card(source / CARD).data
    except InputError as error:
        logger.warning("%s The new card has no licence, language and data sets of it.", error)
        return {}
    carried = ("license", "license_name", "license_link", "language", "datasets", "base_model")
    found = {name: data.get(name) for name in carried if data.get(name)}
    if (source / "modules.json").is_file():
        found |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
        found["tags"] = ["sentence-transformers", "sentence-similarity"]
    return found
