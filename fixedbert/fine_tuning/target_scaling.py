"""Standardization of regression targets. The configuration of a model stores the mean and the standard deviation."""

import numpy as np
import torch
from accelerate import PartialState
from transformers import PreTrainedConfig

# Targets are scaled if a standard deviation is outside this range, or the absolute value of a mean exceeds the limit.
UNSCALED_STD, UNSCALED_MEAN = (0.1, 10.0), 10.0


def is_unit_scale(targets: np.ndarray) -> bool:
    """Returns True if a model can be trained on `targets` (rows, outputs) without scaling them."""
    mean, std = moments(targets)
    return bool(np.all((std >= UNSCALED_STD[0]) & (std <= UNSCALED_STD[1]) & (abs(mean) <= UNSCALED_MEAN)))


def moments(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means and standard deviations (outputs,) of the targets. For constant targets, the latter are 1."""
    std = targets.std(axis=0)
    return targets.mean(axis=0), np.where(std > 0, std, 1.0)


def choose_scaling(targets: np.ndarray, config: PreTrainedConfig):
    """
    If a target is far from unit scale, stores the means and standard deviations of `targets` (rows, outputs) in
    `config` as the lists `target_mean` and `target_std`, and prints them. Otherwise, removes the stored lists.
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
    """Returns the targets (..., outputs) on the scale of the model's logits."""
    mean, std = mean_and_std(targets, config)
    return targets if std is None else (targets - mean) / std


def unscale(logits, config: PreTrainedConfig):
    """Returns the predictions (..., outputs) in the units of the targets, for the logits of a regression model."""
    mean, std = mean_and_std(logits, config)
    return logits if std is None else logits * std + mean


def mean_and_std(values, config: PreTrainedConfig) -> tuple:
    """Returns the stored means and standard deviations (outputs,), in the type of `values`, or None for both."""
    if getattr(config, "target_std", None) is None:
        return None, None
    convert = values.new_tensor if isinstance(values, torch.Tensor) else np.array
    return convert(config.target_mean), convert(config.target_std)
