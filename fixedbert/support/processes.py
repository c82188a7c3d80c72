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
# Forked workers, which `datasets` also uses, start without imports and share memory.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

task: Callable[..., Any]  # the function that a worker process calls


def process_pool(num_proc: int, function: Callable[..., Any], *arguments: object) -> ProcessPoolExecutor:
    """
    Returns a pool of `num_proc` workers. `pool.submit(call_task, *others)` calls `function(*arguments, *others)`.

    Each worker receives `arguments` only once. On Linux, workers and parent share the memory of `arguments`.
    """
    context = multiprocessing.get_context(START_METHOD)
    return ProcessPoolExecutor(num_proc, context, start_worker, (os.getpid(), partial(function, *arguments)))


def call_task(*others: object) -> Any:
    """Calls the function that was passed to `process_pool`. Runs in a worker process."""
    return task(*others)


def start_worker(parent: int, function: Callable[..., Any]):
    """Initializes a worker process. `parent` is the process id of its parent."""
    global task
    task = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker already has a core to itself
    exit_with_parent(parent)


def exit_with_parent(parent: int):
    """Makes this process ignore Ctrl-C, which the parent handles, and, on Linux, end if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
