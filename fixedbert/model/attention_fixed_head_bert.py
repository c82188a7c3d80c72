# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
Multi-head attention with a configurable head size (the main difference between FixedHeadBert and BERT), and the layers
that contain this attention.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, arXiv 2002.07028), section 3, defines
attention for h heads of a fixed size d_p, with W_q, W_k, W_v: d -> h d_p and W_o: h d_p -> d, as

    FixedMultiHead(X) = sum_i  W_o^i  W_v^i X  softmax((W_k^i X)^T (W_q^i X) / sqrt(d_p))                       (9)

In BERT, d_p = d / h. A token is a column of X in the papers and a row in the code.

    X  --+-- query, W_q --> (B, H, Lq, P) --+
         |                                  +--> scores / sqrt(P) --> softmax --+
         +-- key, W_k ----> (B, G, Lk, P) --+         (B, H, Lq, Lk)            +--> heads --> output.dense, W_o
         |                                                                      |   (B, Lq, H V)   (B, Lq, D)
         +-- value, W_v --> (B, G, Lk, V) --------------------------------------+

X is (B, L, D). Applying W_o to the concatenated heads is equivalent to the sum over i. BERT's dropout, residual
connection and LayerNorm follow.

| symbol | in BERT | in the papers |
|---|---|---|
| B, L | batch size, sequence length (Lq for queries, Lk for keys) | -, n |
| D | hidden_size | d |
| H | number of heads in the layer (num_attention_heads unless layers differ) | h |
| P | attention_head_size, which BERT computes as D / H | d_p |
| V | value_head_size, P by default | d_p |
| G | number of key and value heads: H, or 1 if all heads share them | H, 1 |
"""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert as bert

from .configuration_fixed_head_bert import FixedHeadBertConfig
from .unpadding_fixed_head_bert import CACHE, packed_attention_forward


class FixedHeadBertSelfAttention(bert.BertSelfAttention):
    """
    Self-attention according to equation (9) at the top of this file, without W_o: (B, L, D) -> (B, L, H V) for H heads
    with values of size V. Where possible, the forward pass is BERT's, which works for any head size.
    """

    inherits_forward = True

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None):
        nn.Module.__init__(self)
        self.config = config
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.num_attention_heads = config.head_counts[layer_idx or 0]
        self.attention_head_size = config.head_sizes[layer_idx or 0]
        self.value_head_size = config.value_head_sizes[layer_idx or 0]
        self.all_head_size = self.num_attention_heads * self.value_head_size  # input size of W_o
        self.scaling = self.attention_head_size**-0.5
        if self.num_attention_heads:
            G = self.num_attention_heads if config.head_embedding is None else 1
            self.query = nn.Linear(config.hidden_size, G * self.attention_head_size)  # D -> G P
            self.key = nn.Linear(config.hidden_size, G * self.attention_head_size)
            self.value = nn.Linear(config.hidden_size, G * self.value_head_size)  # D -> G V
            self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states, attention_mask=None, *args, encoder_hidden_states=None, **kwargs):
        """
        Args:
            hidden_states: Tensor (B, Lq, D) that is projected to queries.
            encoder_hidden_states: Tensor (B, Lk, D) that is projected to keys and values. Defaults to `hidden_states`.
            cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: Lengths of the sequences packed into one row
                (1, L), as in transformers' `FlashAttentionKwargs`. Ignored if an attention mask is passed.

        Returns:
            The concatenated heads (B, Lq, H V), and the attention probabilities (B, H, Lq, Lk). The probabilities are
            None if the attention implementation does not return them.
        """
        (cache,) = args or (kwargs.pop(CACHE, None),)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        is_flash = "flash" in (self.config._attn_implementation or "")
        is_packed = attention_mask is None and kwargs.get("cu_seq_lens_q") is not None and not is_flash
        if is_packed:
            # Only flash attention accepts sequence lengths. SDPA replaces causal eager attention, which needs a mask.
            if attend is eager_attention_forward and self.is_causal:
                attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        elif kwargs.get("output_attentions"):
            # Only eager attention returns probabilities.
            attend = eager_attention_forward
        elif attend is not eager_attention_forward and self.inherits_forward and encoder_hidden_states is None:
            # BERT's forward supports all other backends if heads differ from BERT's only in size.
            return super().forward(hidden_states, attention_mask, cache, **kwargs)

        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = self.project_heads(hidden_states, source)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        if attend is not eager_attention_forward:
            query, key, value = expand_and_pad_heads(query, key, value)
        if is_packed:
            attend = partial(packed_attention_forward, attend)
        rate = self.dropout.p if self.training else 0.0
        output, weights = attend(self, query, key, value, attention_mask, dropout=rate, scaling=self.scaling, **kwargs)
        output = output.reshape(*hidden_states.shape[:-1], query.shape[1], -1)  # (B, Lq, H, V)
        return self.merge_heads(output), weights

    def project_heads(self, hidden_states: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """
        Projects `hidden_states` (B, Lq, D) to queries (B, H, Lq, P), and `source` (B, Lk, D) to keys (B, G, Lk, P) and
        values (B, G, Lk, V) with head sizes P and V. G is the number of heads H, or 1 if all share keys and values.
        """
        query = split_heads(self.query(hidden_states), self.attention_head_size)
        key = split_heads(self.key(source), self.attention_head_size)
        return query, key, split_heads(self.value(source), self.value_head_size)

    def merge_heads(self, output: torch.Tensor) -> torch.Tensor:
        """Concatenates H heads with values of size V: (B, Lq, H, V) -> (B, Lq, H V)."""
        return output.flatten(-2)


class FixedHeadBertVariantSelfAttention(FixedHeadBertSelfAttention):
    """
    Self-attention with a separate value head size, normalized queries and keys, a projection shared by all heads, or
    no heads at all.

    With head embeddings, all heads share one projection, and each head i has the embeddings e_i^Q, e_i^K and e_i^V.
    These are the multiple head embeddings (MHE) of "Pit One Against Many" (Xue and Aletras, 2023, arXiv 2310.07911).
    Head i attends with Q + e_i^Q, K + e_i^K, V + e_i^V, or with Q (1 + e_i^Q), K (1 + e_i^K), V (1 + e_i^V). It is
    sufficient to change the queries and outputs, so keys and values are not computed for each head:

    - Adding e_i^K shifts all scores of a query by the same amount, which does not change the softmax. Adding e_i^V
      shifts the output by e_i^V, because probabilities sum to one (with attention dropout, only in expectation).
    - The factor 1 + e_i^K can be applied to the queries instead of the keys, and the factor 1 + e_i^V to the output
      instead of the values.

    The paper does not specify an initialization. We use a normal distribution with std `initializer_range`.
    """

    inherits_forward = False

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None):
        super().__init__(config, is_causal, layer_idx)
        if config.head_embedding is not None and self.num_attention_heads:
            has_equal_sizes = self.attention_head_size == self.value_head_size
            shape = (3 if has_equal_sizes else 2, self.num_attention_heads, self.attention_head_size)
            self.head_embedding = nn.Parameter(torch.empty(shape))  # e^Q, e^K and, if sizes are equal, e^V
            if not has_equal_sizes:
                self.value_embedding = nn.Parameter(torch.empty(self.num_attention_heads, self.value_head_size))
        has_norms = config.qk_norm and self.num_attention_heads
        norm = partial(nn.RMSNorm, self.attention_head_size, eps=config.layer_norm_eps)
        self.q_norm = norm() if has_norms else None
        self.k_norm = norm() if has_norms else None

    def forward(self, hidden_states, *args, **kwargs):
        if self.num_attention_heads == 0:  # BiasOnly replaces W_o and uses only its input's shape
            batch, length, _ = hidden_states.shape
            return hidden_states, hidden_states.new_zeros(batch, 0, length, length)
        return super().forward(hidden_states, *args, **kwargs)

    def project_heads(self, hidden_states: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = super().project_heads(hidden_states, source)
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm(query.to(self.q_norm.weight.dtype)).to(query.dtype)
            key = self.k_norm(key.to(self.k_norm.weight.dtype)).to(key.dtype)
        if self.config.head_embedding is not None:
            e_query, e_key = self.head_embedding[:2, :, None]  # (H, 1, P) each
            # Added key embeddings do not change the softmax. Multiplicative ones are applied to the queries.
            query = query + e_query if self.config.head_embedding == "add" else query * ((1 + e_query) * (1 + e_key))
        return query, key, value

    def merge_heads(self, output: torch.Tensor) -> torch.Tensor:
        output = output[..., : self.value_head_size]  # remove zero padding
        if self.config.head_embedding is not None:
            e_value = self.head_embedding[2] if len(self.head_embedding) == 3 else self.value_embedding  # (H, V)
            output = output + e_value if self.config.head_embedding == "add" else output * (1 + e_value)
        return super().merge_heads(output)


def split_heads(x: torch.Tensor, size: int) -> torch.Tensor:
    """Splits a projection into G heads: (B, L, G size) -> (B, G, L, size)."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def eager_attention_forward(module, query, key, value, attention_mask, scaling: float, dropout=0.0, **kwargs):
    """
    Computes attention with plain matrix products. Maps queries (B, H, Lq, P) in H heads, and keys (B, G, Lk, P) and
    values (B, G, Lk, V) in G heads, to outputs (B, Lq, H, V) and probabilities (B, H, Lq, Lk). Heads that share keys
    are computed as a single head with H / G times as many queries. Calls `module.dropout` for attention dropout.
    """
    B, H, length, P = query.shape
    scores = torch.matmul(query.reshape(B, key.shape[1], -1, P), key.transpose(2, 3))  # (B, G, H/G Lq, Lk)
    scores = scores.view(B, H, length, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:  # a four-dimensional mask from the caller
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    if dropout > 0:
        weights = module.dropout(weights)
    output = torch.matmul(weights.view(B, key.shape[1], -1, key.shape[2]), value)  # (B, G, H/G Lq, V)
    return output.view(B, H, length, -1).transpose(1, 2).contiguous(), weights


def expand_and_pad_heads(query, key, value) -> tuple[torch.Tensor, ...]:
    """Expands shared keys and values, and pads heads to one size, as transformers' attention functions require."""
    size = max(query.shape[-1], value.shape[-1])
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))  # views
    if query.shape[-1] != value.shape[-1]:
        query, key, value = (pad(x, (0, size - x.shape[-1])) for x in (query, key, value))
    return query, key, value


class BiasOnly(nn.Module):
    """Module that returns its bias, broadcast to (B, L, D). Replaces a projection whose inputs were all pruned."""

    def __init__(self, size: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias.expand(*x.shape[:2], -1)


class FixedHeadBertSelfOutput(bert.BertSelfOutput):
    """Output projection of the attention or the feed-forward network: (B, L, input_size) -> (B, L, D)."""

    def __init__(self, config: FixedHeadBertConfig, input_size: int):
        nn.Module.__init__(self)
        dense = nn.Linear(input_size, config.hidden_size) if input_size else BiasOnly(config.hidden_size)
        self.add_module("dense", dense)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)


class FixedHeadBertAttention(bert.BertAttention):
    """Attention block: equation (9), dropout, residual connection and LayerNorm. The forward pass is BERT's."""

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None):
        nn.Module.__init__(self)
        self.is_cross_attention = False
        layer = layer_idx or 0
        has_equal_sizes = config.head_sizes[layer] == config.value_head_sizes[layer]
        is_variant = config.head_embedding or config.qk_norm or not has_equal_sizes or not config.head_counts[layer]
        attention_class = FixedHeadBertVariantSelfAttention if is_variant else FixedHeadBertSelfAttention
        attention = attention_class(config, is_causal, layer_idx)
        self.add_module("self", attention)  # BERT's type annotation does not allow `self.self = attention`
        self.output = FixedHeadBertSelfOutput(config, attention.all_head_size)


class FixedHeadBertOutput(bert.BertOutput):
    __init__ = FixedHeadBertSelfOutput.__init__


class FixedHeadBertLayer(bert.BertLayer):
    attention: FixedHeadBertAttention

    def __init__(self, config: FixedHeadBertConfig, layer_idx: int | None = None):
        GradientCheckpointingLayer.__init__(self)
        self.chunk_size_feed_forward, self.seq_len_dim = config.chunk_size_feed_forward, 1
        self.attention = FixedHeadBertAttention(config, is_causal=config.is_decoder, layer_idx=layer_idx)
        self.is_decoder = config.is_decoder
        layer = copy.copy(config)
        vars(layer).update(intermediate_size=config.neuron_counts[layer_idx or 0])
        self.add_module("intermediate", bert.BertIntermediate(layer) if layer.intermediate_size else nn.Identity())
        self.output = FixedHeadBertOutput(config, layer.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask=None, *args, query_indices=None, **kwargs):
        """Maps (B, L, D) to (B, L, D), or T packed tokens (1, T, D) to the N tokens (1, N, D) at `query_indices`."""
        if query_indices is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        # In the fast path, the last layer computes outputs only for the tokens that the task head reads.
        queries = hidden_states[:, query_indices.to(hidden_states.device)]
        output, _ = self.attention(queries, encoder_hidden_states=hidden_states, **kwargs)
        return self.feed_forward_chunk(output)


class FixedHeadBertEncoder(bert.BertEncoder):
    def __init__(self, config: FixedHeadBertConfig):
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList([FixedHeadBertLayer(config, layer_idx=i) for i in range(config.num_hidden_layers)])
