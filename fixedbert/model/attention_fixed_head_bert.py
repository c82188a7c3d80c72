# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
Multi-head attention whose heads have a size of their own: what this model changes in BERT.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, arXiv 2002.07028), section 3: with
h heads of a fixed size d_p, and W_q, W_k, W_v: d -> h d_p, W_o: h d_p -> d,

    FixedMultiHead(X) = sum_i  W_o^i  W_v^i X  softmax((W_k^i X)^T (W_q^i X) / sqrt(d_p))                       (9)

where BERT has d_p = d / h. A token is a column of X in the papers, a row in the code.

    X  --+-- query, W_q --> (B, H, Lq, P) --+
         |                                  +--> scores / sqrt(P) --> softmax --+
         +-- key, W_k ----> (B, G, Lk, P) --+         (B, H, Lq, Lk)            +--> heads --> output.dense, W_o
         |                                                                      |   (B, Lq, H V)   (B, Lq, D)
         +-- value, W_v --> (B, G, Lk, V) --------------------------------------+

X is (B, L, D). W_o of the concatenated heads is the sum over i. BERT's dropout, residual and LayerNorm follow.

| here | in BERT's terms | in the papers |
|---|---|---|
| B, L | batch, sequence length (Lq of queries, Lk of keys) | -, n |
| D | hidden_size | d |
| H | num_attention_heads, or the layer's own number | h |
| P | attention_head_size, which BERT computes as D / H | d_p |
| V | value_head_size, P by default | d_p |
| G | heads of keys and values: H, or 1 where all heads share them | H, 1 |
"""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertAttention, BertSelfOutput
from transformers.utils.import_utils import is_tracing

from .configuration_fixed_head_bert import FixedHeadBertConfig


class FixedHeadBertSelfAttention(nn.Module):
    """
    Equation (9) without W_o: (B, L, D) -> (B, L, H V). The number H of heads, the size P of queries and keys and the
    size V of values are the configuration's for this layer.

    With head embeddings e^Q, e^K, e^V (H, P), one projection is shared by all heads, the MHE attention of "Pit One
    Against Many" (Xue and Aletras, 2023, arXiv 2310.07911): head i attends with Q + e_i^Q, K + e_i^K, V + e_i^V, or
    with Q (1 + e_i^Q), K (1 + e_i^K), V (1 + e_i^V). Both are computed on shared keys and values, exactly:

    - added, e_i^K adds the same number to all scores of a query, to which the softmax is invariant; e_i^V adds itself
      to the output, as probabilities sum to one (with attention dropout, in the mean);
    - multiplied, e_i^K acts through its product with e_i^Q, and 1 + e_i^V is a factor of the output.

    Embeddings are initialised from a normal distribution with `initializer_range`. The paper does not say how.
    """

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None, is_cross_attention=False):
        super().__init__()
        self.config = config
        layer = 0 if layer_idx is None else layer_idx
        self.num_attention_heads = config.head_counts[layer]
        self.attention_head_size = config.head_sizes[layer]
        self.value_head_size = config.value_head_sizes[layer]
        self.all_head_size = self.num_attention_heads * self.value_head_size  # what W_o takes
        self.scaling = self.attention_head_size**-0.5
        self.is_causal = is_causal
        self.is_cross_attention = is_cross_attention
        self.layer_idx = layer_idx
        if self.num_attention_heads == 0:
            return

        G = self.num_attention_heads if config.head_embedding is None else 1
        self.query = nn.Linear(config.hidden_size, G * self.attention_head_size)  # D -> G P
        self.key = nn.Linear(config.hidden_size, G * self.attention_head_size)
        self.value = nn.Linear(config.hidden_size, G * self.value_head_size)  # D -> G V
        if config.head_embedding is not None:
            of_one_size = self.attention_head_size == self.value_head_size
            shape = (3 if of_one_size else 2, self.num_attention_heads, self.attention_head_size)
            self.head_embedding = nn.Parameter(torch.empty(shape))  # e^Q, e^K and, where it fits, e^V
            if not of_one_size:
                self.value_embedding = nn.Parameter(torch.empty(self.num_attention_heads, self.value_head_size))
        norm = partial(nn.RMSNorm, self.attention_head_size, eps=config.layer_norm_eps)
        self.q_norm = norm() if config.qk_norm else None
        self.k_norm = norm() if config.qk_norm else None
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, hidden_states, encoder_hidden_states=None, attention_mask=None, past_key_values=None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Queries of `hidden_states` (B, Lq, D); keys and values of the same or of `encoder_hidden_states` (B, Lk, D).

        Returns:
            The heads (B, Lq, H V), and their probabilities (B, H, Lq, Lk) where the backend keeps them.
        """
        if self.num_attention_heads == 0:  # the bias that takes the place of W_o reads the shape alone
            batch, length, _ = hidden_states.shape
            return hidden_states, hidden_states.new_zeros(batch, 0, length, length)
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = self.project(self.query, hidden_states, self.attention_head_size, self.q_norm)  # (B, G, Lq, P)
        key, value = self.keys_and_values(source, past_key_values)  # (B, G, Lk, P), (B, G, Lk, V)
        if self.config.head_embedding is not None:
            e_query, e_key = self.head_embedding[:2, :, None]  # (H, 1, P) each
            query = self.embed(query, e_query, e_key)  # (B, H, Lq, P)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        if within := getattr(attention_mask, "attend", None):  # no tensor, but what knows the sequences of a row
            attend = partial(within, attend)
        elif kwargs.get("output_attentions"):
            attend = eager_attention_forward  # no other keeps probabilities
        elif attend is not eager_attention_forward:
            query, key, value = of_one_shape(query, key, value)
        rate = self.dropout.p if self.training else 0.0
        output, weights = attend(self, query, key, value, attention_mask, dropout=rate, scaling=self.scaling, **kwargs)
        # Tensor parallelism leaves each process a part of the heads.
        output = output.reshape(*hidden_states.shape[:-1], query.shape[1], -1)  # (B, Lq, H, V)
        output = output[..., : self.value_head_size]  # some kernels pad it
        if self.config.head_embedding is not None:
            e_value = self.head_embedding[2] if len(self.head_embedding) == 3 else self.value_embedding  # (H, V)
            output = self.embed(output, e_value)
        return output.flatten(-2), weights

    def project(self, projection: nn.Linear, hidden_states: torch.Tensor, size: int, norm: nn.RMSNorm | None = None):
        """(B, L, D) -> (B, G, L, size)"""
        heads = projection(hidden_states).unflatten(-1, (-1, size))  # (B, L, G, size)
        if norm is not None:
            heads = norm(heads.to(norm.weight.dtype)).to(heads.dtype)
        return heads.transpose(1, 2)

    def embed(self, x: torch.Tensor, e: torch.Tensor, e_key: torch.Tensor | None = None) -> torch.Tensor:
        """MHE: x + e, or x (1 + e); for queries (1 + e) (1 + e_key), which is all that e_key does."""
        if self.config.head_embedding == "add":
            return x + e
        return x * (1 + e if e_key is None else (1 + e) * (1 + e_key))

    def keys_and_values(self, hidden_states: torch.Tensor, past_key_values: Cache | None):
        """Keys (B, G, Lk, P) and values (B, G, Lk, V), after the cached ones; an encoder's are computed once."""
        cache = past_key_values
        if isinstance(cache, EncoderDecoderCache) and self.is_cross_attention:
            is_updated, cache = cache.is_updated, cache.cross_attention_cache
            if is_updated.get(self.layer_idx):
                return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
            is_updated[self.layer_idx] = True
        elif isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        key = self.project(self.key, hidden_states, self.attention_head_size, self.k_norm)
        value = self.project(self.value, hidden_states, self.value_head_size)
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)


def eager_attention_forward(module, query, key, value, attention_mask, scaling: float, dropout=0.0, **kwargs):
    """
    The definition, in matrices: queries (B, H, Lq, P), keys (B, G, Lk, P) and values (B, G, Lk, V) -> the output
    (B, Lq, H, V) and the probabilities (B, H, Lq, Lk). Heads that share keys are more queries of one head.
    """
    B, H, length, P = query.shape
    scores = torch.matmul(query.reshape(B, key.shape[1], -1, P), key.transpose(2, 3))  # (B, G, H/G Lq, Lk)
    scores = scores.view(B, H, length, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:  # from a caller, in four dimensions
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    if dropout > 0:
        weights = module.dropout(weights)  # the module, so that another kind of dropout can take its place
    output = torch.matmul(weights.view(B, key.shape[1], -1, key.shape[2]), value)  # (B, G, H/G Lq, V)
    return output.view(B, H, length, -1).transpose(1, 2).contiguous(), weights


def of_one_shape(query, key, value) -> tuple[torch.Tensor, ...]:
    """In one number of heads and one size, for transformers' functions: shared heads are views, zeros fill up."""
    size = max(query.shape[-1], value.shape[-1])
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    if query.shape[-1] != value.shape[-1]:
        query, key, value = (pad(x, (0, size - x.shape[-1])) for x in (query, key, value))
    return query, key, value


class Bias(nn.Module):
    """A linear layer without inputs: of any x (B, L, ...) its bias, (B, L, D)."""

    def __init__(self, size: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias.expand(*x.shape[:2], -1)


class FixedHeadBertSelfOutput(BertSelfOutput):
    """W_o with BERT's dropout, residual and LayerNorm: (B, L, H V) -> (B, L, D). The same follows the neurons."""

    def __init__(self, config: FixedHeadBertConfig, inputs: int):
        nn.Module.__init__(self)
        self.add_module("dense", nn.Linear(inputs, config.hidden_size) if inputs else Bias(config.hidden_size))
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)


class FixedHeadBertAttention(BertAttention):
    """Equation (9), whole. The forward is BERT's."""

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None, is_cross_attention=False):
        nn.Module.__init__(self)
        self.is_cross_attention = is_cross_attention
        attention = FixedHeadBertSelfAttention(config, is_causal, layer_idx, is_cross_attention)
        self.add_module("self", attention)  # assigned to self.self, it would have to be one of BERT's types
        self.output = FixedHeadBertSelfOutput(config, attention.all_head_size)


def padding_in(attention_mask, outputs: torch.Tensor) -> torch.Tensor | None:
    """(B, L), true where `outputs` (B, L, ...) are at padding; None without a mask (B, L), which says so."""
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return ~attention_mask[:, -outputs.shape[1] :].to(outputs.device).bool()  # the mask may cover a cache
    return None


def is_symbolic(x: torch.Tensor) -> bool:
    """Whether values cannot be read: a graph is traced, `x` is on the meta device, or vmap has batched it."""
    return is_tracing(x) or x.is_meta or torch._C._functorch.is_batchedtensor(x)


def sequences_of(position_ids: torch.Tensor | None, shape: torch.Size) -> torch.Tensor | None:
    """The number of each token's sequence in its row, (B, L), where `position_ids` restart within one; else None."""
    if position_ids is None:
        return None
    position_ids = position_ids.expand(shape)
    starts = position_ids.diff(prepend=position_ids[:, :1] - 1) <= 0
    return starts.cumsum(-1) if is_symbolic(starts) or starts.any() else None
