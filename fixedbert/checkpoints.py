"""Checkpoints of BERT in the formats there are: read, converted, and written as a directory like any other."""

import logging
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from pickle import UnpicklingError

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_fixed_head_bert
from .analysis.counts import head_size
from .conversion import FAMILIES, build, convert, fixed_head_config, to_bert
from .data.tokenizers import load_tokenizer
from .errors import InputError
from .model_card import checkpoint_card, read_card
from .tensorflow_checkpoint import read_bert
from .training.output import new_directory

logger = logging.getLogger(__name__)

CARD = "README.md"
# What makes a sentence-transformers model of an encoder: how tokens are pooled, and how long a text can be.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")


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
    if is_tensorflow(source):
        config, tensors = read_bert(Path(source))
        return build(transformers.BertForPreTraining, config, tensors, torch.float32)
    if not (Path(source).is_dir() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source))):
        raise InputError(f"{source}: neither a directory nor the name of a model on the Hub.")
    try:
        config = AutoConfig.from_pretrained(source, **hub_options)
        fixed_head_config(config)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise InputError(f"{source}: {str(error).splitlines()[0]}") from error
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    name = (config.architectures or [f"{FAMILIES[config.model_type]}Model"])[0]
    if not (name.startswith(FAMILIES[config.model_type]) and hasattr(library, name)):
        raise InputError(f"{source}: config.json names a class that there is not, {name}; name one of transformers.")
    model, unexpected = load_tensors(getattr(library, name), source, config, **hub_options)
    if any("seq_relationship" in key for key in unexpected):  # Google's, saved with one head's name and both heads
        model, unexpected = load_tensors(
            getattr(library, f"{FAMILIES[config.model_type]}ForPreTraining"), source, config, **hub_options
        )
    if unexpected:
        raise InputError(
            f"{source}: a {name} has no place for {some(unexpected)}; name the right class in config.json."
        )
    return model


def load_tensors(
    model_class: type, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of the tensors for which it has no place."""
    try:
        model, loaded = model_class.from_pretrained(
            source, config=config, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, **hub_options
        )
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, UnpicklingError) as error:
        raise InputError(f"{source}: the weights cannot be read: {error}") from error
    for key, there, wanted in sorted(loaded["mismatched_keys"]):
        raise InputError(f"{source}: {key} has the shape {tuple(there)} where config.json asks for {tuple(wanted)}.")
    missing = [key for key in sorted(loaded["missing_keys"]) if "pooler" not in key]
    if missing:
        raise InputError(
            f"{source}: there are no weights for {some(missing)}; the file is not whole, or of another model."
        )
    if loaded["missing_keys"]:
        logger.warning("%s has no pooler: the new model's begins with random weights.", source)
    return model, sorted(loaded["unexpected_keys"])


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def is_tensorflow(source: str | Path) -> bool:
    return Path(f"{source}.index").is_file() or any(Path(source).glob("*.index"))


def convert_checkpoint(
    source: str | Path,
    output: str | Path,
    attention_head_size: int | None = None,
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
        InputError: as `load_bert`, `convert` and `to_bert`; or `output` is there and not empty.
    """
    with new_directory(output) as folder:
        model = load_bert(source, **hub_options)
        if bert and model.config.model_type != "fixed_head_bert":
            raise InputError(
                f"{source}: it is a {model.config.model_type} model; only a FixedHeadBert goes back to BERT."
            )
        sizes = attention_head_size, num_attention_heads, num_hidden_layers
        converted = convert(model, *sizes, seed=seed) if not bert or any(sizes) else model
        converted = to_bert(converted) if bert else converted
        if converted.config.num_hidden_layers == model.config.num_hidden_layers:
            found = f"largest difference of outputs {largest_difference(model, converted):.1g}"
        else:
            found = "not the same function"
        done = f"{shape_of(model)} -> {shape_of(converted)}; {found}"
        del model
        converted.save_pretrained(folder)
        if is_tensorflow(source):
            beside = Path(source) if Path(source).is_dir() else Path(source).parent
            load_tokenizer(str(beside / "vocab.txt"), do_lower_case).save_pretrained(folder)
        else:
            copy_tokenizer(source, folder, **hub_options)
            beside = Path(source)
            if not beside.is_dir():
                beside = Path(snapshot_download(str(source), allow_patterns=[*SENTENCE_FILES, CARD], **hub_options))
            copy_sentence_modules(beside, folder)
        origin = {} if Path(source).exists() or is_tensorflow(source) else {"base_model": str(source)}
        making = f"Converted from `{Path(source).name if not origin else source}`: {done}."
        card = checkpoint_card(
            converted.config,
            type(converted).__name__,
            Path(output).name,
            making,
            **origin,
            **licence_of(beside),
        )
        card.save(folder / CARD)
    return done


def shape_of(model: PreTrainedModel) -> str:
    config = model.config
    return (
        f"{type(model).__name__}, {config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} heads of {head_size(config)}, {model.num_parameters() / 1e6:.1f} M parameters"
    )


@torch.no_grad()
def largest_difference(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """Between any two outputs of the models for the same two texts of 16 random tokens."""
    config = one.config
    length = min(16, other.config.max_position_embeddings)
    shape = (2, 2, length) if "MultipleChoice" in type(one).__name__ else (2, length)
    ids = torch.randint(config.vocab_size - 1, shape, generator=torch.Generator().manual_seed(0))
    ids += ids >= (config.pad_token_id or 0)  # RoBERTa gives padding no position
    outputs = (model.eval()(input_ids=ids, return_dict=True) for model in (one, other))
    pairs = zip(*(output.to_tuple() for output in outputs), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs if isinstance(a, torch.Tensor))


def copy_tokenizer(source: str | Path, folder: Path, **hub_options):
    try:
        load_tokenizer(str(source), **hub_options).save_pretrained(folder)
    except InputError as error:
        logger.warning("The new directory has no tokenizer. %s", error)


def copy_sentence_modules(source: Path, folder: Path):
    """Of a sentence-transformers model, what it does with the encoder's output."""
    if not (source / "modules.json").is_file():
        return
    for file in source.rglob("*"):
        name = file.relative_to(source).as_posix()
        if file.is_file() and any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, folder / name)


def licence_of(source: Path) -> dict[str, str]:
    """The licence that the card there states, which holds for what is made of its weights."""
    try:
        licence = read_card(source / CARD).data.license
    except InputError:
        return {}
    return {"license": licence} if licence else {}
