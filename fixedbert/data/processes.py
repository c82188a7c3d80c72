"""Worker processes, which end with the process that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from ..errors import InputError

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def process_pool(num_proc: int, initializer: Callable, *arguments: object) -> ProcessPoolExecutor:
    """A pool whose workers first call `initializer(*arguments)`, without copying the arguments where they can fork."""
    check_shared_memory()
    # As in `datasets`: a copy of this process costs no import and shares its memory.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(num_proc, context, start_worker, (os.getpid(), initializer, arguments))


def check_shared_memory():
    """
    Raises:
        InputError: several processes cannot work together, because /dev/shm is full or cannot be written.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise InputError(
            f"several processes need shared memory, /dev/shm, which cannot be used ({error.strerror}); mend that, or "
            "give --preprocessing_num_workers 1."
        ) from error


def start_worker(parent: int, initializer: Callable, arguments: tuple):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are what runs in parallel
    end_with_parent(parent)
    initializer(*arguments)


def end_with_parent(parent: int):
    """Leave it to the parent to be interrupted; a killed one leaves no orphans, which would hold its locks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
