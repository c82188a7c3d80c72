# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
The fast path: nothing is computed that no output needs. Values and gradients are the plain path's.

With `unpad_inputs` the real tokens of a batch (B, L) become one row (1, T), whose tokens attend within their own
sequence, and the last layer computes only the tokens that the head reads. What cannot go this way computes whole rows.

Shapes as in attention_fixed_head_bert.py; T tokens of a batch without padding, S sequences, N tokens that are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions, ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_tracing

from .attention_fixed_head_bert import (
    FixedHeadBertSelfAttention,
    eager_attention_forward,
    is_symbolic,
    of_one_shape,
    padding_in,
    sequences_of,
)

LARGEST_HEAD = 256  # of torch's kernel for sequences of unequal lengths


@dataclass
class Tokens:
    """
    The tokens of a batch (B, L) that are computed, as one row (1, T), and which of them the head reads. Layers get it
    in the place of a mask.
    """

    places: torch.Tensor  # of the tokens in the flat batch, (T)
    sequence: torch.Tensor  # the number of each token's sequence, (T)
    ends: torch.Tensor  # of the S sequences in the row, (S + 1) from 0
    longest: int  # the length of the longest sequence
    read: torch.Tensor | None = None  # indices into the row of the tokens that the last layer computes, (N); None: all
    read_ends: torch.Tensor | None = None  # of the sequences among these, (S + 1) from 0
    longest_read: int = 0  # the largest number of them in a sequence
    pooled: bool = False  # whether the first token of each row is among them
    last_layer: nn.Module | None = None  # the layer that computes only them

    @classmethod
    def of(cls, real: torch.Tensor, sequences: torch.Tensor | None = None) -> "Tokens":
        """The tokens where `real` (B, L) is true; `sequences` (B, L) has the number of each one's in its row."""
        places = real.flatten().nonzero().squeeze(-1)  # (T,)
        row = places // real.shape[1]  # (T,)
        sequence = row if sequences is None else row * real.shape[1] + sequences.flatten()[places]
        _, sequence, lengths = sequence.unique_consecutive(return_inverse=True, return_counts=True)
        return cls(places, sequence, *ends_of(lengths))

    def read_at(self, wanted: torch.Tensor | bool, shape: torch.Size, pooled: bool) -> "Tokens":
        """With a last layer that computes the tokens `wanted` (B, L), and with `pooled` the first of each row."""
        row = self.places // shape[1]
        chosen = torch.zeros_like(row, dtype=torch.bool)
        if isinstance(wanted, torch.Tensor):
            chosen = wanted.expand(shape).flatten()[self.places]
        if pooled:
            chosen = chosen | (row.diff(prepend=row[:1] - 1) != 0)
        read = chosen.nonzero().squeeze(-1)
        if not len(read):
            return self
        ends, longest = ends_of(self.sequence[read].bincount(minlength=len(self.ends) - 1))
        return replace(self, read=read, read_ends=ends, longest_read=longest, pooled=pooled)

    def to(self, device, non_blocking: bool = False) -> "Tokens":
        """As a tensor's, by which accelerate moves a batch."""
        tensors: dict = {name: x for name, x in vars(self).items() if isinstance(x, torch.Tensor)}
        return replace(self, **{name: x.to(device, non_blocking=non_blocking) for name, x in tensors.items()})

    def take(self, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """(B, L, ...) or (1, L, ...), where `shape` is B and L -> (1, T, ...)"""
        return x.expand(*shape, *x.shape[2:]).flatten(0, 1)[self.places.to(x.device)][None]

    def put_back(self, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """(1, T, ...), or (1, N, ...) of the tokens that are read -> (B, L, ...), zeros elsewhere."""
        places = self.places if self.last_layer is None else self.places[self.read]
        rows = x.new_zeros(shape.numel(), *x.shape[2:]).index_copy(0, places.to(x.device), x[0])
        return rows.unflatten(0, shape)

    def through_last_layer(self, layer, hidden_states: torch.Tensor) -> torch.Tensor:
        """BERT's layer for the queries that are read: (1, T, D) -> (1, N, D)."""
        queries = hidden_states if self.read is None else hidden_states[:, self.read.to(hidden_states.device)]
        output, _ = layer.attention(queries, self, encoder_hidden_states=hidden_states)
        return layer.feed_forward_chunk(output)

    def attend(
        self, kernel: Callable, module: FixedHeadBertSelfAttention, query, key, value, attention_mask, **kwargs
    ):
        """Attention within sequences: queries (1, H, T or N, P), keys (1, G, T, P), values (1, G, T, V)."""
        lengths = Lengths(self.ends, self.ends, self.longest, self.longest)
        if query.shape[2] < key.shape[2] and self.read_ends is not None:
            lengths = lengths._replace(cu_seq_lens_q=self.read_ends, max_length_q=self.longest_read)
        if kernel is eager_attention_forward and (module.is_causal or query.device.type != "cpu"):
            kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]  # eager would need a mask within sequences
        if kernel is not eager_attention_forward:
            query, key, value = of_one_shape(query, key, value)
        if "flash" in (module.config._attn_implementation or ""):  # it takes the lengths
            return kernel(module, query, key, value, None, **lengths._asdict(), **kwargs)
        return within_sequences(kernel, module, query, key, value, lengths, **kwargs)


def ends_of(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The ends of sequences in a row, (S + 1) from 0, and the longest of their lengths (S)."""
    return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())


def find_tokens(shape: torch.Size, attention_mask, sequences, read_at, pooled: bool, device=None) -> Tokens | None:
    """
    The tokens of a batch of this `shape` (B, L) with a mask, or with the `sequences` (B, L) of rows without one. The
    head reads the last layer at the tokens `read_at` (B, L), False for none, None for all, and with `pooled` at the
    first of each row. Returns None where that is all of whole rows.
    """
    if attention_mask is not None:
        real = attention_mask.bool()
        if not real.any() or (read_at is None and real.all()):
            return None
    elif sequences is None and read_at is None:
        return None
    else:
        real = torch.ones(shape, dtype=torch.bool, device=device)
    tokens = Tokens.of(real, sequences)
    return tokens if read_at is None else tokens.read_at(read_at, shape, pooled)


def fast_forward(model, given, attention_mask, read_at, tokens: Tokens | None, inputs: dict) -> ModelOutput:
    """The forward of a FixedHeadBertModel, for ids or embeddings `given`, with zeros at what it leaves out."""
    positions = inputs.get("position_ids")
    shape, pooled = given.shape[:2], model.pooler is not None
    sequences = sequences_of(positions, shape) if attention_mask is None and tokens is None else None
    if needs_whole_rows(model, given, attention_mask, sequences, tokens, inputs):
        return whole_rows(model, attention_mask, inputs)
    if model.config.is_decoder:
        read_at = None  # a causal mask needs every query beside its key
    if tokens is None:
        tokens = find_tokens(shape, attention_mask, sequences, read_at, pooled, given.device)
    elif read_at is None:
        tokens = replace(tokens, read=None)
    elif tokens.read is None or tokens.pooled < pooled:
        tokens = tokens.read_at(read_at, shape, pooled)
    if tokens is None:
        return whole_rows(model, attention_mask, inputs)

    if tokens.read is not None:
        tokens = replace(tokens, last_layer=model.encoder.layer[-1])
    positions = model.embeddings.position_ids[:, : shape[1]] if positions is None else positions
    row = {name: inputs.get(name) for name in ("input_ids", "inputs_embeds", "token_type_ids")}
    row = {name: tokens.take(x, shape) for name, x in (row | {"position_ids": positions}).items() if x is not None}
    hidden_states = model.encoder(model.embeddings(**row), attention_mask=tokens).last_hidden_state
    hidden_states = tokens.put_back(hidden_states, shape)
    return BaseModelOutputWithPoolingAndCrossAttentions(hidden_states, model.pool(hidden_states, attention_mask))


def needs_whole_rows(model, given: torch.Tensor, attention_mask, sequences, tokens, inputs: dict) -> bool:
    """Whether nothing may be left out: a graph is traced, all is to be returned, or something has the rows' shape."""
    config, name = model.config, model.config._attn_implementation

    def asked(field: str):
        return getattr(config, field) if inputs.get(field) is None else inputs[field]

    return (
        (is_symbolic(given) if tokens is None else is_tracing(given))
        or asked("output_attentions") is not False
        or asked("output_hidden_states") is not False
        or (config.is_decoder and asked("use_cache") and sequences is None and not model.training)
        or inputs.get("past_key_values") is not None
        or inputs.get("encoder_hidden_states") is not None
        or not (attention_mask is None or isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2)
        or not (model.unpad_inputs or sequences is not None)
        or "flex" in name
        or name not in ALL_MASK_ATTENTION_FUNCTIONS  # which knows by itself where sequences are, such as vLLM's
        or (model.training and hasattr(model.get_input_embeddings(), "neftune_noise_alpha"))  # scaled by the length
    )


def whole_rows(model, attention_mask, inputs: dict) -> ModelOutput:
    """The plain forward. With `unpad_inputs` the last hidden states are zero at padding, as if it were left out."""
    outputs = model.plain_forward(attention_mask, **inputs)
    padding = padding_in(attention_mask, outputs.last_hidden_state)
    if model.unpad_inputs and padding is not None:
        last = outputs.last_hidden_state = outputs.last_hidden_state.masked_fill(padding[..., None], 0)
        outputs.pooler_output = model.pool(last, attention_mask)
        if outputs.hidden_states and outputs.hidden_states[-1] is not None:
            outputs.hidden_states = (*outputs.hidden_states[:-1], last)
    return outputs


def at_real_tokens(head: nn.Module, hidden_states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """`head`, (B, L, D) -> (B, L, V), which is not computed where there is `padding` (B, L), but zero."""
    if padding is None or padding.shape != hidden_states.shape[:2]:
        return head(hidden_states)
    if is_symbolic(hidden_states):
        return head(hidden_states).masked_fill(padding[..., None], 0)
    logits = head(hidden_states[~padding])  # (T, V)
    return logits.new_zeros(*padding.shape, logits.shape[-1]).masked_scatter(~padding[..., None], logits)


class Lengths(NamedTuple):
    """Ends of the S sequences in a row, (S + 1) from 0, and the longest length, by transformers' names for them."""

    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def within_sequences(kernel: Callable, module, query, key, value, lengths: Lengths, dropout: float, **kwargs):
    """Attention within each sequence of a row, by a `kernel` for batches: queries (1, H, T, P) -> (1, T, H, V)."""
    attend = way_to_attend(kernel, query, key, value, lengths, dropout)
    return attend(kernel, module, query, key, value, lengths, dropout=dropout, **kwargs)[None], None


def way_to_attend(kernel: Callable, query, key, value, lengths: Lengths, dropout: float) -> Callable:
    """The fastest of the functions below."""
    S, size = len(lengths.cu_seq_lens_q) - 1, max(query.shape[-1], value.shape[-1])
    if query.shape[2] == S * lengths.max_length_q and key.shape[2] == S * lengths.max_length_k:
        return in_a_batch
    if query.device.type == "cpu":
        return one_by_one
    has_variable_length = (
        kernel is ALL_ATTENTION_FUNCTIONS["sdpa"]
        and query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and size % 8 == 0
        and size <= LARGEST_HEAD
        and dropout == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )
    return variable_length if has_variable_length else padded


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


def variable_length(kernel, module, query, key, value, lengths: Lengths, scaling: float, **kwargs):
    """torch's own kernel for sequences of unequal lengths, in place of `kernel`."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, P)
    window = (-1, 0) if module.is_causal else (-1, -1)
    return varlen_attn(query, key, value, *lengths, scale=scaling, window_size=window)


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


def places_of_labels(labels: torch.Tensor) -> torch.Tensor:
    """The places (N) of labels that are not -100 in the flat `labels` (B, L)."""
    return labels.flatten().ne(-100).nonzero().squeeze(-1)
