"""Standardization of regression targets with means and standard deviations that are stored in a model's config."""

import numpy as np
import torch
from accelerate import PartialState
from transformers import PreTrainedConfig

# Targets are standardized if a standard deviation is outside UNSCALED_STD, or a mean is outside ±UNSCALED_MEAN.
UNSCALED_STD, UNSCALED_MEAN = (0.1, 10.0), 10.0


def is_unit_scale(targets: np.ndarray) -> bool:
    """Returns True if a model can be trained on `targets` (examples, outputs) without standardizing them."""
    mean, std = moments(targets)
    return bool(np.all((std >= UNSCALED_STD[0]) & (std <= UNSCALED_STD[1]) & (abs(mean) <= UNSCALED_MEAN)))


def moments(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means and standard deviations (outputs,) of the targets. Uses 1 if a standard deviation is 0."""
    std = targets.std(axis=0)
    return targets.mean(axis=0), np.where(std > 0, std, 1.0)


def choose_scaling(targets: np.ndarray, config: PreTrainedConfig):
    """
    Stores the means and standard deviations of `targets` (examples, outputs) in `config`, as the lists `target_mean`
    and `target_std`, and prints them. If the targets need no standardization, removes previously stored lists instead.
    """
    if hasattr(config, "target_std"):
        config.target_mean = config.target_std = None
    if is_unit_scale(targets):
        return
    mean, std = moments(targets)
    config.target_mean, config.target_std = mean.tolist(), std.tolist()
    scales = ", ".join(f"{m:.4g} ± {s:.4g}" for m, s in zip(mean, std, strict=True))
    PartialState().print(f"the targets are standardized for training (mean ± standard deviation: {scales})")


def scale(targets, config: PreTrainedConfig):
    """Standardizes targets (..., outputs). Returns them unchanged if `config` stores no means."""
    mean, std = mean_and_std(targets, config)
    return targets if std is None else (targets - mean) / std


def unscale(logits, config: PreTrainedConfig):
    """Inverse of `scale`: converts the logits (..., outputs) of a regression model to the units of the targets."""
    mean, std = mean_and_std(logits, config)
    return logits if std is None else logits * std + mean


def mean_and_std(values, config: PreTrainedConfig) -> tuple:
    """Returns the `target_mean` and `target_std` of `config` (None if not set), as tensors if `values` is a tensor."""
    if getattr(config, "target_std", None) is None:
        return None, None
    convert = values.new_tensor if isinstance(values, torch.Tensor) else np.array
    return convert(config.target_mean), convert(config.target_std)
