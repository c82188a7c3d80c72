"""Predictions for long texts that are split into windows."""

import numpy as np


def pool_windows(outputs: np.ndarray, examples: np.ndarray, pool: str = "mean") -> np.ndarray:
    """
    Combines the outputs of the windows of each text.

    Args:
        outputs: logits or labels (windows, ...).
        examples: index of the text for each window, (windows,). All indices from 0 to N - 1 occur.
        pool: "mean" or "max".

    Returns:
        An array (N, ...) with the average or the maximum for each text, in the order of the texts.
    """
    order = np.argsort(examples, kind="stable")
    starts = np.flatnonzero(np.diff(examples[order], prepend=-1))
    if len(starts) == len(order):
        return outputs[order]
    if pool == "max":
        return np.maximum.reduceat(outputs[order], starts)
    sums = np.add.reduceat(outputs[order].astype(np.float64), starts)
    counts = np.diff(starts, append=len(order)).reshape(-1, *[1] * (outputs.ndim - 1))
    return (sums / counts).astype(outputs.dtype)
