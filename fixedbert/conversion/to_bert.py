"""
Converts a FixedHeadBert to a transformers BERT that computes the same function, for tools that support only BERT.

In a BERT of width D, each layer has n heads of size D / n. A FixedHeadBert is converted to this shape in two steps:

1. If all heads share one projection (`config.head_embedding`), it is expanded to one projection per head.
2. Head dimensions, heads and neurons are added as in growing.py, except that all new weights are zero and remain zero
   during training.
"""

import copy
import re

import transformers
from torch import Tensor
from transformers import BertConfig, PreTrainedModel

from ..loading.families import build_model, fixed_head_config, shared_fields, task_head
from ..loading.heads import Heads, heads_of, set_heads
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError
from .growing import enlarge

SHARED = re.compile(r"(.*attention\.self\.)(query|key|value)\.(weight|bias)")
EMBEDDED = ("query", "key", "value")  # order along the first axis of head_embedding


def to_bert(model: PreTrainedModel) -> PreTrainedModel:
    """
    Converts a FixedHeadBert to a transformers BERT that computes the same function, and returns it in evaluation mode.

    Outputs are bit-identical if the model already has the shape of a BERT, and equal up to rounding error otherwise.
    The BERT has the same dtype as `model` and shares no memory with it.

    Raises:
        InputError: If no BERT can compute the same function.
    """
    config, head = fixed_head_config(model.config), task_head(type(model).__name__, model.config.model_type)
    if config.qk_norm:
        raise InputError("a model with qk_norm cannot be converted, because BERT does not normalize queries and keys.")
    if config.pooler_hidden_act != "tanh" and any("pooler" in name for name in model.state_dict()):
        raise InputError("pooler_hidden_act must be tanh to convert a model with a pooler to BERT.")
    old, number = heads_of(config), bert_head_count(config)
    size = config.hidden_size // number
    new = [Heads(number, size, size)] * len(old)
    expanded = copy.deepcopy(config)
    expanded.head_embedding = None
    larger = copy.deepcopy(expanded)
    set_heads(larger, new)
    larger.intermediate_size = neurons = max(1, *config.neuron_counts)
    bert_config = BertConfig(**shared_fields(config) | {"num_attention_heads": number, "intermediate_size": neurons})
    model_class: type[PreTrainedModel] = getattr(transformers, f"Bert{head}")
    tensors = enlarge(expand_shared_projections(model.state_dict(), config), expanded, larger)
    return build_model(model_class, bert_config, tensors, model)


def bert_head_count(config: FixedHeadBertConfig) -> int:
    """
    Returns the smallest number of heads that lets a BERT of the same width represent every layer.

    More heads would not change the parameter count, but would compute more attention scores.

    Raises:
        InputError: If no BERT of this width has enough heads of sufficient size.
    """
    layers, width = heads_of(config), config.hidden_size
    number, size = max(1, *(heads.num_heads for heads in layers)), max(max(heads[1:]) for heads in layers)
    for heads in range(number, width // size + 1):
        if width % heads == 0:
            return heads
    raise InputError(
        f"{number} heads of size {size} do not fit in a BERT of width {width}; shrink them with fixedbert "
        "shrink --attention_head_size, or export the model to ONNX instead."
    )


def expand_shared_projections(tensors: dict[str, Tensor], config: FixedHeadBertConfig) -> dict[str, Tensor]:
    """Returns a model's parameters after replacing shared projections with one projection per head."""
    if config.head_embedding is None:
        return tensors
    expanded = {name: x for name, x in tensors.items() if not name.endswith(("head_embedding", "value_embedding"))}
    for name, shared in expanded.items():  # weight (P, D) or bias (P)
        if match := SHARED.fullmatch(name):
            prefix, part, kind = match.groups()
            embeddings = tensors[f"{prefix}head_embedding"]  # (3, H, P), or (2, H, P) plus value_embedding
            if part == "value" and len(embeddings) == 2:
                embedding = tensors[f"{prefix}value_embedding"]
            else:
                embedding = embeddings[EMBEDDED.index(part)]  # (H, P)
            if config.head_embedding == "mul":
                heads = shared * (1 + (embedding if kind == "bias" else embedding[..., None]))
            else:
                heads = shared + embedding if kind == "bias" else shared.expand(len(embedding), *shared.shape)
            expanded[name] = heads.flatten(0, 1)
    return expanded
