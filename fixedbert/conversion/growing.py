"""
Conversion of a BERT to a FixedHeadBert, and of a FixedHeadBert to larger and more heads and to wider feed-forward
networks. It keeps the function.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020), section 3: MultiHead is a special
case of FixedMultiHead where the head size is at least d / h. With s = sqrt(new head size / old head size):

                  dimensions added to a head         added heads
    W_q           zero; the old ones times s         random
    W_k, W_v      random                             random
    W_o           zero                               zero

Scores keep their value, since 1 / sqrt(head size) shrinks by s. New dimensions and heads add nothing to the output,
since each is multiplied by a zero. The zeros are multiplied by random numbers, so they get a gradient in the first
step, and the random numbers get theirs in the second. New biases are zero, as in a new BERT. (A bias of keys never
learns, not in BERT either: it adds the same to all scores of a query.)

New neurons of a feed-forward network are made in the same way: random weights in front of them, zeros behind them.

What is multiplied by s has its gradient divided by s. All other gradients stay as they are. So Adam's moments grow by
the same table, with 1 / s and 1 / s^2 in place of s, and with zeros for what is new.
"""

import copy
import logging
import math
import re
from functools import partial
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from ..model import modeling_fixed_head_bert
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from .families import ROBERTAS, build, fixed_head_config, head_of

logger = logging.getLogger(__name__)

# Names that RoBERTa, DistilBERT and ELECTRA have for BERT's parts. Classifiers begin with what is BERT's pooler.
BERT_NAMES = (
    (r"^(roberta|distilbert|electra)\.", "bert."),
    (r"^lm_head\.(bias|decoder)", r"cls.predictions.\1"),
    (r"^lm_head\.dense", "cls.predictions.transform.dense"),
    (r"^lm_head\.layer_norm", "cls.predictions.transform.LayerNorm"),
    (r"^classifier\.dense", "bert.pooler.dense"),
    (r"^classifier\.out_proj", "classifier"),
    (r"transformer\.layer\.", "encoder.layer."),
    (r"attention\.q_lin", "attention.self.query"),
    (r"attention\.k_lin", "attention.self.key"),
    (r"attention\.v_lin", "attention.self.value"),
    (r"attention\.out_lin", "attention.output.dense"),
    (r"sa_layer_norm", "attention.output.LayerNorm"),
    (r"ffn\.lin1", "intermediate.dense"),
    (r"ffn\.lin2", "output.dense"),
    (r"output_layer_norm", "output.LayerNorm"),
    (r"^(vocab_transform|generator_predictions\.dense)", "cls.predictions.transform.dense"),
    (r"^(vocab_layer_norm|generator_predictions\.LayerNorm)", "cls.predictions.transform.LayerNorm"),
    (r"^(vocab_projector|generator_lm_head)\.weight", "cls.predictions.decoder.weight"),
    (r"^(vocab_projector|generator_lm_head)\.bias", "cls.predictions.bias"),
    (r"^pre_classifier", "bert.pooler.dense"),
)
LAYER = re.compile(r"(.*encoder\.layer\.)(\d+)(\..*)")
FEED_FORWARD = {".intermediate.dense.weight": 0, ".intermediate.dense.bias": 0, ".output.dense.weight": 1}  # by axis
ATTENTION = re.compile(r"attention\.(?:self\.(query|key|value)|(output)\.dense)\.(weight|bias)$")


class Heads(NamedTuple):
    """A layer's heads: how many, the size of queries and keys, and the size of values."""

    number: int
    size: int
    value_size: int

    def __str__(self) -> str:
        values = "" if self.value_size == self.size else f" with values of {self.value_size}"
        return f"{self.number} {'head' if self.number == 1 else 'heads'} of {self.size}{values}"


def heads_of(config: FixedHeadBertConfig) -> list[Heads]:
    """The heads of each layer."""
    return [*map(Heads, config.head_counts, config.head_sizes, config.value_head_sizes)]


def one_or_list(sizes: list[int]) -> int | list[int]:
    return sizes[0] if len(set(sizes)) == 1 else sizes


def set_heads(config: FixedHeadBertConfig, heads: list[Heads]):
    """Give a configuration the heads of each of its layers."""
    counts, sizes, value_sizes = (list(numbers) for numbers in zip(*heads, strict=True))
    config.num_attention_heads = max(1, *counts)  # of a model without heads too
    config.layer_attention_heads = counts if set(counts) != {config.num_attention_heads} else None
    config.attention_head_size = one_or_list(sizes)
    config.value_head_size = None if value_sizes == sizes else one_or_list(value_sizes)


def convert(
    model: PreTrainedModel,
    attention_head_size: int | list[int] | None = None,
    num_attention_heads: int | list[int] | None = None,
    num_hidden_layers: int | None = None,
    seed: int = 0,
    value_head_size: int | list[int] | None = None,
    intermediate_size: int | list[int] | None = None,
) -> FixedHeadBertPreTrainedModel:
    """
    A FixedHeadBert with the function of `model`, up to rounding: 1e-10 in float64, 1e-5 in float32.

    Args:
        model: a BERT, a RoBERTa-like model, or a FixedHeadBert, bare or with any head. RoBERTa gives padding no
            position: it keeps the function for texts padded on the right.
        attention_head_size, num_attention_heads, value_head_size, intermediate_size: as much as `model` has, the
            default, or more; sizes of heads and numbers of neurons can be lists with one for each layer. Values that
            have the size of queries and keys keep it.
        num_hidden_layers: layers of the new model; layer i is layer i * old // new of `model`. Another number changes
            the function, with a warning.
        seed: for the random numbers in new heads, dimensions and neurons.

    Returns:
        The model, in evaluation mode, with the dtype of `model` and no memory shared with it.

    Raises:
        InputError: `model` is not a BERT, or its heads or neurons would become fewer, or its heads smaller.
    """
    config = fixed_head_config(model.config, type(model).__name__)
    head = head_of(type(model).__name__, model.config.model_type)
    layers = config.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
    if layers < 1:
        raise InputError(f"num_hidden_layers must be at least 1, not {layers}.")
    chosen = [number * config.num_hidden_layers // layers for number in range(layers)]
    old = config_of_layers(config, chosen)
    new = larger_config(old, attention_head_size, num_attention_heads, value_head_size, intermediate_size)
    check_rounding(model.dtype, heads_of(old), heads_of(new))
    if layers != config.num_hidden_layers:
        old_layers = config.num_hidden_layers
        logger.warning("The function changes: of %d layers these become %d: %s.", old_layers, layers, chosen)
    generator = torch.Generator().manual_seed(seed)
    tensors = enlarge(with_layers(bert_tensors(model), chosen), old, new, generator)
    model_class: type[FixedHeadBertPreTrainedModel] = getattr(modeling_fixed_head_bert, f"FixedHeadBert{head}")
    return build(model_class, new, tensors, model)


def config_of_layers(config: FixedHeadBertConfig, chosen: list[int]) -> FixedHeadBertConfig:
    """The configuration of a model made of the layers `chosen`; some may be repeated or left out."""
    config = copy.deepcopy(config)
    for field in ("attention_head_size", "value_head_size", "layer_attention_heads", "intermediate_size"):
        if isinstance(sizes := getattr(config, field), list):
            setattr(config, field, [sizes[layer] for layer in chosen])
    config.num_hidden_layers = len(chosen)
    return config


def larger_config(
    config: FixedHeadBertConfig,
    attention_head_size: int | list[int] | None = None,
    num_attention_heads: int | list[int] | None = None,
    value_head_size: int | list[int] | None = None,
    intermediate_size: int | list[int] | None = None,
) -> FixedHeadBertConfig:
    """
    The configuration with these sizes (see `convert`) of a model that can have any function of one with `config`.

    Raises:
        InputError: there is no such model.
    """
    old = heads_of(config)
    if value_head_size is None and config.value_head_size is None:
        value_head_size = attention_head_size
    counts = numbers(num_attention_heads, "num_attention_heads", [heads.number for heads in old])
    sizes = numbers(attention_head_size, "attention_head_size", [heads.size for heads in old])
    value_sizes = numbers(value_head_size, "value_head_size", [heads.value_size for heads in old])
    new = [*map(Heads, counts, sizes, value_sizes)]
    check_growth(config, old, new)
    neurons = numbers(intermediate_size, "intermediate_size", config.neuron_counts)
    for now, then in zip(config.neuron_counts, neurons, strict=True):
        if then < now:
            raise InputError(
                f"intermediate_size={then} cannot represent {now} neurons: give so many or more, or cut them with "
                "`fixedbert shrink`."
            )
    larger = copy.deepcopy(config)
    set_heads(larger, new)
    larger.intermediate_size = one_or_list(neurons)
    return larger


def numbers(given: int | list[int] | None, field: str, old: list[int]) -> list[int]:
    """One for each layer: the old ones where none are given, and a single one for all layers."""
    if given is None:
        return old
    values = given if isinstance(given, list) else [given]
    if len(values) not in (1, len(old)):
        raise InputError(f"{len(values)} values of {field} for {len(old)} layers: give one for each, or one for all.")
    return values * (len(old) // len(values))


def check_growth(config: FixedHeadBertConfig, old: list[Heads], new: list[Heads]):
    """Refuse heads that would become fewer or smaller in some layer, and sizes that no such model has."""
    for before, after in zip(old, new, strict=True):
        if min(after[1:]) < 1 or after.number < min(before.number, 1):
            raise InputError(f"{after}: there must be at least 1 of each.")
        if before.number < 1 <= after.number and (config.qk_norm or config.head_embedding):
            raise InputError("a layer without heads stays without with qk_norm or head_embedding.")
        if any(new < old for old, new in zip(before, after, strict=True)):
            values = "" if before.value_size == before.size else f" and `value_head_size` {before.value_size} or more"
            raise InputError(
                f"{after} cannot represent {before}: give `num_attention_heads` {before.number} or more and "
                f"`attention_head_size` {before.size} or more{values}; fixedbert shrink makes heads fewer or smaller."
            )
        if config.qk_norm and after.size != before.size:
            raise InputError(
                f"attention_head_size={after.size}: with qk_norm any dimension added to a head of {before.size} "
                "changes its root mean square; only the number of heads can grow, and the size of values."
            )
        if config.head_embedding and (before.size == before.value_size) != (after.size == after.value_size):
            raise InputError(
                f"{before} to {after}: with head_embedding queries, keys and values keep one size, or keep two."
            )


def check_rounding(dtype: torch.dtype, old: list[Heads], new: list[Heads]):
    """Warn where half precision rounds the scaled queries."""
    if dtype not in (torch.float16, torch.bfloat16):
        return
    for (_, size, _), (_, new_size, _) in zip(old, new, strict=True):
        scale = (new_size / size) ** 0.5
        if not math.log2(scale).is_integer():
            logger.warning("Queries times %.3f are rounded to %s: heads of %d would be exact.", scale, dtype, 4 * size)
            return


def enlarge(
    tensors: dict[str, torch.Tensor],
    old: FixedHeadBertConfig,
    new: FixedHeadBertConfig,
    generator: torch.Generator | None = None,
    power: int = 1,
) -> dict[str, torch.Tensor]:
    """
    Copies of the parameters `tensors`, under BERT's names, of a model with the configuration `old` for one with `new`.

    Args:
        generator: of the random numbers in what is new; without one all of it is zero.
        power: of s in the table above: 1 for parameters, -1 for means of their gradients, -2 for means of the squares.
    """
    heads = list(zip(heads_of(old), heads_of(new), strict=True))
    enlarged = {}
    for name, tensor in with_empty(tensors, old, new).items():
        match = LAYER.fullmatch(name)
        if match is None:
            enlarged[name] = tensor.clone()
        elif (axis := FEED_FORWARD.get(match[3])) is not None:
            enlarged[name] = enlarge_feed_forward(tensor, axis, old, new.neuron_counts[int(match[2])], generator)
        else:
            enlarged[name] = enlarge_attention(name, tensor, old, *heads[int(match[2])], generator, power)
    return enlarged


def with_empty(
    tensors: dict[str, torch.Tensor], old: FixedHeadBertConfig, new: FixedHeadBertConfig
) -> dict[str, torch.Tensor]:
    """`tensors`, and weights of no size for the layers of `old` without heads or neurons that have some in `new`."""
    found = dict(tensors)
    for name, bias in tensors.items():
        match = LAYER.fullmatch(name)
        added: tuple[str, ...] = ()
        if match and match[3] == ".attention.output.dense.bias":
            if old.head_counts[int(match[2])] < 1 <= new.head_counts[int(match[2])]:
                added = tuple(f".attention.self.{part}" for part in ("query", "key", "value"))
        elif match and match[3] == ".output.dense.bias":
            if old.neuron_counts[int(match[2])] < 1 <= new.neuron_counts[int(match[2])]:
                added = (".intermediate.dense",)
        for part in added:
            prefix = f"{name.removesuffix(match[3])}{part}" if match else part
            found |= {f"{prefix}.weight": bias.new_zeros(0, len(bias)), f"{prefix}.bias": bias.new_zeros(0)}
            found[name.removesuffix("bias") + "weight"] = bias.new_zeros(len(bias), 0)
    return found


def enlarge_feed_forward(
    tensor: torch.Tensor, axis: int, config: FixedHeadBertConfig, neurons: int, generator: torch.Generator | None
) -> torch.Tensor:
    """A copy of a parameter of a feed-forward network that has its neurons along `axis`, for so many of them."""
    if neurons == tensor.shape[axis]:
        return tensor.clone()
    shape = (*tensor.shape[:axis], neurons, *tensor.shape[axis + 1 :])
    in_front = axis == 0 and tensor.dim() == 2
    return padded(tensor, shape, config.initializer_range, generator if in_front else None)


def padded(
    values: torch.Tensor, shape: tuple[int, ...], deviation: float, generator: torch.Generator | None
) -> torch.Tensor:
    """A tensor that begins with `values` along each axis. Elsewhere it is random, or zero without a generator."""
    wide = torch.zeros(shape, dtype=values.dtype)
    if generator is not None:  # on the CPU, where the seed decides, whatever the device
        wide.normal_(0, deviation, generator=generator)
    wide = wide.to(values.device)
    wide[tuple(map(slice, values.shape))] = values
    return wide


def enlarge_attention(
    name: str,
    tensor: torch.Tensor,
    config: FixedHeadBertConfig,
    old: Heads,
    new: Heads,
    generator: torch.Generator | None,
    power: int,
) -> torch.Tensor:
    """A copy of the parameter `name` of a layer for an attention with the heads `new` instead of `old`."""
    (old_heads, size, value_size), (heads, new_size, new_value_size) = old, new
    if old == new:
        return tensor.clone()
    scale = (new_size / size) ** (power / 2)
    fill = partial(padded, deviation=config.initializer_range)

    if name.endswith("value_embedding"):  # (H, V)
        return fill(tensor, (heads, new_value_size), generator=generator)
    if name.endswith("head_embedding"):
        return enlarge_head_embedding(tensor, config, (heads, new_size), generator, scale)

    match = ATTENTION.search(name)
    if match is None or (match[2] and match[3] == "bias"):
        return tensor.clone()
    part, kind = match[1] or match[2], match[3]
    if part == "output":
        parts = tensor.unflatten(1, (old_heads, value_size))  # (D, H, V)
        return fill(parts, (len(tensor), heads, new_value_size), generator=None).flatten(1)
    if config.head_embedding is not None:
        old_heads = heads = 1  # one projection, which all share
    if part == "value":
        size, new_size = value_size, new_value_size
    values = tensor.unflatten(0, (old_heads, size))  # (G, P, D), a bias (G, P)
    if part == "query":
        values = values * scale
    wide = fill(values, (heads, new_size, *values.shape[2:]), generator=generator if kind == "weight" else None)
    if part == "query":
        wide[: len(values), size:] = 0
    return wide.flatten(0, 1)


def enlarge_head_embedding(
    tensor: torch.Tensor,
    config: FixedHeadBertConfig,
    shape: tuple[int, int],
    generator: torch.Generator | None,
    scale: float,
) -> torch.Tensor:
    """A copy of embeddings (3, H, P), or (2, H, P) where values have their own, for heads and head size `shape`."""
    factor = tensor.new_ones(len(tensor), 1, 1)
    factor[0] = scale if config.head_embedding == "add" else 1  # added to queries, which are scaled
    wide = padded(tensor * factor, (len(tensor), *shape), config.initializer_range, generator)
    if config.head_embedding == "add":
        wide[0, : tensor.shape[1], tensor.shape[2] :] = 0
    return wide


def with_layers(tensors: dict[str, torch.Tensor], chosen: list[int]) -> dict[str, torch.Tensor]:
    """The tensors of a model made of the layers `chosen`; some may be repeated or left out."""
    layers = [match for match in map(LAYER.fullmatch, tensors) if match]
    others = {name: tensor for name, tensor in tensors.items() if not LAYER.fullmatch(name)}
    return others | {
        f"{match[1]}{number}{match[3]}": tensors[match[0]]
        for number, layer in enumerate(chosen)
        for match in layers
        if int(match[2]) == layer
    }


def bert_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The parameters of `model` under BERT's names."""
    tensors = model.state_dict()
    if model.config.model_type in ("bert", "fixed_head_bert"):
        return tensors
    for pattern, name in BERT_NAMES:
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    positions = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    if model.config.model_type == "distilbert":  # zeros, as BERT's tokenizers give token types and it has none
        tensors[positions.replace("position", "token_type")] = torch.zeros_like(tensors[positions][:2])
    if model.config.model_type in ROBERTAS:
        tensors[positions] = tensors[positions][model.config.pad_token_id + 1 :]
    return tensors
