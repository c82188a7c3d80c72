"""Worker processes, which end with the process that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from .errors import InputError

PR_SET_PDEATHSIG = 1  # from linux/prctl.h

work: Callable[..., Any]  # of a worker process


def process_pool(num_proc: int, function: Callable[..., Any], *arguments: object) -> ProcessPoolExecutor:
    """
    A pool to which `call_task` is submitted: each call is `function(*arguments, *others)`. Workers get `arguments`
    once, and without a copy where they can fork.
    """
    check_shared_memory()
    # As in `datasets`: a fork imports nothing and shares memory.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(num_proc, context, start_worker, (os.getpid(), partial(function, *arguments)))


def call_task(*others: object) -> Any:
    """Call a worker's function with the pool's arguments and these."""
    return work(*others)


def check_shared_memory():
    """Refuse several processes where they cannot share locks, as /dev/shm is full or cannot be written."""
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise InputError(
            f"several processes need shared memory, /dev/shm, which cannot be used ({error.strerror}); correct that, "
            "or give `preprocessing_num_workers` 1 and `dataloader_num_workers` 0."
        ) from error


def start_worker(parent: int, function: Callable[..., Any]):
    global work
    work = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already run in parallel
    exit_with_parent(parent)


def exit_with_parent(parent: int):
    """Ignore Ctrl-C, which is the parent's, and end when the parent is killed: an orphan would hold its locks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
