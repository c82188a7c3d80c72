"""Where and how a training runs: processes, devices, strategy and precision, and what launchers asked for in vain."""

import os

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from transformers import Trainer, TrainingArguments

from ..support.errors import InputError

PRECISIONS = {"no": "fp32"}  # by accelerate's names; the others have their own
ALONE = (
    "RANK={} and WORLD_SIZE={} say that this process is one of several, but it would train alone, as each other one: "
    "start the script with torchrun or accelerate launch, which set LOCAL_RANK, MASTER_ADDR and MASTER_PORT too, or "
    "remove these variables."
)


def check_world(arguments: TrainingArguments):
    """
    Compare what a launcher has said with what TrainingArguments and accelerate have made of it.

    Raises:
        InputError: this process would train alone, though it was started as one of several, or for FSDP.
    """
    if arguments.world_size == 1:
        check_address(always=True)
    state = arguments.distributed_state
    if state is None or not (arguments.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"):
        return
    if state.distributed_type == DistributedType.NO:
        raise InputError(
            "FSDP spreads a model over the processes that a launcher starts, and this one was started without: use "
            "accelerate launch --config_file fixedbert/recipes/accelerate/fsdp.yaml, or leave FSDP out."
        )
    if state.distributed_type == DistributedType.MULTI_CPU:
        if fsdp_version(arguments) != 2:
            raise InputError("FSDP 1 trains on no CPU: give accelerate launch --fsdp_version 2.")
        # accelerate looks for FSDP beside accelerators only; torch has it for CPUs too
        state.distributed_type = DistributedType.MULTI_GPU


def fsdp_version(arguments: TrainingArguments) -> int:
    if arguments.fsdp:
        return int(arguments.fsdp_plugin_args["fsdp_version"])
    return int(os.environ.get("FSDP_VERSION", "1"))  # which accelerate launch sets


def check_address(always: bool = False):
    """Refuse to be one of several processes that do not know where to meet, or `always`."""
    rank, processes = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is not None and int(processes) > 1 and (always or "MASTER_ADDR" not in os.environ):
        raise InputError(ALONE.format(rank, processes))


def check_saving(plugin: FullyShardedDataParallelPlugin):
    """Refuse the kind of FSDP checkpoints with which Trainer saves no model in the end, without a word."""
    if "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        kind = str(plugin.state_dict_type).rpartition(".")[2]
        raise InputError(f"FSDP would save no trained model with {kind}: give fsdp_state_dict_type FULL_STATE_DICT.")


def running_text(trainer: Trainer, rows: int = 1) -> str:
    """Processes, devices, strategy, precision and examples a step, of so many `rows` each, in a line."""
    arguments = trainer.args
    processes, devices = arguments.world_size, arguments.world_size * max(arguments.n_gpu, 1)
    accumulated, at_once = arguments.gradient_accumulation_steps, rows * arguments.per_device_train_batch_size
    if arguments.device.type == "cpu":
        where = "one process on CPU" if processes == 1 else f"{processes} processes on CPU"
    else:
        where = f"{devices} x {device_name(arguments.device)}"
    factors = [f"{at_once} on each of {devices} devices"] if devices > 1 else [f"{at_once} at once"]
    factors += [f"{accumulated} times"] if accumulated > 1 else []
    made = f" ({', '.join(factors)})" if len(factors) > 1 or devices > 1 else ""
    parts = [
        where,
        *strategy(trainer),
        precision(trainer),
        f"{(total := at_once * devices * accumulated):,} example{'' if total == 1 else 's'} a step{made}",
    ]
    return "\n".join([*asked_in_vain(trainer), ", ".join(parts)])


def asked_in_vain(trainer: Trainer) -> list[str]:
    """A line where accelerate launch was asked for several processes, and has started one."""
    launched = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= os.environ.keys() and "LOCAL_RANK" not in os.environ
    if not launched or trainer.args.world_size > 1 or trainer.args.device.type != "cpu":
        return []
    return [
        "accelerate launch was asked for several processes, and has started one: on CPUs it starts several with "
        "--config_file fixedbert/recipes/accelerate/cpu.yaml"
    ]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def strategy(trainer: Trainer) -> list[str]:
    """How the devices share a model; nothing for one device."""
    state = trainer.accelerator.state
    if trainer.is_deepspeed_enabled:
        return [f"DeepSpeed ZeRO-{state.deepspeed_plugin.zero_stage}"]
    if trainer.is_fsdp_enabled:
        return [f"FSDP{state.fsdp_plugin.fsdp_version}"]
    if trainer.args.n_gpu > 1:
        return ["DataParallel"]
    return ["DDP"] if trainer.args.world_size > 1 else []


def precision(trainer: Trainer) -> str:
    """The precision that holds, and accelerate's where that is another: arguments of the Trainer win over it."""
    holds = trainer.accelerator.mixed_precision
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", holds)
    name = PRECISIONS.get(holds, holds)
    if name == "fp32" and trainer.args.device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32":
        name = "tf32"
    return name if asked == holds else f"{name} (not accelerate's mixed_precision {asked})"
