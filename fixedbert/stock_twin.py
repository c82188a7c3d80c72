"""
The stock twin of a FixedHeadBert: transformers' BERT with the same function, for what knows no other model.

BERT has n heads of size D / n in every layer of width D. A model gets such heads in three steps:

1. Shared projections with head embeddings (MHE) become the projections of each head: those multiplied with, or added
   to, its embeddings.
2. Dimensions and heads are added, as in conversion.py but with zeros alone. What is added stays zero in training.
3. Where no n fits, the width becomes k D. Every hidden unit is there k times, in blocks of D. The mean and the
   variance of k copies are those of one, so LayerNorm, its epsilon included, gives k copies of its output.

                                                                             in the wider twin
    writes hidden units   embeddings, W_o, feed-forward output, LayerNorm    k times
    reads hidden units    W_q, W_k, W_v, feed-forward input, classifiers     zeros for all copies but the first
    does both             pooler, first layer of the masked-LM head          both
    the masked-LM head    its LayerNorm                                      zeros for all copies but the first
                          its decoder, tied to the embeddings                k times

No weight of the third step is rounded. It keeps the function in evaluation alone: dropout hits copies separately.
"""

import copy
import re
from itertools import count

import torch
import transformers
from torch.nn.functional import pad
from transformers import BertConfig, PreTrainedModel

from .configuration_fixed_head_bert import FixedHeadBertConfig
from .conversion import Heads, check_rounding, enlarge, heads_of, set_heads
from .errors import InputError
from .families import build, fixed_head_config, head_of, shared_fields
from .modeling_fixed_head_bert import FixedHeadBertPreTrainedModel

SHARED = re.compile(r"(.*attention\.self\.)(query|key|value)\.(weight|bias)")
EMBEDDED = ("query", "key", "value")  # the order of head embeddings
TABLES = re.compile(r"(embeddings|decoder)\.weight$")  # hidden units along the second axis
WRITING = re.compile(r"((embeddings|output)\.LayerNorm|(output|pooler|transform)\.dense)\.(weight|bias)$")
READING = re.compile(
    r"(query|key|value|(intermediate|pooler|transform)\.dense|seq_relationship|classifier|qa_outputs)\.weight$"
    r"|transform\.LayerNorm\.(weight|bias)$"
)


def to_bert(model: FixedHeadBertPreTrainedModel, allow_wider: bool = False) -> PreTrainedModel:
    """
    transformers' BERT with the function of `model`: bit for bit where it has the shape of a BERT, otherwise up to
    rounding.

    Args:
        allow_wider: also where BERT needs a width that is a multiple of that of `model`. Hidden states and embeddings
            are then so many copies of those of `model`, and the function is the same in evaluation alone.

    Returns:
        The model, in evaluation mode, with the dtype of `model` and no memory shared with it.

    Raises:
        InputError: there is no such BERT, or only a wider one.
    """
    config, head = fixed_head_config(model.config), head_of(type(model).__name__, model.config.model_type)
    if config.qk_norm:
        raise InputError(
            "qk_norm: BERT normalises neither queries nor keys, so no BERT has this function; use the FixedHeadBert "
            "itself."
        )
    old, (copies, number) = heads_of(config), stock_shape(config)
    width = copies * config.hidden_size
    stock = BertConfig(**shared_fields(config) | {"hidden_size": width, "num_attention_heads": number})
    model_class: type[PreTrainedModel] = getattr(transformers, f"Bert{head}")
    if copies > 1 and not allow_wider:
        raise InputError(
            f"no BERT of width {config.hidden_size} has {max(heads.number for heads in old)} or more heads of "
            f"{max(max(heads[1:]) for heads in old)} or more, as its heads * head size is its width: one of width "
            f"{width} has this function, with {count_parameters(model_class, stock, like=model):,} parameters instead "
            f"of {model.num_parameters():,}; give --allow_wider."
        )
    new = [Heads(number, width // number, width // number)] * len(old)
    check_rounding(model.dtype, old, new)
    plain = copy.deepcopy(config)
    plain.head_embedding = None
    larger = copy.deepcopy(plain)
    set_heads(larger, new)
    tensors = enlarge(unfolded(model.state_dict(), config), plain, larger)
    if copies > 1:
        tensors = {name: repeated(name, tensor, copies) for name, tensor in tensors.items()}
    return build(model_class, stock, tensors, model)


def stock_shape(config: FixedHeadBertConfig) -> tuple[int, int]:
    """
    How many times the width BERT needs at least so that its heads can hold those of every layer, and how many heads it
    then needs. More heads of that width have as many parameters, and more scores to compute.
    """
    layers = heads_of(config)
    number, size = (max(heads.number for heads in layers), max(max(heads[1:]) for heads in layers))
    return next(
        (copies, heads)
        for copies in count(1)
        for heads in range(number, copies * config.hidden_size // size + 1)
        if copies * config.hidden_size % heads == 0
    )


def count_parameters(model_class: type[PreTrainedModel], config: BertConfig, like: PreTrainedModel) -> int:
    """Those of a model of this class, without memory, and without a pooler if `like` has none."""
    with torch.device("meta"):
        model = model_class(config)
    if like.base_model.pooler is None:
        model.base_model.pooler = None
    return model.num_parameters()


def unfolded(tensors: dict[str, torch.Tensor], config: FixedHeadBertConfig) -> dict[str, torch.Tensor]:
    """The parameters with projections for each head in place of shared ones with head embeddings."""
    if config.head_embedding is None:
        return tensors
    own = {
        name: tensor for name, tensor in tensors.items() if not name.endswith(("head_embedding", "value_embedding"))
    }
    for name in own:
        if match := SHARED.fullmatch(name):
            prefix, part, kind = match.groups()
            embeddings = tensors[f"{prefix}head_embedding"]  # (3, H, P), or without that of values (2, H, P)
            if part == "value" and len(embeddings) == 2:
                embedding = tensors[f"{prefix}value_embedding"]
            else:
                embedding = embeddings[EMBEDDED.index(part)]  # (H, P)
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


def repeated(name: str, tensor: torch.Tensor, copies: int) -> torch.Tensor:
    """The parameter `name` of a model in which every hidden unit is there `copies` times."""
    if TABLES.search(name):
        return tensor.repeat(1, copies)
    if READING.search(name):
        tensor = pad(tensor, (0, (copies - 1) * tensor.shape[-1]))
    if WRITING.search(name):
        tensor = tensor.repeat(copies, *(1 for _ in tensor.shape[1:]))
    return tensor
