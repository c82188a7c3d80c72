"""How a sentence-transformers directory makes an embedding of a text out of the encoder's hidden states."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..support.errors import InputError
from ..support.files import read_json_object, reading

SAVE_AGAIN = "save the model again with sentence-transformers"


def at(states: Tensor, places: Tensor) -> Tensor:
    """The states (B, L, D) of one token in each row, at its place (B): (B, D)."""
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def mean(states: Tensor, mask: Tensor, power: float = 1) -> Tensor:
    """The sum over real tokens, divided by a power of their number."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9) ** power


# By sentence-transformers' names: states (B, L, D) and a mask (B, L), one at real tokens, to (B, D).
MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, mask: at(states, mask.int().argmax(dim=1)),
    "max": lambda states, mask: states.masked_fill(mask[..., None] == 0, -torch.inf).amax(dim=1),
    "mean": mean,
    "mean_sqrt_len_tokens": lambda states, mask: mean(states, mask, power=0.5),
    "lasttoken": lambda states, mask: at(states, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)),
}
# Its fields in earlier versions, in the order in which results of several modes are joined.
FIELDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class SentencePooling(nn.Module):
    """
    Embeddings (B, modes * D) of hidden states (B, L, D) with an attention mask (B, L).

    Args:
        modes: names of MODES, whose results are joined.
        normalize: whether embeddings have the length 1.
    """

    def __init__(self, modes: list[str], normalize: bool):
        super().__init__()
        self.modes, self.normalize = modes, normalize

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.to(states.dtype)
        pooled = torch.cat([MODES[mode](states, mask) for mode in self.modes], dim=-1)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(folder: Path) -> SentencePooling | None:
    """
    The pooling of the model in a directory; None if it is no sentence-transformers model.

    Raises:
        InputError: a file is damaged, or names a module or a mode that is not known here.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    with reading(file, SAVE_AGAIN):
        modules = json.loads(file.read_text(encoding="utf-8"))
        kinds, places = zip(*((module["type"].split(".")[-1], module["path"]) for module in modules), strict=True)
    if kinds not in (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")):
        raise InputError(f"{file}: has {', '.join(kinds)}; only Transformer, Pooling and Normalize can be exported.")
    return SentencePooling(read_modes(folder / places[1] / "config.json"), normalize="Normalize" in kinds)


def read_modes(file: Path) -> list[str]:
    config = read_json_object(file, SAVE_AGAIN)
    earlier = [mode for field, mode in FIELDS.items() if config.get(field)]
    modes = config.get("pooling_mode") or earlier or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    for mode in modes:
        if str(mode) not in MODES:
            raise InputError(f"{file}: pooling by {mode!r} cannot be exported, only {', '.join(MODES)}.")
    if not config.get("include_prompt", True):
        raise InputError(f"{file}: with include_prompt=false pooling needs the length of a prompt; a graph has none.")
    return modes
