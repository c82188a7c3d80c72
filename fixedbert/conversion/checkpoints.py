"""Checkpoints of BERT, in all formats that can be converted, read without running what they contain."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers
from accelerate import PartialState
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..counts import size_text
from ..data.hub import check_place
from ..model import modeling_fixed_head_bert
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError, listed, naming
from ..support.files import check_regular, reading
from .families import FAMILIES, build, check_positions, fixed_head_config, head_of
from .growing import Heads, one_or_list, set_heads
from .tensorflow_checkpoint import read_bert
from .weights import Stored, check_finite, load_whole, shards_of, tensors_of

HEADS_BY_PART = {"seq_relationship": "ForPreTraining", "cls.": "ForMaskedLM", "lm_head": "ForMaskedLM"}
POOLER = ("pooler.dense.weight", "pooler.dense.bias")  # which earlier versions saved with heads that do without
# How sentence-transformers pools the tokens of an encoder, and how long a text can be.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")


@contextmanager
def model_directory(
    model: str | Path | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
) -> Iterator[str]:
    """The directory or Hub id of a model; of a model in memory, with its tokenizer, a directory while this lasts."""
    if not isinstance(model, PreTrainedModel):
        if tokenizer is not None:
            raise InputError("is for a model in memory; that of a directory is in it.", "tokenizer")
        yield str(model)
        return
    if tokenizer is None:
        raise InputError("is missing: a model in memory needs its own.", "tokenizer")
    with TemporaryDirectory() as folder:
        origin = str(model.name_or_path)  # "None" of a model that was made here
        name = "" if origin in ("", "None") else Path(origin).resolve().name
        place = Path(folder, name or type(model).__name__)
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        try:
            yield str(place)
        except InputError as error:  # which names what the caller has
            error.args = (str(error).replace(str(place), type(model).__name__),)
            raise


def read_config(source: str | Path, model_type: str | None = None, **options) -> PreTrainedConfig:
    """
    The configuration of a model, in a directory or on the Hub, by from_pretrained with `options`. It goes without the
    attention implementation that it names, which can be a kernel on the Hub that transformers would download and run.

    Args:
        model_type: of a config.json without one, as transformers wrote it in 2019.

    Raises:
        InputError: there is none, it has no type, or it asks for positions that the model of its type does not have in
            transformers 5.
    """
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise InputError(f"{source}: there is no config.json in it; copy the model's there.")
    fields, _ = PreTrainedConfig.get_config_dict(source, **options)
    if "model_type" in fields:
        config = AutoConfig.from_pretrained(source, **{"trust_remote_code": False} | options)
    elif model_type:
        config = AutoConfig.for_model(model_type, **fields)
    else:
        raise InputError(
            f'{source}: config.json has no model_type; add it, such as "model_type": "bert", or name the class of the '
            "model with `architecture` of fixedbert convert."
        )
    with naming(source):
        check_positions(config)
    config._attn_implementation = None
    return config


def files_of(source: Path) -> Iterator[Path]:
    """The files of a model's directory that can be read: those directly in it, and sentence-transformers' modules."""
    for file in source.rglob("*"):
        name = file.relative_to(source).as_posix()
        if "/" not in name or any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            yield file


def check_inside(source: Path):
    """Refuse a link, or an entry of an index, that points out of the directory."""
    home = Path(os.path.realpath(source))  # not Path.resolve, which fails on a link to itself
    home = home.parent.parent if home.parent.name == "snapshots" else home  # the Hub's cache has links to its blobs
    for file in files_of(source):
        if not Path(os.path.realpath(file)).is_relative_to(home):
            raise InputError(f"{file}: a link out of the directory is not followed; copy the file there.")
    for index in source.glob("*.index.json"):
        shards_of(index)


def load_bert(source: str | Path, architecture: str | None = None, **hub_options) -> PreTrainedModel:
    """
    A model that can be converted, from a directory or the Hub, with the head that it was saved with. What is dropped
    is printed: a pooler that its class does not have, and with `architecture` all that lies outside the base model.

    Reads transformers' checkpoints in safetensors or in pytorch_model.bin, tensors alone, and Google's in TensorFlow's
    format (bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001). A BERT whose weights are
    pruned, which transformers cannot hold, becomes a FixedHeadBert.

    Args:
        architecture: the class to load, such as BertForMaskedLM, in place of what config.json names.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: not a BERT, or a file is damaged or has too few, too many or wrongly shaped tensors.
    """
    check_regular(source)
    if is_tensorflow(source):
        if architecture:
            raise InputError(f"{source}: a TensorFlow checkpoint has one class; leave `architecture` out.")
        google = build(transformers.BertForPreTraining, *read_bert(Path(source)))
        check_finite(source, google)
        return google
    check_place(str(source))
    if Path(source).is_dir():
        check_inside(Path(source))
        if (Path(source) / "adapter_config.json").exists():  # names another model, which transformers would load
            raise InputError(f"{source}: an adapter; merge it into its model first, by PEFT's merge_and_unload.")
    with reading(source, "give a model that is whole", "no BERT can be read from it"):
        config, found = class_of(source, architecture, **hub_options)
        model, unexpected = load_tensors(found, source, config, **hub_options)
        # Google's uploads, for example, hold two heads and name one in config.json, or hold one and name none.
        for part, head in HEADS_BY_PART.items():
            if architecture is None and any(part in key for key in unexpected):
                found = f"{FAMILIES[config.model_type]}{head}"
                model, unexpected = load_tensors(found, source, config, **hub_options)
                break
    refused = [] if architecture else [name for name in unexpected if not name.endswith(POOLER)]
    if refused:
        raise InputError(
            f"{source}: a {found}, as config.json says, has no place for {listed(refused)}; to drop what a class has "
            "no place for, name the class with `architecture` of fixedbert convert."
        )
    if unexpected:
        PartialState().print(f"{source}: dropped, as {found} has no place for it: {', '.join(unexpected)}.")
    return model


def class_of(source: str | Path, architecture: str | None, **hub_options) -> tuple[PreTrainedConfig, str]:
    """The configuration of a model, and the name of its class: `architecture`, or what config.json says."""
    model_type = next((kind for kind, family in FAMILIES.items() if (architecture or "").startswith(family)), None)
    config = read_config(source, model_type, **hub_options)
    with naming(source):
        fixed_head_config(config)
        found = architecture or (config.architectures or [f"{FAMILIES[config.model_type]}Model"])[0]
        try:
            head = head_of(found, config.model_type)
        except InputError as error:
            remedy = "name one of these with `architecture` of fixedbert convert"
            raise InputError(f"{str(error).rstrip('.')}; {remedy}.") from error
        fixed_head_config(config, found)
        if config.model_type == "bert" and (pruned := pruned_config(config, tensors_of(source, **hub_options))):
            heads, neurons = size_text(pruned.head_counts), size_text(pruned.neuron_counts)
            PartialState().print(f"{source}: pruned, by its weights to {heads} heads and {neurons} neurons.")
            return pruned, f"FixedHeadBert{head}"
    return config, found


def pruned_config(config: PreTrainedConfig, tensors: dict[str, Stored]) -> FixedHeadBertConfig | None:
    """
    The configuration of a BERT whose weights lack heads or neurons, as that of a FixedHeadBert, whose parameters have
    the same names. What is left of heads keeps its size. None where nothing is pruned.

    Raises:
        InputError: `pruned_heads` of `config`, the heads by layer that are gone, contradicts the weights.
    """
    number, layers = config.num_attention_heads, config.num_hidden_layers
    size = config.hidden_size // number
    queries = rows_by_layer("attention.self.query", tensors, layers, config.hidden_size)
    heads = [rows // size for rows in queries]
    neurons = rows_by_layer("intermediate.dense", tensors, layers, config.intermediate_size)
    if any(rows % size for rows in (config.hidden_size, *queries)):
        return None  # which is refused by its shape
    check_pruned_heads(config, heads)
    old, new = [number] * layers + [config.intermediate_size] * layers, heads + neurons
    if new == old or any(now > then for now, then in zip(new, old, strict=True)):
        return None
    pruned = fixed_head_config(config)
    set_heads(pruned, [Heads(count, size, size) for count in heads])
    pruned.intermediate_size = one_or_list(neurons)
    pruned.validate()
    return pruned


def rows_by_layer(part: str, tensors: dict[str, Stored], layers: int, default: int) -> list[int]:
    """The rows of a weight in each layer, by the end of its name."""
    found = {
        int(match[1]): tensor.shape[0]
        for name, tensor in tensors.items()
        if (match := re.search(rf"encoder\.layer\.(\d+)\.{re.escape(part)}\.weight$", name))
    }
    return [found.get(layer, default) for layer in range(layers)]


def check_pruned_heads(config: PreTrainedConfig, heads: list[int]):
    """Refuse `pruned_heads` by which a layer has not the heads that its weights have."""
    number, gone = config.num_attention_heads, getattr(config, "pruned_heads", None) or {}
    there = dict(enumerate(heads))
    for layer, pruned in gone.items():
        there[int(layer)] = there.get(int(layer), 0) + len({*range(number)} & {*pruned})
    for layer, count in there.items():
        if gone and count != number:
            raise InputError(
                f"pruned_heads in config.json contradicts the weights: layer {layer} would have had {count} heads, "
                f"not {number}; give the config.json that belongs to the weights."
            )


def load_tensors(
    architecture: str, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """The model, whole with its head, and the names of the tensors that it does not have."""
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    model_class = getattr(library, architecture)
    model, loaded = load_whole(model_class, source, config, **hub_options)
    missing = sorted(loaded["missing_keys"])
    if missing and architecture.endswith("Model") and all("pooler" in key for key in missing):
        model, loaded = load_whole(model_class, source, config, add_pooling_layer=False, **hub_options)
        missing = []
    for key, there, wanted in sorted(loaded["mismatched_keys"]):
        raise InputError(f"{source}: {key} has the shape {tuple(there)} where config.json asks for {tuple(wanted)}.")
    if missing:
        raise InputError(f"{source}: there are no weights for {listed(missing)}; the file is incomplete.")
    return model, sorted(loaded["unexpected_keys"])


def is_tensorflow(source: str | Path) -> bool:
    return Path(f"{source}.index").is_file() or any(Path(source).glob("*.index"))
