"""Command-line arguments of the scripts, with the names of transformers' example scripts; recipes in YAML."""

import os
import re
from ast import literal_eval
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from accelerate import PartialState
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, HfArgumentParser, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..presets import PRESETS, preset_config

# Arguments that transformers' example scripts have or had and that are not taken, with what replaces them.
NO_MORE = "transformers 5 has no such argument; leave it out"
REPLACED = {
    "overwrite_output_dir": "an output directory is never overwritten; remove it, or give another --output_dir",
    "use_fast_tokenizer": "transformers 5 has fast tokenizers only; leave it out",
    "use_auth_token": "give --token",
    "push_to_hub_token": "give --hub_token",
    "push_to_hub_model_id": "give --hub_model_id",
    "push_to_hub_organization": "give --hub_model_id with the organization, as in organization/model",
    "evaluation_strategy": "give --eval_strategy",
    "group_by_length": "give --train_sampling_strategy group_by_length, which fine-tuning does anyway",
    "warmup_ratio": "give --warmup_steps a fraction of the steps, such as 0.1",
    "logging_dir": "set TENSORBOARD_LOGGING_DIR in the environment",
    "no_cuda": "give --use_cpu",
    "per_gpu_train_batch_size": "give --per_device_train_batch_size",
    "per_gpu_eval_batch_size": "give --per_device_eval_batch_size",
    "save_safetensors": "weights are always saved as safetensors; leave it out",
    "adafactor": "give --optim adafactor",
    "fp16_backend": "give --fp16 alone",
    "half_precision_backend": "give --fp16 or --bf16 alone",
    "fp16_opt_level": "give --fp16 alone",
    "torchdynamo": "give --torch_compile_backend",
    "include_inputs_for_metrics": "give --include_for_metrics inputs",
    "include_tokens_per_second": "give --include_num_input_tokens_seen",
    "fsdp_min_num_params": "give --fsdp_config with min_num_params",
    "fsdp_transformer_layer_cls_to_wrap": "give --fsdp_config with transformer_layer_cls_to_wrap",
    "use_mps_device": "an Apple GPU is used where there is one; leave it out",
    "use_ipex": NO_MORE,
    "jit_mode_eval": NO_MORE,
    "mp_parameters": NO_MORE,
    "past_index": NO_MORE,
    "ray_scope": NO_MORE,
    "tpu_metrics_debug": NO_MORE,
    "tpu_num_cores": NO_MORE,
    "use_legacy_prediction_loop": NO_MORE,
}


@dataclass
class ModelArguments:
    """Which model, configuration and tokenizer."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Directory or Hub id of the weights to start from; without it, random weights."},
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Directory or Hub id of a configuration, or a preset: {', '.join(PRESETS)}."},
    )
    config_overrides: str | None = field(
        default=None, metadata={"help": "Changes to the configuration: num_attention_heads=12,attention_head_size=64"}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a tokenizer, or a vocab.txt; default: the model's."}
    )
    do_lower_case: bool = field(default=True, metadata={"help": "Lower-case text, where a vocab.txt is given."})
    attn_implementation: str | None = field(
        default=None,
        metadata={"help": "eager, sdpa, ...; default: eager on a CPU, where it trains fastest, else sdpa."},
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Begin with random weights where those of the model have another shape."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads from the Hub are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the Hub."})
    token: str | None = field(default=None, metadata={"help": "Token for the Hub; default: the one logged in with."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with a model on the Hub."})

    @property
    def tokenizer(self) -> str | None:
        """Where the tokenizer is to come from, None if no argument says."""
        return self.tokenizer_name or self.model_name_or_path or (None if self.preset else self.config_name)

    @property
    def preset(self) -> str | None:
        """The preset that --config_name means: a name of one, if there is no directory of that name."""
        name = self.config_name
        return name if name in PRESETS and not Path(name).exists() else None

    def hub_options(self) -> dict:
        """Keyword arguments for every from_pretrained."""
        return {
            "cache_dir": self.cache_dir,
            "revision": self.model_revision,
            "token": self.token,
            "trust_remote_code": self.trust_remote_code,
        }


def with_recipe(argv: list[str]) -> list[str]:
    """
    `recipe.yaml --flag ...` as flags alone: the entries of the recipe, then the flags, which win. A recipe in
    JSON is what transformers' scripts take.

    Raises:
        InputError: the recipe is not there, or not a YAML mapping from arguments to values.
    """
    if not argv or Path(argv[0]).suffix not in (".yaml", ".yml", ".json"):
        return list(argv)
    try:
        entries = yaml.safe_load(Path(argv[0]).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{argv[0]}: {error}") from error
    if not isinstance(entries, dict):
        raise InputError(f"{argv[0]}: a recipe maps argument names to values, one a line.")
    return flags(entries) + argv[1:]


def flags(entries: dict) -> list[str]:
    """`--name value` for every entry, with all values of a list; None is left out."""
    words = []
    for name, value in entries.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


class ArgumentParser(HfArgumentParser):
    """transformers' parser, whose errors are one sentence and whose arguments cannot be abbreviated."""

    def __init__(self, types):
        super().__init__(types, allow_abbrev=False)  # a misspelt argument must not pass for another one

    def error(self, message):
        raise InputError(f"{message}; --help lists the arguments.")


def parse(argv: list[str], *types: type) -> tuple:
    """
    The arguments as instances of the dataclasses `types`.

    Raises:
        InputError: an argument that none of them has, or a value that makes no sense.
    """
    try:
        *parsed, unknown = ArgumentParser(types).parse_args_into_dataclasses(argv, return_remaining_strings=True)
    except ValueError as error:
        raise InputError(str(error)) from error
    if unknown:
        flag = unknown[0].split("=")[0]
        reason = REPLACED.get(flag.removeprefix("--"), "no such argument; --help lists those there are")
        raise InputError(f"{flag}: {reason}.")
    for arguments in parsed:
        if getattr(arguments, "hub_token", None):  # Trainer saves its arguments, and uploads them
            os.environ["HF_TOKEN"], arguments.hub_token = arguments.hub_token, None
        if getattr(arguments, "push_to_hub", False) and not arguments.do_train:
            raise InputError("--push_to_hub sends what was trained: give --do_train too.")
    return tuple(parsed)


def load_config(arguments: ModelArguments, **changes) -> PreTrainedConfig:
    """
    The configuration of the model or preset that the arguments name, with `changes` and --config_overrides on top.

    Raises:
        InputError: there is no such model, or its configuration makes no sense.
    """
    name = arguments.config_name or arguments.model_name_or_path
    if name is None:
        raise InputError("no model: give --model_name_or_path, or --config_name with a preset for random weights.")
    try:
        if arguments.preset:
            config = preset_config(name, **changes)
        else:
            config = AutoConfig.from_pretrained(name, **arguments.hub_options(), **changes)
        if arguments.config_overrides:
            override(config, arguments.config_overrides)
        return config
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise InputError(f"{name}: {error.__cause__ or error}") from error


def override(config: PreTrainedConfig, changes: str):
    """Set fields from `name=value,name=value`; a value is a number, a word, true, false or none."""
    constants = {"true": True, "false": False, "none": None}
    for change in re.split(r",(?=\s*\w+\s*=)", changes):  # commas within a list separate no fields
        name, equals, value = (part.strip() for part in change.partition("="))
        if not equals or not hasattr(config, name):
            raise InputError(f"--config_overrides {change}: not of the form field=value with a field of the model.")
        try:
            value = constants[value.lower()] if value.lower() in constants else literal_eval(value)
        except (ValueError, SyntaxError):
            pass  # a word, such as gelu
        setattr(config, name, value)
    config.validate()


def check_length(max_seq_length: int, config: PreTrainedConfig):
    """Raises InputError where a sequence would be longer than the model's table of positions, or hold no pair."""
    if max_seq_length < 8:
        raise InputError(f"--max_seq_length {max_seq_length} leaves no room for a pair of texts: 8 is the least.")
    if max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {max_seq_length} is more than the {config.max_position_embeddings} positions of the "
            "model: lower it, or for a new model raise max_position_embeddings with --config_overrides."
        )


def load_model(
    auto_class: type,
    arguments: ModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    train: bool = True,
) -> PreTrainedModel:
    """
    The model of --model_name_or_path, or one with random weights, as large as the tokenizer's vocabulary. It computes
    no padding: the same results for a part of the work.

    Raises:
        InputError: no such model, one with fewer tokens than the tokenizer has, or not to `train` and without a head.
    """
    attention = arguments.attn_implementation or ("eager" if PartialState().device.type == "cpu" else None)
    if arguments.model_name_or_path is None:
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        model = auto_class.from_config(config, attn_implementation=attention)
    elif len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens and the model {config.vocab_size}: give the model's own."
        )
    else:
        try:
            model, loaded = auto_class.from_pretrained(
                arguments.model_name_or_path,
                config=config,
                output_loading_info=True,
                attn_implementation=attention,
                ignore_mismatched_sizes=arguments.ignore_mismatched_sizes,
                **arguments.hub_options(),
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: the report above names the weights that do not fit
            raise InputError(
                f"{arguments.model_name_or_path}: {error} To keep the rest, and begin with random weights where "
                "shapes differ, give --ignore_mismatched_sizes."
            ) from error
        absent = sorted({*loaded["missing_keys"], *(key for key, *_ in loaded["mismatched_keys"])})
        if absent and not train:
            raise InputError(
                f"{arguments.model_name_or_path}: it has no weights for {', '.join(absent)}; give a model of this "
                "task, or --do_train."
            )
    model.base_model.unpad_inputs = True  # stock BERT takes no notice; the saved configuration stays as it is
    return model
