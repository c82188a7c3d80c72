"""Converts a model and its auxiliary files to a FixedHeadBert, or a FixedHeadBert to BERT."""

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from ..commands import takes_options
from ..loading.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..loading.checkpoints import load_bert
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import ConvertOptions
from ..publishing.model_card import checkpoint_card, describe_shape
from ..support.errors import InputError, error_context
from ..support.files import new_directory
from .growing import to_fixed_head_bert
from .to_bert import to_bert


@takes_options("convert")
def convert(options: ConvertOptions) -> PreTrainedModel:
    """
    Converts a BERT to a FixedHeadBert that computes the same function. Can also add heads, head dimensions or neurons.

    Returns:
        The converted model.

    Raises:
        InputError: If the model cannot be converted, a size is smaller than in `model`, or `output_dir` is not empty.
    """
    source, hub_options = options.model, options.hub_options()
    with new_directory(options.output_dir) as directory:
        old = load_bert(source, options.architecture, **hub_options)
        dtype: Any = getattr(torch, options.dtype) if options.dtype else old.dtype
        precise: Any = torch.promote_types(old.dtype, torch.float32)
        old.to(precise)  # rounding would hide differences
        with error_context(source):
            new = resize(old, options)
            difference = f"largest difference between outputs {check_equivalence(old, new):.1g}"
        if dtype != new.dtype:
            new.to(dtype)
            difference += f" before rounding to {str(dtype).removeprefix('torch.')}"
        if options.unpad_inputs:
            new.config.unpad_inputs = vars(new.base_model)["unpad_inputs"] = True
        new.save_pretrained(directory)
        summary = f"{describe_shape(old)} -> {describe_shape(new)}; {difference}"
        del old
        auxiliary = auxiliary_directory(source, **hub_options)
        name, metadata = copy_auxiliary_files(source, auxiliary, directory)
        card = checkpoint_card(new, Path(options.output_dir).name, f"Converted from `{name}`: {summary}.", **metadata)
        card.save(directory / CARD)
    PartialState().print(summary)
    return new


def resize(model: PreTrainedModel, options: ConvertOptions) -> PreTrainedModel:
    """Returns the model with the sizes in `options`, as a BERT if `options.bert` is set, otherwise a FixedHeadBert."""
    if options.bert and not isinstance(model, FixedHeadBertPreTrainedModel):
        raise InputError(f"`bert` requires a FixedHeadBert, not a {model.config.model_type} model; omit `bert`.")
    sizes: dict[str, Any] = options.sizes()
    larger = model if options.bert and not sizes else to_fixed_head_bert(model, **sizes, seed=options.seed)
    return to_bert(larger) if options.bert else larger


@torch.no_grad()
def check_equivalence(old: PreTrainedModel, new: PreTrainedModel) -> float:
    """
    Returns the largest absolute difference between the outputs of two models on the same random tokens.

    Raises:
        InputError: If the difference is too large to be a rounding error.
    """
    config = old.config
    length = min(16, new.config.max_position_embeddings)
    shape = (2, 2, length) if "MultipleChoice" in type(old).__name__ else (2, length)
    ids = torch.randint(config.vocab_size - 1, shape, generator=torch.Generator().manual_seed(0))
    ids += ids >= (config.pad_token_id or 0)  # no padding tokens, because RoBERTa gives them no position
    options = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
    outputs = (model.eval()(input_ids=ids, **options).to_tuple() for model in (old, new))
    pairs = [(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, torch.Tensor)]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    if not difference <= 100 * torch.finfo(old.dtype).eps * max(1, largest):
        raise InputError(
            f"the conversion changed the model's outputs by up to {difference:.3g} (largest output: {largest:.3g})."
        )
    return difference
