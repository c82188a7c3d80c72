# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
FixedHeadBert: BERT whose attention heads have a size of their own.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, arXiv 2002.07028), section 3: with
h heads of a fixed size d_p, and W_q, W_k, W_v: d -> h d_p, W_o: h d_p -> d,

    FixedMultiHead(X) = sum_i  W_o^i  W_v^i X  softmax((W_k^i X)^T (W_q^i X) / sqrt(d_p))

where BERT has d_p = d / h. Beside it the shared-projection heads of "Pit One Against Many" (Xue and Aletras, 2023,
arXiv 2310.07911). What is BERT here is transformers' own, and so are all parameter names; this file holds the
difference: the attention, and computing no more than the output needs.

Shapes: B batch, L length, D hidden_size, H heads, P head size, G heads of keys and values (H, or 1 with a shared
projection), V vocabulary; T tokens of a batch whose padding was left out, S sequences in it.
"""

import copy
from collections.abc import Callable
from functools import partial, wraps
from itertools import groupby

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import cross_entropy, pad
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import (
    BertAttention,
    BertEmbeddings,
    BertEncoder,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForPreTrainingOutput,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertIntermediate,
    BertLayer,
    BertLMHeadModel,
    BertModel,
    BertOnlyMLMHead,
    BertOnlyNSPHead,
    BertOutput,
    BertPooler,
    BertPreTrainedModel,
    BertPreTrainingHeads,
    BertSelfOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_fixed_head_bert import AUTO_MAP, FixedHeadBertConfig

logger = logging.get_logger(__name__)

# Beyond this head size flash attention has no kernel and flex attention runs out of a GPU's shared memory.
LARGEST_FLASH_HEAD = 256

# Tensor parallelism of the prediction head: by words, as that of the embeddings that it is tied to.
SPLIT_PREDICTIONS = {"cls.predictions.decoder": "colwise_gather_output", "cls.predictions.bias": "colwise"}


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
    softmax(Q K^T / sqrt(P)) V for queries (B, H, Lq, P), keys and values (B, G, Lk, P): output (B, Lq, H, P) and
    probabilities (B, H, Lq, Lk). Heads that share keys stand under each other as more queries: nothing is copied.
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


def each_sequence_alone(
    attention,
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
    `attention` within each of the S sequences of a row: queries (1, H, Tq, P), keys and values (1, H, Tk, P), and
    where the sequences begin and end in them (S + 1); output (1, Tq, H, P).
    """
    S = len(cu_seq_lens_q) - 1
    if query.shape[2] == S * max_length_q and key.shape[2] == S * max_length_k:  # all equally long: a batch
        batch = (x[0].unflatten(1, (S, -1)).transpose(0, 1) for x in (query, key, value))  # (S, H, L, P)
        return attention(module, *batch, None, **kwargs)[0].flatten(0, 1)[None], None

    lengths_q, lengths_k = cu_seq_lens_q.diff(), cu_seq_lens_k.diff()
    way = way_through_sequences(query, kwargs["dropout"])
    if way == "one by one":
        pairs = zip(lengths_q.tolist(), lengths_k.tolist(), strict=True)
        alike = [(*lengths, sum(1 for _ in same)) for lengths, same in groupby(pairs)]  # neighbours are a batch
        rows_q, rows_k = [size * length for length, _, size in alike], [size * length for _, length, size in alike]
        parts = zip(query[0].split(rows_q, 1), key[0].split(rows_k, 1), value[0].split(rows_k, 1), alike, strict=True)
        outputs = []
        for *part, (length_q, _, size) in parts:
            if length_q:
                batch = (x.unflatten(1, (size, -1)).transpose(0, 1) for x in part)  # (size, H, L, P)
                outputs.append(attention(module, *batch, None, **kwargs)[0].flatten(0, 1))
        return torch.cat(outputs)[None], None

    if way == "variable length" and attention is ALL_ATTENTION_FUNCTIONS["sdpa"]:
        rows = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, P)
        ends = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        window = (-1, 0) if module.is_causal else (-1, -1)
        return varlen_attn(*rows, *ends, scale=kwargs["scaling"], window_size=window)[None], None

    return on_padded_sequences(
        attention, module, query, key, value, (lengths_q, max_length_q), (lengths_k, max_length_k), **kwargs
    )


def way_through_sequences(query: torch.Tensor, dropout: float) -> str:
    """How to attend within sequences of unequal lengths: by a kernel made for it, one by one, or padded again."""
    if query.device.type == "cpu":
        return "one by one"  # a call costs little there
    kernel = (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_FLASH_HEAD
        and dropout == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )
    return "variable length" if kernel else "padded"


def on_padded_sequences(attention, module, query, key, value, lengths_q, lengths_k, **kwargs):
    """`each_sequence_alone` for kernels that know batches only: padding is put back around the attention, and left."""

    def padded(x, slots, longest):  # (1, H, T, P) -> (S, H, longest, P)
        rows = x.new_zeros(S * longest, *x.shape[1::2]).index_copy(0, slots, x[0].transpose(0, 1))
        return rows.view(S, longest, *rows.shape[1:]).transpose(1, 2)

    def slots_of(tokens, lengths, longest):  # where the tokens of a row stand in the batch
        start = torch.arange(S, device=lengths.device) * longest - (lengths.cumsum(0) - lengths)
        return torch.arange(tokens, device=lengths.device) + start.repeat_interleave(lengths, output_size=tokens)

    S = len(lengths_q[0])
    slots_q, slots_k = slots_of(query.shape[2], *lengths_q), slots_of(key.shape[2], *lengths_k)
    lengths, longest = lengths_k
    mask = (torch.arange(longest, device=query.device) < lengths[:, None])[:, None, None]  # (S, 1, 1, Lk)
    if module.is_causal:
        mask = mask & torch.ones(longest, longest, dtype=torch.bool, device=query.device).tril()
    batch = (padded(query, slots_q, lengths_q[1]), padded(key, slots_k, longest), padded(value, slots_k, longest))
    output, _ = attention(module, *batch, mask, **kwargs)  # (S, Lq, H, P)
    return output.flatten(0, 1)[slots_q][None], None


class FixedHeadBertSelfAttention(nn.Module):
    """
    FixedMultiHead without W_o: (B, L, D) -> (B, L, H P). The size P of a head is the configuration's for this layer.

    With head embeddings e^Q, e^K, e^V (H, P), one projection is shared by all heads (Xue and Aletras, 2023):
    head i attends with Q + e_i^Q, K + e_i^K, V + e_i^V, or with Q (1 + e_i^Q), K (1 + e_i^K), V (1 + e_i^V). Both are
    computed on shared keys and values, exactly:

    - added, e_i^K adds the same to all scores of a query, which the softmax forgets, and e_i^V, as probabilities sum
      to one, comes out as it went in (with attention dropout, in the mean);
    - multiplied, e_i^K acts through its product with e_i^Q, and 1 + e_i^V is a factor of the output.

    Embeddings begin normally distributed with `initializer_range`: the paper does not say, this is our choice.
    """

    def __init__(self, config: FixedHeadBertConfig, is_causal=False, layer_idx=None, is_cross_attention=False):
        super().__init__()
        self.config = config
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.head_dim if layer_idx is None else config.head_sizes[layer_idx]
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.scaling = self.attention_head_size**-0.5
        self.is_causal = is_causal
        self.is_cross_attention = is_cross_attention
        self.layer_idx = layer_idx

        projected = config.num_key_value_heads * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, projected)  # D -> G P
        self.key = nn.Linear(config.hidden_size, projected)
        self.value = nn.Linear(config.hidden_size, projected)
        if config.head_embedding is not None:
            self.head_embedding = nn.Parameter(torch.empty(3, self.num_attention_heads, self.attention_head_size))
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.attention_head_size, eps=config.layer_norm_eps)
            self.k_norm = nn.RMSNorm(self.attention_head_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def project(self, projection: nn.Linear, hidden_states: torch.Tensor, norm: str | None = None) -> torch.Tensor:
        heads = projection(hidden_states).unflatten(-1, (-1, self.attention_head_size))  # (B, L, G, P)
        if norm is not None and self.config.qk_norm:
            rms_norm = getattr(self, norm)
            heads = rms_norm(heads.to(rms_norm.weight.dtype)).to(heads.dtype)
        return heads.transpose(1, 2)  # (B, G, L, P)

    def keys_and_values(
        self, hidden_states: torch.Tensor, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of `hidden_states`, after those in the cache; of an encoder's output, once."""
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            if not self.is_cross_attention:
                cache = past_key_values.self_attention_cache
            else:
                cache = past_key_values.cross_attention_cache
                if past_key_values.is_updated.get(self.layer_idx):
                    return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
                past_key_values.is_updated[self.layer_idx] = True
        key = self.project(self.key, hidden_states, norm="k_norm")
        value = self.project(self.value, hidden_states)
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries of `hidden_states`, keys and values of `encoder_hidden_states` where given."""
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = self.project(self.query, hidden_states, norm="q_norm")  # (B, G, Lq, P)
        key, value = self.keys_and_values(source, past_key_values)  # (B, G, Lk, P)
        embedding = self.config.head_embedding
        if embedding is not None:
            e_query, e_key, e_value = self.head_embedding[:, :, None]  # (H, 1, P) each
            query = query + e_query if embedding == "add" else query * ((1 + e_query) * (1 + e_key))  # (B, H, Lq, P)

        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        # These know by themselves where sequences are, and which heads share keys and values.
        takes_lengths = any(name in self.config._attn_implementation for name in ("flash", "vllm"))
        alone = kwargs.get("cu_seq_lens_q") is not None and attention_mask is None and not takes_lengths
        if kwargs.get("output_attentions"):  # no other function returns them
            attention, takes_lengths = eager_attention_forward, False
        elif alone and attention is eager_attention_forward and (self.is_causal or query.device.type != "cpu"):
            attention = ALL_ATTENTION_FUNCTIONS["sdpa"]  # which knows causality without a mask
        if attention is not eager_attention_forward and not takes_lengths:
            key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))  # views
        if alone:
            attention = partial(each_sequence_alone, attention)

        output, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        output = output.reshape(*hidden_states.shape[:-1], -1, self.attention_head_size)  # (B, Lq, H, P)
        if embedding is not None:
            e_value = e_value.squeeze(1)  # (H, P)
            output = output + e_value if embedding == "add" else output * (1 + e_value)
        return output.flatten(-2), weights


class FixedHeadBertSelfOutput(BertSelfOutput):
    """W_o with BERT's dropout, residual and LayerNorm: (B, L, H P) -> (B, L, D)."""

    def __init__(self, config, all_head_size):
        nn.Module.__init__(self)
        self.dense = nn.Linear(all_head_size, config.hidden_size)  # H P -> D
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)


class FixedHeadBertAttention(BertAttention):
    def __init__(self, config, is_causal=False, layer_idx=None, is_cross_attention=False):
        nn.Module.__init__(self)
        self.is_cross_attention = is_cross_attention
        self.self = FixedHeadBertSelfAttention(config, is_causal, layer_idx, is_cross_attention)
        self.output = FixedHeadBertSelfOutput(config, self.self.all_head_size)


class FixedHeadBertLayer(BertLayer):
    def __init__(self, config, layer_idx=None):
        GradientCheckpointingLayer.__init__(self)
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.seq_len_dim = 1
        self.attention = FixedHeadBertAttention(config, is_causal=config.is_decoder, layer_idx=layer_idx)
        self.is_decoder = config.is_decoder
        self.add_cross_attention = config.add_cross_attention
        if self.add_cross_attention:
            if not self.is_decoder:
                raise ValueError("add_cross_attention=True needs is_decoder=True.")
            self.crossattention = FixedHeadBertAttention(config, layer_idx=layer_idx, is_cross_attention=True)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)
        self.output.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args,
        queries: torch.Tensor | None = None,
        unpadded: "Unpadded | None" = None,
        **kwargs,
    ) -> torch.Tensor:
        """
        BERT's layer, (B, L, D) -> (B, L, D), with zeros where tokens are `blank` (B, L). With `queries`, indices into
        a row (1, T, D), only these tokens look at the others and go on: (1, len(queries), D). With `unpadded` tokens
        come and go as (B, L, D), and are computed as (1, T, D).
        """
        if unpadded is not None:
            return unpadded.put_back(self.forward(unpadded.take(hidden_states), *args, **kwargs))
        if queries is None:
            return zero_where(kwargs.get("blank"), super().forward(hidden_states, *args, **kwargs))
        output, _ = self.attention(hidden_states[:, queries], encoder_hidden_states=hidden_states, **kwargs)
        return self.feed_forward_chunk(output)


class FixedHeadBertEncoder(BertEncoder):
    def __init__(self, config):
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList([FixedHeadBertLayer(config, layer_idx=i) for i in range(config.num_hidden_layers)])

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        last_layer: dict | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """BERT's encoder; `last_layer` are arguments for that one alone."""
        for layer in self.layer:
            if layer is self.layer[-1]:
                kwargs |= last_layer or {}
            hidden_states = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,  # positional for gradient checkpointing
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values if use_cache else None
        )


class FixedHeadBertPreTrainedModel(BertPreTrainedModel):
    """Weight initialisation, loading and saving: BERT's."""

    config: FixedHeadBertConfig
    # BERT's losses are means over a batch. Trainer takes a forward with **kwargs for one that has already divided by
    # the whole accumulated batch, and would make loss and gradient too large by the number of accumulation steps.
    # Heads with labels for tokens say True: they do divide by what Trainer counted.
    accepts_loss_kwargs = False
    _can_record_outputs = {
        "hidden_states": FixedHeadBertLayer,
        "attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="attention.self"),
        "cross_attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="crossattention.self"),
    }

    def post_init(self):
        super().post_init()
        if self.config.base_model_tp_plan is None:  # no head is split without the embeddings that it is tied to
            self._tp_plan = {}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, FixedHeadBertSelfAttention) and self.config.head_embedding is not None:
            init.normal_(module.head_embedding, mean=0.0, std=self.config.initializer_range)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        """
        BERT's output bias stands twice, beside the decoder and in it. It is one parameter also where the embeddings
        are not tied: the one beside would never get a gradient.
        """
        tied = super().get_expanded_tied_weights_keys(all_submodels)
        biases = {key: source for key, source in (self._tied_weights_keys or {}).items() if key.endswith("bias")}
        return tied | biases

    def padding(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """(B, L), true where per-token outputs are to be zero: at padding, with `unpad_inputs`. Otherwise None."""
        return padding_in(attention_mask) if self.base_model.unpad_inputs else None

    def predict(self, head: nn.Module, hidden_states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """The logits (B, L, V) of `head`, which is not computed at padding where padding is left out."""
        if padding is None or is_tracing(hidden_states):
            return zero_where(padding, head(hidden_states))
        padding = padding.to(hidden_states.device)
        logits = head(hidden_states[~padding])  # (T, V)
        return logits.new_zeros(*padding.shape, logits.shape[-1]).masked_scatter(~padding[..., None], logits)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        size, name = self.config.head_dim, attn_implementation or ""
        if size > LARGEST_FLASH_HEAD and ("flash" in name or "flex" in name):
            logger.warning_once(
                f"{name} takes heads up to size {LARGEST_FLASH_HEAD}, these have {size}: sdpa computes the same."
            )
            attn_implementation = "sdpa"
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)


class Unpadded:
    """
    The tokens of a batch (B, L) that are worth computing, as one row (1, T).

    `real` (B, L) says which they are, `packed` (B, L) which sequence of its row each belongs to, where a row has more
    than one. `lengths` tells the attention where sequences begin and end, by transformers' names for it.
    """

    def __init__(self, real: torch.Tensor, packed: torch.Tensor | None = None):
        self.shape = real.shape
        self.index = real.flatten().nonzero().squeeze(-1)  # (T,)
        self.row = self.index // real.shape[1]  # (T,)
        sequence = self.row if packed is None else self.row * real.shape[1] + packed.flatten()[self.index]
        _, self.sequence, lengths = sequence.unique_consecutive(return_inverse=True, return_counts=True)
        ends, longest = self.ends(lengths)
        self.lengths = {
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    @staticmethod
    def ends(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
        return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())

    def take(self, x: torch.Tensor | None) -> torch.Tensor | None:
        """(B, L, ...) or (1, L, ...) -> (1, T, ...)"""
        if x is None:
            return None
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.index.to(x.device)][None]

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """(1, T, ...) -> (B, L, ...), zeros elsewhere."""
        B, L = self.shape
        rows = x.new_zeros(B * L, *x.shape[2:]).index_copy(0, self.index.to(x.device), x[0])
        return rows.unflatten(0, (B, L))

    def narrow(self, wanted: torch.Tensor | str, pooled: bool) -> dict:
        """
        The arguments that make a layer compute only what is `wanted` (B, L), and with `pooled` the first token of each
        row. From then on `put_back` takes these.
        """
        chosen = torch.zeros_like(self.row, dtype=torch.bool)
        if isinstance(wanted, torch.Tensor):
            if wanted.shape != self.shape:
                raise ValueError(f"labels have the shape {tuple(wanted.shape)}, the tokens {tuple(self.shape)}.")
            chosen = wanted.flatten()[self.index]
        if pooled:
            chosen = chosen | (self.row.diff(prepend=self.row[:1] - 1) != 0)
        queries = chosen.nonzero().squeeze(-1)
        if not len(queries):
            return {}
        lengths = self.sequence[queries].bincount(minlength=len(self.lengths["cu_seq_lens_k"]) - 1)
        ends, longest = self.ends(lengths)
        self.index = self.index[queries]
        return {"queries": queries, "cu_seq_lens_q": ends, "max_length_q": longest}


def check_inputs(config: FixedHeadBertConfig, inputs: dict, attention_mask, past: int):
    """Raises ValueError, naming field and value, where the inputs of the model make no sense."""
    name, given = next((name, x) for name, x in inputs.items() if x is not None)
    if given.ndim != (2 if name == "input_ids" else 3):
        raise ValueError(f"{name} has the shape {tuple(given.shape)}: it must begin with (batch, length).")
    B, L = given.shape[:2]
    if inputs["position_ids"] is None and past + L > config.max_position_embeddings:
        raise ValueError(f"{past + L} tokens are more than max_position_embeddings={config.max_position_embeddings}.")
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        if attention_mask.shape != (B, past + L):
            after = f" after {past} tokens in the cache" if past else ""
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)} where {name} has {(B, L)}{after}."
            )
        wrong = (attention_mask != 0) & (attention_mask != 1)
        if attention_mask.device.type == "cpu" and wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"attention_mask[{row}, {column}] is {attention_mask[row, column]}: 1 for a token, 0 for padding."
            )
    elif isinstance(attention_mask, torch.Tensor):
        if attention_mask.ndim != 4:
            raise ValueError(
                f"attention_mask has {attention_mask.ndim} dimensions: it takes 2, or 4 with heads and queries."
            )
        if attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
            raise ValueError(
                f"attention_mask holds {attention_mask.dtype} in four dimensions: true where a query sees a key, "
                "or a number to add to its score."
            )
    tables = {
        "input_ids": config.vocab_size,
        "token_type_ids": config.type_vocab_size,
        "position_ids": config.max_position_embeddings,
    }
    for field, size in tables.items():
        ids = inputs[field]
        if ids is None:
            continue
        if ids.is_floating_point():
            raise ValueError(f"{field} holds {ids.dtype} where integers belong.")
        if ids.ndim != 2 or ids.shape[0] not in (1, B) or ids.shape[1] != L:
            raise ValueError(f"{field} has the shape {tuple(ids.shape)} where {name} has {(B, L)}.")
        if ids.device.type == "cpu" and ids.numel():
            low, high = ids.aminmax()
            if low < 0 or high >= size:
                row, column = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
                raise ValueError(f"{field}[{row}, {column}] is {ids[row, column]}: the model knows 0 to {size - 1}.")
    if name == "inputs_embeds" and given.device.type == "cpu" and not given.isfinite().all():
        row, column, place = given.isfinite().logical_not().nonzero()[0].tolist()
        raise ValueError(f"inputs_embeds[{row}, {column}, {place}] is {given[row, column, place]}.")


class FixedHeadBertModel(FixedHeadBertPreTrainedModel, BertModel):
    """The encoder, or with `is_decoder=True` a decoder: token ids (B, L) -> hidden states (B, L, D), pooled (B, D)."""

    _no_split_modules = ["BertEmbeddings", "FixedHeadBertLayer"]

    def __init__(self, config: FixedHeadBertConfig, add_pooling_layer=True):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.unpad_inputs = config.unpad_inputs
        self.embeddings = BertEmbeddings(config)
        self.embeddings.dropout = Dropout(config.hidden_dropout_prob)
        self.encoder = FixedHeadBertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        last_layer_at: torch.Tensor | str | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BaseModelOutputWithPoolingAndCrossAttentions:
        """
        BERT's arguments. Without `attention_mask`, a row holds several sequences where its `position_ids` (B, L) do
        not rise, and these do not see each other. The pooled output is that of the first real token of a row.

        `last_layer_at` comes from heads that read no more: (B, L), true where they need the last hidden state beside
        the pooled token's, or "pooled" for nowhere. With `unpad_inputs` the last layer leaves out the others.

        Raises:
            ValueError: inputs of a wrong shape; on a CPU, where looking costs nothing, also ids outside their table
                and embeddings that are not finite.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        given = input_ids if input_ids is not None else inputs_embeds
        inputs = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
        }
        use_cache = bool(use_cache) and self.config.is_decoder
        if not is_tracing(given):
            past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
            check_inputs(self.config, inputs, attention_mask, past)
        B, L = given.shape[:2]
        real = packed = None  # (B, L): which tokens are no padding, and which sequence of its row each belongs to
        if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
            real = (attention_mask if past_key_values is None else attention_mask[:, -L:]).bool()
        elif attention_mask is None and position_ids is not None and past_key_values is None:
            starts = position_ids.expand(B, -1).diff(prepend=position_ids[:, :1].expand(B, -1) - 1) <= 0
            packed = starts.cumsum(-1) if is_tracing(given) or starts.any() else None
            use_cache = use_cache and packed is None
        for output in ("output_attentions", "output_hidden_states"):
            if kwargs.get(output) is None:
                kwargs[output] = getattr(self.config, output)
        # What is returned of inner layers is what the next one reads: gradients that a caller retains pass through it.
        returned = kwargs["output_attentions"] or kwargs["output_hidden_states"]

        unpadded = None
        if not (
            is_tracing(given)
            or kwargs["output_attentions"]
            or (use_cache and not self.training)
            or past_key_values is not None
            or encoder_hidden_states is not None
            or (attention_mask is not None and real is None)
        ):
            # flex has no mask, and sdpa no causality, for queries that are not in line with their keys.
            whole = self.config.is_decoder or "flex" in self.config._attn_implementation
            if whole or kwargs["output_hidden_states"]:
                last_layer_at = None
            unpadded = self.unpad(real, packed, last_layer_at, given)

        if unpadded is None:
            if returned and self.unpad_inputs and real is not None:
                kwargs["blank"] = ~real
            outputs = self.encode(
                inputs,
                attention_mask,
                packed,
                encoder_hidden_states=encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
                return_dict=True,
                **kwargs,
            )
        else:
            if position_ids is None:
                inputs["position_ids"] = self.embeddings.position_ids[:, :L]
            inputs = {name: unpadded.take(x) for name, x in inputs.items()}
            kwargs |= unpadded.lengths
            if returned:
                kwargs["unpadded"] = unpadded
            if last_layer_at is not None:
                kwargs["last_layer"] = unpadded.narrow(last_layer_at, pooled=self.pooler is not None)
            outputs = self.encode(inputs, None, unpadded.sequence[None], return_dict=True, **kwargs)

        last_hidden_state, hidden_states = outputs.last_hidden_state, outputs.hidden_states
        real = None if real is None else real.to(last_hidden_state.device)  # layers may be spread over devices
        if unpadded is not None:
            last_hidden_state = last_hidden_state if returned else unpadded.put_back(last_hidden_state)
        elif real is not None and self.unpad_inputs:
            last_hidden_state = zero_where(~real, last_hidden_state)
        elif real is not None:  # zeros, and never NaN, for a row without any real token
            last_hidden_state = last_hidden_state.masked_fill(~real.any(dim=-1)[:, None, None], 0)
        if hidden_states and hidden_states[-1] is not None:  # where output_hidden_states chose some, others are None
            hidden_states = (*hidden_states[:-1], last_hidden_state)

        pooled = None
        if self.pooler is not None:
            first = last_hidden_state
            if real is not None:
                index = real.int().argmax(dim=-1)[:, None, None]  # (B, 1, 1)
                first = first.gather(1, index.expand(-1, -1, first.shape[-1]))  # (B, 1, D)
            pooled = self.pooler(first)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=last_hidden_state,
            pooler_output=pooled,
            past_key_values=outputs.past_key_values,
            hidden_states=hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    def unpad(
        self,
        real: torch.Tensor | None,
        packed: torch.Tensor | None,
        last_layer_at: torch.Tensor | str | None,
        given: torch.Tensor,
    ) -> Unpadded | None:
        """The tokens to compute, None if that is all of them in rows of one sequence each."""
        # Flash attention does not see where sequences begin in several rows unless it is told.
        if not (self.unpad_inputs or (packed is not None and "flash" in self.config._attn_implementation)):
            return None
        if real is None:
            if packed is None and last_layer_at is None:
                return None
            real = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
        elif not real.any() or (real.all() and last_layer_at is None):
            return None
        return Unpadded(real, packed)

    @capture_outputs
    def encode(
        self,
        inputs: dict[str, torch.Tensor | None],
        attention_mask: torch.Tensor | None,
        packed: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Embeddings, masks and layers: ids or embeddings to hidden states (B, L, D), or (1, T, D) without padding."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
            if encoder_hidden_states is not None or self.config.is_encoder_decoder:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        hidden_states = self.embeddings(**inputs, past_key_values_length=past)

        config = self.config
        if kwargs["output_attentions"] and config._attn_implementation != "eager":
            logger.warning_once(
                f"{config._attn_implementation} keeps no attention probabilities: eager computes them."
            )
            config = copy.copy(config)
            config._attn_implementation = "eager"
        if kwargs.get("cu_seq_lens_q") is None or kwargs["output_attentions"] or "flex" in config._attn_implementation:
            create_mask = create_causal_mask if config.is_decoder else create_bidirectional_mask
            attention_mask = create_mask(
                config=config,
                inputs_embeds=hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                and_mask_function=None if packed is None else packed_sequence_mask_function(packed),
            )
        if encoder_attention_mask is not None:
            encoder_attention_mask = create_bidirectional_mask(
                config=config,
                inputs_embeds=hidden_states,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        if "unpadded" in kwargs:
            hidden_states = kwargs["unpadded"].put_back(hidden_states)
        return self.encoder(
            zero_where(kwargs.get("blank"), hidden_states),
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_ids=inputs["position_ids"],
            **kwargs,
        )


def zero_where(blank: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """`x` (B, L, ...) with zeros where `blank` (B, L) is true."""
    return x if blank is None or blank.shape != x.shape[:2] else x.masked_fill(blank[..., None].to(x.device), 0)


def padding_in(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(B, L), true at padding; None where no mask, or one of four dimensions, says which tokens that is."""
    known = isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2
    return ~attention_mask.bool() if known else None


def labels_of_tokens(
    labels: torch.Tensor, outputs: torch.Tensor, attention_mask: torch.Tensor | None, classes: int
) -> torch.Tensor:
    """
    `labels` (B, L) with -100 at padding, whose loss does not count whether it is computed or not.

    Raises:
        ValueError: they do not fit the outputs (B, L, ...), or, seen on a CPU, are no class.
    """
    if labels.shape != outputs.shape[:2]:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, the tokens {tuple(outputs.shape[:2])}.")
    if labels.device.type == "cpu" and not is_tracing(labels):
        wrong = ((labels < 0) & (labels != -100)) | (labels >= classes)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"labels[{row}, {column}] is {labels[row, column]}: -100 or 0 to {classes - 1} belongs there."
            )
    labels, padding = labels.to(outputs.device), padding_in(attention_mask)
    if padding is None:
        return labels
    return labels.masked_fill(padding[:, -labels.shape[1] :].to(labels.device), -100)  # the mask may cover a cache


def sparse_masked_lm(
    predictions: nn.Module, hidden_states: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Logits (labelled, V) and labels (labelled) of the tokens whose label is not -100, from hidden states (B, L, D) and
    labels (B, L). The others add nothing to the loss, and in BERT's recipe they are 85 % of the work.
    """
    labelled = labels.flatten().ne(-100).nonzero().squeeze(-1)
    return predictions(hidden_states.flatten(0, 1)[labelled]), labels.flatten()[labelled]


def token_loss(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """
    Cross-entropy of logits (..., V) and labels (...): the mean over labels that are not -100, zero if there is none,
    or the sum divided by `num_items_in_batch`, which Trainer counts over all batches and processes of a step.
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if num_items_in_batch is None:
        return mean_loss(logits, labels)
    items = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
    return cross_entropy(logits, labels, reduction="sum") / items


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """
    Cross-entropy of logits (N, classes) and labels (N): the mean over labels that are not `ignore_index`, zero if
    there is none. torch would divide by zero, in the gradient too: it gets some labels, and the result is blanked.
    """
    none = labels.eq(ignore_index).all()
    return cross_entropy(logits, labels.masked_fill(none, 0), ignore_index=ignore_index).masked_fill(none, 0)


class FixedHeadBertForPreTraining(FixedHeadBertPreTrainedModel, BertForPreTraining):
    """Masked-LM and next-sentence heads, as in BERT's pretraining."""

    _tp_plan = SPLIT_PREDICTIONS

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = BertPreTrainingHeads(config)
        self.sparse_prediction = config.sparse_prediction
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BertForPreTrainingOutput:
        """
        `labels` (B, L): token ids where a token was masked, -100 elsewhere. `next_sentence_label` (B): 0 where the
        second segment continues the first, 1 where it is random. The loss is the sum of the two means, and is
        returned when both are given.
        """
        sparse = self.sparse_prediction and labels is not None and next_sentence_label is not None
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            last_layer_at=labels != -100 if sparse else None,
            return_dict=True,
            **kwargs,
        )
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)

        loss = None
        if labels is not None:
            labels = labels_of_tokens(labels, outputs.last_hidden_state, attention_mask, self.config.vocab_size)
        if sparse:
            logits, labels = sparse_masked_lm(self.cls.predictions, outputs.last_hidden_state, labels)
        else:
            padding = self.padding(attention_mask)
            logits = self.predict(self.cls.predictions, outputs.last_hidden_state, padding)
        if labels is not None and next_sentence_label is not None:
            loss = token_loss(logits, labels) + mean_loss(seq_relationship_logits, next_sentence_label.view(-1))
        return BertForPreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FixedHeadBertForMaskedLM(FixedHeadBertPreTrainedModel, BertForMaskedLM):
    """Masked-LM head. The loss is a mean over labelled tokens: of a whole step where Trainer says how many it has."""

    _tp_plan = SPLIT_PREDICTIONS
    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        if config.is_decoder:
            logger.warning("FixedHeadBertForMaskedLM looks both ways only with is_decoder=False.")
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.sparse_prediction = config.sparse_prediction
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | MaskedLMOutput:
        """`labels` (B, L): token ids where a token was masked, -100 elsewhere."""
        sparse = self.sparse_prediction and labels is not None
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            last_layer_at=labels != -100 if sparse else None,
            return_dict=True,
            **kwargs,
        )
        loss = None
        if labels is not None:
            labels = labels_of_tokens(labels, outputs.last_hidden_state, attention_mask, self.config.vocab_size)
        if sparse:
            logits, labels = sparse_masked_lm(self.cls, outputs.last_hidden_state, labels)
        else:
            logits = self.predict(self.cls, outputs.last_hidden_state, self.padding(attention_mask))
        if labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FixedHeadBertLMHeadModel(FixedHeadBertPreTrainedModel, BertLMHeadModel, GenerationMixin):
    """Causal language model: BERT as a decoder (`is_decoder=True`), as in the paper's LM1B experiments."""

    _tp_plan = SPLIT_PREDICTIONS
    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        if not config.is_decoder:
            logger.warning("FixedHeadBertLMHeadModel looks ahead unless is_decoder=True.")
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()

    @can_return_tuple
    @wraps(BertLMHeadModel.forward)
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        encoder_hidden_states=None,
        encoder_attention_mask=None,
        labels=None,
        shift_labels=None,
        num_items_in_batch=None,
        **kwargs,
    ):
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if labels is not None:
            kwargs["use_cache"] = False
        outputs = super().forward(*inputs, encoder_hidden_states, encoder_attention_mask, return_dict=True, **kwargs)
        loss = None
        if labels is not None:
            at = (outputs.logits, attention_mask, self.config.vocab_size)
            if shift_labels is None:
                shift_labels = pad(labels_of_tokens(labels, *at)[:, 1:], (0, 1), value=-100)
            shift_labels = labels_of_tokens(shift_labels, *at)  # nothing is predicted from padding either
            loss = token_loss(outputs.logits.float(), shift_labels, num_items_in_batch)  # as transformers computes it
        logits = zero_where(self.padding(attention_mask), outputs.logits)
        return CausalLMOutputWithCrossAttentions(**{**outputs, "loss": loss, "logits": logits})


def forward_from_pooled(stock: type) -> Callable:
    """The forward of a `stock` head that reads the pooled token alone; its mean over no label is zero."""

    @can_return_tuple
    @wraps(stock.forward)
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        **kwargs,
    ):
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = stock.forward(self, *inputs, labels, last_layer_at="pooled", return_dict=True, **kwargs)
        if labels is not None and self.config.problem_type in (None, "single_label_classification"):
            outputs.loss = mean_loss(outputs.logits, labels.view(-1))
        return outputs

    return forward


class FixedHeadBertForNextSentencePrediction(FixedHeadBertPreTrainedModel, BertForNextSentencePrediction):
    forward = forward_from_pooled(BertForNextSentencePrediction)

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = BertOnlyNSPHead(config)
        self.post_init()


def classifier_dropout(config: FixedHeadBertConfig) -> Dropout:
    return Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


class FixedHeadBertForSequenceClassification(FixedHeadBertPreTrainedModel, BertForSequenceClassification):
    forward = forward_from_pooled(BertForSequenceClassification)

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class FixedHeadBertForMultipleChoice(FixedHeadBertPreTrainedModel, BertForMultipleChoice):
    forward = forward_from_pooled(BertForMultipleChoice)

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()


class FixedHeadBertForTokenClassification(FixedHeadBertPreTrainedModel, BertForTokenClassification):
    """A class for every token. Its loss is a mean over labelled tokens, as that of FixedHeadBertForMaskedLM."""

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    @wraps(BertForTokenClassification.forward)
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        num_items_in_batch=None,
        **kwargs,
    ) -> tuple[torch.Tensor] | TokenClassifierOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = super().forward(*inputs, return_dict=True, **kwargs)
        if labels is not None:
            labels = labels_of_tokens(labels, outputs.logits, attention_mask, self.num_labels)
        return TokenClassifierOutput(
            loss=None if labels is None else token_loss(outputs.logits, labels, num_items_in_batch),
            logits=zero_where(self.padding(attention_mask), outputs.logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FixedHeadBertForQuestionAnswering(FixedHeadBertPreTrainedModel, BertForQuestionAnswering):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | QuestionAnsweringModelOutput:
        """
        BERT's arguments and loss. With `unpad_inputs` answers are sought among real tokens: logits at padding are the
        lowest number, because zero might win, and the loss does not depend on how much a batch is padded.
        """
        padding = self.padding(attention_mask)
        if padding is not None and start_positions is not None and end_positions is not None:
            outside = pad(padding, (0, 1), value=True)  # (B, L + 1); BERT takes no loss from a place outside, L

            def inside(place):
                place = place.view(-1, 1).clamp(0, padding.shape[1])
                return place.masked_fill(outside.gather(1, place), padding.shape[1]).squeeze(1)

            start_positions, end_positions = inside(start_positions), inside(end_positions)
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        logits = self.qa_outputs(outputs.last_hidden_state)  # (B, L, 2)
        if padding is not None:
            logits = logits.masked_fill(padding[..., None].to(logits.device), torch.finfo(logits.dtype).min)
        start_logits, end_logits = (x.squeeze(-1).contiguous() for x in logits.split(1, dim=-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            L = logits.shape[1]
            loss = sum(
                mean_loss(x, place.view(-1).clamp(0, L), ignore_index=L)
                for x, place in ((start_logits, start_positions), (end_logits, end_positions))
            )
            loss = loss / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


for auto_class, reference in AUTO_MAP.items():  # this file and the configuration's are saved along with any of them
    if auto_class != "AutoConfig":
        globals()[reference.split(".")[1]].register_for_auto_class(auto_class)

__all__ = [
    "FixedHeadBertForMaskedLM",
    "FixedHeadBertForMultipleChoice",
    "FixedHeadBertForNextSentencePrediction",
    "FixedHeadBertForPreTraining",
    "FixedHeadBertForQuestionAnswering",
    "FixedHeadBertForSequenceClassification",
    "FixedHeadBertForTokenClassification",
    "FixedHeadBertLMHeadModel",
    "FixedHeadBertModel",
    "FixedHeadBertPreTrainedModel",
]
