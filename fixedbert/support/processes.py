"""Worker processes that end when their parent process ends."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

PR_SET_PDEATHSIG = 1  # from linux/prctl.h

task: Callable[..., Any]  # the function of a worker process


def process_pool(num_proc: int, function: Callable[..., Any], *arguments: object) -> ProcessPoolExecutor:
    """
    Creates a pool for `pool.submit(call_task, *others)`, which calls `function(*arguments, *others)`.

    Workers receive `arguments` once, and share their memory on Linux.
    """
    # A forked worker imports nothing and shares memory, as in `datasets`.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(num_proc, context, start_worker, (os.getpid(), partial(function, *arguments)))


def call_task(*others: object) -> Any:
    return task(*others)


def start_worker(parent: int, function: Callable[..., Any]):
    global task
    task = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already run in parallel
    exit_with_parent(parent)


def exit_with_parent(parent: int):
    """Ignores Ctrl-C, which the parent handles, and ends this process when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
