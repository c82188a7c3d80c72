"""Worker processes, which end with the process that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def process_pool(num_proc: int, initializer: Callable, *arguments: object) -> ProcessPoolExecutor:
    """A pool whose workers first call `initializer(*arguments)`, without copying the arguments where they can fork."""
    # As in `datasets`: a copy of this process costs no import and shares its memory.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(num_proc, context, start_worker, (os.getpid(), initializer, arguments))


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
