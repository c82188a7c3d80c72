"""This machine: its hardware and the versions of libraries."""

import os
import platform
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")  # contains the name of the processor on Linux
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # as torch names them; the last one is for Arm


def machine_name() -> str:
    """Returns a description of this machine: GPU or core count, processor, number of threads, and torch version."""
    count = torch.get_num_threads()
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"{hardware_name()}, {processor_name()}, {threads}, torch {torch.__version__}"


def cores() -> int:
    """Returns the number of cores that this process may use, such as those of a job on a shared machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def has_bf16(use_cpu: bool) -> bool:
    """Returns True if the accelerator supports bf16. With `use_cpu` or without an accelerator, checks the CPU."""
    if not use_cpu and torch.accelerator.is_available():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in BF16_INSTRUCTIONS)


def hardware_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores()} CPU cores"
