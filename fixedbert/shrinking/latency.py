"""Measures the latencies of entire models, and of sublayers of every size to which they can be pruned."""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from ..loading.heads import Heads, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..model.unpadding_fixed_head_bert import SHORT_TEXT, PackedBatch, SequenceLengths, should_round
from ..support.timing import ROUNDS, median_time, timed
from ..tasks.predictions import encode, reads_first_token
from .budget import LayerPrices, LayerSize, Prices, head_choices, neuron_choices

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class LatencyTable:
    """
    Measured latencies of sublayers, in seconds per batch. A sublayer includes its residual connection and LayerNorm.

    Args:
        times: For each sublayer, whether it is in a last layer that outputs only first tokens, its size (the fields of
            `Heads`, or the number of neurons), and its latency.
        encoder: Latency of the entire base model.
    """

    times: list[tuple[bool, tuple[int, ...], float]]
    encoder: float

    def prices(self, shapes: list[LayerSize]) -> Prices:
        """Returns latencies as prices. For each sublayer, uses the lowest latency of any that is at least as large."""

        def prices_in(is_last: bool) -> LayerPrices:
            measured = {tuple(sizes): seconds for last, sizes, seconds in self.times if last == is_last}

            def price(*sizes: int) -> float:
                larger = (
                    other for other in measured if len(other) == len(sizes) and all(map(operator.ge, other, sizes))
                )
                return min(map(measured.__getitem__, larger))

            return LayerPrices(lambda heads: price(*heads), price)

        last = prices_in(any(is_last for is_last, *_ in self.times))
        layers = [prices_in(False)] * (len(shapes) - 1) + [last]
        return Prices.of_model(layers, shapes, self.encoder, "seconds")


@torch.inference_mode()
def measure_latencies(
    model: FixedHeadBertPreTrainedModel, shapes: list[LayerSize], masks: list[torch.Tensor]
) -> LatencyTable:
    """
    Measures the latency of every attention and feed-forward sublayer that pruning can produce, with random weights.

    Args:
        model: The original model. The sublayers have its dtype and `unpad_inputs`.
        shapes: The sizes of its layers.
        masks: Attention masks (B, L) of the batches.
    """
    heads = dict.fromkeys(choice for shape in shapes for choice in head_choices(shape.heads))
    neurons = dict.fromkeys(choice for shape in shapes for choice in neuron_choices(shape.neurons))
    runs: dict[tuple[bool, tuple[int, ...]], list[Callable]] = {}  # the key's first item is True for the last layer
    for is_last in {False, has_short_last_layer(model, masks)}:
        inputs = [sublayer_inputs(model, mask, is_last) for mask in masks]
        for choice in heads:
            attention = layer_with(model, choice).attention
            runs[is_last, choice] = [partial(attention, x, **options) for x, options in inputs]
        for count in neurons:
            feed_forward = layer_with(model, Heads(1, 1, 1), count).feed_forward_chunk
            runs[is_last, (count,)] = [partial(feed_forward, x) for x, _ in inputs]
    rounds = {key: [0.0] * ROUNDS for key in runs}
    for index in tqdm(range(ROUNDS), "measuring latencies", unit="round"):
        for key, calls in runs.items():
            calls[0]()  # warm-up
            rounds[key][index] = sum(timed(call, model.device) for call in calls)
    times = [(*key, median(seconds) / len(masks)) for key, seconds in rounds.items()]
    encoder = sum(median_time(partial(encode(model), 5 * mask, mask), model.device) for mask in masks)
    return LatencyTable(times, encoder / len(masks))


def has_short_last_layer(model: FixedHeadBertPreTrainedModel, masks: list[torch.Tensor]) -> bool:
    """Returns True if the last layer outputs only first tokens. For a single short row, it outputs all tokens."""
    return reads_first_token(model) and any(len(mask) > 1 or mask.shape[1] > SHORT_TEXT for mask in masks)


def sublayer_inputs(
    model: FixedHeadBertPreTrainedModel, mask: torch.Tensor, first_tokens: bool
) -> tuple[torch.Tensor, dict]:
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
    states = torch.randn(
        1, int(batch.cu_seqlens[-1]), model.config.hidden_size, dtype=model.dtype, device=model.device
    )
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
