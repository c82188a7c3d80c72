"""Loads the configuration and the model that the arguments describe."""

from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from ..conversion.checkpoints import read_config
from ..conversion.families import FAMILIES, fixed_head_config
from ..conversion.weights import LOADING, load_body
from ..data.tokenizers import check_vocab_size
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..presets import PRESETS, preset_config
from ..support.errors import InputError
from ..support.files import reading
from .arguments import ModelArguments


def load_config(arguments: ModelArguments, **changes) -> PreTrainedConfig:
    """
    Loads the configuration of the model or preset, and applies `changes` and `config_overrides`.

    Raises:
        InputError: the model does not exist, or its configuration is invalid.
    """
    name = arguments.config_name or arguments.model_name_or_path
    if name in PRESETS and not arguments.config_name and not Path(name).exists():
        raise InputError(f"{name}: a preset has no weights; pass it as `config_name`.")
    with reading(name or "the new model", problem="invalid configuration"):
        config: PreTrainedConfig
        if arguments.preset:
            config = preset_config(arguments.preset, **changes)
        elif name:
            config = read_config(name, **arguments.hub_options(), **changes)
        elif arguments.can_be_new and arguments.config_overrides:
            config = FixedHeadBertConfig(**changes)
        else:
            raise InputError("no model: give `model_name_or_path`, or a preset as `config_name` for random weights.")
        if arguments.can_be_new and arguments.config_overrides and config.model_type in FAMILIES:
            config = fixed_head_config(config)  # BERT's configuration has no head size
        if arguments.config_overrides:
            override(config, arguments.config_overrides)
        return config


def override(config: PreTrainedConfig, changes: dict[str, Any]):
    for name, value in changes.items():
        if not hasattr(config, name):
            raise InputError(f"{name}: the configuration has no such field.", "config_overrides")
        setattr(config, name, value)
    config.validate()


def check_length(max_seq_length: int, config: PreTrainedConfig):
    """Raises an InputError if sequences have more tokens than position embeddings, or too few for a pair."""
    if not 8 <= max_seq_length <= config.max_position_embeddings:
        raise InputError(
            f"{max_seq_length}: must be from 8 to {config.max_position_embeddings}, the model's "
            "max_position_embeddings, which `config_overrides` can raise for a new model.",
            "max_seq_length",
        )


def load_model(
    auto_class: type[_BaseAutoModelClass],
    arguments: ModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    train: bool = True,
) -> PreTrainedModel:
    """
    Loads `model_name_or_path`, or creates a model with random weights for the tokenizer's vocabulary.

    Args:
        train: initialize a head randomly if the checkpoint has no weights for it.

    Raises:
        InputError: the model does not exist, or weights are missing or have a different shape.
    """
    attention = arguments.attn_implementation or ("eager" if PartialState().device.type == "cpu" else None)
    name = arguments.model_name_or_path
    if name is None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        with LOADING:  # a concurrent from_pretrained would prevent tying weights
            return auto_class.from_config(config, attn_implementation=attention)
    check_vocab_size(tokenizer, config.vocab_size, name)
    with reading(name, problem="its weights cannot be loaded"):
        options = arguments.hub_options() | {"attn_implementation": attention}
        model, info = load_body(auto_class, name, config, **options)
    if info["mismatched_keys"] and not arguments.ignore_mismatched_sizes:
        key, shape, required = sorted(info["mismatched_keys"])[0]
        raise InputError(
            f"{name}: {key} has the shape {tuple(shape)} instead of {tuple(required)}; to initialize the head "
            "randomly, give `ignore_mismatched_sizes`."
        )
    if missing := sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}):
        if not train:
            raise InputError(f"{name}: has no weights for {', '.join(missing)}; train them first, with `do_train`.")
        PartialState().print(f"{name}: random initial weights for {', '.join(missing)}")
    return model


def reinitialize_head(model: PreTrainedModel) -> PreTrainedModel:
    """Replaces all weights outside the base model by random ones."""
    new = type(model)(model.config).state_dict()
    head = {name: weight for name, weight in new.items() if not name.startswith(f"{model.base_model_prefix}.")}
    model.load_state_dict(head, strict=False)
    return model
