"""Helpers for paired measurements: separate processes, ratios between sides, and descriptions of the machine."""

import multiprocessing
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeVar

import torch
import transformers

import fixedbert
from fixedbert.support.machine import has_bf16
from fixedbert.support.processes import exit_with_parent

Result = TypeVar("Result")


def description() -> str:
    """Describes the processor and the versions of the libraries."""
    bf16 = "with" if has_bf16(use_cpu=True) else "without"
    return (
        f"{platform.machine()} {bf16} bf16 instructions, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"fixedbert {fixedbert.__version__}"
    )


def gpus() -> list[str]:
    """Describes each GPU."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        f"{one.name}, "
        f"{one.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, capability {one.major}.{one.minor}"
        for one in devices
    ]


def data_directory() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        raise SystemExit("error: set the environment variable FIXEDBERT_DATA to the directory with corpora and tasks.")
    return Path(os.environ["FIXEDBERT_DATA"])


def in_a_process(work: Callable[..., Result], *arguments) -> Result:
    """Runs `work` in a new process with its own caches, memory and allocator settings, and returns the result."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, exit_with_parent, (os.getpid(),)) as processes:
        return processes.submit(quietly, work, *arguments).result()


def quietly(work: Callable[..., Result], *arguments) -> Result:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        transformers.utils.logging.set_verbosity_error()
        return work(*arguments)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """Formats the median and the range of the ratios over all rounds, such as 2.05 (2.01-2.11)."""
    ratios = sorted(numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
