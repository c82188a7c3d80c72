"""Loads the configuration and the model that the arguments specify."""

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from ..data.tokenizers import check_same_vocabulary, check_vocab_size
from ..loading.checkpoints import read_config
from ..loading.families import FAMILIES, fixed_head_config
from ..loading.weights import highest_precision, load_weights, stored_tensors
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..options import ModelOptions, NewModelOptions
from ..presets import PRESETS, preset_config
from ..support.errors import InputError
from ..support.files import reading


def load_config(arguments: ModelOptions, **changes) -> PreTrainedConfig:
    """
    Returns the configuration of the model or preset, after applying `changes` and then `config_overrides`.

    Raises:
        InputError: If the model does not exist or the configuration is invalid.
    """
    name, changed = arguments.config_name or arguments.model_name_or_path, arguments.config_overrides
    can_be_new = isinstance(arguments, NewModelOptions)
    with reading(name or "the new model", problem="invalid configuration"):
        config: PreTrainedConfig
        if preset := preset_of(arguments):
            config = preset_config(preset, **changes)
        elif name:
            config = read_config(name, **arguments.hub_options(), **changes)
        elif can_be_new and changed:
            config = FixedHeadBertConfig(**changes)
        else:
            raise InputError("no model specified; set `model_name_or_path`, or `config_name` to a preset.")
        if can_be_new and changed and config.model_type in FAMILIES:
            config = fixed_head_config(config)  # a BERT configuration has no field for the head size
        if changed:
            override(config, changed)
        return config


def preset_of(arguments: ModelOptions) -> str | None:
    """Returns the preset named by `config_name`, or None if it is not a preset or is also an existing path."""
    name = arguments.config_name
    return name if name in PRESETS and not Path(name).exists() else None


def tokenizer_source(arguments: ModelOptions) -> str | None:
    """Returns the directory, Hub id or file to load the tokenizer from, or None if no option specifies one."""
    own = None if preset_of(arguments) else arguments.config_name
    return arguments.tokenizer_name or arguments.model_name_or_path or own


def override(config: PreTrainedConfig, changes: dict[str, Any]):
    """Sets fields of a configuration in place. Raises InputError if a field does not exist."""
    for name, value in changes.items():
        if name in ("num_labels", "id2label", "label2id", "problem_type"):
            raise InputError(f"{name}: the data determine the labels.", "config_overrides")
        if not hasattr(config, name):
            raise InputError(f"{name}: the configuration has no such field.", "config_overrides")
        setattr(config, name, value)
    config.validate()


def load_model(
    auto_class: type[_BaseAutoModelClass],
    arguments: ModelOptions,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    train: bool = True,
) -> PreTrainedModel:
    """
    Loads the model `model_name_or_path`. If this argument is None, creates a model with random weights and the
    tokenizer's vocabulary size.

    Args:
        train: Whether the model will be trained. If so, weights that are missing from the checkpoint, such as a task
            head, are initialized randomly, and float16 and bfloat16 are converted to float32, because a step usually
            changes weights by less than their precision. The attribute `saved_dtype` is then the original dtype.

    Raises:
        InputError: If the model does not exist, if the tokenizer has more tokens than the model, if a weight has the
            wrong shape (unless `ignore_mismatched_sizes` is set), or if weights are missing and `train` is False.
    """
    attention = arguments.attn_implementation or ("eager" if PartialState().device.type == "cpu" else None)
    name = arguments.model_name_or_path
    if name is None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        with reading(arguments.config_name or "the new model", problem="cannot be created"):
            return auto_class.from_config(config, attn_implementation=attention, dtype=torch.float32)
    check_same_vocabulary(tokenizer, tokenizer_source(arguments), name, **arguments.hub_options())
    check_vocab_size(tokenizer, config.vocab_size, name)
    with reading(name, problem="cannot load the weights"):
        options = arguments.hub_options() | {"attn_implementation": attention}
        options |= {"new_head": train, "ignore_mismatched_sizes": arguments.ignore_mismatched_sizes}
        dtype = highest_precision(config, stored_tensors(name, **options))
        is_converted = train and dtype in (torch.float16, torch.bfloat16)
        if is_converted:
            options["dtype"] = torch.float32
        model, info = load_weights(auto_class, name, config, **options)
    if missing := sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}):
        PartialState().print(f"{name}: randomly initialized {', '.join(missing)}")
    if is_converted:
        vars(model)["saved_dtype"] = dtype
        PartialState().print(
            f"{name}: will be trained in float32 and saved in {str(dtype).removeprefix('torch.')}, as before"
        )
    return model


def reinitialize_head(model: PreTrainedModel) -> PreTrainedModel:
    """Randomly reinitializes all weights outside the base model, in place, and returns the model."""
    new = type(model)(model.config).state_dict()
    head = {name: weight for name, weight in new.items() if not name.startswith(f"{model.base_model_prefix}.")}
    model.load_state_dict(head, strict=False)
    return model
