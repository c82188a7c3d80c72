"""
The arguments of Trainer and the recipes that set them.

Command-line flags, recipes and Python keyword arguments are merged into one dict, which `make` in option_values.py
converts to dataclasses.
"""

import os
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments

from ..option_values import convert_all, input_errors, without_effect
from ..options import TrainerOptions
from ..support.errors import InputError
from ..support.files import read_yaml
from .speed import disable_emulated_bf16

LONGEST_INTERVAL = 500  # steps; the default for evaluations, and the upper limit if `logging_steps` is a fraction
RECIPES = Path(__file__).parents[1] / "recipes"
FILES = ("train_file", "validation_file", "test_file")
ON_HUB = ("dataset_name", "dataset_config_name", "validation_split_name")
GLUE = ("task_name", "data_dir")
# Maps a flag or keyword argument to the recipe entries that it replaces, because they are alternatives to it.
REPLACES: dict[str, tuple[str, ...]] = {
    "train_file": (*ON_HUB, *GLUE),
    "dataset_name": (*FILES, *GLUE),
    "task_name": (*FILES, *ON_HUB),
    "model_name_or_path": ("config_name",),
    "num_train_epochs": ("max_steps",),
    "gradient_accumulation_steps": ("total_train_batch_size",),
    "total_train_batch_size": ("gradient_accumulation_steps",),
}
# These entries describe the corpora in a recipe. A flag that replaces the corpora also replaces the descriptions.
CORPUS_OPTIONS = ("dataset_config_name", "text_column_name", "document_boundary")


@dataclass
class CommonArguments(TrainerOptions, TrainingArguments):
    """TrainingArguments with our options. Rejects values that would silently produce wrong results."""

    # Maps the name of each restricted field to its only supported value and the reason for the restriction.
    refused: ClassVar[dict[str, tuple[object, str]]] = {
        "auto_find_batch_size": (False, "a second attempt would start from partially trained weights"),
        "dataloader_drop_last": (False, "evaluation would omit the last examples"),
        "resume_from_checkpoint": (None, "the same command resumes a run from its last checkpoint"),
        "fp16_full_eval": (False, "use `fp16` for training and evaluation"),
        "push_to_hub": (False, "use `fixedbert push` when the run is complete"),
        "save_only_model": (False, "resuming a run requires the optimizer state"),
        "accelerator_config.split_batches": (False, "`per_device_train_batch_size` is the batch size per device"),
        "prediction_loss_only": (False, "the metrics need the predictions"),
        "batch_eval_metrics": (False, "the metrics need the predictions for all examples"),
        "eval_do_concat_batches": (True, "the metrics need the predictions for all examples"),
        "label_names": (None, "the task determines the labels"),
        "length_column_name": ("length", "the lengths are always in this column"),
        "neftune_noise_alpha": (None, "the noise depends on the amount of padding, but padding is skipped"),
    }

    @property
    def directory(self) -> Path:
        """The output directory as a Path."""
        assert self.output_dir is not None  # TrainingArguments sets a default
        return Path(self.output_dir)

    def __post_init__(self):
        self.use_cpu |= not torch.accelerator.is_available()  # so that several processes use gloo
        self.logging_nan_inf_filter = False  # training stops at a non-finite loss
        is_default = self.logging_steps == TrainerOptions.logging_steps
        if self.eval_strategy == "steps" and self.eval_steps is None and is_default:
            self.eval_steps = LONGEST_INTERVAL  # Trainer evaluates at each log entry by default
        super().__post_init__()
        self.dataloader_pin_memory &= self.device.type != "cpu"
        check_launcher(self)
        disable_emulated_bf16(self)
        for name, (supported, reason) in self.refused.items():
            if attrgetter(name)(self) != supported:
                raise InputError(f"is not supported: {reason}.", name)
        if self.fp16 and self.device.type == "cpu":
            raise InputError("requires a GPU; use `bf16`.", "fp16")
        if self.max_steps == 0 or self.max_steps < -1:
            raise InputError(
                f"is {self.max_steps}, but must be at least 1, or -1 to train for `num_train_epochs`.", "max_steps"
            )


def check_launcher(arguments: TrainingArguments):
    """Raises InputError if `accelerate launch` has started only one of several CPU processes."""
    launched = {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys() and "WORLD_SIZE" not in os.environ
    if launched and arguments.world_size == 1 and arguments.device.type == "cpu":
        raise InputError(
            "'accelerate launch' started only one CPU process, because it requires mpirun to start more; instead, run "
            f"it with --config_file {RECIPES / 'accelerate' / 'cpu.yaml'} --num_processes N and without --cpu."
        )


def with_recipe(recipe: str | Path | None, given: dict[str, Any], *types: type) -> dict[str, Any]:
    """
    Merges the arguments in `given` into the entries of a recipe. Returns them, converted to the types of their fields.

    Arguments that are not None take precedence. They also remove the recipe entries that they replace (see `REPLACES`)
    or that would have no effect: for example, `num_train_epochs` removes `max_steps`, and `eval_strategy` no removes
    `eval_steps`. A recipe is a YAML or JSON file. If `recipe` is recipes/NAME.yaml and this file does not exist, the
    recipe of that name that ships with the package is used.
    """
    given = {name: value for name, value in given.items() if value is not None}
    entries = {} if recipe is None else read_yaml(recipe_file(recipe))
    replaced = {entry for name in given for entry in REPLACES.get(name, ())} & entries.keys()
    if replaced & {"train_file", "dataset_name"}:
        replaced.update(CORPUS_OPTIONS)
    kept = {name: value for name, value in entries.items() if name not in replaced}
    with input_errors():
        values = convert_all(kept | given, types)
    switched_off = [name for name, others, _ in without_effect(values, values, types) if {*others} & given.keys()]
    return {name: value for name, value in values.items() if name in given or name not in switched_off}


def recipe_file(recipe: str | Path) -> Path:
    packaged = RECIPES.parent / recipe
    return packaged if packaged.exists() and not Path(recipe).exists() else Path(recipe)
