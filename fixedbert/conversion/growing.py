"""
Grows a model without changing its function: more or larger attention heads, and more feed-forward neurons.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020), section 3, shows that standard
multi-head attention with h heads and width d is a special case of attention with a fixed head size of at least d / h.
New weights are initialized as follows:

                  dimensions added to a head    added heads
    W_q           zero                          random
    W_k, W_v      random                        random
    W_o           zero                          zero

The existing weights of W_q are multiplied by sqrt(new head size / old head size). This keeps the attention scores
unchanged, because they are divided by sqrt(head size) and the new dimensions of W_q are zero. The output does not
change either, because W_o multiplies new dimensions and heads by zero. The zero weights receive a gradient in the
first training step, and the random weights in the second. New biases are zero. New neurons have random input weights
and zero output weights.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from transformers import PreTrainedModel

from ..loading.families import bert_tensors, build_model, fixed_head_config, task_head
from ..loading.heads import Heads, heads_of, int_or_list, set_heads
from ..model import modeling_fixed_head_bert
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.errors import InputError

Sizes = dict[str, int]  # the sizes of a layer by name: the fields of `Heads`, and "neurons"
LAYERS = "encoder.layer."  # precedes the number of a layer in the name of a parameter


class Growth(NamedTuple):
    """
    How a parameter of a layer grows.

    Args:
        axis: The axis that grows. In an embedding, the sizes are consecutive axes. In other parameters, they are the
            factors of this axis.
        sizes: Names of the sizes: the fields of `Heads`, or "neurons".
        is_random: Whether new weights are random. Otherwise, they are zero.
    """

    axis: int
    sizes: tuple[str, ...]
    is_random: bool = False


KEYS, VALUES, NEURONS = ("num_heads", "size"), ("num_heads", "value_size"), ("neurons",)
GROWTH = {
    "attention.self.query.weight": Growth(0, KEYS, is_random=True),  # except dimensions added to a head
    "attention.self.query.bias": Growth(0, KEYS),
    "attention.self.key.weight": Growth(0, KEYS, is_random=True),
    "attention.self.key.bias": Growth(0, KEYS),
    "attention.self.value.weight": Growth(0, VALUES, is_random=True),
    "attention.self.value.bias": Growth(0, VALUES),
    "attention.self.head_embedding": Growth(1, KEYS, is_random=True),  # (3, H, P), or (2, H, P) with value_embedding
    "attention.self.value_embedding": Growth(0, VALUES, is_random=True),  # (H, V)
    "attention.output.dense.weight": Growth(1, VALUES),
    "intermediate.dense.weight": Growth(0, NEURONS, is_random=True),
    "intermediate.dense.bias": Growth(0, NEURONS),
    "output.dense.weight": Growth(1, NEURONS),
}


def to_fixed_head_bert(
    model: PreTrainedModel, seed: int = 0, **sizes: int | list[int] | None
) -> FixedHeadBertPreTrainedModel:
    """
    Converts a model to a FixedHeadBert that computes the same function, and enlarges it to the requested sizes.

    Outputs are equal up to rounding errors of about 1e-10 in float64 and 1e-5 in float32. For RoBERTa, this holds only
    for right-padded inputs, because RoBERTa does not count padding tokens in its positions.

    Args:
        model: A BERT, RoBERTa, DistilBERT, ELECTRA or FixedHeadBert, with or without a task head.
        seed: Seed for the random weights in new heads, dimensions and neurons.
        sizes: `attention_head_size`, `num_attention_heads`, `value_head_size` and `intermediate_size`, each as one
            number or one per layer. The default is the size in `model`, which is also the minimum. Only
            `value_head_size` follows `attention_head_size` if the two are equal in `model`.

    Returns:
        The new model in evaluation mode. It has the same dtype as `model` and shares no memory with it.

    Raises:
        InputError: If the model family is not supported, or a size is smaller than in `model`.
    """
    old = fixed_head_config(model.config, type(model).__name__)
    new = larger_config(old, **sizes)
    tensors = enlarge(bert_tensors(model), old, new, Generator().manual_seed(seed))
    head = task_head(type(model).__name__, model.config.model_type)
    model_class: type[FixedHeadBertPreTrainedModel] = getattr(modeling_fixed_head_bert, f"FixedHeadBert{head}")
    return build_model(model_class, new, tensors, model)


def larger_config(config: FixedHeadBertConfig, **sizes: int | list[int] | None) -> FixedHeadBertConfig:
    """
    Returns a copy of `config` with larger sizes. See `to_fixed_head_bert` for `sizes`.

    Raises:
        InputError: If a model of the new size cannot represent every model with the configuration `config`.
    """
    new = resized(config, **sizes)
    for old_heads, before, (new_heads, after) in zip(heads_of(config), config.neuron_counts, new, strict=True):
        check_heads(config, old_heads, new_heads)
        if after < before:
            raise InputError(
                f"must be at least {before}, not {after}; use fixedbert shrink to reduce it.", "intermediate_size"
            )
    larger = copy.deepcopy(config)
    set_heads(larger, [heads for heads, _ in new])
    larger.intermediate_size = int_or_list([neurons for _, neurons in new])
    return larger


def resized(config: FixedHeadBertConfig, **sizes: int | list[int] | None) -> list[tuple[Heads, int]]:
    """Returns the new heads and number of neurons in each layer. See `to_fixed_head_bert` for `sizes`."""
    if sizes.get("value_head_size") is None and config.value_head_size is None:
        sizes["value_head_size"] = sizes.get("attention_head_size")
    defaults = {
        "num_attention_heads": config.head_counts,
        "attention_head_size": config.head_sizes,
        "value_head_size": config.value_head_sizes,
        "intermediate_size": config.neuron_counts,
    }
    counts, head_sizes, value_sizes, neurons = (per_layer(sizes.get(name), name, x) for name, x in defaults.items())
    return list(zip(map(Heads, counts, head_sizes, value_sizes), neurons, strict=True))


def per_layer(value: int | list[int] | None, field: str, default: list[int]) -> list[int]:
    """Returns `value` as a list with one number per layer. A single number is repeated, and None selects `default`."""
    if value is None:
        return default
    values = value if isinstance(value, list) else [value]
    if len(values) not in (1, len(default)):
        raise InputError(
            f"has {len(values)} numbers for {len(default)} layers; pass one number, or one per layer.", field
        )
    return values * (len(default) // len(values))


def check_heads(config: FixedHeadBertConfig, old: Heads, new: Heads):
    """Raises InputError unless a layer with `new` heads can represent all layers with `old` heads."""
    if min(new[1:]) < 1 or any(after < before for before, after in zip(old, new, strict=True)):
        raise InputError(f"{new} cannot represent {old}; use fixedbert shrink to remove heads or make them smaller.")
    if config.qk_norm and new.size != old.size:
        raise InputError(
            "the head size of a model with qk_norm cannot change, because qk_norm normalizes over head dimensions."
        )
    if config.head_embedding and (old.size == old.value_size) != (new.size == new.value_size):
        raise InputError(
            "with head_embedding, `value_head_size` must equal `attention_head_size` if it does in the original, "
            "and differ otherwise."
        )


def enlarge(
    tensors: dict[str, Tensor], old: FixedHeadBertConfig, new: FixedHeadBertConfig, generator: Generator | None = None
) -> dict[str, Tensor]:
    """
    Returns copies of a model's parameters, enlarged from the sizes in the configuration `old` to those in `new`.

    Args:
        tensors: Parameters, with BERT's parameter names as keys.
        generator: Random number generator for new weights. If None, all new weights are zero.
    """
    before, after = layer_sizes(old), layer_sizes(new)
    enlarged = {}
    for name, tensor in with_empty_parameters(tensors, before, after).items():
        _, layer, part = split_name(name)
        if part in GROWTH:
            enlarged[name] = enlarge_parameter(part, tensor, before[layer], after[layer], old, generator)
        else:
            enlarged[name] = tensor.clone()
    return enlarged


def layer_sizes(config: FixedHeadBertConfig) -> list[Sizes]:
    """Returns the sizes of each layer, with the names in `Growth`."""
    pairs = zip(heads_of(config), config.neuron_counts, strict=True)
    return [heads._asdict() | {"neurons": neurons} for heads, neurons in pairs]


def split_name(name: str) -> tuple[str, int, str]:
    """Splits the name of a parameter into a prefix, the number of the layer, and the rest ("" outside the layers)."""
    prefix, _, rest = name.partition(LAYERS)
    number, _, part = rest.partition(".")
    return prefix + LAYERS, int(number or 0), part


def with_empty_parameters(tensors: dict[str, Tensor], before: list[Sizes], after: list[Sizes]) -> dict[str, Tensor]:
    """Adds the missing weights, with size 0, of layers that have no heads or neurons yet, but will get some."""
    extended = dict(tensors)
    for name, bias in tensors.items():
        prefix, layer, part = split_name(name)
        if part != "output.dense.bias":  # each layer has this parameter
            continue
        width = len(bias)
        for other, (axis, sizes, _) in GROWTH.items():
            if before[layer][sizes[0]] < 1 <= after[layer][sizes[0]] and not other.endswith("_embedding"):
                shape = [0] if other.endswith("bias") else [width, 0] if axis else [0, width]
                extended[f"{prefix}{layer}.{other}"] = bias.new_zeros(shape)
    return extended


def pad(values: Tensor, shape: Sequence[int], deviation: float, generator: Generator | None) -> Tensor:
    """Pads `values` at the end of each axis with normally distributed numbers, or zeros if `generator` is None."""
    padded = torch.zeros(shape, dtype=values.dtype)
    if generator is not None:  # on the CPU, so that the result does not depend on the device
        padded.normal_(0, deviation, generator=generator)
    padded = padded.to(values.device)
    padded[tuple(map(slice, values.shape))] = values
    return padded


def enlarge_parameter(
    part: str, tensor: Tensor, before: Sizes, after: Sizes, config: FixedHeadBertConfig, generator: Generator | None
) -> Tensor:
    """Returns a copy of one parameter of a layer, enlarged from the sizes in `before` to those in `after`."""
    axis, names, is_random = GROWTH[part]
    sublayer = Heads._fields if "num_heads" in names else names
    if all(before[name] == after[name] for name in sublayer):
        return tensor.clone()
    old, new = [before[name] for name in names], [after[name] for name in names]
    is_embedding = part.endswith("_embedding")
    if config.head_embedding and part.startswith("attention.self.") and not is_embedding:
        old[0] = new[0] = 1  # all heads share one projection
    parts = tensor if is_embedding else tensor.unflatten(axis, old)
    shape = [*parts.shape[:axis], *new, *parts.shape[axis + len(old) :]]
    padded = pad(parts, shape, config.initializer_range, generator if is_random else None)
    if part.startswith("attention.self.query"):
        scale_queries(padded, *old)
    elif part.endswith("head_embedding") and config.head_embedding == "add":  # it is added to queries
        scale_queries(padded[0], *old)
    return padded if is_embedding else padded.flatten(axis, axis + len(new) - 1)


def scale_queries(queries: Tensor, heads: int, size: int):
    """Scales the original dimensions of the original heads in `queries` (H, P, ...), and sets added ones to zero."""
    queries[:heads, :size] *= (queries.shape[1] / size) ** 0.5
    queries[:heads, size:] = 0
