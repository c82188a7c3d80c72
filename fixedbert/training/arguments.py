"""
Arguments for the training scripts, named as in transformers' example scripts.

Command-line flags, recipes and Python keyword arguments are merged into one dict, which `make_arguments` converts to
dataclasses.
"""

import os
import re
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import torch
import yaml
from accelerate import DistributedType
from huggingface_hub.dataclasses import type_validator
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool
from transformers.utils import is_torch_xla_available

from ..presets import PRESETS
from ..support.errors import InputError
from ..support.files import YamlLoader, error_reason, read_yaml
from .speed import disable_emulated_bf16

LOGGING = 0.02  # a fraction of all steps, so that short runs also have a training curve
LONGEST_INTERVAL = 500  # steps; the default for evaluations, and the upper limit if `logging_steps` is a fraction
RECIPES = Path(__file__).parents[1] / "recipes"
FILES = ("train_file", "validation_file", "test_file")
# Maps a flag or keyword argument to the recipe entries that it replaces, because they are alternatives to it.
REPLACES: dict[str, tuple[str, ...]] = {
    "train_file": ("dataset_name", "task_name"),
    "dataset_name": (*FILES, "task_name"),
    "task_name": (*FILES, "dataset_name"),
    "model_name_or_path": ("config_name",),
    "num_train_epochs": ("max_steps",),
    "gradient_accumulation_steps": ("total_train_batch_size",),
    "total_train_batch_size": ("gradient_accumulation_steps",),
}
# These entries describe the corpora in a recipe. A flag that replaces the corpora also replaces the descriptions.
CORPUS_OPTIONS = (
    "dataset_config_name",
    "text_column_name",
    "document_boundary",
    "document_column_name",
    "corpus_weights",
)


def option(default: Any, help: str):
    """Returns a field of a dataclass of arguments, with its default value and its help text."""
    return field(default=default, metadata={"help": help})


@dataclass
class ModelArguments:
    """Arguments for the model, its configuration and the tokenizer."""

    can_be_new: ClassVar[bool] = False  # True if `config_overrides`, without a model or preset, defines a new model

    model_name_or_path: str | None = option(
        None, "Directory or Hub id of a pretrained model. Default: random weights."
    )
    config_name: str | None = option(
        None, f"Directory or Hub id of a configuration, or a preset: {', '.join(PRESETS)}."
    )
    config_overrides: dict | None = option(
        None,
        "Changes to the configuration, such as num_attention_heads=12,attention_head_size=64. In pretraining "
        "without a model or configuration, they apply to BERT-base with a head size of 128.",
    )
    tokenizer_name: str | None = option(
        None, "Directory or Hub id of a tokenizer, or a vocab.txt file. Default: the model's tokenizer."
    )
    attn_implementation: str | None = option(
        None, "Attention implementation, such as eager or sdpa. Default: eager on CPUs, sdpa on GPUs."
    )
    ignore_mismatched_sizes: bool = option(
        False, "Initialize the task head randomly if the head in the checkpoint has a different shape."
    )
    resize_embeddings: bool = option(
        False, "For each token that the model lacks, add an embedding close to the average embedding."
    )
    cache_dir: str | None = option(None, "Directory for files downloaded from the Hub.")
    model_revision: str = option("main", "Branch, tag or commit of the model on the Hub.")
    token: str | None = option(None, "Hub token. Default: the one saved by `hf auth login`.")
    trust_remote_code: bool = option(False, "Run custom code from the model's repository.")

    @property
    def tokenizer(self) -> str | None:
        """Directory, Hub id or file to load the tokenizer from, or None if no argument specifies one."""
        return self.tokenizer_name or self.model_name_or_path or (None if self.preset else self.config_name)

    @property
    def preset(self) -> str | None:
        """The preset named by `config_name`. None if `config_name` is not a preset or is also an existing path."""
        name = self.config_name
        return name if name in PRESETS and not Path(name).exists() else None

    def hub_options(self) -> dict:
        """Returns the options for downloads from the Hub as keyword arguments for `from_pretrained`."""
        return {
            "cache_dir": self.cache_dir,
            "revision": self.model_revision,
            "token": self.token,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass
class CommonArguments(TrainingArguments):
    """TrainingArguments with additional fields. Rejects values that would silently produce wrong results."""

    logging_steps: float = option(
        LOGGING, "Steps between log entries. Below 1: a fraction of all steps, but at most 500 steps."
    )
    max_nonfinite_steps: int = option(
        1, "Stop after this many consecutive steps with a non-finite loss or gradient norm."
    )
    take_over_output_dir: bool = option(
        False, "Remove a lock on the output directory that a run on a different machine left behind."
    )

    # Maps the name of each restricted field to its only supported value and the reason for the restriction.
    refused: ClassVar[dict[str, tuple[object, str]]] = {
        "auto_find_batch_size": (False, "a second attempt would start from partially trained weights"),
        "dataloader_drop_last": (False, "evaluation would omit the last examples"),
        "save_only_model": (False, "resuming a run requires the optimizer state"),
        "accelerator_config.split_batches": (False, "`per_device_train_batch_size` is the batch size per device"),
        "neftune_noise_alpha": (None, "the noise depends on the amount of padding, but padding is skipped"),
    }

    @property
    def directory(self) -> Path:
        """The output directory as a Path."""
        assert self.output_dir is not None  # TrainingArguments sets a default
        return Path(self.output_dir)

    def __post_init__(self):
        if not is_torch_xla_available():
            self.use_cpu |= not torch.accelerator.is_available()  # so that several processes use gloo
        self.logging_nan_inf_filter = False  # steps with a non-finite loss are always skipped
        if self.eval_strategy == "steps" and self.eval_steps is None and self.logging_steps == LOGGING:
            self.eval_steps = LONGEST_INTERVAL  # Trainer evaluates at each log entry by default
        super().__post_init__()
        use_fsdp_on_cpu(self)
        check_launcher(self)
        disable_emulated_bf16(self)
        for name, (supported, reason) in self.refused.items():
            if attrgetter(name)(self) != supported:
                raise InputError(f"is not supported: {reason}.", name)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle, without the access token, because Trainer uploads training_args.bin."""
        return vars(self) | {"hub_token": None}


def use_fsdp_on_cpu(arguments: TrainingArguments):
    """Enables FSDP 2 on CPUs if it was requested, because torch supports it but accelerate ignores the request."""
    state, launched = arguments.distributed_state, os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if state is not None and state.distributed_type == DistributedType.MULTI_CPU and (arguments.fsdp or launched):
        state.distributed_type = DistributedType.MULTI_GPU


def check_launcher(arguments: TrainingArguments):
    """Raises InputError if `accelerate launch` has started only one of several CPU processes."""
    launched = {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys() and "WORLD_SIZE" not in os.environ
    if launched and arguments.world_size == 1 and arguments.device.type == "cpu":
        raise InputError(
            "'accelerate launch' started only one CPU process, because it requires mpirun to start more; instead, run "
            f"it with --config_file {RECIPES / 'accelerate' / 'cpu.yaml'} --num_processes N and without --cpu."
        )


def read_arguments(argv: list[str] | None, *types: type, prog: str | None = None) -> dict[str, Any]:
    """
    Parses a command line `[recipe.yaml] --flag ...` and returns the values for `make_arguments`.

    Flags take precedence over entries in the recipe.

    Args:
        argv: The command-line arguments. Default: `sys.argv[1:]`.
        types: Dataclasses with one field per flag.
        prog: Program name to show in the help. Default: the name of the script.

    Raises:
        InputError: If a flag does not exist or has an invalid value, or if the recipe cannot be read.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    has_recipe = bool(argv) and not argv[0].startswith("-") and Path(argv[0]).suffix in (".yaml", ".yml", ".json")
    recipe = argv.pop(0) if has_recipe else None
    unset = Namespace(**{member.name: None for cls in types for member in fields(cls)})
    return with_recipe(recipe, vars(ArgumentParser(types, prog).parse_args(argv, unset)))


def with_recipe(recipe: str | Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """
    Merges the arguments in `given` into the entries of a recipe, and returns the result.

    Arguments that are not None take precedence. They also remove the recipe entries that they replace: for example,
    `num_train_epochs` removes `max_steps` (see `REPLACES`). A recipe is a YAML or JSON file. If `recipe` is
    recipes/NAME.yaml and this file does not exist, the recipe of that name that ships with the package is used.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if recipe is None:
        return given
    file = Path(recipe)
    if not file.exists() and (RECIPES.parent / file).exists():
        file = RECIPES.parent / file
    entries = read_yaml(file)
    replaced = {entry for name in given for entry in REPLACES.get(name, ())} & entries.keys()
    if replaced & {"train_file", "dataset_name"}:
        replaced.update(CORPUS_OPTIONS)
    return {name: value for name, value in entries.items() if name not in replaced and value is not None} | given


def make_arguments(given: dict[str, Any], *types: type) -> tuple:
    """
    Creates an instance of each dataclass in `types` from the field values in `given`. None selects a field's default.

    Raises:
        InputError: If a field does not exist, or if a value is invalid or has the wrong type.
    """
    given = check_types(given, *types)
    names = [{member.name for member in fields(cls)} & given.keys() for cls in types]
    try:
        return tuple(cls(**{name: given[name] for name in own}) for cls, own in zip(types, names, strict=True))
    except InputError:
        raise
    except PackageNotFoundError as error:
        package = (str(error).split("'") + [""])[1] or error.name  # a quoted requirement
        raise InputError(f"{package} is not installed; install it with pip.") from error
    except Exception as error:  # TrainingArguments raises many types of errors
        raise InputError(f"invalid arguments: {error_reason(error)}") from error


def check_types(given: dict[str, Any], *types: type) -> dict[str, Any]:
    """
    Returns the values in `given` that are not None, converted to the types of their fields.

    Paths are converted to strings. Where a field requires it, ints are converted to floats and single values to lists.

    Raises:
        InputError: If a field does not exist, or if a value has the wrong type.
    """
    hints: dict[str, Any] = {}
    for cls in types:
        class_hints = get_type_hints(cls)
        hints |= {member.name: class_hints[member.name] for member in fields(cls) if member.init}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in hints:
            similar = ", ".join(get_close_matches(name, hints, cutoff=0))
            raise InputError(f"`{name}`: no such argument; similar names: {similar}.")
    return {name: to_type(name, value, hints[name]) for name, value in given.items()}


def to_type(name: str, value: Any, hint: Any) -> Any:
    """Returns the value of the field `name`, converted to the type `hint`. Raises InputError if this is impossible."""
    if isinstance(value, str) and hint == dict | None:
        with suppress(ValueError):
            value = mapping(value)
    value = str(value) if isinstance(value, Path) else value
    values = list(value) if isinstance(value, list | tuple) else [value]
    floats = [float(item) if type(item) is int else item for item in values]
    candidates = [values, floats] if isinstance(value, list | tuple) else [value, *floats, values, floats]
    for candidate in candidates:
        with suppress(TypeError):
            type_validator(name, candidate, hint)
            return candidate
    expected = hint.__name__ if isinstance(hint, type) else re.sub(r"(\w+\.)+", "", str(hint)).removesuffix(" | None")
    raise InputError(f"{value!r} has the wrong type; expected {expected}.", name)


class ArgumentParser(HfArgumentParser):
    """HfArgumentParser that parses mappings, rejects abbreviated flags, and reports errors as InputError."""

    def __init__(self, types: Any, prog: str | None = None):
        super().__init__(types, allow_abbrev=False, prog=prog)
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:  # bool | None
                action.nargs, action.const = "?", True
            if action.type is dict:
                action.type = mapping

    def error(self, message):
        raise InputError(f"{message}; see --help for the available arguments.")


def mapping(text: str) -> dict:
    """Parses a JSON object, or `name=value,...` with YAML values. argparse shows this function's name in errors."""
    is_json = text.lstrip().startswith("{")
    if not is_json and "=" not in text:
        raise ValueError(text)
    try:
        return yaml.load(text if is_json else "{" + text.replace("=", ": ") + "}", YamlLoader)
    except yaml.YAMLError as error:
        raise ValueError(text) from error
