"""Measures how long functions take."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

ROUNDS = 5  # number of measurements per latency; the median is used


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Calls `run` once and returns the elapsed seconds."""
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    synchronize()
    begin = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - begin


@torch.inference_mode()
def median_time(run: Callable[[], object], device: torch.device) -> float:
    """Calls `run` several times and returns the median of the elapsed seconds."""
    run()  # warm-up
    return median(timed(run, device) for _ in range(ROUNDS))


@torch.inference_mode()
def measure_speedup(
    before: Callable[[], object], after: Callable[[], object], device: torch.device, rounds: int = 7
) -> tuple[float, float, float]:
    """Calls both functions in turn. Returns each function's median seconds, and the median ratio before / after."""
    before(), after()  # warm-up
    pairs = [(timed(before, device), timed(after, device)) for _ in range(rounds)]
    first, second = zip(*pairs, strict=True)
    return median(first), median(second), median(a / b for a, b in pairs)
