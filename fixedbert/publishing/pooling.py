"""Sentence embeddings: how a sentence-transformers model pools the encoder's hidden states."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ..support.errors import InputError
from ..support.files import reading

# Pooling modes, with their fields in earlier versions of sentence-transformers.
MODES = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens"}


class SentencePooling(nn.Module):
    """
    Pools hidden states (B, L, D) with an attention mask (B, L) to sentence embeddings (B, D).

    Args:
        mode: "cls", "max" or "mean".
        normalize: scale embeddings to length 1.
    """

    def __init__(self, mode: str, normalize: bool):
        super().__init__()
        self.mode, self.normalize = mode, normalize

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.to(states.dtype)
        if self.mode == "cls":
            first = mask.int().argmax(dim=1)  # not 0 if padding is on the left
            pooled = states.gather(1, first[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)
        elif self.mode == "max":
            pooled = states.masked_fill(mask[..., None] == 0, -torch.inf).amax(dim=1)
        else:
            pooled = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(directory: Path) -> SentencePooling | None:
    """
    Returns the pooling of a sentence-transformers model; None for other models.

    Raises:
        InputError: the model has a module or a pooling mode that is not supported.
    """
    file = directory / "modules.json"
    if not file.is_file():
        return None
    with reading(file, "save the model again with sentence-transformers"):
        modules = json.loads(file.read_text(encoding="utf-8"))
        kinds = [module["type"].split(".")[-1] for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise InputError(f"{file}: {', '.join(kinds)}: only Transformer, Pooling and Normalize are supported.")
        config = json.loads((directory / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    modes = [config.get("pooling_mode")] if config.get("pooling_mode") else [m for m in MODES if config.get(MODES[m])]
    if len(modes) != 1 or modes[0] not in MODES or not config.get("include_prompt", True):
        raise InputError(f"{file}: only one pooling mode is supported, {', '.join(MODES)}, over all tokens.")
    return SentencePooling(modes[0], normalize="Normalize" in kinds)
