# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
FixedHeadBert: BERT whose attention heads have a size of their own.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, arXiv 2002.07028), section 3: with
h heads of a fixed size d_p, and W_q, W_k, W_v: d -> h d_p, W_o: h d_p -> d,

    FixedMultiHead(X) = sum_i  W_o^i  W_v^i X  softmax((W_k^i X)^T (W_q^i X) / sqrt(d_p))

where BERT has d_p = d / h. What is BERT here is transformers' own, and so are all parameter names; this file holds the
difference. BERT's constructors tie the head size to the width, so ours stand in their place; its forwards serve as
they are, except where a head can skip work that its loss does not need.

Shapes: B batch, L length, D hidden_size, H heads, P head size, V vocabulary.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.bert.modeling_bert import (
    BertAttention,
    BertCrossAttention,
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
    BertSelfAttention,
    BertSelfOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .configuration_fixed_head_bert import FixedHeadBertConfig

logger = logging.get_logger(__name__)


class FixedHeadBertSelfAttention(BertSelfAttention):
    """FixedMultiHead without W_o: (B, L, D) -> (B, L, H P). The size P of a head is the configuration's."""

    def __init__(self, config, is_causal=False, layer_idx=None):
        nn.Module.__init__(self)
        self.config = config
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.head_dim
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.scaling = self.attention_head_size**-0.5

        self.query = nn.Linear(config.hidden_size, self.all_head_size)  # D -> H P
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

        self.is_decoder = config.is_decoder
        self.is_causal = is_causal
        self.layer_idx = layer_idx


class FixedHeadBertCrossAttention(BertCrossAttention):
    """The same projections; keys and values come from an encoder of the same width."""

    def __init__(self, config, is_causal=False, layer_idx=None):
        FixedHeadBertSelfAttention.__init__(self, config, is_causal=is_causal, layer_idx=layer_idx)


class FixedHeadBertSelfOutput(BertSelfOutput):
    """W_o with BERT's dropout, residual and LayerNorm: (B, L, H P) -> (B, L, D)."""

    def __init__(self, config):
        nn.Module.__init__(self)
        self.dense = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size)  # H P -> D
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)


class FixedHeadBertAttention(BertAttention):
    def __init__(self, config, is_causal=False, layer_idx=None, is_cross_attention=False):
        nn.Module.__init__(self)
        self.is_cross_attention = is_cross_attention
        attention_class = FixedHeadBertCrossAttention if is_cross_attention else FixedHeadBertSelfAttention
        self.self = attention_class(config, is_causal=is_causal, layer_idx=layer_idx)
        self.output = FixedHeadBertSelfOutput(config)


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


class FixedHeadBertEncoder(BertEncoder):
    def __init__(self, config):
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList([FixedHeadBertLayer(config, layer_idx=i) for i in range(config.num_hidden_layers)])


class FixedHeadBertPreTrainedModel(BertPreTrainedModel):
    """Weight initialisation, loading and saving: BERT's."""

    config: FixedHeadBertConfig
    # BERT's losses are means over a batch. Trainer takes a forward with **kwargs for one that has already divided by
    # the whole accumulated batch, and would make loss and gradient too large by the number of accumulation steps.
    accepts_loss_kwargs = False
    _can_record_outputs = {
        "hidden_states": FixedHeadBertLayer,
        "attentions": FixedHeadBertSelfAttention,
        "cross_attentions": FixedHeadBertCrossAttention,
    }


class FixedHeadBertModel(FixedHeadBertPreTrainedModel, BertModel):
    """The encoder, or with `is_decoder=True` a decoder: token ids (B, L) -> hidden states (B, L, D), pooled (B, D)."""

    _no_split_modules = ["BertEmbeddings", "FixedHeadBertLayer"]

    def __init__(self, config: FixedHeadBertConfig, add_pooling_layer=True):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.embeddings = BertEmbeddings(config)
        self.encoder = FixedHeadBertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()


def masked_lm_loss(
    predictions: nn.Module, hidden_states: torch.Tensor, labels: torch.Tensor, sparse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Mean cross-entropy over the tokens whose label is not -100, and the logits that it was computed from.

    Takes hidden states (B, L, D) and labels (B, L); the logits are (B, L, V), or with `sparse` only (labelled, V): the
    other positions add nothing to the loss, and in BERT's recipe they are 85 % of the work.
    """
    if sparse:
        labelled = labels.flatten().ne(-100).nonzero().squeeze(-1)
        hidden_states = hidden_states.flatten(0, 1)[labelled]  # (labelled, D)
        labels = labels.flatten()[labelled]
    logits = predictions(hidden_states)
    return cross_entropy(logits.flatten(0, -2), labels.flatten()), logits


class FixedHeadBertForPreTraining(FixedHeadBertPreTrainedModel, BertForPreTraining):
    """Masked-LM and next-sentence heads, as in BERT's pretraining."""

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
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)

        loss = None
        if labels is not None and next_sentence_label is not None:
            mlm_loss, prediction_logits = masked_lm_loss(
                self.cls.predictions, outputs.last_hidden_state, labels, self.sparse_prediction
            )
            loss = mlm_loss + cross_entropy(seq_relationship_logits, next_sentence_label.view(-1))
        else:
            prediction_logits = self.cls.predictions(outputs.last_hidden_state)

        return BertForPreTrainingOutput(
            loss=loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FixedHeadBertForMaskedLM(FixedHeadBertPreTrainedModel, BertForMaskedLM):
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | MaskedLMOutput:
        """`labels` (B, L): token ids where a token was masked, -100 elsewhere."""
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            return_dict=True,
            **kwargs,
        )
        if labels is None:
            loss, logits = None, self.cls(outputs.last_hidden_state)
        else:
            loss, logits = masked_lm_loss(
                self.cls.predictions, outputs.last_hidden_state, labels, self.sparse_prediction
            )
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FixedHeadBertLMHeadModel(FixedHeadBertPreTrainedModel, BertLMHeadModel, GenerationMixin):
    """Causal language model: BERT as a decoder (`is_decoder=True`), as in the paper's LM1B experiments."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.loss_type = "ForCausalLM"  # transformers picks the loss by the name of the class, which says nothing here
        if not config.is_decoder:
            logger.warning("FixedHeadBertLMHeadModel looks ahead unless is_decoder=True.")
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()


class FixedHeadBertForNextSentencePrediction(FixedHeadBertPreTrainedModel, BertForNextSentencePrediction):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = BertOnlyNSPHead(config)
        self.post_init()


def classifier_dropout(config: FixedHeadBertConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


class FixedHeadBertForSequenceClassification(FixedHeadBertPreTrainedModel, BertForSequenceClassification):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class FixedHeadBertForMultipleChoice(FixedHeadBertPreTrainedModel, BertForMultipleChoice):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()


class FixedHeadBertForTokenClassification(FixedHeadBertPreTrainedModel, BertForTokenClassification):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class FixedHeadBertForQuestionAnswering(FixedHeadBertPreTrainedModel, BertForQuestionAnswering):
    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


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
