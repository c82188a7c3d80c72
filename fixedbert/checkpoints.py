"""Checkpoints of BERT, in all formats that can be converted, read without running what they contain."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_fixed_head_bert
from .data.hub import check_place
from .errors import InputError, listed
from .families import FAMILIES, build, fixed_head_config, head_of
from .files import check_regular, read_object, reason_of
from .tensorflow_checkpoint import read_bert

HEADS_BY_PART = {"seq_relationship": "ForPreTraining", "cls.": "ForMaskedLM", "lm_head": "ForMaskedLM"}
# What makes a sentence-transformers model of an encoder: how tokens are pooled, and how long a text can be.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")


def read_config(source: str | Path, **options) -> PreTrainedConfig:
    """
    The configuration of a model, in a directory or on the Hub, without the attention implementation that it names:
    that can be a kernel on the Hub, which transformers would download and run.

    Args:
        options: of from_pretrained.
    """
    config = AutoConfig.from_pretrained(source, **{"trust_remote_code": False} | options)
    config._attn_implementation = None
    return config


def files_of(source: Path) -> Iterator[Path]:
    """The files of a model's directory that can be read: those directly in it, and sentence-transformers' modules."""
    for file in source.rglob("*"):
        name = file.relative_to(source).as_posix()
        if "/" not in name or any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            yield file


def check_inside(source: Path):
    """
    Raises:
        InputError: a link, or an entry of an index, points out of the directory. In the Hub's cache links point to its
            blobs.
    """
    home = Path(os.path.realpath(source))  # not Path.resolve, which fails on a link to itself
    home = home.parent.parent if home.parent.name == "snapshots" else home
    for file in files_of(source):
        if not Path(os.path.realpath(file)).is_relative_to(home):
            raise InputError(f"{file}: a link out of the directory is not followed; copy the file there.")
    for index in source.glob("*.index.json"):
        weight_map = read_object(index, "download it again").get("weight_map")
        for name in weight_map.values() if isinstance(weight_map, dict) else [None]:
            if not isinstance(name, str) or Path(name).name != name:
                problem = f"weight_map names no file beside it ({str(name)[:100]})"
                raise InputError(f"{index}: {problem}; download it again.")


def load_bert(source: str | Path, **hub_options) -> PreTrainedModel:
    """
    A model that can be converted, from a directory or the Hub, with the head that it was saved with.

    Reads transformers' checkpoints in safetensors or in pytorch_model.bin, of which only tensors are read, and
    Google's in TensorFlow's format (bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001).

    Args:
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: not a BERT, or a file is damaged or has too few, too many or wrongly shaped tensors.
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
        # Google's uploads, for example, hold two heads and name one in config.json, or hold one and name none.
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
        raise InputError(f"{source}: the weights are damaged or incomplete ({error}).") from error
    except Exception as error:  # of any kind, for unusable values and damaged files
        raise InputError(f"{source}: no BERT can be read from it: {reason_of(error)}") from error
    if unexpected:
        raise InputError(f"{source}: a {architecture}, as config.json says, has no place for {listed(unexpected)}.")
    return model


def load_tensors(
    architecture: str, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of the tensors that it does not have."""
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    options: dict[str, Any] = {"config": config, "dtype": "auto", "ignore_mismatched_sizes": True}
    options |= {"output_loading_info": True, **hub_options}
    model, loaded = getattr(library, architecture).from_pretrained(source, **options)
    missing = sorted(loaded["missing_keys"])
    if missing and architecture.endswith("Model") and all("pooler" in key for key in missing):
        model, loaded = getattr(library, architecture).from_pretrained(source, add_pooling_layer=False, **options)
        missing = []
    for key, there, wanted in sorted(loaded["mismatched_keys"]):
        raise InputError(f"{key} has the shape {tuple(there)} where config.json asks for {tuple(wanted)}.")
    if missing:
        raise InputError(f"there are no weights for {listed(missing)}; the file is incomplete, or of another model.")
    return model, sorted(loaded["unexpected_keys"])


def is_tensorflow(source: str | Path) -> bool:
    return Path(f"{source}.index").is_file() or any(Path(source).glob("*.index"))
