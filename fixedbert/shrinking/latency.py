"""Measures the latency of sublayers of every size to which they can be pruned."""

import copy
import operator
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from ..loading.heads import Heads, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..model.unpadding_fixed_head_bert import SHORT_TEXT, PackedBatch, SequenceLengths, should_round
from ..support.timing import interleaved
from ..tasks.predictions import Batch, encode, reads_first_token
from .budget import LayerSize, Prices, head_choices, neuron_choices

ROUNDS = 5  # number of measurements per sublayer; the median is used


@torch.inference_mode()
def measure_prices(model: FixedHeadBertPreTrainedModel, shapes: list[LayerSize], batches: list[Batch]) -> Prices:
    """
    Measures the seconds that all batches take in every attention and feed-forward sublayer that pruning can produce,
    with random weights. A sublayer includes its residual connection and LayerNorm.

    Args:
        model: The original model. The sublayers have its dtype and `unpad_inputs`.
        shapes: The sizes of its layers.
    """
    heads = dict.fromkeys(choice for shape in shapes for choice in head_choices(shape.heads))
    neurons = dict.fromkeys(choice for shape in shapes for choice in neuron_choices(shape.neurons))
    has_last = has_short_last_layer(model, batches)
    runs: dict[tuple[bool, tuple[int, ...]], Callable] = {}  # by whether it is in the short last layer, and by size
    attentions = {choice: layer_with(model, choice).attention for choice in heads}
    feed_forwards = {count: layer_with(model, Heads(1, 1, 1), count).feed_forward_chunk for count in neurons}
    for is_last in {False, has_last}:
        inputs = [sublayer_inputs(model, batch["attention_mask"], is_last) for batch in batches]
        for choice, attention in attentions.items():
            runs[is_last, choice] = partial(call_all, [partial(attention, x, **options) for x, options in inputs])
        for count, feed_forward in feed_forwards.items():
            runs[is_last, (count,)] = partial(call_all, [partial(feed_forward, x) for x, _ in inputs])
    encoder = partial(call_all, [partial(encode(model), **batch) for batch in batches])
    times = interleaved([*runs.values(), encoder], ROUNDS, model.device, "measuring latencies")
    *sublayers, total = map(median, times)
    measured = dict(zip(runs, sublayers, strict=True))

    def price(is_last: bool, part: Heads | int) -> float:
        """Returns the lowest latency of a sublayer of this size or larger, so that no larger one looks cheaper."""
        sizes = part if isinstance(part, Heads) else (part,)
        return min(
            seconds
            for (last, other), seconds in measured.items()
            if last == is_last and len(other) == len(sizes) and all(map(operator.ge, other, sizes))
        )

    layers = [partial(price, False)] * (len(shapes) - 1) + [partial(price, has_last)]
    return Prices(layers, shapes, total)


def call_all(calls: list[Callable]):
    for call in calls:
        call()


def has_short_last_layer(model: FixedHeadBertPreTrainedModel, batches: list[Batch]) -> bool:
    """Returns True if the last layer outputs only first tokens. For a single short row, it outputs all tokens."""
    masks = [batch["attention_mask"] for batch in batches]
    return reads_first_token(model) and any(len(mask) > 1 or mask.shape[1] > SHORT_TEXT for mask in masks)


def sublayer_inputs(model: FixedHeadBertPreTrainedModel, mask: Tensor, first_tokens: bool) -> tuple[Tensor, dict]:
    """
    Returns random hidden states and further arguments for the attention. They have shape (B, L, D) with padding and
    (1, T, D) without, where D is the width and T the number of non-padding tokens, rounded as in the model. If
    `first_tokens`, their shape is (1, B, D), and the arguments contain the states of all tokens.
    """
    if not model.config.unpad_inputs:
        return torch.randn(*mask.shape, model.config.hidden_size, dtype=model.dtype, device=model.device), {}
    batch = PackedBatch.from_mask(mask.bool())
    if should_round(model.dtype, model.device):
        batch = batch.round_up()
    shape = (1, int(batch.cu_seqlens[-1]), model.config.hidden_size)
    states = torch.randn(shape, dtype=model.dtype, device=model.device)
    lengths = SequenceLengths(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen)
    if not first_tokens:
        return states, lengths._asdict()
    first = torch.arange(len(batch.cu_seqlens), dtype=torch.int32, device=model.device)
    first = first.clamp(max=len(mask))  # one query per row, and none for the sequences from `round_up`
    lengths = lengths._replace(cu_seq_lens_q=first, max_length_q=1)
    return states[:, batch.cu_seqlens[: len(mask)]], {"encoder_hidden_states": states, **lengths._asdict()}


def layer_with(model: FixedHeadBertPreTrainedModel, heads: Heads, neurons: int = 1) -> FixedHeadBertLayer:
    config = copy.copy(model.config)
    config.num_hidden_layers, config.intermediate_size = 1, neurons
    set_heads(config, [heads])
    return FixedHeadBertLayer(config, layer_idx=0).to(model.device, model.dtype).eval()
