"""Command-line arguments of the scripts, with the names of transformers' example scripts; recipes in YAML."""

import json
import os
import re
from ast import literal_eval
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from pathlib import Path
from typing import get_type_hints

from accelerate import PartialState
from transformers import (
    HfArgumentParser,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.hf_argparser import string_to_bool
from transformers.integrations import get_available_reporting_integrations, is_deepspeed_available

from ..checkpoints import read_config
from ..errors import InputError
from ..files import check_place, reading, reason_of
from ..plain_yaml import read_yaml
from ..presets import PRESETS, preset_config

RECIPES = Path(__file__).parents[1] / "recipes"  # they come with the package, and are named as in a checkout

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
    "include_inputs_for_metrics": "metrics are of predictions and labels alone; leave it out",
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
    JSON is what transformers' scripts take. `recipes/NAME.yaml` is the package's where there is no such file.

    Raises:
        InputError: the recipe is not there, or not a YAML mapping from arguments to values.
    """
    if not argv or Path(argv[0]).suffix not in (".yaml", ".yml", ".json"):
        return list(argv)
    packaged = {f"recipes/{file.name}": file for file in sorted(RECIPES.glob("*.yaml"))}
    file = Path(argv[0])
    if not os.path.exists(file):
        if file.as_posix() not in packaged:
            raise InputError(f"{argv[0]}: no such recipe; give a file, or one of {', '.join(packaged)}.")
        file = packaged[file.as_posix()]
    entries = read_yaml(file, "a recipe maps argument names to values, one a line")
    for name, value in entries.items():
        if isinstance(value, list) and any(isinstance(one, list | dict) for one in value):
            raise InputError(f"{argv[0]}: {name}: a list of plain values is needed.")
    return flags(entries) + argv[1:]


def flags(entries: dict) -> list[str]:
    """`--name value` for every entry, with all values of a list; None is left out."""
    words = []
    for name, value in entries.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(json.dumps(one) if isinstance(one, dict) else str(one) for one in values)]
    return words


class ArgumentParser(HfArgumentParser):
    """
    transformers' parser, whose errors are one sentence and whose arguments cannot be abbreviated. Its help has our
    arguments before those of transformers.
    """

    def __init__(self, types):
        super().__init__(types, allow_abbrev=False)  # a misspelt argument must not pass for another one
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:  # of `bool | None`, which wants a value there
                action.nargs, action.const = "?", True

    def _add_dataclass_arguments(self, dtype):
        hints, ours = get_type_hints(dtype), set()
        for kind in dtype.__mro__:
            if not kind.__module__.startswith("transformers."):
                ours |= get_annotations(kind).keys()
        for title, own in ((dtype.__name__, True), ("TrainingArguments of transformers", False)):
            members = [member for member in fields(dtype) if member.init and (member.name in ours) is own]
            group = self.add_argument_group(title) if members else None
            for member in members:
                member.type = hints[member.name]
                self._parse_dataclass_field(group, member)

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
    except InputError:
        raise
    except Exception as error:  # TrainingArguments has many, and libraries that are not there have theirs
        raise InputError(f"the arguments cannot be used: {reason_of(error)}") from error
    if unknown:
        flag = unknown[0].split("=")[0]
        reason = REPLACED.get(flag.removeprefix("--"), "no such argument; --help lists those there are")
        raise InputError(f"{flag}: {reason}.")
    for arguments in parsed:
        if isinstance(arguments, TrainingArguments):
            check_packages(arguments)
            check_seeds([arguments.seed, arguments.data_seed or 0, *(getattr(arguments, "seeds", None) or [])])
        if getattr(arguments, "hub_token", None):  # Trainer saves its arguments, and uploads them
            os.environ["HF_TOKEN"], arguments.hub_token = arguments.hub_token, None
        if getattr(arguments, "push_to_hub", False) and not arguments.do_train:
            raise InputError("--push_to_hub sends what was trained: give --do_train too.")
    return tuple(parsed)


def check_packages(arguments: TrainingArguments):
    """Raises InputError where --report_to, --optim or --deepspeed needs a package that is not installed."""
    for name in arguments.report_to:
        if name not in get_available_reporting_integrations():
            raise InputError(f"--report_to {name}: it is not installed; `pip install {name}`, or --report_to none.")
    if arguments.deepspeed and not is_deepspeed_available():
        raise InputError("--deepspeed: it is not installed; `pip install deepspeed`, or leave it out.")
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments)
    except ImportError as error:
        raise InputError(f"--optim {arguments.optim.value}: {reason_of(error)}; give another.") from error
    except ValueError:  # some need the model
        pass


def check_seeds(seeds: list[int]):
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise InputError(f"--seed {seed}: give a number from 0 to {2**32 - 1}.")


def load_config(arguments: ModelArguments, **changes) -> PreTrainedConfig:
    """
    The configuration of the model or preset that the arguments name, with `changes` and --config_overrides on top.

    Raises:
        InputError: there is no such model, or its configuration makes no sense.
    """
    name = arguments.config_name or arguments.model_name_or_path
    if name is None:
        raise InputError("no model: give --model_name_or_path, or --config_name with a preset for random weights.")
    if not arguments.preset:
        if name in PRESETS and not Path(name).exists():
            raise InputError(f"{name}: a preset has no weights to start from; give --config_name {name}.")
        check_place(name, PRESETS if arguments.config_name else ())
    with reading(
        name, "give one whose config.json is whole, with settings that it can have", "its configuration cannot be used"
    ):
        if arguments.preset:
            config = preset_config(name, **changes)
        else:
            config = read_config(name, **arguments.hub_options(), **changes)
        if arguments.config_overrides:
            override(config, arguments.config_overrides)
        return config


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
        check_place(arguments.model_name_or_path)
        with reading(arguments.model_name_or_path, "give a model that is whole", "its weights cannot be read"):
            model, loaded = auto_class.from_pretrained(
                arguments.model_name_or_path,
                config=config,
                output_loading_info=True,
                attn_implementation=attention,
                ignore_mismatched_sizes=True,
                **arguments.hub_options(),
            )
        if loaded["mismatched_keys"] and not arguments.ignore_mismatched_sizes:
            key, there, wanted = sorted(loaded["mismatched_keys"])[0]
            raise InputError(
                f"{arguments.model_name_or_path}: {key} has the shape {tuple(there)} where {tuple(wanted)} is needed; "
                "to keep the rest, and begin with random weights where shapes differ, give --ignore_mismatched_sizes."
            )
        absent = sorted({*loaded["missing_keys"], *(key for key, *_ in loaded["mismatched_keys"])})
        if absent and not train:
            raise InputError(
                f"{arguments.model_name_or_path}: it has no weights for {', '.join(absent)}; give a model of this "
                "task, or --do_train."
            )
    model.base_model.unpad_inputs = True  # stock BERT takes no notice; the saved configuration stays as it is
    return model
