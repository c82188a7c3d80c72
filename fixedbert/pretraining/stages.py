"""
Stages of pretraining: from one to the next the model can grow, and rows and batches change.

Every stage has a Trainer of its own, for a part of the steps that all stages have together, with one schedule and one
log. At its last step it saves a checkpoint. `begin_stage` copies that with the larger model, and the Trainer of the
next stage continues from the copy as from any other.
"""

import copy
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, TrainerCallback, TrainerState, TrainingArguments
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy, speed_metrics
from transformers.training_args import OptimizerNames

from ..conversion.families import fixed_head_config
from ..conversion.growing import enlarge, larger_config, to_fixed_head_bert
from ..conversion.weights import LOADING
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError
from ..training.loading import check_length
from .arguments import PretrainingArguments
from .trainer import PretrainingTrainer

SIZES = ("num_attention_heads", "attention_head_size", "value_head_size", "intermediate_size")
BY_LAYER = ("attention_head_size", "value_head_size")
BATCH = ("per_device_train_batch_size", "total_train_batch_size")
FIELDS = ("steps", *SIZES, "max_seq_length", *BATCH)
BEGIN = "_stage"  # in the output directory; Trainer pushes no such name
MOMENTS = {"exp_avg": -1, "exp_avg_sq": -2}  # AdamW's, with the power of s in them


@dataclass(frozen=True)
class Stage:
    """
    Args:
        end: the step of the run after which the next stage begins.
        growth: sizes that change, keyword arguments of `convert`.
        config: of the model, with these sizes.
        max_seq_length: tokens of an example.
        batch: examples that a device computes at once, and how often it does for a step.
    """

    end: int
    growth: dict[str, Any]
    config: PreTrainedConfig
    max_seq_length: int
    batch: tuple[int, int]

    def examples_of_step(self, devices: int) -> int:
        """On all devices together."""
        at_once, times = self.batch
        return at_once * times * devices


def stages_of(config: PreTrainedConfig, max_seq_length: int, arguments: PretrainingArguments) -> list[Stage]:
    """
    The stages of `stages`, whose steps become `max_steps`; without them a single one.

    Args:
        config: of the model that the first stage begins with.
        max_seq_length: of the first stage, unless it names another.

    Raises:
        InputError: a stage makes no sense, or is not an exact growth of the one before.
    """
    given = arguments.stages or []
    for number, changes in enumerate(given, 1):
        check_stage(f"stage {number} of `stages`", changes)
    if given:
        check_arguments(arguments, given)
        arguments.max_steps = sum(changes["steps"] for changes in given)
    now: dict[str, int] = {"max_seq_length": max_seq_length}
    stages, end = [], 0
    for number, changes in enumerate(given or [{"steps": arguments.max_steps}], 1):
        end += changes["steps"]
        growth = {name: value for name, value in changes.items() if name in SIZES}
        now |= {name: value for name, value in changes.items() if name == "max_seq_length" or name in BATCH}
        try:
            if growth:
                config = grown_config(number, config, growth)
            check_length(now["max_seq_length"], config)
            batch = batch_of(arguments, {name: now[name] for name in BATCH if name in now})
        except InputError as error:
            if not given:
                raise
            raise InputError(f"stage {number} of `stages`: {error}") from error
        stages.append(Stage(end, growth, config, now["max_seq_length"], batch))
    return stages


def check_stage(where: str, changes: dict[str, Any]):
    """
    Raises:
        InputError: a stage has other fields or values than it can have.
    """
    for name, value in changes.items():
        if name not in FIELDS:
            raise InputError(f"{where}: {name}: no stage can change it, only {', '.join(FIELDS[1:])}; leave it out.")
        values = value if name in BY_LAYER and isinstance(value, list) else [value]
        if not values or not all(type(one) is int and one >= 1 for one in values):
            raise InputError(f"{where}: {name} {value}: give a whole number of at least 1.")
    if "steps" not in changes:
        raise InputError(f"{where}: it has no steps; say how many.")


def check_arguments(arguments: PretrainingArguments, given: list[dict[str, Any]]):
    """Raises InputError where other arguments do not go with `stages`."""
    steps = sum(changes["steps"] for changes in given)
    if not arguments.do_train:
        raise InputError("`stages`: they are for training; give `do_train` too.")
    if arguments.max_steps not in (-1, steps):
        raise InputError(f"{arguments.max_steps}: the stages have {steps} steps together; leave it out.", "max_steps")
    if arguments.load_best_model_at_end or arguments.save_strategy == SaveStrategy.BEST:
        raise InputError("`stages`: the best checkpoint can be of another shape; leave out what keeps or loads it.")
    if arguments.torch_compile and any("max_seq_length" in changes for changes in given):
        raise InputError("`torch_compile`: batches have one shape; leave it out, or max_seq_length in `stages`.")
    if not any(name in changes for changes in given for name in SIZES):
        return
    optimizer = OptimizerNames(arguments.optim)
    if optimizer not in (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED):
        raise InputError(f"{optimizer.value}: only AdamW's state can grow with a model; leave it out.", "optim")
    if arguments.fsdp or any(os.environ.get(f"ACCELERATE_USE_{name}") == "true" for name in ("FSDP", "DEEPSPEED")):
        raise InputError("`stages`: a model that is spread over devices cannot grow; leave out FSDP and DeepSpeed.")


def grown_config(number: int, config: PreTrainedConfig, growth: dict[str, Any]) -> FixedHeadBertConfig:
    """
    Raises:
        InputError: it is the first stage, or `convert` cannot give a model with `config` these sizes.
    """
    name = next(iter(growth))
    if number == 1:
        raise InputError(f"{name}: the first shape is that of the model; give it in `config_overrides`.")
    if not isinstance(config, FixedHeadBertConfig):
        raise InputError(f"{name}: a model of the type {config.model_type} cannot grow; convert it first.")
    fixed_head_config(config)
    return larger_config(config, **growth)


def batch_of(arguments: PretrainingArguments, changes: dict[str, int]) -> tuple[int, int]:
    """Examples that a device computes at once, and how often it does for a step."""
    arguments = copy.copy(arguments)
    for name, value in changes.items():
        setattr(arguments, name, value)
    arguments.reach_total_train_batch_size()
    return arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps


def place_of(checkpoint: str | None, stages: list[Stage]) -> int:
    """The place in `stages` of the one that goes on from a checkpoint."""
    if checkpoint is None or len(stages) == 1:
        return 0
    return sum(stage.end <= step_reached(checkpoint) for stage in stages[:-1])


def step_reached(checkpoint: str) -> int:
    return TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME))).global_step


def begin_stage(
    checkpoint: str, stage: Stage, auto_class: type[_BaseAutoModelClass], arguments: PretrainingArguments
) -> str:
    """
    Make the checkpoint that a stage begins with, of the one that the stage before has left.

    Returns:
        Its folder, which is no longer needed when the stage has made a step.
    """
    begin, state = arguments.directory / BEGIN, PartialState()
    if state.is_main_process:
        shutil.rmtree(begin, ignore_errors=True)
        shutil.copytree(checkpoint, begin)
        reached = TrainerState.load_from_json(str(begin / TRAINER_STATE_NAME))
        reached.train_batch_size = stage.batch[0] * max(arguments.n_gpu, 1)  # Trainer compares it
        reached.save_to_json(str(begin / TRAINER_STATE_NAME))
        if stage.growth:
            with LOADING:
                small = auto_class.from_pretrained(checkpoint)
            large = to_fixed_head_bert(small, **stage.growth, seed=arguments.seed)
            large.save_pretrained(begin)
            grow_moments(begin / OPTIMIZER_NAME, small.config, large.config)
    state.wait_for_everyone()
    return str(begin)


def grow_moments(file: Path, old: FixedHeadBertConfig, new: FixedHeadBertConfig):
    """Make the state of a model's AdamW in a file that of the larger model's."""
    saved = torch.load(file, map_location="cpu", weights_only=True)
    groups = saved["param_groups"]
    names = {
        number: name for group in groups for number, name in zip(group["params"], group["param_names"], strict=True)
    }
    saved["state"] = grown_moments(saved["state"], names, old, new)
    torch.save(saved, file)


def stage_text(stages: list[Stage], place: int) -> str:
    """What a stage begins with, for a line that goes on with the parameters; of a single stage nothing."""
    if len(stages) == 1:
        return ""
    stage, begin = stages[place], stages[place - 1].end if place else 0
    return (
        f"stage {place + 1} of {len(stages)}, steps {begin + 1:,} to {stage.end:,}: rows of {stage.max_seq_length} "
        f"tokens, {stage.examples_of_step(1)} a step on each device; "
    )


def data_leads(stages: list[Stage], examples: list[int], devices: int) -> list[int]:
    """
    By how many steps, of its own batch, the data of each stage are ahead of the steps of the run.

    A stage with rows of the same length goes on in the epoch behind the examples that were seen, with the next whole
    step. Rows of another length begin the next epoch.

    Args:
        examples: how many an epoch has in each stage.
    """
    leads = [0]
    sizes = [stage.examples_of_step(devices) for stage in stages]
    epochs = [-(-count // size) for count, size in zip(examples, sizes, strict=True)]  # in steps
    for place, (before, stage) in enumerate(zip(stages, stages[1:], strict=False), 1):
        epoch, step = divmod(before.end + leads[-1], epochs[place - 1])
        if stage.max_seq_length == before.max_seq_length:
            step = min(-(-step * sizes[place - 1] // sizes[place]), epochs[place])
        else:
            step = epochs[place] if step else 0
        leads.append(epoch * epochs[place] + step - before.end)
    return leads


@dataclass
class Throughput:
    """What the stages of this process have trained together. `began` is in seconds, as time.time() has them."""

    began: float = 0.0
    steps: int = 0
    examples: int = 0


class StageTrainer(PretrainingTrainer):
    """
    Trainer of the first of `stages`, which are those to come.

    Args:
        throughput: of the run so far, to which this stage is added.
        data_lead: of the stage, from `data_leads`.
        callbacks: one that stops the training ends the stage.
    """

    def __init__(
        self,
        *args,
        stages: list[Stage],
        throughput: Throughput,
        data_lead: int = 0,
        callbacks: Sequence[TrainerCallback] = (),
        **kwargs,
    ):
        self.stage, *following = stages
        self.grows_later = any(stage.growth for stage in following)
        ends = [StageEnd(self.stage.end)] if following else []
        # Continuation, which can put off a save, comes after these.
        super().__init__(*args, callbacks=[*callbacks, *ends], **kwargs)
        self.throughput = throughput
        self.data_lead = data_lead

    def steps_of_data(self) -> int:
        return self.state.global_step + self.data_lead

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader):
        _, steps_of_epoch, *others, max_steps = super().set_initial_training_values(args, dataloader)
        return -(-(max_steps + self.data_lead) // steps_of_epoch), steps_of_epoch, *others, max_steps

    # Trainer takes the place in the data from the step alone, and asks no public method for it. A stage with another
    # batch than the one before begins elsewhere in the epoch.
    def _init_training_state(self, max_steps, num_update_steps_per_epoch, *args, **kwargs):
        super()._init_training_state(max_steps, num_update_steps_per_epoch, *args, **kwargs)
        self.throughput.began = self.throughput.began or time.time()
        self.first_step = self.state.global_step
        epoch, step = divmod(self.steps_of_data(), num_update_steps_per_epoch)
        return epoch, step * self.args.gradient_accumulation_steps

    def log(self, logs, *args, **kwargs):
        if "train_loss" in logs:  # at the end of training, where Trainer gives the speed of this stage alone
            steps, devices = self.state.global_step - self.first_step, self.args.world_size * max(self.args.n_gpu, 1)
            so_far = self.throughput
            so_far.steps += steps
            so_far.examples += steps * self.stage.examples_of_step(devices)
            logs |= speed_metrics("train", so_far.began, so_far.examples, so_far.steps)
        super().log(logs, *args, **kwargs)

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.grows_later:  # AdamW's moments are saved with names, as torch calls them, to grow by
            names = {parameter: name for name, parameter in self.model.named_parameters()}
            for group in optimizer.param_groups:
                group["param_names"] = [names[parameter] for parameter in group["params"]]
        return optimizer


def grown_moments(
    state: dict[int, dict[str, torch.Tensor]],
    names: dict[int, str],
    old: FixedHeadBertConfig,
    new: FixedHeadBertConfig,
) -> dict[int, dict[str, torch.Tensor]]:
    """
    The state that AdamW has for each parameter of a larger model: zeros for what is new.

    Args:
        state: of the smaller model, by the number of the parameter.
        names: of the parameters, by their numbers.
    """

    def grown(name: str, key: str, value: torch.Tensor) -> torch.Tensor:
        return enlarge({name: value}, old, new, power=MOMENTS[key])[name] if key in MOMENTS else value

    return {
        number: {key: grown(names[number], key, value) for key, value in entries.items()}
        for number, entries in state.items()
    }


class StageEnd(TrainerCallback):
    """Ends a stage with a checkpoint, after `step` or where a callback before it has stopped the training."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step or control.should_training_stop:
            self.step = state.global_step
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and state.epoch % 1:  # Trainer takes this for the end of an epoch
            control.should_log = control.should_evaluate = control.should_save = False
