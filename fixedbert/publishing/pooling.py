"""Pools hidden states into sentence embeddings, as sentence-transformers models do."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ..support.errors import InputError
from ..support.files import reading

# Supported pooling modes, and the configuration fields for them in earlier versions of sentence-transformers.
MODES = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens"}


class SentencePooling(nn.Module):
    """
    Pooling layer that computes sentence embeddings (B, D) from hidden states (B, L, D) and an attention mask (B, L).

    Args:
        mode: "cls", "max" or "mean".
        normalize: Whether to scale embeddings to length 1.
    """

    def __init__(self, mode: str, normalize: bool):
        super().__init__()
        self.mode, self.normalize = mode, normalize

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.to(states.dtype)
        if self.mode == "cls":
            first = mask.int().argmax(dim=1)  # the first token comes after left padding
            pooled = states.gather(1, first[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)
        elif self.mode == "max":
            pooled = states.masked_fill(mask[..., None] == 0, -torch.inf).amax(dim=1)
        else:
            pooled = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(directory: Path) -> SentencePooling | None:
    """
    Returns the pooling layer of a sentence-transformers model, or None if the directory contains a different model.

    Raises:
        InputError: If the model has an unsupported module or pooling mode.
    """
    file = directory / "modules.json"
    if not file.is_file():
        return None
    with reading(file, "save the model again with sentence-transformers"):
        modules = json.loads(file.read_text(encoding="utf-8"))
        kinds = [module["type"].split(".")[-1] for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise InputError(f"{file}: only Transformer, Pooling and Normalize are supported, not {', '.join(kinds)}.")
        config = json.loads((directory / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    modes = [config.get("pooling_mode")] if config.get("pooling_mode") else [m for m in MODES if config.get(MODES[m])]
    if len(modes) != 1 or modes[0] not in MODES or not config.get("include_prompt", True):
        raise InputError(f"{file}: pooling must have one mode ({', '.join(MODES)}) and include prompt tokens.")
    return SentencePooling(modes[0], normalize="Normalize" in kinds)
