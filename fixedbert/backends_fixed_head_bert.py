# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
The backends of the attention and their masks. `choose_backend` chooses one and says why.

All compute softmax(Q K^T / sqrt(P)) V and are called as transformers' attention functions are: with the module,
queries (B, H, Lq, P), keys (B, G, Lk, P) and values (B, G, Lk, V), a mask, `scaling` and `dropout`. They return the
output (B, Lq, H, V) and the probabilities (B, H, Lq, Lk), which only eager keeps. Other kernels than eager get P and V
alike: the smaller is padded with zeros, and so is their output where that is V.

Shapes: B batch, H heads, G heads of keys and values (H, or 1 that all heads share), L length, P size of a head, V that
of its values; T tokens of a batch without its padding, S sequences in it.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, packed_sequence_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .configuration_fixed_head_bert import FixedHeadBertConfig
from .inputs_fixed_head_bert import Lengths

logger = logging.get_logger(__name__)


class Implementation(NamedTuple):
    """What one of transformers' attention implementations can do."""

    largest_head: float  # for a larger one it has no kernel, or not the memory
    takes_lengths: bool  # computes the sequences of one row by their lengths, with keys and values that heads share
    needs_lengths: bool  # cannot compute packed sequences of several rows, which have no lengths
    needs_mask: bool  # computes the sequences of one row by a mask, and only where each query is a key too
    equal_layers: bool = False  # has the same heads in all layers, and no larger values


PLAIN = Implementation(largest_head=math.inf, takes_lengths=False, needs_lengths=False, needs_mask=False)
# The first whose key is a part of the implementation's name; PLAIN for others.
IMPLEMENTATIONS = {
    "flash": Implementation(largest_head=256, takes_lengths=True, needs_lengths=True, needs_mask=False),
    "flex": Implementation(largest_head=256, takes_lengths=False, needs_lengths=False, needs_mask=True),
    "vllm": Implementation(
        largest_head=math.inf, takes_lengths=True, needs_lengths=False, needs_mask=False, equal_layers=True
    ),
}


def implementation_of(name: str) -> Implementation:
    return next((found for part, found in IMPLEMENTATIONS.items() if part in name), PLAIN)


def implementation_for(head_size: int, name: str | None) -> str | None:
    """The implementation of this name, or sdpa for heads that it does not take."""
    largest = implementation_of(name or "").largest_head
    if head_size <= largest:
        return name
    logger.warning_once(f"{name} takes heads up to size {largest}, these have {head_size}: sdpa computes the same.")
    return "sdpa"


class AttentionModule(Protocol):
    """What a backend reads of the module that calls it."""

    config: FixedHeadBertConfig
    dropout: nn.Dropout
    is_causal: bool


class Backend(NamedTuple):
    """How a layer attends, why so, and the function."""

    name: str
    reason: str
    attend: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def choose_backend(
    interface: Callable,
    module: AttentionModule,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    output_attentions: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    **kwargs,
) -> Backend:
    """
    The backend for queries (B, H, Lq, P), keys (B, G, Lk, P) and values (B, G, Lk, V), where `interface` is the
    function of the configured implementation. The lengths, if given, are those of sequences in one row without a mask.
    """
    takes_lengths = implementation_of(module.config._attn_implementation).takes_lengths
    kernel, reason = interface, "the configuration asks for it"
    if output_attentions:
        kernel, reason = eager_attention_forward, "no other function returns the probabilities"
    elif takes_lengths:
        attend = partial(of_one_size, interface)
        return Backend("its own", "it knows where sequences are, and which heads share keys and values", attend)

    if cu_seq_lens_q is None or cu_seq_lens_k is None or attention_mask is not None or takes_lengths:
        backend = Backend("whole rows", reason, kernel)
    else:
        eager_needs_mask = module.is_causal or query.device.type != "cpu"  # within sequences
        if kernel is eager_attention_forward and eager_needs_mask and not output_attentions:
            kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]
        lengths = Lengths(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        backend = choose_for_sequences(kernel, query, key, value, lengths, dropout)
    # eager multiplies with shared keys and values as they are; other kernels get views of them, one for each head.
    return backend if kernel is eager_attention_forward else backend._replace(attend=partial(on_views, backend.attend))


def choose_for_sequences(
    kernel: Callable, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Lengths, dropout: float
) -> Backend:
    """The backend within each of the S sequences of a row, where `kernel` knows batches."""
    S = len(lengths.cu_seq_lens_q) - 1
    attend: Callable[..., torch.Tensor]
    if query.shape[2] == S * lengths.max_length_q and key.shape[2] == S * lengths.max_length_k:
        name, reason, attend = "a batch", "all sequences are equally long", in_a_batch
    elif query.device.type == "cpu":
        name, reason, attend = "one by one", "a call costs little on a CPU", one_by_one
    elif kernel is ALL_ATTENTION_FUNCTIONS["sdpa"] and has_variable_length(query, value, dropout):
        name, reason, attend = "variable length", "torch has a kernel for it", variable_length
    else:
        name, reason, attend = "padded", "the kernel knows batches only", padded
    return Backend(name, reason, partial(within_sequences, attend, kernel))


def has_variable_length(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Whether torch's kernel for sequences of unequal lengths takes these queries and values."""
    size = max(query.shape[-1], value.shape[-1])
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and size % 8 == 0
        and size <= IMPLEMENTATIONS["flash"].largest_head
        and dropout == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def eager_attention_forward(
    module: AttentionModule,
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
    The definition, in matrices. Heads that share keys are more queries of one head: nothing is copied. Queries that
    are `blank` (B, Lq) have zeros.
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
        weights = module.dropout(weights)  # the module, so that another kind of dropout can take its place
    output = torch.matmul(weights.view(B, key.shape[1], -1, key.shape[2]), value)  # (B, G, H/G Lq, V)
    return output.view(B, H, length, -1).transpose(1, 2).contiguous(), weights


def on_views(attend, module, query, key, value, attention_mask, **kwargs):
    """`attend` with keys and values of every head, (B, H, Lk, P). Those that heads share are not copied."""
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    return of_one_size(attend, module, query, key, value, attention_mask, **kwargs)


def of_one_size(attend, module, query, key, value, attention_mask, **kwargs):
    """`attend` with P and V alike, as some kernels need it and others are faster; the output has the larger size."""
    if (size := max(query.shape[-1], value.shape[-1])) > min(query.shape[-1], value.shape[-1]):
        query, key, value = (nn.functional.pad(x, (0, size - x.shape[-1])) for x in (query, key, value))
    return attend(module, query, key, value, attention_mask, **kwargs)


def within_sequences(
    attend: Callable[..., torch.Tensor],
    kernel: Callable,
    module: AttentionModule,
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
    Attention within each of the S sequences of a row, by one of the functions below: queries (1, H, Tq, P), keys
    (1, G, Tk, P) and values (1, G, Tk, V); output (1, Tq, H, V).
    """
    lengths = Lengths(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    return attend(kernel, module, query, key, value, lengths, **kwargs)[None], None


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
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, P)
    window = (-1, 0) if module.is_causal else (-1, -1)
    output = varlen_attn(query, key, value, *lengths, scale=scaling, window_size=window)
    assert isinstance(output, torch.Tensor)  # a pair only with return_aux
    return output


def padded(kernel, module, query, key, value, lengths: Lengths, **kwargs) -> torch.Tensor:
    """For kernels that know batches only: the sequences with padding."""
    S = len(lengths.cu_seq_lens_q) - 1
    lengths_k, longest = lengths.cu_seq_lens_k.diff(), lengths.max_length_k

    def slots_of(tokens, lengths, longest):  # the places of a row's tokens in the batch
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
    own where `packed` (B, L) says so. Lengths take its place where the implementation does without.
    """
    needs_mask = output_attentions or implementation_of(config._attn_implementation).needs_mask
    if cu_seq_lens_q is not None and not needs_mask:
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
    """The configuration that masks are made by: with eager where that computes the probabilities."""
    if output_attentions and config._attn_implementation != "eager":
        logger.warning_once(f"{config._attn_implementation} keeps no attention probabilities: eager computes them.")
        config = copy.copy(config)
        config._attn_implementation = "eager"
    return config
