"""The machine that a benchmark runs on: what it is, a process for each measurement, and what that takes."""

import multiprocessing
import os
import platform
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from typing import TypeVar

import torch
import transformers

import fixedbert
from fixedbert.support.errors import Stopped
from fixedbert.support.processes import exit_with_parent
from fixedbert.training.speed import has_bf16

Result = TypeVar("Result")


def description() -> str:
    bf16 = "with" if has_bf16(use_cpu=True) else "without"
    return (
        f"{platform.machine()} {bf16} bf16 instructions, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"fixedbert {fixedbert.__version__}"
    )


def gpus() -> list[str]:
    """A line for each GPU."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        f"{x.name}, {x.total_memory / 2**30:.0f} GiB, capability {x.major}.{x.minor}, CUDA {torch.version.cuda}"
        for x in found
    ]


def in_a_process(work: Callable[..., Result], *arguments) -> Result:
    """
    What `work` returns in a new process, where nothing is printed. Settings of the allocator cannot be taken back,
    caches are cold, and memory is no other's. Where the call is stopped, the process is killed.
    """
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(1, context, exit_with_parent, (os.getpid(),)) as processes:
        try:
            return processes.submit(quietly, work, *arguments).result()
        except (KeyboardInterrupt, Stopped):
            for process in {*multiprocessing.active_children()} - others:
                process.kill()  # the end of `with` waits for it
            raise


def quietly(work: Callable[..., Result], *arguments) -> Result:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        transformers.utils.logging.set_verbosity_error()
        return work(*arguments)


def resident_peak() -> int:
    """
    Bytes of this process at its largest, mapped files included; never less than its parent had when it started.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # from KiB
