"""bf16, where the hardware multiplies in it."""

import torch
from transformers import TrainingArguments
from transformers.utils import logging

INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # torch's names; the last is Arm's

logger = logging.get_logger(__name__)


def has_bf16(use_cpu: bool) -> bool:
    """Whether the hardware multiplies in bf16, without emulation."""
    if not use_cpu and torch.accelerator.is_available():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in INSTRUCTIONS)


def disable_emulated_bf16(arguments: TrainingArguments):
    """Train and evaluate in float32, with a warning, where bf16 is asked for on a CPU that would emulate it."""
    asked = arguments.bf16 or arguments.bf16_full_eval or arguments.mixed_precision == "bf16"
    if asked and arguments.device.type == "cpu" and not has_bf16(use_cpu=True):
        logger.warning(
            "bf16 is left out, and float32 takes its place: this processor has no bf16 instructions (AVX-512 BF16, "
            "AMX or Arm's), and without them a product takes up to 100 times as long as in float32."
        )
        arguments.bf16 = arguments.bf16_full_eval = False
        arguments.mixed_precision = "no"  # which `accelerate launch` can ask for too
