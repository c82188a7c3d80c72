# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
FixedHeadBert: BERT whose attention heads have a size of their own. The layer, the model and its heads.

What is BERT comes from transformers, and so do all parameter names. Written here is the difference: constructors with
the attention of attention_fixed_head_bert.py, masks of packed rows, and losses that do not count padding and
are zero where no token and no answer of a batch has a label (`mean_loss`).

Shapes: B batch, L length, D hidden_size, V vocabulary.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers import initialization as init
from transformers import modeling_outputs
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import custom_object_save
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, packed_sequence_mask_function
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel, slice_logits_to_keep
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.bert import modeling_bert as bert
from transformers.utils import ModelOutput, logging
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder

from .attention_fixed_head_bert import (
    Bias,
    FixedHeadBertAttention,
    FixedHeadBertSelfAttention,
    FixedHeadBertSelfOutput,
    is_symbolic,
    padding_in,
    sequences_of,
)
from .configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .fast_fixed_head_bert import Tokens, at_real_tokens, fast_forward, places_of_labels

logger = logging.get_logger(__name__)

# Tensor parallelism of the prediction head: by words, like the embeddings that it is tied to.
SPLIT_PREDICTIONS = {"cls.predictions.decoder": "colwise_gather_output", "cls.predictions.bias": "colwise"}


def forward_like(stock: type[PreTrainedModel]) -> Callable:
    """A decorator: the forward of a head, which takes arguments by name, gets the signature of BERT's `stock` head."""
    stock_signature = signature(stock.forward)

    def decorate(forward: Callable) -> Callable:
        @can_return_tuple
        @wraps(stock.forward)
        def by_name(self, *args, **kwargs):
            return forward(**stock_signature.bind_partial(self, *args).arguments, **kwargs)

        return by_name

    return decorate


class FixedHeadBertOutput(bert.BertOutput):
    __init__ = FixedHeadBertSelfOutput.__init__


class FixedHeadBertLayer(bert.BertLayer):
    attention: FixedHeadBertAttention

    def __init__(self, config: FixedHeadBertConfig, layer_idx: int | None = None):
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
        layer = copy.copy(config)
        vars(layer).update(intermediate_size=config.neuron_counts[layer_idx or 0])
        self.add_module("intermediate", bert.BertIntermediate(layer) if layer.intermediate_size else nn.Identity())
        self.output = FixedHeadBertOutput(config, layer.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask=None, *args, **kwargs) -> torch.Tensor:
        """BERT's, (B, L, D) -> (B, L, D); the last one of the fast path computes the tokens that are read."""
        if isinstance(attention_mask, Tokens) and attention_mask.last_layer is self:
            return attention_mask.through_last_layer(self, hidden_states)
        return super().forward(hidden_states, attention_mask, *args, **kwargs)


class FixedHeadBertEncoder(bert.BertEncoder):
    def __init__(self, config: FixedHeadBertConfig):
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList([FixedHeadBertLayer(config, layer_idx=i) for i in range(config.num_hidden_layers)])


class FixedHeadBertPooler(bert.BertPooler):
    """BERT's, with an activation of choice: the hidden state (D) of the first token -> (D)."""

    def __init__(self, config: FixedHeadBertConfig):
        super().__init__(config)
        self.activation = ACT2FN[config.pooler_hidden_act]


class FixedHeadBertPreTrainedModel(bert.BertPreTrainedModel):
    """Weight initialisation, loading and saving: BERT's."""

    config: FixedHeadBertConfig
    # BERT's losses are means over a batch. Trainer takes a forward with **kwargs to divide by the number of labels
    # in all accumulated batches, which only heads with labels for tokens do: the others' gradients would be too large.
    accepts_loss_kwargs = False
    _can_record_outputs = {
        "hidden_states": FixedHeadBertLayer,
        "attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="attention.self"),
        "cross_attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="crossattention.self"),
    }

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if issubclass(cls, GenerationMixin):  # Trainer smooths shifted labels for these values; keys are model types
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[f"{cls.__module__}.{cls.__qualname__}"] = cls.__name__
        if cls.__module__ == __name__:  # a user's own class is not in the table
            head = cls.__name__.removeprefix("FixedHeadBert")
            if head not in HEADS:
                raise ImportError(f"{cls.__name__}: add {head} to HEADS in configuration_fixed_head_bert.py.")
            cls.register_for_auto_class(HEADS[head][0])  # its file is saved along
        else:  # what she saves opens as the model that it is made from, by its files, unless she registers her own
            cls._auto_class = None

    def save_pretrained(self, save_directory, is_main_process=True, *args, **kwargs):
        """transformers' own; for a subclass from elsewhere it would not save these files, which config.json names."""
        if is_main_process and type(self).__module__ != __name__:
            os.makedirs(save_directory, exist_ok=True)
            custom_object_save(FixedHeadBertPreTrainedModel, save_directory)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, Bias):
            init.zeros_(module.bias)
        if isinstance(module, FixedHeadBertSelfAttention) and self.config.head_embedding is not None:
            for embedding in module.parameters(recurse=False):
                init.normal_(embedding, mean=0.0, std=self.config.initializer_range)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        """BERT has its output bias beside the decoder and in it: one parameter, also where embeddings are not tied."""
        tied = super().get_expanded_tied_weights_keys(all_submodels)
        biases = {key: source for key, source in (self._tied_weights_keys or {}).items() if key.endswith("bias")}
        return tied | biases

    def predict(self, head: nn.Module, hidden_states: torch.Tensor, labels, attention_mask, sparse: bool, labelled):
        """
        Logits (B, L, V) of the masked-LM `head` and labels (B, L), -100 at padding. With labels and `sparse`, logits
        (N, V) and labels (N) of the labelled tokens alone, at the places `labelled` (N), which are searched if None.
        The other tokens add nothing to the loss; in BERT's recipe they are 85 % of the work.
        """
        if labels is not None:
            labels = labels_of_tokens(labels, hidden_states, attention_mask)
            if sparse:
                labelled = places_of_labels(labels) if labelled is None else labelled
                return head(hidden_states.flatten(0, 1)[labelled]), labels.flatten()[labelled]
        return at_real_tokens(head, hidden_states, self.padding_left_out(attention_mask, hidden_states)), labels

    def padding_left_out(self, attention_mask, outputs: torch.Tensor) -> torch.Tensor | None:
        """(B, L), true where `outputs` (B, L, ...) are at padding, with `unpad_inputs`; None where nothing is."""
        return padding_in(attention_mask, outputs) if self.base_model.unpad_inputs else None

    @classmethod
    def maybe_distribute_model(cls, model, distributed_config, *args, **kwargs):
        """transformers' own, where every process gets whole heads, and as many as the others, in every layer."""
        processes = getattr(distributed_config, "tp_size", None) or 1
        counts = sorted({*model.config.head_counts, model.config.num_key_value_heads})
        if processes > 1 and 0 in (*counts, *model.config.neuron_counts):
            raise ValueError("tp_size: a layer without heads or neurons cannot be split.")
        if model.tp_plan and any(heads % processes for heads in counts):
            raise ValueError(f"tp_size={processes} has to divide all numbers of heads: {', '.join(map(str, counts))}.")
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)


class FixedHeadBertModel(FixedHeadBertPreTrainedModel, bert.BertModel):
    """The encoder, or with `is_decoder=True` a decoder: token ids (B, L) -> hidden states (B, L, D), pooled (B, D)."""

    _no_split_modules = ["BertEmbeddings", "FixedHeadBertLayer"]

    def __init__(self, config: FixedHeadBertConfig, add_pooling_layer=True):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.unpad_inputs = config.unpad_inputs
        self.embeddings = bert.BertEmbeddings(config)
        self.encoder = FixedHeadBertEncoder(config)
        self.pooler = FixedHeadBertPooler(config) if add_pooling_layer else None
        self.post_init()

    @forward_like(bert.BertModel)
    def forward(self, attention_mask=None, read_at=None, tokens: Tokens | None = None, **inputs) -> ModelOutput:
        """
        BERT's arguments. Without `attention_mask`, a row is several sequences where its `position_ids` (B, L) do not
        rise, and tokens attend within their sequence. The pooled output is computed from the first real token.

        `read_at` is for heads that need the last hidden state at some tokens alone, beside the pooled one: a mask
        (B, L), or False for none. `tokens` to compute are given where they are known: to find them the host has
        to wait for a GPU. Only `unpad_inputs` makes use of both.

        Raises:
            ValueError: inputs of a wrong shape.
        """
        given = given_in(inputs)
        check_mask(attention_mask, given, inputs.get("past_key_values"))
        if self.unpad_inputs or "flash" in self.config._attn_implementation:  # which has no mask for packed rows
            return fast_forward(self, given, attention_mask, read_at, tokens, inputs)
        return self.plain_forward(attention_mask, **inputs)

    def plain_forward(self, attention_mask, **inputs) -> ModelOutput:
        """BERT's forward, with masks for packed rows and for the eager attention that gives probabilities."""
        given, past_key_values = given_in(inputs), inputs.get("past_key_values")
        if inputs.get("output_attentions") is None:
            inputs["output_attentions"] = self.config.output_attentions
        config, mask = self.config, attention_mask
        is_packed = attention_mask is None and past_key_values is None  # or can be
        sequences = sequences_of(inputs.get("position_ids"), given.shape[:2]) if is_packed else None
        if inputs["output_attentions"] and config._attn_implementation != "eager":
            config = copy.copy(config)
            config._attn_implementation = "eager"
        if sequences is not None or config is not self.config:
            create_mask = create_causal_mask if config.is_decoder else create_bidirectional_mask
            mask = create_mask(
                config=config,
                inputs_embeds=given.new_empty((*given.shape[:2], 0), dtype=self.dtype),  # of which its shape is read
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                and_mask_function=None if sequences is None else packed_sequence_mask_function(sequences),
            )
            inputs["use_cache"] = inputs.get("use_cache") if sequences is None else False
        outputs = super().forward(attention_mask=mask, **inputs, return_dict=True)
        if padding_in(attention_mask, given) is not None:
            outputs.pooler_output = self.pool(outputs.last_hidden_state, attention_mask)
        return outputs

    def pool(self, hidden_states: torch.Tensor, attention_mask) -> torch.Tensor | None:
        """BERT's pooler, where there is one, on the first real token of each row: (B, L, D) -> (B, D)."""
        padding = padding_in(attention_mask, hidden_states)
        if padding is not None and self.pooler is not None:
            index = (~padding).int().argmax(dim=-1)[:, None, None]  # (B, 1, 1)
            hidden_states = hidden_states.gather(1, index.expand(-1, -1, hidden_states.shape[-1]))  # (B, 1, D)
        return None if self.pooler is None else self.pooler(hidden_states)


def given_in(inputs: dict) -> torch.Tensor:
    """The ids (B, L), or the embeddings (B, L, D) in their place. Raises ValueError for both or neither."""
    given = [x for x in (inputs.get("input_ids"), inputs.get("inputs_embeds")) if x is not None]
    if len(given) != 1:
        raise ValueError("Give either input_ids or inputs_embeds.")
    return given[0]


def check_mask(attention_mask, given: torch.Tensor, past_key_values):
    """Raises ValueError for a mask that is neither (B, past + L) nor, in four dimensions, boolean or a float."""
    if not isinstance(attention_mask, torch.Tensor) or is_symbolic(given):
        return
    if attention_mask.ndim == 4 and (attention_mask.dtype == torch.bool or attention_mask.is_floating_point()):
        return
    past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
    if attention_mask.shape != (given.shape[0], past + given.shape[1]):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} and holds {attention_mask.dtype}: it takes "
            f"{given.shape[0], past + given.shape[1]}, or four dimensions with bool or floating-point numbers."
        )


def labels_of_tokens(labels: torch.Tensor, outputs: torch.Tensor, attention_mask) -> torch.Tensor:
    """`labels` (B, L) with -100 at padding, which has no loss. Raises ValueError where outputs are not (B, L, ...)."""
    if labels.shape != outputs.shape[:2]:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, the tokens {tuple(outputs.shape[:2])}.")
    labels, padding = labels.to(outputs.device), padding_in(attention_mask, outputs)
    return labels if padding is None else labels.masked_fill(padding, -100)


def token_loss(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """`mean_loss`, or the sum divided by `num_items_in_batch`, which Trainer counts over all processes of a step."""
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if num_items_in_batch is None:
        return mean_loss(logits, labels)
    items = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
    return cross_entropy(logits, labels, reduction="sum") / items


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """
    Cross-entropy of logits (N, V) and labels (N): the mean over labels that are not `ignore_index`, zero if there is
    none. There torch would divide by zero, in the gradient too, so it gets labels whose loss is masked.
    """
    none = labels.eq(ignore_index).all()
    return cross_entropy(logits, labels.masked_fill(none, 0), ignore_index=ignore_index).masked_fill(none, 0)


def answer_loss(logits: torch.Tensor, places: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """`mean_loss` of logits (B, L) and places (B); a place outside the row, or at padding (B, L), is no label."""
    L = logits.shape[1]
    places = places.view(-1).clamp(0, L)
    if padding is not None:
        outside = pad(padding, (0, 1), value=True)  # (B, L + 1)
        places = places.masked_fill(outside.gather(1, places[:, None]).squeeze(1), L)
    return mean_loss(logits, places, ignore_index=L)


@dataclass
class FixedHeadBertForPreTrainingOutput(bert.BertForPreTrainingOutput):
    """BERT's output, and after it the two means whose sum is the loss."""

    masked_lm_loss: torch.Tensor | None = None
    next_sentence_loss: torch.Tensor | None = None


class FixedHeadBertForPreTraining(FixedHeadBertPreTrainedModel, bert.BertForPreTraining):
    """
    `labels` (B, L): token ids where a token was masked, -100 elsewhere; `labelled` (N): their places in the flat
    batch, if these are known. `next_sentence_label` (B): 0 where the second segment continues the first, 1 where it is
    random. The losses are means over labels and over rows, returned when both kinds of labels are given.
    """

    _tp_plan = SPLIT_PREDICTIONS

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = bert.BertPreTrainingHeads(config)
        self.sparse_prediction = config.sparse_prediction
        self.post_init()

    @forward_like(bert.BertForPreTraining)
    def forward(self, attention_mask=None, labels=None, next_sentence_label=None, labelled=None, **inputs):
        sparse = self.sparse_prediction and labels is not None and next_sentence_label is not None
        wanted = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, read_at=wanted, return_dict=True, **inputs)
        next_sentence = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)
        head, hidden_states = self.cls.predictions, outputs.last_hidden_state
        logits, labels = self.predict(head, hidden_states, labels, attention_mask, sparse, labelled)
        loss = masked_lm_loss = next_sentence_loss = None
        if labels is not None and next_sentence_label is not None:
            masked_lm_loss = token_loss(logits, labels)
            next_sentence_loss = mean_loss(next_sentence, next_sentence_label.view(-1))
            loss = masked_lm_loss + next_sentence_loss
        found = (loss, logits, next_sentence, outputs.hidden_states, outputs.attentions)
        return FixedHeadBertForPreTrainingOutput(*found, masked_lm_loss, next_sentence_loss)


class FixedHeadBertForMaskedLM(FixedHeadBertPreTrainedModel, bert.BertForMaskedLM):
    """`labels` and `labelled` as above. The loss is a mean over labels: of a whole step, where Trainer counts them."""

    _tp_plan = SPLIT_PREDICTIONS
    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        if config.is_decoder:
            logger.warning("FixedHeadBertForMaskedLM looks both ways only with is_decoder=False.")
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.cls = bert.BertOnlyMLMHead(config)
        self.sparse_prediction = config.sparse_prediction
        self.post_init()

    @forward_like(bert.BertForMaskedLM)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, labelled=None, **inputs):
        sparse = self.sparse_prediction and labels is not None
        wanted = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, read_at=wanted, return_dict=True, **inputs)
        logits, labels = self.predict(self.cls, outputs.last_hidden_state, labels, attention_mask, sparse, labelled)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return modeling_outputs.MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertLMHeadModel(FixedHeadBertPreTrainedModel, bert.BertLMHeadModel, GenerationMixin):
    """
    Causal language model: BERT as a decoder (`is_decoder=True`), as in the paper's LM1B experiments. `labels` (B, L):
    token ids, -100 where none is to be predicted; `shift_labels` beside them: each with the token that predicts it.
    """

    _tp_plan = SPLIT_PREDICTIONS
    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        if not config.is_decoder:
            logger.warning("FixedHeadBertLMHeadModel looks ahead unless is_decoder=True.")
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.cls = bert.BertOnlyMLMHead(config)
        self.post_init()

    @forward_like(bert.BertLMHeadModel)
    def forward(
        self, attention_mask=None, labels=None, shift_labels=None, num_items_in_batch=None, logits_to_keep=0, **inputs
    ):
        if labels is not None:
            inputs["use_cache"] = False
        outputs = self.bert(attention_mask=attention_mask, return_dict=True, **inputs)
        kept = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        logits = at_real_tokens(self.cls, kept, self.padding_left_out(attention_mask, outputs.last_hidden_state))
        loss = None
        if labels is not None:
            if shift_labels is None:
                shift_labels = pad(labels_of_tokens(labels, logits, attention_mask)[:, 1:], (0, 1), value=-100)
            shift_labels = labels_of_tokens(shift_labels, logits, attention_mask)  # nor is any predicted from padding
            loss = token_loss(logits.float(), shift_labels, num_items_in_batch)  # as transformers computes it
        returned = {name: x for name, x in outputs.items() if name != "last_hidden_state"}
        return modeling_outputs.CausalLMOutputWithCrossAttentions(loss, logits, **returned)

    def init_continuous_batching(self, *args, **kwargs):
        """transformers' own, whose cache has one shape for all layers, and keys and values for every head."""
        config = self.config
        shapes = set(zip(config.head_counts, map(max, config.head_sizes, config.value_head_sizes), strict=True))
        if shapes != {(config.num_attention_heads, config.head_dim)} or config.head_embedding is not None:
            raise ValueError("Continuous batching needs heads of one shape, and keys of their own: use generate().")
        return super().init_continuous_batching(*args, **kwargs)


class FixedHeadBertForNextSentencePrediction(FixedHeadBertPreTrainedModel, bert.BertForNextSentencePrediction):
    """`labels` (B): 0 where the second segment continues the first, 1 where it is random."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = bert.BertOnlyNSPHead(config)
        self.post_init()

    @forward_like(bert.BertForNextSentencePrediction)
    def forward(self, **inputs):
        return super().forward(read_at=False, **inputs, return_dict=True)


def classifier(config: FixedHeadBertConfig) -> nn.Linear:
    """D -> num_labels"""
    assert config.num_labels is not None  # transformers counts the labels as it builds a configuration
    return nn.Linear(config.hidden_size, config.num_labels)


def classifier_dropout(config: FixedHeadBertConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


class FixedHeadBertForSequenceClassification(FixedHeadBertPreTrainedModel, bert.BertForSequenceClassification):
    """`labels` (B): a class for every row, -100 for none; or scores, or several classes, by `config.problem_type`."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = classifier(config)
        self.post_init()

    @forward_like(bert.BertForSequenceClassification)
    def forward(self, **inputs):
        return super().forward(read_at=False, **inputs, return_dict=True)


class FixedHeadBertForMultipleChoice(FixedHeadBertPreTrainedModel, bert.BertForMultipleChoice):
    """Inputs (B, choices, L), and in `labels` (B) which of the choices is right."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @forward_like(bert.BertForMultipleChoice)
    def forward(self, **inputs):
        return super().forward(read_at=False, **inputs, return_dict=True)


class FixedHeadBertForTokenClassification(FixedHeadBertPreTrainedModel, bert.BertForTokenClassification):
    """`labels` (B, L): a class for every token, -100 for none. The loss is a mean as FixedHeadBertForMaskedLM's."""

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = classifier(config)
        self.post_init()

    @forward_like(bert.BertForTokenClassification)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, **inputs):
        outputs = super().forward(attention_mask=attention_mask, **inputs, return_dict=True)
        loss = None
        if labels is not None:
            labels = labels_of_tokens(labels, outputs.logits, attention_mask)
            loss = token_loss(outputs.logits, labels, num_items_in_batch)
        if (padding := self.padding_left_out(attention_mask, outputs.logits)) is not None:
            outputs.logits = outputs.logits.masked_fill(padding[..., None], 0)
        return modeling_outputs.TokenClassifierOutput(**{"loss": loss, **outputs})


class FixedHeadBertForQuestionAnswering(FixedHeadBertPreTrainedModel, bert.BertForQuestionAnswering):
    """
    `start_positions` and `end_positions` (B) of the answer in a row. With `unpad_inputs` only real tokens can be in an
    answer: logits at padding are the lowest number, as zero might win, and the loss does not depend on padding.
    """

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.qa_outputs = classifier(config)
        self.post_init()

    @forward_like(bert.BertForQuestionAnswering)
    def forward(self, attention_mask=None, start_positions=None, end_positions=None, **inputs):
        outputs = super().forward(attention_mask=attention_mask, **inputs, return_dict=True)
        if (padding := self.padding_left_out(attention_mask, outputs.start_logits)) is not None:
            for name in ("start_logits", "end_logits"):
                outputs[name] = outputs[name].masked_fill(padding, torch.finfo(outputs[name].dtype).min)
        if start_positions is None or end_positions is None:
            return outputs
        starts = answer_loss(outputs.start_logits, start_positions, padding)
        ends = answer_loss(outputs.end_logits, end_positions, padding)
        return modeling_outputs.QuestionAnsweringModelOutput(loss=(starts + ends) / 2, **outputs)


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
