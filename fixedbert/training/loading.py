"""From the arguments to the configuration and the model."""

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
    The configuration of the model or preset that the arguments name, with `changes` and `config_overrides` on top.

    Raises:
        InputError: there is no such model, or its configuration makes no sense.
    """
    name = arguments.config_name or arguments.model_name_or_path
    is_new = name is None and arguments.can_be_new and bool(arguments.config_overrides)
    if name is None and not is_new:
        raise InputError("no model: give `model_name_or_path`, or `config_name` with a preset for random weights.")
    remedy = "give one whose config.json is whole, with settings that it can have"
    if name is None:
        name, remedy = "the new model", "give sizes that fit together"
    elif not arguments.preset:
        if name in PRESETS and not Path(name).exists():
            raise InputError(f"{name}: a preset has no weights to start from; give it as `config_name`.")
    with reading(name, remedy, "its configuration cannot be used"):
        config: PreTrainedConfig
        if is_new:
            config = FixedHeadBertConfig(**changes)
        elif arguments.preset:
            config = preset_config(name, **changes)
        else:
            config = read_config(name, **arguments.hub_options(), **changes)
        if arguments.can_be_new and arguments.config_overrides and config.model_type in FAMILIES:
            config = fixed_head_config(config)  # a BERT's has no field for the size of a head
        if arguments.config_overrides:
            override(config, arguments.config_overrides)
        return config


def override(config: PreTrainedConfig, changes: dict[str, Any]):
    for name, value in changes.items():
        if not hasattr(config, name):
            raise InputError(f"{name}: no field of the model.", "config_overrides")
        setattr(config, name, value)
    config.validate()


def check_length(max_seq_length: int, config: PreTrainedConfig):
    """Raises InputError where a sequence would be longer than the model's table of positions, or hold no pair."""
    if max_seq_length < 8:
        raise InputError(f"{max_seq_length} leaves no room for a pair of texts: 8 is the least.", "max_seq_length")
    if max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"{max_seq_length} is more than the {config.max_position_embeddings} positions of the model: lower it, or "
            "for a new model raise max_position_embeddings with `config_overrides`.",
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
    The model of `model_name_or_path`, or one with random weights, as large as the tokenizer's vocabulary.

    Raises:
        InputError: no such model, one with fewer tokens than the tokenizer has, one whose base model is not all there,
            or not to `train` and without a head.
    """
    attention = arguments.attn_implementation or ("eager" if PartialState().device.type == "cpu" else None)
    if arguments.model_name_or_path is None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        with LOADING:  # a model that is made meanwhile would not be tied
            model = auto_class.from_config(config, attn_implementation=attention)
    else:
        check_vocab_size(tokenizer, config.vocab_size, arguments.model_name_or_path)
        with reading(arguments.model_name_or_path, "give a model that is whole", "its weights cannot be read"):
            model, loaded = load_body(
                auto_class,
                arguments.model_name_or_path,
                config,
                attn_implementation=attention,
                **arguments.hub_options(),
            )
        if loaded["mismatched_keys"] and not arguments.ignore_mismatched_sizes:
            key, there, wanted = sorted(loaded["mismatched_keys"])[0]
            raise InputError(
                f"{arguments.model_name_or_path}: {key} has the shape {tuple(there)} where {tuple(wanted)} is needed; "
                "to keep the rest, and begin with a head of random weights, give `ignore_mismatched_sizes`."
            )
        absent = sorted({*loaded["missing_keys"], *(key for key, *_ in loaded["mismatched_keys"])})
        if absent and not train:
            raise InputError(
                f"{arguments.model_name_or_path}: it has no weights for {', '.join(absent)}; give a model of this "
                "task, or train one first, with `do_train`."
            )
        if absent:
            PartialState().print(f"{arguments.model_name_or_path}: new, with random weights: {', '.join(absent)}")
    return model


def reinitialize_head(model: PreTrainedModel) -> PreTrainedModel:
    """The model with random weights in all that is not its base model, drawn as for a new model."""
    prefix = f"{model.base_model_prefix}."
    fresh = type(model)(model.config).state_dict()
    model.load_state_dict(
        {name: weight for name, weight in fresh.items() if not name.startswith(prefix)}, strict=False
    )
    return model
