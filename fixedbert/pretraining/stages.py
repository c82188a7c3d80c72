"""
Pretraining stages, which can differ in sequence length, batch size and model size.

Each stage is a run with its own output directory. It starts from the model of the previous stage, with a new optimizer
state. The model can grow between stages without changing its outputs. One learning-rate schedule spans all stages.
"""

from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedConfig

from ..conversion.growing import larger_config
from ..loading.families import check_length, fixed_head_config
from ..option_values import make
from ..options import ModelOptions, NewModelOptions
from ..support.errors import InputError, error_context
from ..support.files import output_path
from ..training.models import load_config
from .arguments import ARGUMENTS

SIZES = ("num_attention_heads", "attention_head_size", "value_head_size", "intermediate_size")
CHANGES = ("max_seq_length", "per_device_train_batch_size", "total_train_batch_size")
# Arguments that describe a new model. Later stages start from the model of the previous stage.
NEW_MODEL = {field.name for field in fields(NewModelOptions)} - {field.name for field in fields(ModelOptions)}
NEW_MODEL = NEW_MODEL - {"do_lower_case", "strip_accents"} | {"config_name", "config_overrides"}


@dataclass(frozen=True)
class Stage:
    """
    One run in a sequence of pretraining runs.

    Args:
        arguments: Arguments for the run.
        config: Configuration of the model that the run trains.
        growth: Keyword arguments for `to_fixed_head_bert`: the sizes to which the model grows before training.
        first_step: Step of the learning-rate schedule at which the run starts.
        schedule_steps: Number of steps in the learning-rate schedule. None if the schedule ends with the run.
    """

    arguments: dict[str, Any]
    config: PreTrainedConfig
    growth: dict[str, Any]
    first_step: int = 0
    schedule_steps: int | None = None


def plan_stages(arguments: dict[str, Any]) -> list[Stage]:
    """
    Returns one run per stage, or a single run if `stages` is not set.

    Raises:
        InputError: If the arguments of a stage are invalid, or the previous stage's model cannot grow to its sizes.
    """
    run = {name: value for name, value in arguments.items() if name != "stages"}
    if not arguments.get("stages"):
        return [Stage(run, check_run(run), {})]
    for name in ("max_steps", "num_train_epochs"):
        if name in run:
            raise InputError("cannot be combined with `stages`.", name)
    changes = arguments["stages"]
    output_dir = output_path(run.get("output_dir"))
    stages: list[Stage] = []
    config, first_step = None, 0
    schedule_steps = sum(check_changes(number, stage) for number, stage in enumerate(changes, 1))
    for number, stage in enumerate(changes, 1):
        growth = {name: stage[name] for name in SIZES if name in stage}
        run = run | {name: stage[name] for name in CHANGES if name in stage} | {"max_steps": stage["steps"]}
        if number > 1:
            run = {name: value for name, value in run.items() if name not in NEW_MODEL}
            run |= {"model_name_or_path": run["output_dir"], "seed": arguments.get("seed", 42) + number - 1}
            if run.get("tokenizer_name") is None:  # the tokenizer of the first stage, which has its own settings
                run = {name: value for name, value in run.items() if name not in ("do_lower_case", "strip_accents")}
        run["output_dir"] = str(output_dir) if number == len(changes) else f"{output_dir}-stage{number}"
        with error_context(f"stage {number} of `stages`"):
            if config is not None and growth:
                config = larger_config(fixed_head_config(config), **growth)
            config = check_run(run, config)
        stages.append(Stage(run, config, growth, first_step, schedule_steps))
        first_step += stage["steps"]
    return stages


def check_changes(number: int, changes: dict[str, Any]) -> int:
    """
    Checks the entries of a stage and returns its number of steps.

    Raises:
        InputError: If `steps` is missing or not positive, or the stage changes an argument that must stay the same.
    """
    allowed = CHANGES if number == 1 else CHANGES + SIZES
    steps = changes.get("steps")
    if type(steps) is not int or steps < 1 or changes.keys() - {"steps", *allowed}:
        raise InputError(f"stage {number} of `stages` needs steps > 0 and can change only {', '.join(allowed)}.")
    return steps


def check_run(arguments: dict[str, Any], config: PreTrainedConfig | None = None) -> PreTrainedConfig:
    """
    Checks the arguments of a run and returns the configuration of its model.

    Args:
        config: Configuration of the model. By default, the configuration that the arguments specify is loaded.

    Raises:
        InputError: If the arguments are invalid, or the model does not support them.
    """
    model_args, data_args, _ = make(arguments, *ARGUMENTS)
    config = config or load_config(model_args, is_decoder=data_args.objective == "clm")
    check_length(data_args.max_seq_length, config)
    if data_args.separate_documents and config.model_type != "fixed_head_bert":
        raise InputError(f"is not supported by models of type {config.model_type}.", "separate_documents")
    return config
