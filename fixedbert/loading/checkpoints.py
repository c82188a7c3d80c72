"""Loads models from all supported checkpoint formats, without running code from the checkpoint."""

import re
from contextlib import nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

import transformers
from accelerate import PartialState
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _get_model_class

from ..counts import size_text
from ..model import modeling_fixed_head_bert
from ..model.configuration_fixed_head_bert import AUTO_MAP, HEADS, FixedHeadBertConfig
from ..support.errors import InputError, error_context
from ..support.files import read_json_object, reading
from ..support.layouts import read_modules, transformer_directory
from .auxiliary_files import auxiliary_directory
from .families import FAMILIES, check_config, fixed_head_config, task_head
from .heads import Heads, int_or_list, set_heads
from .weights import FILES, load_weights, stored_tensors, unexpected_weights

# Maps a part of a parameter name to the task head that has this parameter.
HEADS_BY_PART = {"seq_relationship": "ForPreTraining", "cls.": "ForMaskedLM", "lm_head": "ForMaskedLM"}
# Earlier versions of transformers saved the pooler even if the task head did not use it.
POOLER = ("pooler.dense.weight", "pooler.dense.bias")


def read_config(source: str | Path, **options) -> PreTrainedConfig:
    """
    Reads a model's configuration from a directory or the Hub.

    Ignores the attention implementation in config.json, because it can name a kernel on the Hub that transformers
    would download and run. Also ignores custom code that config.json names, except with `trust_remote_code`, because
    new model directories would name it, too. A FixedHeadBert always uses its own code.

    Args:
        options: Keyword arguments for `from_pretrained`.

    Raises:
        InputError: If the directory contains exported graphs instead of weights, because their configuration does not
            describe the layers, or if transformers 5 does not support the model's relative positions or head size.
    """
    directory = transformer_directory(source, **options)
    graphs = [file for pattern in ("onnx/*.onnx", "openvino/*.xml") for file in Path(directory).glob(pattern)]
    if graphs and not any((Path(directory) / file).is_file() for file in FILES):
        raise InputError(
            f"{source}: contains graphs instead of weights; use the model from which they were exported, or upload "
            "them with hf upload."
        )
    file = Path(directory) / "config.json"
    remedy, problem = "use the file that was saved with the weights", "invalid configuration"
    with reading(file, remedy, problem) if file.is_file() else nullcontext():
        if file.is_file():
            read_json_object(file, remedy)
        config = AutoConfig.from_pretrained(directory, **{"trust_remote_code": False} | options)
    with error_context(source):
        check_config(config)
    config._attn_implementation = None
    if isinstance(config, FixedHeadBertConfig):
        config.auto_map = dict(AUTO_MAP)
    elif not options.get("trust_remote_code"):
        vars(config).pop("auto_map", None)
    return config


def load_bert(
    source: str | Path, architecture: str | None = None, any_family: bool = False, **hub_options
) -> PreTrainedModel:
    """
    Loads a model with its task head from a directory or the Hub.

    Reads weights from safetensors files or pytorch_model.bin. Returns a BERT with pruned weights as a FixedHeadBert,
    because transformers 5 supports no pruned BERT. Drops a pooler that the task head does not use. Drops all tensors
    that are not parameters of the class if `architecture` is passed, or if the model is the encoder of a
    sentence-transformers model or of another family. Prints the names of the dropped tensors.

    Args:
        architecture: Class to load instead of the one in config.json, such as BertForMaskedLM.
        any_family: Whether to load encoders of other families than FAMILIES, as transformers' Auto classes do.
        hub_options: `revision`, `token` and `cache_dir` for `from_pretrained`.

    Raises:
        InputError: If the model family is not supported, a file is corrupted, or tensors are missing, unexpected or
            have an invalid shape.
    """
    with reading(source, "use a complete checkpoint", "cannot load a model from it"):
        config = read_config(source, **hub_options)
        if architecture is None and len(read_modules(auxiliary_directory(source, **hub_options))) > 1:
            architecture = "Model"  # sentence-transformers ignores the class in config.json, and pools hidden states
        config, name = resolve_class(source, config, architecture, any_family, **hub_options)
        if config.model_type not in FAMILIES:
            architecture = name
        model, unexpected = load_tensors(name, source, config, **hub_options)
        # For example, google-bert/bert-base-uncased has two task heads, but its config.json names only one.
        for part, head in HEADS_BY_PART.items():
            if architecture is None and any(part in key for key in unexpected):
                name = f"{FAMILIES[config.model_type]}{head}"
                model, unexpected = load_tensors(name, source, config, **hub_options)
                break
    extra = [] if architecture else [key for key in unexpected if not key.endswith(POOLER)]
    if extra:
        raise unexpected_weights(source, name, extra)
    if unexpected:
        PartialState().print(f"{source}: dropped tensors that are not parameters of {name}: {', '.join(unexpected)}.")
    return model


def resolve_class(
    source: str | Path, config: PreTrainedConfig, architecture: str | None, any_family: bool, **hub_options
) -> tuple[PreTrainedConfig, str]:
    """
    Returns a model's configuration and class name. `architecture` overrides the class in config.json, and may be
    "Model" for the encoder of any family.
    """
    with error_context(source):
        if getattr(config, "quantization_config", None):
            raise InputError("quantized weights are not supported; use the original weights.")
        name = architecture or (config.architectures or ["Model"])[0]
        if any_family and config.model_type not in FAMILIES:
            return config, auto_class_name(config, name)
        name = f"{FAMILIES.get(config.model_type)}Model" if name == "Model" else name
        fixed_head_config(config, name)
        head = task_head(name, config.model_type)
    if config.model_type == "bert" and (pruned := pruned_config(config, stored_tensors(source, **hub_options))):
        heads, neurons = size_text(pruned.head_counts), size_text(pruned.neuron_counts)
        PartialState().print(f"{source}: the weights are pruned to {heads} heads and {neurons} neurons per layer.")
        return pruned, f"FixedHeadBert{head}"
    return config, name


def auto_class_name(config: PreTrainedConfig, architecture: str) -> str:
    """
    Returns the class that transformers' Auto classes load for the task head of the class `architecture`.

    Raises:
        InputError: If there is none, or if it is no encoder for texts of a limited length.
    """
    head = task_head(architecture, config.model_type)
    mapping = getattr(transformers, HEADS[head][0])._model_mapping
    model_class: Any = _get_model_class(config, mapping) if type(config) in mapping else None
    inputs = signature(model_class.forward).parameters if model_class else {}
    if not {"input_ids", "attention_mask"} <= {*inputs}:
        raise InputError(f"transformers has no encoder of texts with the task head {head} for {config.model_type}.")
    if (getattr(config, "max_position_embeddings", None) or 0) < 1:
        raise InputError(f"{config.model_type} models without max_position_embeddings are not supported.")
    return model_class.__name__


def pruned_config(config: PreTrainedConfig, tensors: dict[str, Tensor]) -> FixedHeadBertConfig | None:
    """
    Returns a FixedHeadBert configuration for a BERT whose saved weights are pruned, or None if they are not.

    `config` holds the sizes before pruning. BERT and FixedHeadBert have the same parameter names.
    """
    size = config.hidden_size // config.num_attention_heads
    queries = rows_by_layer("attention.self.query", config.hidden_size, config, tensors)
    neurons = rows_by_layer("intermediate.dense", config.intermediate_size, config, tensors)
    is_full = {*queries} == {config.hidden_size} and {*neurons} == {config.intermediate_size}
    is_larger = max(queries) > config.hidden_size or max(neurons) > config.intermediate_size
    if is_full or is_larger or any(rows % size for rows in queries):
        return None  # loading reports invalid shapes
    pruned = fixed_head_config(config)
    set_heads(pruned, [Heads(rows // size, size, size) for rows in queries])
    pruned.intermediate_size = int_or_list(neurons)
    pruned.validate()
    return pruned


def rows_by_layer(part: str, default: int, config: PreTrainedConfig, tensors: dict[str, Tensor]) -> list[int]:
    """Returns the output size of the projection `part` in each layer, or `default` if its weight is missing."""
    pattern = re.compile(rf"encoder\.layer\.(\d+)\.{re.escape(part)}\.weight$")
    rows = {int(match[1]): tensors[name].shape[0] for name in tensors if (match := pattern.search(name))}
    return [rows.get(layer, default) for layer in range(config.num_hidden_layers)]


def load_tensors(
    architecture: str, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """Returns a loaded model, and the names of tensors in the file that are not parameters of the model."""
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    model_class = getattr(library, architecture)
    has_pooler = any("pooler" in name for name in stored_tensors(source, **hub_options))
    options = {"new_head": False, "ignore_mismatched_sizes": False, **hub_options}
    if "add_pooling_layer" in signature(model_class).parameters and not has_pooler:
        options["add_pooling_layer"] = False
    model, info = load_weights(model_class, source, config, **options)
    return model, sorted(info["unexpected_keys"])
