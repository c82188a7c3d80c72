"""Weights of the classes in the training loss."""

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig

from ..support.errors import InputError
from .labels import SINGLE, default_names, shorten


def read_class_weights(text: str, labels: np.ndarray, config: PreTrainedConfig) -> dict[str, float]:
    """
    Returns the weight of each class, and prints the weights.

    Args:
        text: "balanced", or one number per class, separated by commas. Balanced weights are inversely proportional to
            the number of rows with each class, and their average over the rows is 1, as in scikit-learn.
        labels: label ids (rows,) of the training data.
        config: configuration of the model, with the names of the classes.

    Raises:
        InputError: If the model does not predict one label per text, or the weights are invalid.
    """
    names = default_names(config)
    if config.problem_type != SINGLE:
        raise InputError("requires data with one label per text.", "class_weights")
    if text == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        try:
            weights = np.array([float(part) for part in text.split(",")])
        except ValueError:
            weights = np.array([])
        if len(weights) != len(names) or not (np.isfinite(weights) & (weights > 0)).all():
            raise InputError(
                f"{text!r}: must be balanced, or {len(names)} positive numbers for {shorten(names)}.", "class_weights"
            )
    result = dict(zip(names, weights.tolist(), strict=True))
    PartialState().print(f"class weights: {describe_weights(result)}")
    return result


def describe_weights(weights: dict[str, float]) -> str:
    return shorten(f"{name} {weight:.4g}" for name, weight in weights.items())


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: list[float]) -> Tensor:
    """
    Returns the average over the rows of the weighted cross-entropy, for logits (B, C) and label ids (B,).

    The sum is divided by the number of rows, as if the weights were part of each row's loss. The average over a step
    is then exactly the average of its batches, weighted by their number of rows. PyTorch divides by the sum of the
    weights, which differs between batches, so that the gradient would depend on how a step is divided into batches.
    """
    losses = cross_entropy(
        logits.float(), labels, weight=logits.new_tensor(weights, dtype=torch.float32), reduction="sum"
    )
    return losses / len(labels)
