"""Memory of CPU training."""

import ctypes
import sys

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def keep_freed_memory(device: torch.device):
    """
    Let glibc keep what tensors free instead of handing it back to the kernel.

    By default every large tensor is mapped and unmapped anew, and a training step on a CPU spends up to half its time
    in page faults. No effect on other devices and with other C libraries.
    """
    if device.type == "cpu" and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
