"""
Arguments of the training scripts, with the names from transformers' example scripts.

Flags, recipes and Python keywords all become one dict, which `make_arguments` turns into dataclasses.
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
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

RECIPES = Path(__file__).parents[1] / "recipes"
FILES = ("train_file", "validation_file", "test_file")
# A flag or keyword also overrides these entries of a recipe, which set the same thing in a different way.
REPLACES: dict[str, tuple[str, ...]] = {
    "train_file": ("dataset_name", "task_name"),
    "dataset_name": (*FILES, "task_name"),
    "task_name": (*FILES, "dataset_name"),
    "model_name_or_path": ("config_name",),
    "num_train_epochs": ("max_steps",),
    "gradient_accumulation_steps": ("total_train_batch_size",),
    "total_train_batch_size": ("gradient_accumulation_steps",),
}
# These describe a recipe's corpora. A flag that overrides the corpora overrides them too.
CORPUS_OPTIONS = (
    "dataset_config_name",
    "text_column_name",
    "document_boundary",
    "document_column_name",
    "corpus_weights",
)


@dataclass
class ModelArguments:
    """Model, configuration and tokenizer."""

    can_be_new: ClassVar[bool] = False  # True if sizes alone can describe a new model

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a pretrained model. Default: random weights."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Directory or Hub id of a configuration, or a preset: {', '.join(PRESETS)}."},
    )
    config_overrides: dict | None = field(
        default=None,
        metadata={
            "help": "Changes to the configuration, such as num_attention_heads=12,attention_head_size=64. Without a "
            "model, they change BERT-base with a head size of 128."
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={"help": "Directory or Hub id of a tokenizer, or a vocab.txt. Default: the model's tokenizer."},
    )
    do_lower_case: bool | None = field(
        default=None, metadata={"help": "Lower-case the text. Default: the tokenizer's setting, or true."}
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "eager, sdpa, ... Default: eager on CPUs, where it is fastest, else sdpa."}
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Initialize a head randomly if its weights have a different shape."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Directory for downloads from the Hub."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the Hub."})
    token: str | None = field(default=None, metadata={"help": "Token for the Hub. Default: the one from your login."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code from the model's repository."})

    @property
    def tokenizer(self) -> str | None:
        """Directory, Hub id or file of the tokenizer, or None if no argument names one."""
        return self.tokenizer_name or self.model_name_or_path or (None if self.preset else self.config_name)

    @property
    def preset(self) -> str | None:
        """The preset that `config_name` names. A directory of the same name takes precedence."""
        name = self.config_name
        return name if name in PRESETS and not Path(name).exists() else None

    def hub_options(self) -> dict:
        """Keyword arguments for from_pretrained."""
        return {
            "cache_dir": self.cache_dir,
            "revision": self.model_revision,
            "token": self.token,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass
class CommonArguments(TrainingArguments):
    """transformers' TrainingArguments, which refuse values that would silently produce a wrong result."""

    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "No effect: steps whose loss is not finite are always skipped."}
    )
    max_nonfinite_steps: int = field(
        default=1,
        metadata={"help": "Stop after this many consecutive steps whose loss or gradient norm is not finite."},
    )
    take_over_output_dir: bool = field(
        default=False,
        metadata={"help": "Remove the output directory's lock, left by a run that was killed on a different machine."},
    )

    # The only supported value of a field, and the reason.
    refused: ClassVar[dict[str, tuple[object, str]]] = {
        "auto_find_batch_size": (False, "a second attempt would start from weights that are already trained"),
        "dataloader_drop_last": (False, "evaluation would leave out the last examples"),
        "save_only_model": (False, "a run resumes from its checkpoints, which need the optimizer state"),
        "accelerator_config.split_batches": (False, "`per_device_train_batch_size` is the batch of one device"),
        "neftune_noise_alpha": (None, "the noise would depend on the padding, which is not computed"),
    }

    @property
    def directory(self) -> Path:
        """The output directory."""
        assert self.output_dir is not None  # TrainingArguments sets a default
        return Path(self.output_dir)

    def __post_init__(self):
        if not is_torch_xla_available():
            self.use_cpu |= not torch.accelerator.is_available()  # several processes need the same backend
        super().__post_init__()
        use_fsdp_on_cpu(self)
        disable_emulated_bf16(self)
        for name, (supported, reason) in self.refused.items():
            if attrgetter(name)(self) != supported:
                raise InputError(f"is not supported: {reason}.", name)

    def __getstate__(self) -> dict[str, Any]:
        """Omits the token from training_args.bin, which Trainer uploads."""
        return vars(self) | {"hub_token": None}


def use_fsdp_on_cpu(arguments: TrainingArguments):
    """Enables FSDP 2 on CPUs, which torch supports, but accelerate ignores."""
    state, launched = arguments.distributed_state, os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if state is not None and state.distributed_type == DistributedType.MULTI_CPU and (arguments.fsdp or launched):
        state.distributed_type = DistributedType.MULTI_GPU


def read_arguments(argv: list[str] | None, *types: type, prog: str | None = None) -> dict[str, Any]:
    """
    Parses `[recipe.yaml] --flag ...` into a dict for `make_arguments`. Flags take precedence over the recipe.

    Args:
        argv: the command line; None for that of this process.
        types: dataclasses whose fields are the flags.
        prog: name of the program in the help; None for the name of the script.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    has_recipe = bool(argv) and not argv[0].startswith("-") and Path(argv[0]).suffix in (".yaml", ".yml", ".json")
    recipe = argv.pop(0) if has_recipe else None
    not_given = Namespace(**{member.name: None for kind in types for member in fields(kind)})
    parsed, unknown = ArgumentParser(types, prog).parse_known_args(argv, not_given)
    if unknown:
        raise InputError(f"{unknown[0].partition('=')[0]}: no such argument{suggestion(unknown[0], vars(parsed))}")
    return with_recipe(recipe, vars(parsed))


def with_recipe(recipe: str | Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """
    Merges a recipe with arguments that take precedence. Arguments that are None are ignored.

    A recipe is a YAML or JSON file. If there is no such file, `recipes/NAME.yaml` is a recipe of this package.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if recipe is None:
        return given
    file = Path(recipe)
    if not file.exists():
        packaged = {f"recipes/{path.name}": path for path in sorted(RECIPES.glob("*.yaml"))}
        if file.as_posix() not in packaged:
            raise InputError(f"{recipe}: no such recipe; the packaged recipes are {', '.join(packaged)}.")
        file = packaged[file.as_posix()]
    entries = read_yaml(file)
    replaced = {old for name in given for old in REPLACES.get(name, ())} & entries.keys()
    if replaced & {"train_file", "dataset_name"}:
        replaced.update(CORPUS_OPTIONS)
    return {name: value for name, value in entries.items() if name not in replaced and value is not None} | given


def make_arguments(given: dict[str, Any], *types: type) -> tuple:
    """
    Creates the dataclasses `types` from the values of their fields. None stands for the default.

    Raises:
        InputError: a field does not exist, or its value is invalid or has the wrong type.
    """
    given = check_types(given, *types)
    names = [{member.name for member in fields(kind)} & given.keys() for kind in types]
    try:
        return tuple(kind(**{name: given[name] for name in own}) for kind, own in zip(types, names, strict=True))
    except InputError:
        raise
    except Exception as error:  # TrainingArguments raises errors of many types
        raise InputError(f"invalid arguments: {error_reason(error)}") from error


def check_types(given: dict[str, Any], *types: type) -> dict[str, Any]:
    """
    Converts each value to the type of its field: an int to a float, a single value to a list, a path to a string.

    Raises:
        InputError: a field does not exist, or its value has the wrong type.
    """
    hints: dict[str, Any] = {}
    for kind in types:
        known = get_type_hints(kind)
        hints |= {member.name: known[member.name] for member in fields(kind) if member.init}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in hints:
            raise InputError(f"`{name}`: no such argument{suggestion(name, hints)}")
    return {name: to_type(name, value, hints[name]) for name, value in given.items()}


def to_type(name: str, value: Any, hint: Any) -> Any:
    if isinstance(value, str) and hint == dict | None:
        with suppress(ValueError):
            value = mapping(value)
    value = str(value) if isinstance(value, Path) else value
    values = list(value) if isinstance(value, list | tuple) else [value]
    floats = [float(one) if type(one) is int else one for one in values]
    candidates = [values, floats] if isinstance(value, list | tuple) else [value, *floats, values, floats]
    for candidate in candidates:
        with suppress(TypeError):
            type_validator(name, candidate, hint)
            return candidate
    expected = hint.__name__ if isinstance(hint, type) else re.sub(r"(\w+\.)+", "", str(hint)).removesuffix(" | None")
    raise InputError(f"{value!r} has the wrong type; {expected} is required.", name)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message, which suggests the most similar name."""
    near = get_close_matches(name.partition("=")[0].lstrip("-").replace("-", "_"), known, 1, cutoff=0.75)
    return f"; did you mean `{near[0]}`?" if near else "."


class ArgumentParser(HfArgumentParser):
    """transformers' parser, which also raises InputErrors, refuses abbreviations, and parses mappings."""

    def __init__(self, types: Any, prog: str | None = None):
        super().__init__(types, allow_abbrev=False, prog=prog)
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:  # bool | None
                action.nargs, action.const = "?", True
            if action.type is dict:
                action.type = mapping

    def error(self, message):
        raise InputError(f"{message}; --help lists the arguments.")


def mapping(text: str) -> dict:
    """Parses `name=value,name=value` with YAML values, or JSON. argparse shows the name of this function."""
    is_json = text.lstrip().startswith("{")
    if not is_json and "=" not in text:
        raise ValueError(text)
    try:
        return yaml.load(text if is_json else "{" + text.replace("=", ": ") + "}", YamlLoader)
    except yaml.YAMLError as error:
        raise ValueError(text) from error
