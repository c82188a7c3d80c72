"""Sentence embeddings: how a sentence-transformers model pools the encoder's hidden states."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..support.errors import InputError
from ..support.files import reading


def select(states: Tensor, index: Tensor) -> Tensor:
    """The hidden state of one token per row: (B, L, D) and token indices (B) to (B, D)."""
    return states.gather(1, index[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def mean(states: Tensor, mask: Tensor, power: float = 1) -> Tensor:
    """The sum over real tokens, divided by a power of their number."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9) ** power


# From states (B, L, D) and mask (B, L), 1 at real tokens, to embeddings (B, D), under sentence-transformers' names.
MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, mask: select(states, mask.int().argmax(dim=1)),
    "max": lambda states, mask: states.masked_fill(mask[..., None] == 0, -torch.inf).amax(dim=1),
    "mean": mean,
    "mean_sqrt_len_tokens": lambda states, mask: mean(states, mask, power=0.5),
    "lasttoken": lambda states, mask: select(states, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)),
}
# Earlier versions have a field per mode, such as pooling_mode_cls_token; their embeddings are joined in this order.
ENDINGS = {"cls": "_token", "max": "_tokens", "mean": "_tokens", "mean_sqrt_len_tokens": "", "lasttoken": ""}


class SentencePooling(nn.Module):
    """
    Sentence embeddings (B, modes * D) from hidden states (B, L, D) and an attention mask (B, L).

    Args:
        modes: keys of MODES. Their embeddings are concatenated.
        normalize: scale embeddings to length 1.
    """

    def __init__(self, modes: list[str], normalize: bool):
        super().__init__()
        self.modes, self.normalize = modes, normalize

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.to(states.dtype)
        pooled = torch.cat([MODES[mode](states, mask) for mode in self.modes], dim=-1)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(directory: Path) -> SentencePooling | None:
    """
    The pooling of a sentence-transformers model; None for other models.

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
        earlier = [mode for mode, ending in ENDINGS.items() if config.get(f"pooling_mode_{mode}{ending}")]
    modes = config.get("pooling_mode") or earlier
    modes = modes if isinstance(modes, list) else [modes]
    if not modes or not {*modes} <= {*MODES} or not config.get("include_prompt", True):
        raise InputError(f"{file}: only pooling by {', '.join(MODES)} over all tokens is supported.")
    return SentencePooling(modes, normalize="Normalize" in kinds)
