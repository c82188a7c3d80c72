"""Arguments of the scripts, with the names of transformers' example scripts: by flags, recipes or keywords."""

import json
import math
import os
import re
import sys
from argparse import SUPPRESS, ArgumentTypeError
from ast import literal_eval
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from inspect import get_annotations
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.hf_argparser import string_to_bool
from transformers.integrations import get_available_reporting_integrations, is_deepspeed_available
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_xla_available

from ..presets import PRESETS
from ..support.arguments import first_fitting, plain, with_floats
from ..support.errors import InputError
from ..support.files import reason_of
from ..support.plain_yaml import flags, read_yaml
from ..support.processes import check_shared_memory
from .precision import leave_out_emulated_bf16
from .running import check_address, check_world

FILES = {"train_file", "validation_file", "test_file"}
# What is given beside a recipe takes the place of entries of other names too: those that say the same in another way.
REPLACES = {
    "train_file": {"dataset_name", "task_name"},
    "dataset_name": {*FILES, "task_name"},
    "task_name": {*FILES, "dataset_name"},
    "model_name_or_path": {"config_name"},
    "num_train_epochs": {"max_steps"},
    "gradient_accumulation_steps": {"total_train_batch_size"},
    "total_train_batch_size": {"gradient_accumulation_steps"},
}
# Entries that say how the corpora of a recipe are read.
OF_CORPORA = {
    "dataset_config_name",
    "text_column_name",
    "document_boundary",
    "document_column_name",
    "corpus_weights",
}
RECIPES = Path(__file__).parents[1] / "recipes"  # they come with the package, and are named as in a checkout


@dataclass
class ModelArguments:
    """Which model, configuration and tokenizer."""

    can_be_new: ClassVar[bool] = False  # with no model named, but sizes

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Directory or Hub id of the weights to start from; without it, random weights."},
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Directory or Hub id of a configuration, or a preset: {', '.join(PRESETS)}."},
    )
    config_overrides: dict | None = field(
        default=None,
        metadata={
            "help": "Changes to the configuration: num_attention_heads=12,attention_head_size=64; without a model, to "
            "that of BERT-base with heads of 128."
        },
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a tokenizer, or a vocab.txt; default: the model's."}
    )
    do_lower_case: bool | None = field(
        default=None, metadata={"help": "Lower-case text; default: as the tokenizer says, and where it does not, yes."}
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={"help": "eager, sdpa, ...; default: eager on a CPU, where it trains fastest, else sdpa."},
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Begin with random weights where those of the head have another shape."}
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
        """The preset that `config_name` means: a name of one, if there is no directory of that name."""
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
    `recipe.yaml --flag ...` as flags alone: the entries of the recipe, then the flags, which win.

    Raises:
        InputError: as `recipe_entries`.
    """
    if not argv or argv[0].startswith("-") or Path(argv[0]).suffix not in (".yaml", ".yml", ".json"):
        return list(argv)
    given = {word[2:].partition("=")[0].replace("-", "_") for word in argv[1:] if word.startswith("--")}
    return flags(recipe_entries(argv[0], given)) + argv[1:]


def beside_recipe(recipe: str | Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """What a run is given: the entries of a recipe, if there is one, and over them what is not None in `given`."""
    if not isinstance(recipe, str | Path | None):
        raise InputError(
            f"a {type(recipe).__name__} is no YAML file of arguments; the shape of a new model is given by "
            "`config_name`, the directory of a configuration, or by `hidden_size` and the like.",
            "recipe",
        )
    given = {name: value for name, value in given.items() if value is not None}
    return given if recipe is None else recipe_entries(recipe, given) | given


def recipe_entries(recipe: str | Path, given: Iterable[str]) -> dict[str, Any]:
    """
    The entries of a recipe, without those whose place something `given` beside it takes, which is printed. A recipe in
    JSON is what transformers' scripts take. `recipes/NAME.yaml` is the package's where there is no such file.

    Raises:
        InputError: the recipe is not there, or not a YAML mapping from arguments to values.
    """
    packaged = {f"recipes/{file.name}": file for file in sorted(RECIPES.glob("*.yaml"))}
    file = Path(recipe)
    if not os.path.exists(file):
        if file.as_posix() not in packaged:
            raise InputError(f"{recipe}: no such recipe; give a file, or one of {', '.join(packaged)}.")
        file = packaged[file.as_posix()]
    entries = read_yaml(file, "a recipe maps argument names to values, one a line")
    for name, value in entries.items():
        if isinstance(value, list) and any(isinstance(one, list | dict) for one in value) and name != "stages":
            raise InputError(f"{recipe}: {name}: a list of plain values is needed.")
    replaced = {old for name in given for old in REPLACES.get(name, ()) if old in entries}
    if replaced & {"train_file", "dataset_name"}:
        replaced |= OF_CORPORA & entries.keys()
    if replaced - set(given) and os.environ.get("RANK", "0") == "0":
        print(f"{recipe}: without its {', '.join(sorted(replaced - set(given)))}, whose place the arguments take")
    return {name: value for name, value in entries.items() if name not in replaced}


@dataclass
class CommonArguments(TrainingArguments):
    """transformers' TrainingArguments, without what our trainers cannot honour."""

    logging_nan_inf_filter: bool = field(default=False, metadata={"help": SUPPRESS})
    max_nonfinite_steps: int = field(
        default=1,
        metadata={
            "help": "Stop after so many steps in a row whose loss or gradient norm is not finite. None is applied."
        },
    )

    take_over_output_dir: bool = field(
        default=False,
        metadata={"help": "Take the output directory from a run on another machine, which has to be dead."},
    )

    # Names of fields, the one value that each may have, and why.
    refused: ClassVar[dict[str, tuple[object, str]]] = {
        "logging_nan_inf_filter": (False, "a loss that is not finite is never hidden"),
        "auto_find_batch_size": (False, "the batch decides which examples a step has"),
        "ignore_data_skip": (False, "a continued run goes on with the next examples, which takes no time"),
        "dataloader_drop_last": (False, "evaluations and predictions would leave out their last rows"),
        "save_only_model": (False, "a run goes on from its checkpoints, which takes the optimizer's state too"),
        "enable_jit_checkpoint": (False, "a run saves a checkpoint on SIGTERM anyway"),
        "accelerator_config.split_batches": (False, "`per_device_train_batch_size` is always that of one device"),
        "prediction_loss_only": (False, "metrics need the predictions"),
        "batch_eval_metrics": (False, "metrics are of all predictions together"),
        "eval_do_concat_batches": (True, "metrics are of all predictions together"),
        "eval_use_gather_object": (False, "all outputs of the models are tensors"),
        "include_for_metrics": ([], "metrics are of predictions and labels alone"),
        "length_column_name": ("length", "the column with the lengths has this name"),
        "neftune_noise_alpha": (None, "its noise depends on the padding, and none is computed"),
        "use_liger_kernel": (False, "there are no Liger kernels for BERT"),
        "liger_kernel_config": (None, "there are no Liger kernels for BERT"),
    }

    @property
    def folder(self) -> Path:
        """The output directory."""
        assert self.output_dir is not None  # TrainingArguments gives it a name
        return Path(self.output_dir)

    def __post_init__(self):
        if not is_torch_xla_available():
            self.use_cpu |= not torch.accelerator.is_available()  # else several processes would not find each other
        check_address()
        super().__post_init__()
        check_world(self)
        leave_out_emulated_bf16(self)
        largest = torch.finfo(torch.float32).max
        if not 0 <= self.learning_rate <= largest:
            raise InputError(f"{self.learning_rate}: give a number from 0 to {largest:.1e}.", "learning_rate")
        if not 0 < self.num_train_epochs < math.inf:
            raise InputError(f"{self.num_train_epochs}: give a number above 0.", "num_train_epochs")
        if self.max_steps < 1 and self.max_steps != -1:
            raise InputError(f"{self.max_steps}: give at least 1, or leave it out to train by epochs.", "max_steps")
        if self.max_nonfinite_steps < 1:
            raise InputError(f"{self.max_nonfinite_steps}: give at least 1.", "max_nonfinite_steps")
        for name, (only, reason) in self.refused.items():
            if (value := attrgetter(name)(self)) != only:
                given, _, entry = name.partition(".")
                what = f"with {entry}" if entry else value
                raise InputError(f"{what} is not supported: {reason}; leave it out.", given)
        if self.push_to_hub and not self.do_train:
            raise InputError("sends what was trained: give `do_train` too.", "push_to_hub")
        check_packages(self)
        check_seeds([self.seed, self.data_seed or 0])


class ArgumentParser(HfArgumentParser):
    """
    transformers' parser, whose errors are one sentence and whose arguments cannot be abbreviated. Its help has our
    arguments before those of transformers.
    """

    def __init__(self, types, prog: str | None = None):
        super().__init__(types, allow_abbrev=False, prog=prog)  # a misspelt argument must not pass for another one
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:  # of `bool | None`, which wants a value there
                action.nargs, action.const = "?", True
            if action.type is dict:
                action.type = mapping

    def _add_dataclass_arguments(self, dtype):
        hints = get_type_hints(dtype)
        ours: set[str] = set()
        for kind in dtype.__mro__:
            if not kind.__module__.startswith("transformers."):
                ours |= get_annotations(kind).keys()
        for title, own in ((dtype.__name__, True), ("TrainingArguments of transformers", False)):
            members = [member for member in fields(dtype) if member.init and (member.name in ours) is own]
            if not members:
                continue
            group = self.add_argument_group(title)
            for member in members:
                member.type = hints[member.name]
                self._parse_dataclass_field(group, member)  # type: ignore[arg-type]  # transformers passes groups too

    def error(self, message):
        raise InputError(f"{message}; --help lists the arguments.")


def mapping(text: str) -> dict:
    """`name=value,name=value`, or a mapping in JSON; a value is a number, a list, a word, true, false or none."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text} is no mapping in JSON: {error}") from error
    constants = {"true": True, "false": False, "none": None}
    found = {}
    for entry in re.split(r",(?=\s*\w+\s*=)", text):  # commas within a list separate no entries
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise ArgumentTypeError(f"{entry} is not of the form name=value; give name=value,name=value or JSON")
        try:
            found[name] = constants[value.lower()] if value.lower() in constants else literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value  # a word, such as gelu
    return found


def read_arguments(argv: list[str] | None, *types: type, prog: str | None = None) -> dict[str, Any]:
    """
    The fields of the dataclasses `types` for which a command gives another value than the default.

    Args:
        argv: flags, perhaps after a recipe; None for those of this process.
        prog: what the help calls the program; by default the script.

    Raises:
        InputError: an argument that none of the dataclasses has, or a value of another type.
    """
    parser = ArgumentParser(types, prog)
    parsed, unknown = parser.parse_known_args(with_recipe(sys.argv[1:] if argv is None else argv))
    if unknown:
        raise InputError(f"{unknown[0].split('=')[0]}: no such argument; --help lists those there are.")
    defaults = vars(parser.parse_args([]))  # of some, argparse converts the default too
    return {name: value for name, value in vars(parsed).items() if value != defaults[name]}


def make_arguments(given: dict[str, Any], *types: type) -> tuple:
    """
    Instances of the dataclasses `types` from the values of their fields.

    Raises:
        InputError: a field that none of them has, or a value that makes no sense.
    """
    given = check_types(given, *types)
    names = [{member.name for member in fields(kind)} & given.keys() for kind in types]
    try:
        return tuple(kind(**{name: given[name] for name in own}) for kind, own in zip(types, names, strict=True))
    except InputError:
        raise
    except Exception as error:  # TrainingArguments has many, and libraries that are not there have theirs
        raise InputError(f"the arguments cannot be used: {reason_of(error)}") from error


def check_types(given: dict[str, Any], *types: type) -> dict[str, Any]:
    """
    Check names and types alone, without what TrainingArguments sets up for training.

    Returns:
        The values of the fields, without those that are None or the default.

    Raises:
        InputError: a field that none of the dataclasses `types` has, or a value of another type.
    """
    hints: dict[str, Any] = {}
    defaults = vars(ArgumentParser(types).parse_args([]))
    for kind in types:
        known = get_type_hints(kind)
        hints |= {member.name: known[member.name] for member in fields(kind) if member.init}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in hints:
            near = get_close_matches(name, hints, 1, cutoff=0.75)
            raise InputError(f"`{name}`: no such argument{f'; did you mean `{near[0]}`?' if near else '.'}")
    given = {name: of_field(name, value, hints[name]) for name, value in given.items()}
    return {name: value for name, value in given.items() if value != defaults.get(name)}


def of_field(name: str, value: Any, kind: Any) -> Any:
    """
    A value for a field of the type `kind`: whole numbers can stand for others, one value for a list of one, and text
    for a number or a mapping, as YAML reads 5e-5.
    """
    if isinstance(value, str) and (kind == dict | None or (value.startswith("{") and "dict" in str(kind))):
        try:
            value = mapping(value)
        except ArgumentTypeError as error:
            raise InputError(f"{error}.", name) from error
    value = str(value) if isinstance(value, Path) else plain(value)
    readings = [value, with_floats(value), [value], [with_floats(value)]]
    if isinstance(value, str):
        with suppress(ValueError):
            readings.append(float(value))
    return first_fitting(name, readings, kind)


@contextmanager
def token_put_back() -> Iterator[None]:
    """The environment's HF_TOKEN is afterwards as it was; also a decorator, of what calls `keep_token`."""
    before = os.environ.get("HF_TOKEN")
    try:
        yield
    finally:
        os.environ.pop("HF_TOKEN", None)
        if before is not None:
            os.environ["HF_TOKEN"] = before


def keep_token(arguments: TrainingArguments):
    """Leave `hub_token` to the environment of this process: Trainer saves its arguments, and uploads them."""
    if arguments.hub_token:
        os.environ["HF_TOKEN"], arguments.hub_token = arguments.hub_token, None


def check_packages(arguments: TrainingArguments):
    """Raises InputError where an argument needs a package that is not installed, or shared memory."""
    if arguments.dataloader_num_workers:
        check_shared_memory()
    assert isinstance(arguments.report_to, list)  # as TrainingArguments leaves it
    for name in arguments.report_to:
        if name not in get_available_reporting_integrations():
            raise InputError(f"{name}: it is not installed; pip install {name}, or give none.", "report_to")
    if arguments.deepspeed and not is_deepspeed_available():
        raise InputError("`deepspeed`: it is not installed; pip install deepspeed, or leave it out.")
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments)
    except ImportError as error:
        name = OptimizerNames(arguments.optim).value
        raise InputError(f"{name}: {reason_of(error)}; give another.", "optim") from error
    except ValueError:  # some need the model
        pass


def check_seeds(seeds: list[int]):
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise InputError(f"{seed}: give a number from 0 to {2**32 - 1}.", "seed")
