# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
The fast path, which skips padding tokens and, in the last layer, tokens that the task head does not read. Outputs
at the remaining tokens and all gradients are equal to those of the padded path.

With `unpad_inputs`, the non-padding tokens in a batch (B, L) are packed into one row (1, T), and each token attends
only within its sequence. The attention receives the sequence lengths as keyword arguments (`SequenceLengths`).

Shapes: T non-padding tokens, S sequences, N tokens that the task head reads. The other letters are defined in
attention_fixed_head_bert.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from itertools import groupby
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.utils.import_utils import is_tracing

# Name of the argument for past keys and values, which transformers 5.24 renamed.
CACHE = "cache" if "cache" in signature(BertSelfAttention.forward).parameters else "past_key_values"
SHORT_TEXT = 64  # for a single row of at most this many tokens, packing takes longer than it saves
MULTIPLE, LONGEST_BUCKET = 16, 128  # lengths are rounded up to multiples of 16, in buckets to at most 128


class SequenceLengths(NamedTuple):
    """Lengths of the S sequences in a packed row. Field names are those of transformers' `FlashAttentionKwargs`."""

    cu_seq_lens_q: torch.Tensor  # (S + 1,), cumulative query counts of the sequences, starting at 0
    cu_seq_lens_k: torch.Tensor  # (S + 1,), the same for keys and values
    max_length_q: int
    max_length_k: int


@dataclass
class PackedBatch:
    """The T non-padding tokens in a batch (B, L) as one row (1, T), and the N of them that the task head reads."""

    indices: torch.Tensor  # (T,), indices of the non-padding tokens in the flattened batch
    cu_seqlens: torch.Tensor  # (S + 1,), cumulative sequence lengths, starting at 0
    max_seqlen: int
    query_indices: torch.Tensor | None = None  # (N,), indices into the row for tokens to read; None: all tokens
    query_cu_seqlens: torch.Tensor | None = None  # (S + 1,), cumulative counts of these tokens, starting at 0
    query_max_seqlen: int = 0

    @classmethod
    def from_mask(cls, mask: torch.Tensor, sequence_ids: torch.Tensor | None = None) -> "PackedBatch":
        """Packs the tokens where `mask` (B, L) is True. `sequence_ids` (B, L) separate the sequences in a row."""
        indices = mask.flatten().nonzero().squeeze(-1)  # (T,)
        row = indices // mask.shape[1]  # (T,)
        sequence = row if sequence_ids is None else row * mask.shape[1] + sequence_ids.flatten()[indices]
        return cls(indices, *cumulative(sequence.unique_consecutive(return_counts=True)[1]))

    def select_queries(self, output_mask: torch.Tensor | bool, shape: torch.Size, pooled: bool) -> "PackedBatch":
        """
        Returns a batch for which the last layer computes outputs only at selected tokens: those where `output_mask`
        (B, L) is True and, if `pooled`, the first non-padding token in each row. `output_mask=False` selects only
        these first tokens, and True is not supported. If no token is selected, the batch is returned unchanged, and
        the last layer computes outputs at all tokens. `shape` is (B, L).
        """
        row = self.indices // shape[1]
        selected = torch.zeros_like(row, dtype=torch.bool)
        if isinstance(output_mask, torch.Tensor):
            selected = output_mask.expand(shape).flatten()[self.indices]
        if pooled:
            selected = selected | (row.diff(prepend=row[:1] - 1) != 0)
        queries = selected.nonzero().squeeze(-1)
        if not len(queries):
            return self
        sequence = torch.bucketize(queries, self.cu_seqlens[1:].long(), right=True)
        lengths = cumulative(sequence.bincount(minlength=len(self.cu_seqlens) - 1))
        return PackedBatch(self.indices, self.cu_seqlens, self.max_seqlen, queries, *lengths)

    def round_up(self) -> "PackedBatch":
        """
        Returns a batch with additional sequences at the end, so that the number of tokens is a multiple of 16, or of a
        larger power of 2 if T >= 256. oneDNN compiles a kernel for each shape of a bfloat16 matrix product, which
        takes about 0.4 ms. Without rounding, batches would hardly ever have the same shapes.
        """
        T, longest = len(self.indices), self.max_seqlen
        extra = -T % max(MULTIPLE, 2 ** T.bit_length() // 16)
        ends = self.cu_seqlens.new_tensor([*range(T + longest, T + extra, longest), T + extra] if extra else [])
        queries = self.query_cu_seqlens
        if queries is not None:
            queries = torch.cat([queries, queries[-1:].expand(len(ends))])
        return replace(self, cu_seqlens=torch.cat([self.cu_seqlens, ends]), query_cu_seqlens=queries)

    def pack(self, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """
        Packs the T non-padding tokens of `x` into one row (1, T, ...). `shape` is (B, L). `x` has shape (B, L, ...),
        or (1, L, ...) if its values are the same in all rows, as in BERT's default position ids.
        """
        return x.expand(*shape, *x.shape[2:]).flatten(0, 1)[self.indices.to(x.device)][None]

    def unpack(self, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """
        Unpacks the last layer's output `x` to shape (B, L, ...), with zeros at all tokens that `x` does not contain.
        Its shape is (1, N, ...) if `query_indices` limit it to N tokens, else (1, T, ...) or more (`round_up`).
        """
        indices = self.indices if self.query_indices is None else self.indices[self.query_indices]
        rows = x.new_zeros(shape.numel(), *x.shape[2:]).index_copy(0, indices.to(x.device), x[0, : len(indices)])
        return rows.unflatten(0, shape)


def cumulative(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns the cumulative sum (S + 1,) of `lengths` (S,), starting at 0, and the maximum length."""
    return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())


def fast_forward(model, ids_or_embeddings: torch.Tensor, attention_mask, output_mask, inputs: dict):
    """Runs FixedHeadBertModel without padding if possible, else BERT's forward. Outputs are zero at skipped tokens."""
    batch = packed_batch(model, ids_or_embeddings, attention_mask, output_mask, inputs)
    if batch is None:
        return model.bert_forward(attention_mask, **inputs)
    return packed_forward(model, batch, ids_or_embeddings.shape[:2], attention_mask, inputs)


def packed_batch(
    model, ids_or_embeddings: torch.Tensor, attention_mask, output_mask, inputs: dict
) -> PackedBatch | None:
    """Returns the packed batch, or None if padding cannot be skipped or if there is nothing to skip."""
    shape, device = ids_or_embeddings.shape[:2], ids_or_embeddings.device
    sequence_ids = sequence_ids_from(inputs.get("position_ids"), shape) if attention_mask is None else None
    if requires_padding(model, ids_or_embeddings, attention_mask, sequence_ids, inputs):
        return None
    if model.config.is_decoder:
        output_mask = None  # a causal mask needs a query for each key
    is_rounded = should_round(model.dtype, device)
    is_short = shape[0] == 1 and shape[1] <= SHORT_TEXT
    # Without padding, packing saves time only if the last layer can skip tokens or the number of tokens is rounded.
    skips_only_padding = sequence_ids is None and (is_short or (output_mask is None and not is_rounded))
    mask = torch.ones(shape, dtype=torch.bool, device=device) if attention_mask is None else attention_mask.bool()
    if not mask.any() or (skips_only_padding and mask.all()):
        return None
    batch = PackedBatch.from_mask(mask, sequence_ids)
    if output_mask is not None:
        batch = batch.select_queries(output_mask, shape, pooled=model.pooler is not None)
    return batch.round_up() if is_rounded else batch


def requires_padding(model, ids_or_embeddings, attention_mask, sequence_ids, inputs: dict) -> bool:
    """Returns True if padding cannot be skipped, for example with a cache, or if the model should not skip it."""
    config, name = model.config, model.config._attn_implementation

    def requested(field: str):
        return getattr(config, field) if inputs.get(field) is None else inputs[field]

    return (
        is_symbolic(ids_or_embeddings)
        or config.chunk_size_feed_forward  # BERT splits only multiples of the chunk size
        or requested("output_attentions") is not False
        or requested("output_hidden_states") is not False
        or (config.is_decoder and requested("use_cache") and sequence_ids is None and not model.training)
        or inputs.get(CACHE) is not None
        or not (attention_mask is None or isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2)
        or not (model.unpad_inputs or sequence_ids is not None)
        or (inputs.get("cu_seq_lens_q") is not None and sequence_ids is None)  # packed by the caller
        or (ids_or_embeddings.device.type != "cpu" and "flash" not in name)  # one call for each length would be slow
        or "flex" in name
        or name not in ALL_MASK_ATTENTION_FUNCTIONS  # for example vLLM's, which tracks sequences itself
        or (model.training and hasattr(model.get_input_embeddings(), "neftune_noise_alpha"))  # scaled by padded length
    )


def packed_forward(model, batch: PackedBatch, shape: torch.Size, attention_mask, inputs: dict):
    """Runs the model on a packed batch. The last layer computes only the tokens that the task head reads."""
    tokens = inputs_by_token(model, shape, inputs)
    hidden_states = model.embeddings(**{name: batch.pack(x, shape) for name, x in tokens.items()})
    hidden_states = pad(hidden_states, (0, 0, 0, int(batch.cu_seqlens[-1]) - hidden_states.shape[1]))
    lengths = SequenceLengths(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen)
    *layers, last = model.encoder.layer
    for layer in layers:
        hidden_states = layer(hidden_states, **lengths._asdict())
    if batch.query_cu_seqlens is not None:
        lengths = lengths._replace(cu_seq_lens_q=batch.query_cu_seqlens, max_length_q=batch.query_max_seqlen)
    hidden_states = last(hidden_states, query_indices=batch.query_indices, **lengths._asdict())
    hidden_states = batch.unpack(hidden_states, shape)
    return BaseModelOutputWithPoolingAndCrossAttentions(hidden_states, model.pool(hidden_states, attention_mask))


def inputs_by_token(model, shape: torch.Size, inputs: dict) -> dict[str, torch.Tensor]:
    """Returns the inputs with a value for each token, of shape (B, L, ...), or (1, L) if all rows are equal."""
    names = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")
    tokens = {name: inputs[name] for name in names if inputs.get(name) is not None}
    return {"position_ids": model.embeddings.position_ids[:, : shape[1]]} | tokens


def should_round(dtype: torch.dtype, device: torch.device) -> bool:
    """Returns True for inference in bfloat16 on a CPU, for which the number of tokens should be rounded."""
    return dtype == torch.bfloat16 and device.type == "cpu" and not torch.is_grad_enabled()


def apply_to_non_padding(head: nn.Module, hidden_states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """Applies `head` to non-padding tokens: (B, L, D) -> (B, L, ...). The result is zero where `padding` is True."""
    if padding is None:
        return head(hidden_states)
    if is_symbolic(hidden_states):
        return head(hidden_states).masked_fill(padding[..., None], 0)
    logits = head(hidden_states[~padding])  # (T, vocabulary size)
    return logits.new_zeros(*padding.shape, logits.shape[-1]).masked_scatter(~padding[..., None], logits)


def find_label_indices(labels: torch.Tensor) -> torch.Tensor:
    """Flattens `labels` (B, L) and returns the indices (N,) of all labels other than -100."""
    return labels.flatten().ne(-100).nonzero().squeeze(-1)


def padding_mask(attention_mask, outputs: torch.Tensor) -> torch.Tensor | None:
    """Returns a mask (B, L), True where `outputs` (B, L, ...) are padding, or None if no 2D attention mask exists."""
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return ~attention_mask[:, -outputs.shape[1] :].to(outputs.device).bool()  # a mask may include cached tokens
    return None


def is_symbolic(x: torch.Tensor) -> bool:
    """Returns True if tensor values cannot be read: while tracing, on the meta device, or inside vmap."""
    return is_tracing(x) or x.is_meta or torch._C._functorch.is_batchedtensor(x)


def sequence_ids_from(position_ids: torch.Tensor | None, shape: torch.Size) -> torch.Tensor | None:
    """Returns the index (B, L) of each token's sequence in its row, or None if `position_ids` (B, L) never restart."""
    if position_ids is None:
        return None
    position_ids = position_ids.expand(shape)
    starts = position_ids.diff(prepend=position_ids[:, :1] - 1) <= 0
    return starts.cumsum(-1) if is_symbolic(starts) or starts.any() else None


def packed_attention_forward(attend: Callable, module, query, key, value, attention_mask=None, **kwargs):
    """
    Computes attention within each sequence of a packed row of T tokens. Maps queries (1, H, T, P) in H heads, and keys
    (1, G, T, P) and values (1, G, T, V) in G heads, to outputs (1, T, H, V) and None instead of probabilities.
    `attend` is an attention function for batches, and `kwargs` must contain the fields of SequenceLengths.
    """
    lengths = SequenceLengths(*(kwargs.pop(name) for name in SequenceLengths._fields))
    function = select_packed_attention(attend, module, query, key, lengths)
    return function(attend, module, query, key, value, lengths, **kwargs)[None], None


def select_packed_attention(attend, module, query, key, lengths: SequenceLengths) -> Callable:
    """Returns the fastest `*_attention` function for these inputs. All of them return outputs (T, H, V)."""
    S = len(lengths.cu_seq_lens_q) - 1
    if query.shape[2] == S * lengths.max_length_q and key.shape[2] == S * lengths.max_length_k:
        return equal_length_attention
    is_sdpa_on_cpu = attend is ALL_ATTENTION_FUNCTIONS["sdpa"] and query.device.type == "cpu"
    is_short = query.dtype == torch.bfloat16 and lengths.max_length_k <= LONGEST_BUCKET
    if is_sdpa_on_cpu and is_short and not query.requires_grad and not module.is_causal:
        return bucketed_attention
    return looped_attention


def equal_length_attention(attend, module, query, key, value, lengths: SequenceLengths, **kwargs) -> torch.Tensor:
    """Computes attention for sequences of equal length as a single batch without padding."""
    S = len(lengths.cu_seq_lens_q) - 1
    batch = (x[0].unflatten(1, (S, -1)).transpose(0, 1) for x in (query, key, value))  # (S, H, L, P)
    return attend(module, *batch, None, **kwargs)[0].flatten(0, 1)


def looped_attention(attend, module, query, key, value, lengths: SequenceLengths, **kwargs) -> torch.Tensor:
    """Computes attention with one call of `attend` for each group of consecutive sequences with equal lengths."""
    pairs = zip(lengths.cu_seq_lens_q.diff().tolist(), lengths.cu_seq_lens_k.diff().tolist(), strict=True)
    runs = [(*pair, sum(1 for _ in same)) for pair, same in groupby(pairs)]
    sizes_q, sizes_k = [size * length for length, _, size in runs], [size * length for _, length, size in runs]
    parts = zip(query[0].split(sizes_q, 1), key[0].split(sizes_k, 1), value[0].split(sizes_k, 1), runs, strict=True)
    outputs = []
    for *part, (length_q, _, size) in parts:
        if length_q:
            batch = (x.unflatten(1, (size, -1)).transpose(0, 1) for x in part)  # (size, H, L, P)
            outputs.append(attend(module, *batch, None, **kwargs)[0].flatten(0, 1))
    return torch.cat(outputs)


def bucketed_attention(attend, module, query, key, value, lengths: SequenceLengths, **kwargs) -> torch.Tensor:
    """
    Computes attention with one call of `attend` for each bucket of sequences (see `buckets_for`). In bfloat16 on CPUs,
    lengths that are multiples of 16 fill vector registers, so sdpa is about 1.5 times as fast as otherwise.
    """
    H = query.shape[1]
    lengths_q = tuple(lengths.cu_seq_lens_q.diff().tolist())
    lengths_k = tuple(lengths.cu_seq_lens_k.diff().tolist())
    buckets, slots = buckets_for(lengths_q, lengths_k, query.dtype)
    queries, keys, values = (x[0].transpose(0, 1).flatten(1) for x in (query, key, value))  # (T, H P)
    outputs = []
    for bucket in buckets:
        output, _ = attend(
            module,
            select_rows(queries, bucket.query_indices, H),
            select_rows(keys, bucket.key_indices, H),
            select_rows(values, bucket.key_indices, H),
            bucket.mask,
            **kwargs,
        )
        outputs.append(output.flatten(0, 1).flatten(1))  # (S Lq, H V)
    return torch.cat(outputs).index_select(0, slots).unflatten(-1, (H, -1))


def select_rows(x: torch.Tensor, indices: torch.Tensor, heads: int) -> torch.Tensor:
    """Selects tokens from `x` (T, H P) by `indices` (S, L), and splits them into H heads: (S, H, L, P)."""
    rows = x.index_select(0, indices.flatten())
    return rows.view(*indices.shape, heads, -1).transpose(1, 2)


class Bucket(NamedTuple):
    """S sequences that are padded to Lq queries and Lk keys with copies of their last token."""

    query_indices: torch.Tensor  # (S, Lq), indices of packed queries
    key_indices: torch.Tensor  # (S, Lk), indices of packed keys
    mask: torch.Tensor  # (S, 1, 1, Lk), to add to the scores


@lru_cache(maxsize=16)  # all layers use the same buckets
def buckets_for(
    lengths_q: tuple[int, ...], lengths_k: tuple[int, ...], dtype: torch.dtype
) -> tuple[list[Bucket], torch.Tensor]:
    """
    Groups sequences into buckets by their number of keys, rounded up to a multiple of 16. Sequences without queries
    are omitted. `lengths_q` and `lengths_k` are the numbers of queries and keys in each sequence.

    Returns:
        The buckets, whose masks have the type `dtype`, and the index of each packed query's output (T,) in the
        concatenated outputs of the buckets.
    """
    queries, keys = torch.tensor(lengths_q), torch.tensor(lengths_k)
    first_query, first_key = queries.cumsum(0) - queries, keys.cumsum(0) - keys
    padded_keys = (keys + MULTIPLE - 1) // MULTIPLE * MULTIPLE
    buckets, slots, size = [], torch.empty(sum(lengths_q), dtype=torch.long), 0
    for longest_k in padded_keys[queries > 0].unique().tolist():
        members = ((padded_keys == longest_k) & (queries > 0)).nonzero().squeeze(-1)  # (S,)
        longest_q = longest_k if lengths_q == lengths_k else int(queries[members].max())
        query_places, key_places = torch.arange(longest_q), torch.arange(longest_k)
        last_query, last_key = queries[members, None] - 1, keys[members, None] - 1  # (S, 1)
        query_indices = first_query[members, None] + query_places.minimum(last_query)
        key_indices = first_key[members, None] + key_places.minimum(last_key)
        mask = torch.zeros(key_indices.shape, dtype=dtype).masked_fill(key_places > last_key, -torch.inf)
        buckets.append(Bucket(query_indices, key_indices, mask[:, None, None]))
        is_query = query_places <= last_query  # (S, Lq), False for padding
        slots[query_indices[is_query]] = size + is_query.flatten().nonzero().squeeze(-1)
        size += is_query.numel()
    return buckets, slots
