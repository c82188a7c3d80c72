"""
The stock twin of a FixedHeadBert: transformers' BERT with the same function, for what knows no other model.

BERT has n heads of size D / n in every layer of width D. A model gets such heads in two steps:

1. Shared projections with head embeddings (MHE) become projections of each head, multiplied with its embeddings, or
   with them added.
2. Dimensions, heads and neurons are added, as in growing.py but with zeros alone. What is added stays zero in
   training.
"""

import copy
import re

import torch
import transformers
from transformers import BertConfig, PreTrainedModel

from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError
from .families import build, fixed_head_config, head_of, shared_fields
from .growing import Heads, check_rounding, enlarge, heads_of, set_heads

SHARED = re.compile(r"(.*attention\.self\.)(query|key|value)\.(weight|bias)")
EMBEDDED = ("query", "key", "value")  # the order of head embeddings


def to_bert(model: PreTrainedModel) -> PreTrainedModel:
    """
    transformers' BERT with the function of a FixedHeadBert: bit for bit where that has the shape of a BERT, otherwise
    up to rounding.

    Returns:
        The model, in evaluation mode, with the dtype of `model` and no memory shared with it.

    Raises:
        InputError: there is no such BERT.
    """
    config, head = fixed_head_config(model.config), head_of(type(model).__name__, model.config.model_type)
    if config.qk_norm:
        raise InputError(
            "qk_norm: BERT normalises neither queries nor keys, so no BERT has this function; use the FixedHeadBert "
            "itself."
        )
    if config.pooler_hidden_act != "tanh" and any("pooler" in name for name in model.state_dict()):
        raise InputError(
            f"pooler_hidden_act {config.pooler_hidden_act!r}: BERT's pooler has tanh, so no BERT has this function; "
            "use the FixedHeadBert itself."
        )
    old, number = heads_of(config), stock_heads(config)
    size = config.hidden_size // number
    new = [Heads(number, size, size)] * len(old)
    check_rounding(model.dtype, old, new)
    plain = copy.deepcopy(config)
    plain.head_embedding = None
    larger = copy.deepcopy(plain)
    set_heads(larger, new)
    larger.intermediate_size = neurons = max(1, *config.neuron_counts)
    stock = BertConfig(**shared_fields(config) | {"num_attention_heads": number, "intermediate_size": neurons})
    model_class: type[PreTrainedModel] = getattr(transformers, f"Bert{head}")
    return build(model_class, stock, enlarge(unfolded(model.state_dict(), config), plain, larger), model)


def stock_heads(config: FixedHeadBertConfig) -> int:
    """
    The fewest heads with which a BERT of this width has room for the heads of every layer. More of them would have as
    many parameters, and more scores to compute.
    """
    layers, width = heads_of(config), config.hidden_size
    number, size = max(1, *(heads.number for heads in layers)), max(max(heads[1:]) for heads in layers)
    for heads in range(number, width // size + 1):
        if width % heads == 0:
            return heads
    raise InputError(
        f"no BERT of width {width} has {number} or more heads of {size} or more, as its heads * head size is its "
        "width; export the FixedHeadBert itself to ONNX, or shrink its heads."
    )


def unfolded(tensors: dict[str, torch.Tensor], config: FixedHeadBertConfig) -> dict[str, torch.Tensor]:
    """The parameters with projections for each head in place of shared ones with head embeddings."""
    if config.head_embedding is None:
        return tensors
    embeddings = ("head_embedding", "value_embedding")
    own = {name: tensor for name, tensor in tensors.items() if not name.endswith(embeddings)}
    for name in own:
        if match := SHARED.fullmatch(name):
            prefix, part, kind = match.groups()
            of_heads = tensors[f"{prefix}head_embedding"]  # (3, H, P), or (2, H, P) where values have their own
            if part == "value" and len(of_heads) == 2:
                embedding = tensors[f"{prefix}value_embedding"]
            else:
                embedding = of_heads[EMBEDDED.index(part)]  # (H, P)
            own[name] = embed(tensors[name], embedding, config.head_embedding, kind)
    return own


def embed(shared: torch.Tensor, embedding: torch.Tensor, how: str, kind: str) -> torch.Tensor:
    """Weight (H P, D) or bias (H P) of all heads, from a shared one (P, D) or (P) and head embeddings (H, P)."""
    if how == "add":
        heads = shared + embedding if kind == "bias" else shared.expand(len(embedding), *shared.shape)
    else:
        factor = 1 + embedding
        heads = shared * (factor if kind == "bias" else factor[..., None])
    return heads.flatten(0, 1)
