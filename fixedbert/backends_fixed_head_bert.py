# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
The ways to compute attention, their masks, and `choose_way`, which says how a layer attends and why.

All compute softmax(Q K^T / sqrt(P)) V and are called as transformers' attention functions are: with the module,
queries (B, H, Lq, P), keys and values (B, G, Lk, P), a mask, `scaling` and `dropout`. They return the output
(B, Lq, H, P) and the probabilities (B, H, Lq, Lk), which only eager keeps.

Shapes: B batch, H heads, G heads of keys and values (H, or 1 that all heads share), L length, P head size; T tokens of
a batch whose padding was left out, S sequences in it.
"""

import copy
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, packed_sequence_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.import_utils import is_tracing

from .configuration_fixed_head_bert import FixedHeadBertConfig

logger = logging.get_logger(__name__)

# Beyond this head size flash attention has no kernel and flex attention runs out of a GPU's shared memory.
LARGEST_FLASH_HEAD = 256


class Way(NamedTuple):
    """How a layer attends: the name of the way, the reason for it, and the function."""

    name: str
    why: str
    attend: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


class Lengths(NamedTuple):
    """Where sequences begin and end in a row, (S + 1), and how long the longest is: of queries and of keys."""

    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def choose_way(
    interface: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    output_attentions: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    **kwargs,
) -> Way:
    """
    The way to attend for queries (B, H, Lq, P) and keys (B, G, Lk, P), where `interface` is the function of the
    configured implementation. The lengths, if given, are those of sequences in one row without a mask.
    """
    takes_lengths = any(name in module.config._attn_implementation for name in ("flash", "vllm"))
    sequences = cu_seq_lens_q is not None and attention_mask is None and not takes_lengths
    eager_needs_mask = module.is_causal or query.device.type != "cpu"  # within sequences
    kernel, why = interface, "the configuration asks for it"
    if output_attentions:
        kernel, why = eager_attention_forward, "no other function returns the probabilities"
    elif takes_lengths:
        return Way("its own", "it knows where sequences are, and which heads share keys and values", interface)
    elif sequences and interface is eager_attention_forward and eager_needs_mask:
        kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]

    way = Way("whole rows", why, kernel)
    if sequences:
        lengths = Lengths(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        way = choose_way_through_sequences(kernel, query, key, lengths, dropout)
    # eager multiplies with shared keys and values as they are; other kernels get views of them, one for each head.
    return way if kernel is eager_attention_forward else way._replace(attend=partial(on_views, way.attend))


def choose_way_through_sequences(
    kernel: Callable, query: torch.Tensor, key: torch.Tensor, lengths: Lengths, dropout: float
) -> Way:
    """The way to attend within each of the S sequences of a row, where `kernel` knows batches."""
    S = len(lengths.cu_seq_lens_q) - 1
    if query.shape[2] == S * lengths.max_length_q and key.shape[2] == S * lengths.max_length_k:
        name, why, how = "a batch", "all sequences are equally long", in_a_batch
    elif query.device.type == "cpu":
        name, why, how = "one by one", "a call costs little on a CPU", one_by_one
    elif kernel is ALL_ATTENTION_FUNCTIONS["sdpa"] and has_variable_length(query, dropout):
        name, why, how = "variable length", "torch has a kernel for it", variable_length
    else:
        name, why, how = "padded", "the kernel knows batches only", padded
    return Way(name, why, partial(each_sequence_alone, how, kernel))


def has_variable_length(query: torch.Tensor, dropout: float) -> bool:
    """Whether torch's kernel for sequences of unequal lengths takes these queries."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_FLASH_HEAD
        and dropout == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    blank: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The definition, in matrices. Heads that share keys stand under each other as more queries: nothing is copied.
    Queries that are `blank` (B, Lq) have zeros.
    """
    B, H, length, P = query.shape
    scores = torch.matmul(query.reshape(B, key.shape[1], -1, P), key.transpose(2, 3))  # (B, G, H/G Lq, Lk)
    scores = scores.view(B, H, length, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:  # from a caller, in four dimensions
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    if blank is not None:
        weights = weights.masked_fill(blank[:, None, :, None].to(weights.device), 0)
    if dropout > 0:
        weights = module.dropout(weights)
    output = torch.matmul(weights.view(B, key.shape[1], -1, key.shape[2]), value)  # (B, G, H/G Lq, P)
    return output.view(B, H, length, P).transpose(1, 2).contiguous(), weights


def on_views(attend, module, query, key, value, attention_mask, **kwargs):
    """`attend` with keys and values of every head, (B, H, Lk, P): those that heads share are not copied."""
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    return attend(module, query, key, value, attention_mask, **kwargs)


def each_sequence_alone(
    how: Callable,
    kernel: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """
    Attention within each of the S sequences of a row, by one of the functions below: queries (1, H, Tq, P), keys and
    values (1, G, Tk, P); output (1, Tq, H, P).
    """
    lengths = Lengths(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    return how(kernel, module, query, key, value, lengths, **kwargs)[None], None


def in_a_batch(kernel, module, query, key, value, lengths: Lengths, **kwargs) -> torch.Tensor:
    """Sequences of one length."""
    S = len(lengths.cu_seq_lens_q) - 1
    batch = (x[0].unflatten(1, (S, -1)).transpose(0, 1) for x in (query, key, value))  # (S, H, L, P)
    return kernel(module, *batch, None, **kwargs)[0].flatten(0, 1)


def one_by_one(kernel, module, query, key, value, lengths: Lengths, **kwargs) -> torch.Tensor:
    """A call for each sequence, or for neighbours of one length."""
    pairs = zip(lengths.cu_seq_lens_q.diff().tolist(), lengths.cu_seq_lens_k.diff().tolist(), strict=True)
    alike = [(*pair, sum(1 for _ in same)) for pair, same in groupby(pairs)]  # neighbours are a batch
    rows_q, rows_k = [size * length for length, _, size in alike], [size * length for _, length, size in alike]
    parts = zip(query[0].split(rows_q, 1), key[0].split(rows_k, 1), value[0].split(rows_k, 1), alike, strict=True)
    outputs = []
    for *part, (length_q, _, size) in parts:
        if length_q:
            batch = (x.unflatten(1, (size, -1)).transpose(0, 1) for x in part)  # (size, H, L, P)
            outputs.append(kernel(module, *batch, None, **kwargs)[0].flatten(0, 1))
    return torch.cat(outputs)


def variable_length(kernel, module, query, key, value, lengths: Lengths, scaling: float, **kwargs) -> torch.Tensor:
    """torch's own kernel for sequences of unequal lengths, in place of `kernel`."""
    rows = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, P)
    window = (-1, 0) if module.is_causal else (-1, -1)
    return varlen_attn(*rows, *lengths, scale=scaling, window_size=window)


def padded(kernel, module, query, key, value, lengths: Lengths, **kwargs) -> torch.Tensor:
    """For kernels that know batches only: padding is put back around the attention, and left out again."""
    S = len(lengths.cu_seq_lens_q) - 1
    lengths_k, longest = lengths.cu_seq_lens_k.diff(), lengths.max_length_k

    def slots_of(tokens, lengths, longest):  # where the tokens of a row stand in the batch
        start = torch.arange(S, device=lengths.device) * longest - (lengths.cumsum(0) - lengths)
        return torch.arange(tokens, device=lengths.device) + start.repeat_interleave(lengths, output_size=tokens)

    def batch_of(x, slots, longest):  # (1, H, T, P) -> (S, H, longest, P)
        rows = x.new_zeros(S * longest, *x.shape[1::2]).index_copy(0, slots, x[0].transpose(0, 1))
        return rows.view(S, longest, *rows.shape[1:]).transpose(1, 2)

    slots_q = slots_of(query.shape[2], lengths.cu_seq_lens_q.diff(), lengths.max_length_q)
    slots_k = slots_of(key.shape[2], lengths_k, longest)
    mask = (torch.arange(longest, device=query.device) < lengths_k[:, None])[:, None, None]  # (S, 1, 1, Lk)
    if module.is_causal:
        mask = mask & torch.ones(longest, longest, dtype=torch.bool, device=query.device).tril()
    query = batch_of(query, slots_q, lengths.max_length_q)
    key, value = (batch_of(x, slots_k, longest) for x in (key, value))
    return kernel(module, query, key, value, mask, **kwargs)[0].flatten(0, 1)[slots_q]  # of (S, Lq, H, P)


def mask_for(
    config: FixedHeadBertConfig,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed: torch.Tensor | None,
    past_key_values: Cache | None,
    output_attentions: bool,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs,
):
    """
    The mask of hidden states (B, L, D) as the implementation takes it: causal for a decoder, with sequences of their
    own where `packed` (B, L) says so. There is none to make where lengths say as much.
    """
    if cu_seq_lens_q is not None and not output_attentions and "flex" not in config._attn_implementation:
        return attention_mask
    create_mask = create_causal_mask if config.is_decoder else create_bidirectional_mask
    return create_mask(
        config=config_of_masks(config, output_attentions),
        inputs_embeds=hidden_states,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        and_mask_function=None if packed is None else packed_sequence_mask_function(packed),
    )


def mask_for_cross_attention(
    config: FixedHeadBertConfig,
    hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor,
    encoder_hidden_states: torch.Tensor | None,
    output_attentions: bool,
    **kwargs,
):
    """The mask of an encoder's output, (B, Lk), as the implementation takes it."""
    return create_bidirectional_mask(
        config=config_of_masks(config, output_attentions),
        inputs_embeds=hidden_states,
        attention_mask=encoder_attention_mask,
        encoder_hidden_states=encoder_hidden_states,
    )


def config_of_masks(config: FixedHeadBertConfig, output_attentions: bool) -> FixedHeadBertConfig:
    """By which masks are made: one of eager, where that takes the place of another."""
    if output_attentions and config._attn_implementation != "eager":
        logger.warning_once(f"{config._attn_implementation} keeps no attention probabilities: eager computes them.")
        config = copy.copy(config)
        config._attn_implementation = "eager"
    return config


class Dropout(nn.Dropout):
    """
    nn.Dropout, on a CPU about three times as fast: 16 random bits for each element instead of a float.

    The probability is rounded to a multiple of 2^-16, and what is kept is scaled by what the rounded one asks for.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = round((1 - self.p) * 2**16)  # of 65,536 values
        if not self.training or not 0 < kept < 2**16 or x.device.type != "cpu" or is_tracing(x):
            return super().forward(x)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        return x * (bits[: x.numel()] < kept - 2**15).view(x.shape) * (2**16 / kept)
