"""Measures how long functions take."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from tqdm.auto import tqdm


@torch.inference_mode()
def interleaved(
    runs: Sequence[Callable[[], object]], rounds: int, device: torch.device, title: str = ""
) -> list[list[float]]:
    """
    Calls all functions in turn, so that a change in the machine's load affects all of them.

    Args:
        title: Title of a progress bar; without a title, there is none.

    Returns:
        For each function, the seconds of each round. The first call of each function is not counted.
    """
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()  # warm-up
    for _ in tqdm(range(rounds), title, unit="round", disable=not title):
        for run, times in zip(runs, seconds, strict=True):
            synchronize()
            begin = time.perf_counter()
            run()
            synchronize()
            times.append(time.perf_counter() - begin)
    return seconds
