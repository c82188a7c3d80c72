"""What sentence-transformers adds to a model: pooling, an activation, and settings for tokenizing texts."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import PartialState
from tokenizers.normalizers import Lowercase, Sequence
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..support.errors import InputError
from ..support.files import read_json_object
from ..support.layouts import MODULES, SETTINGS, read_modules

MODES = ("cls", "max", "mean")  # supported pooling modes
SIGMOID = "torch.nn.modules.activation.Sigmoid"  # what CrossEncoder applies to a single label by default


class SentencePooling(nn.Module):
    """
    Pooling layer that computes sentence embeddings (B, D) from hidden states (B, L, D) and an attention mask (B, L).
    Computes in float32 if the states have a lower precision.

    Args:
        mode: "cls", "max" or "mean".
        normalize: Whether to scale embeddings to norm 1.
    """

    def __init__(self, mode: str, normalize: bool):
        super().__init__()
        self.mode, self.normalize = mode, normalize

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        states = states.to(torch.promote_types(states.dtype, torch.float32))
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
    modules = read_modules(directory)
    kinds = tuple(module.kind for module in modules[1:])
    if not kinds:  # a plain model, or one whose only module is the transformer, such as a reranker
        return None
    if kinds not in (("Pooling",), ("Pooling", "Normalize")):
        supported = "Pooling, or Pooling and Normalize"
        raise InputError(
            f"{directory / MODULES}: only {supported} may follow the transformer, not {', '.join(kinds)}."
        )
    file = directory / modules[1].path / "config.json"
    config = read_json_object(file)
    modes = pooling_modes(config)
    if len(modes) != 1 or modes[0] not in MODES or not config.get("include_prompt", True):
        found = " and ".join(map(str, modes)) if config.get("include_prompt", True) else "include_prompt false"
        supported = f"one mode ({', '.join(MODES)}) and include prompt tokens"
        raise InputError(f"{file}: pooling must have {supported}, not {found}.")
    return SentencePooling(modes[0], normalize="Normalize" in kinds)


def pooling_modes(config: dict) -> list:
    """Returns the modes in a pooling configuration. Earlier versions had a field with true or false for each mode."""
    if "pooling_mode" in config:
        mode = config["pooling_mode"]
        return mode if isinstance(mode, list) else [mode]
    old = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    modes = [name.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens") for name in old]
    return modes or ["mean"]


def read_activation(directory: Path, config: PreTrainedConfig) -> str | None:
    """
    Returns the activation function that CrossEncoder applies to the logits of a model, such as
    "torch.nn.modules.linear.Identity", or None if sentence-transformers did not save the model as a CrossEncoder.

    Version 6 names it in config_sentence_transformers.json, and earlier versions in config.json.
    """
    settings = read_settings(directory)
    is_cross_encoder = settings.get("model_type") == "CrossEncoder"
    version_4 = getattr(config, "sentence_transformers", None) or {}
    version_2 = getattr(config, "sbert_ce_default_activation_function", None)
    named = settings.get("activation_fn") if is_cross_encoder else None
    named = named or version_4.get("activation_fn") or version_2
    default = SIGMOID if config.num_labels == 1 else "torch.nn.modules.linear.Identity"
    if named and re.fullmatch(r"torch(\.\w+)+", named):
        return named
    return default if named or is_cross_encoder else None  # CrossEncoder does not trust other code either


def read_settings(directory: Path) -> dict:
    """Returns the contents of config_sentence_transformers.json, or an empty dictionary without this file."""
    file = directory / SETTINGS
    return read_json_object(file) if file.is_file() else {}


@dataclass(frozen=True)
class TextSettings:
    """
    The settings of a sentence-transformers model for tokenizing texts. The defaults change nothing.

    Args:
        max_seq_length: Maximum number of tokens; None for the tokenizer's own limit.
        do_lower_case: Whether texts are lowercased before the tokenizer's own normalization.
        prompt: Prompt that precedes each text, or the first of a pair.
        takes_pairs: Whether each row must contain two texts, as for a CrossEncoder.
    """

    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""
    takes_pairs: bool = False

    def apply(self, tokenizer: PreTrainedTokenizerBase):
        """Changes the maximum length and the normalizer of a tokenizer, in the same way as sentence-transformers."""
        if self.max_seq_length is not None:
            tokenizer.model_max_length = self.max_seq_length
        backend = tokenizer.backend_tokenizer
        if self.do_lower_case:
            backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])


def read_text_settings(directory: Path) -> TextSettings:
    """
    Reads the settings of a sentence-transformers model. Returns the defaults if the directory contains a different
    model. Prints the default prompt, which is used for all texts, and the names of all other prompts.

    Raises:
        InputError: If a file is malformed, or the default prompt does not exist.
    """
    if not (modules := read_modules(directory)):
        return TextSettings()
    files = sorted((directory / modules[0].path).glob("sentence_*_config.json"))
    settings = next(map(read_json_object, files), {})
    file, config = directory / SETTINGS, read_settings(directory)
    name, prompts = config.get("default_prompt_name"), {"query": "", "document": ""} | (config.get("prompts") or {})
    if name is not None and name not in prompts:
        raise InputError(f"{file}: default_prompt_name {name!r} is not one of the prompts {', '.join(prompts)}.")
    prompt = prompts.get(name) or ""
    if prompt:
        PartialState().print(f"{directory}: each text is preceded by the default prompt {prompt!r}")
    if unused := [other for other, text in prompts.items() if text and other != name]:
        PartialState().print(f"{directory}: prompts other than the default prompt are not used: {', '.join(unused)}")
    return TextSettings(settings.get("max_seq_length"), bool(settings.get("do_lower_case")), prompt)
