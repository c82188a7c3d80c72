# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
FixedHeadBert, BERT with a configurable attention head size: base model and task heads.

- Modules and parameter names come from transformers' BERT, so BERT checkpoints load by name.
- Constructors replace BERT's layers with those in attention_fixed_head_bert.py. Forward passes are BERT's.
- A row can contain several sequences if `position_ids` restart for each one. Each sequence attends only to itself.
- Padding tokens affect neither the loss nor the pooled output, which is computed from the first non-padding token.
- Losses are averaged over labels and are zero if a batch has no labels (`mean_loss`).
- `unpad_inputs` skips padding tokens, and `sparse_prediction` skips tokens without labels.

Shapes: B batch size, L sequence length, D hidden_size, V vocabulary size.
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
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.bert import modeling_bert as bert
from transformers.utils import ModelOutput, logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .attention_fixed_head_bert import BiasOnly, FixedHeadBertEncoder, FixedHeadBertLayer, FixedHeadBertSelfAttention
from .configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .unpadding_fixed_head_bert import (
    CACHE,
    apply_to_non_padding,
    fast_forward,
    find_label_indices,
    is_symbolic,
    padding_mask,
    sequence_ids_from,
)

logger = logging.get_logger(__name__)


def forward_like(stock: type[PreTrainedModel]) -> Callable:
    """
    Returns a decorator that makes a forward method accept the positional arguments of the BERT class `stock` and,
    like BERT until transformers 5.40, the cache under its old name.
    """
    stock_signature = signature(stock.forward)

    def decorate(forward: Callable) -> Callable:
        if CACHE != "past_key_values":
            forward = deprecate_kwarg("past_key_values", "5.40.0", new_name=CACHE)(forward)

        @can_return_tuple
        @wraps(stock.forward)
        def by_name(self, *args, **kwargs):
            if kwargs.get(CACHE) is None:
                kwargs.pop(CACHE, None)  # otherwise, transformers would prefer it to a filled `past_key_values`
            by_position = stock_signature.bind_partial(self, *args).arguments
            return forward(by_position.pop("self"), **by_position, **kwargs)

        return by_name

    return decorate


class FixedHeadBertPooler(bert.BertPooler):
    """BERT's pooler with a configurable activation. Maps (B, L, D) to (B, D), using the first token in each row."""

    def __init__(self, config: FixedHeadBertConfig):
        super().__init__(config)
        self.activation = ACT2FN[config.pooler_hidden_act]


class FixedHeadBertPreTrainedModel(bert.BertPreTrainedModel):
    """Base class for all models, with weight initialization, loading and saving."""

    config: FixedHeadBertConfig
    # If True, Trainer passes `num_items_in_batch` and does not divide the loss by the number of accumulated batches.
    # It is True only for models with a label for each token. The other models average the loss over a batch.
    accepts_loss_kwargs = False
    _can_record_outputs = {"hidden_states": FixedHeadBertLayer, "attentions": FixedHeadBertSelfAttention}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if issubclass(cls, GenerationMixin):  # so that Trainer shifts labels for label smoothing; keys must be unique
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[f"{cls.__module__}.{cls.__qualname__}"] = cls.__name__
        if cls.__module__ == __name__:
            head = cls.__name__.removeprefix("FixedHeadBert")
            cls.register_for_auto_class(HEADS[head][0])  # saves this file with the weights
        else:  # keeps the auto_map and does not copy the module of the subclass, for example FSDP's
            cls._auto_class = None

    def build(self, config: FixedHeadBertConfig, pooled: bool = True, **modules: Callable):
        """Adds the base model, with a pooler if `pooled`, and the result of `module(config)` for each of `modules`."""
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.add_module("bert", FixedHeadBertModel(config, add_pooling_layer=pooled))
        for name, module in modules.items():
            self.add_module(name, module(config))
        self.post_init()

    def save_pretrained(self, save_directory, is_main_process=True, *args, **kwargs):
        """Saves the model with its code, also if FSDP has wrapped it in a class of a different module."""
        if is_main_process and type(self).__module__ != __name__:
            os.makedirs(save_directory, exist_ok=True)
            custom_object_save(FixedHeadBertPreTrainedModel, save_directory)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, BiasOnly):
            init.zeros_(module.bias)
        if isinstance(module, FixedHeadBertSelfAttention) and self.config.head_embedding is not None:
            for embedding in module.parameters(recurse=False):
                init.normal_(embedding, mean=0.0, std=self.config.initializer_range)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        """Returns the tied weights. BERT's two output biases are always tied; otherwise one would have no gradient."""
        tied = super().get_expanded_tied_weights_keys(all_submodels)
        biases = {key: source for key, source in (self._tied_weights_keys or {}).items() if key.endswith("bias")}
        return tied | biases

    def predict(self, head: nn.Module, hidden_states, labels, attention_mask, sparse: bool, num_items_in_batch=None):
        """
        Returns the logits (B, L, V) of the masked-LM `head` over V vocabulary tokens, and the labels (B, L) with -100
        at padding. If `sparse`, returns (N, V) and (N,) for the N labeled tokens only, 15% of tokens in BERT's recipe.
        """
        if labels is not None:
            labels = mask_padding_labels(labels, hidden_states, attention_mask, num_items_in_batch)
            if sparse:
                indices = find_label_indices(labels)
                return head(hidden_states.flatten(0, 1)[indices]), labels.flatten()[indices]
        return apply_to_non_padding(head, hidden_states, self.skipped_padding(attention_mask, hidden_states)), labels

    def skipped_padding(self, attention_mask, outputs: torch.Tensor) -> torch.Tensor | None:
        """Returns a mask (B, L), True where `outputs` (B, L, ...) are skipped, or None if padding is not skipped."""
        return padding_mask(attention_mask, outputs) if self.base_model.unpad_inputs else None


class FixedHeadBertModel(FixedHeadBertPreTrainedModel, bert.BertModel):
    """Encoder, or decoder if `is_decoder=True`: ids (B, L) -> hidden states (B, L, D) and pooled output (B, D)."""

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
    def forward(self, attention_mask=None, output_mask=None, **inputs) -> ModelOutput:
        """
        Runs the model. Accepts all arguments of BERT. If no `attention_mask` is passed, a new sequence begins wherever
        `position_ids` (B, L) restart in a row. The pooled output is computed from the first non-padding token.

        Args:
            output_mask: Mask (B, L), True for the tokens that the task head reads, or False to select no tokens. The
                token that the pooler reads is always included. Used only with `unpad_inputs`.

        Raises:
            ValueError: If the mask has an invalid shape, if ids and embeddings are both passed or both missing, or if
                `encoder_hidden_states` are passed.
        """
        ids_or_embeddings = single_input(inputs)
        if inputs.get("encoder_hidden_states") is not None:
            raise ValueError("encoder_hidden_states must be None: FixedHeadBert does not support cross-attention.")
        check_mask(attention_mask, ids_or_embeddings, inputs.get(CACHE))
        # Flash attention needs sequence lengths for packed rows, which only the fast path computes.
        if self.unpad_inputs or "flash" in self.config._attn_implementation:
            return fast_forward(self, ids_or_embeddings, attention_mask, output_mask, inputs)
        return self.bert_forward(attention_mask, **inputs)

    def bert_forward(self, attention_mask, **inputs) -> ModelOutput:
        """
        Runs BERT's forward pass. Creates the attention mask for packed rows, and when attention probabilities
        are requested. With `unpad_inputs`, the last hidden states are zero at padding.
        """
        ids_or_embeddings, cache = single_input(inputs), inputs.get(CACHE)
        if inputs.get("output_attentions") is None:
            inputs["output_attentions"] = self.config.output_attentions
        config, mask, sequence_ids = self.config, attention_mask, None
        if attention_mask is None and cache is None:
            sequence_ids = sequence_ids_from(inputs.get("position_ids"), ids_or_embeddings.shape[:2])
        if inputs["output_attentions"] and config._attn_implementation != "eager":
            config = copy.copy(config)
            config._attn_implementation = "eager"
        if sequence_ids is not None or config is not self.config:
            create_mask: Callable = create_causal_mask if config.is_decoder else create_bidirectional_mask
            mask = create_mask(
                config=config,
                inputs_embeds=ids_or_embeddings.new_empty((*ids_or_embeddings.shape[:2], 0), dtype=self.dtype),
                attention_mask=attention_mask,
                **{CACHE: cache},
                and_mask_function=None if sequence_ids is None else packed_sequence_mask_function(sequence_ids),
            )
            inputs["use_cache"] = inputs.get("use_cache") if sequence_ids is None else False
        outputs = super().forward(attention_mask=mask, **inputs, return_dict=True)
        padding = padding_mask(attention_mask, ids_or_embeddings)
        if padding is None:
            return outputs
        changed = padding if self.unpad_inputs else padding[:, 0]
        if is_symbolic(changed) or changed.any():
            if self.unpad_inputs:
                last = outputs.last_hidden_state = outputs.last_hidden_state.masked_fill(padding[..., None], 0)
                if outputs.hidden_states and outputs.hidden_states[-1] is not None:
                    outputs.hidden_states = (*outputs.hidden_states[:-1], last)
            # BERT pools the first token even if it is padding.
            outputs.pooler_output = self.pool(outputs.last_hidden_state, attention_mask)
        return outputs

    def pool(self, hidden_states: torch.Tensor, attention_mask) -> torch.Tensor | None:
        """Pools the first non-padding token in each row: (B, L, D) -> (B, D). Returns None if there is no pooler."""
        padding = padding_mask(attention_mask, hidden_states)
        if padding is not None and self.pooler is not None:
            index = (~padding).int().argmax(dim=-1)[:, None, None]  # (B, 1, 1)
            hidden_states = hidden_states.gather(1, index.expand(-1, -1, hidden_states.shape[-1]))  # (B, 1, D)
        return None if self.pooler is None else self.pooler(hidden_states)


def single_input(inputs: dict) -> torch.Tensor:
    """Returns the ids (B, L) or embeddings (B, L, D). Raises ValueError unless exactly one of them is passed."""
    passed = [x for x in (inputs.get("input_ids"), inputs.get("inputs_embeds")) if x is not None]
    if len(passed) != 1:
        raise ValueError("Pass either input_ids or inputs_embeds, but not both.")
    return passed[0]


def check_mask(attention_mask, ids_or_embeddings: torch.Tensor, cache):
    """Raises ValueError unless the mask has shape (B, cached tokens + L), or is a boolean or floating 4D mask."""
    if not isinstance(attention_mask, torch.Tensor) or is_symbolic(ids_or_embeddings):
        return
    past = 0 if cache is None else int(cache.get_seq_length())
    expected = (ids_or_embeddings.shape[0], past + ids_or_embeddings.shape[1])
    is_full = attention_mask.ndim == 4 and (attention_mask.dtype == torch.bool or attention_mask.is_floating_point())
    if attention_mask.shape != expected and not is_full:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}; expected "
            f"shape {expected}, or four dimensions and a boolean or floating-point dtype."
        )


def mask_padding_labels(
    labels: torch.Tensor, outputs: torch.Tensor, attention_mask, num_items_in_batch=None
) -> torch.Tensor:
    """
    Returns `labels` (B, L) with -100 at padding.

    Raises ValueError unless `outputs` have shape (B, L, ...), and if `num_items_in_batch` includes labels at padding.
    """
    if labels.shape != outputs.shape[:2]:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, but tokens have shape {tuple(outputs.shape[:2])}.")
    labels, padding = labels.to(outputs.device), padding_mask(attention_mask, outputs)
    masked = labels if padding is None else labels.masked_fill(padding, -100)
    if num_items_in_batch is not None and not is_symbolic(labels) and not torch.equal(masked, labels):
        raise ValueError(
            "labels at padding, and with left padding the causal label of the first token, must be -100: the loss "
            "ignores them, but Trainer counts them, so that the average would be too small."
        )
    return masked


def token_loss(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Returns the mean loss, or the sum divided by `num_items_in_batch`, which Trainer sets to the step's labels."""
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if num_items_in_batch is None:
        return mean_loss(logits, labels)
    items = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
    return cross_entropy(logits, labels, reduction="sum") / items


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Returns the mean cross-entropy of logits (N, classes) and labels (N,), or 0 if all labels are `ignore_index`."""
    is_empty = labels.eq(ignore_index).all()  # in this case, dummy labels avoid a division by zero
    loss = cross_entropy(logits, labels.masked_fill(is_empty, 0), ignore_index=ignore_index)
    return loss.masked_fill(is_empty, 0)


def with_mean_loss(outputs: ModelOutput, labels: torch.Tensor | None) -> ModelOutput:
    """Replaces the loss of BERT's classifiers with `mean_loss`, because theirs is NaN if all labels (B,) are -100."""
    if labels is not None:
        outputs["loss"] = mean_loss(outputs["logits"], labels.view(-1))
    return outputs


def span_loss(logits: torch.Tensor, positions: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """Returns the mean cross-entropy of logits (B, L) and `positions` (B,). Ignores positions at padding or >= L."""
    L = logits.shape[1]
    positions = positions.view(-1).clamp(0, L)
    if padding is not None:
        is_outside = pad(padding, (0, 1), value=True)  # (B, L + 1)
        positions = positions.masked_fill(is_outside.gather(1, positions[:, None]).squeeze(1), L)
    return mean_loss(logits, positions, ignore_index=L)


@dataclass
class FixedHeadBertForPreTrainingOutput(bert.BertForPreTrainingOutput):
    """BERT's pretraining output with the two losses whose sum is `loss`."""

    masked_lm_loss: torch.Tensor | None = None
    next_sentence_loss: torch.Tensor | None = None


class FixedHeadBertForPreTraining(FixedHeadBertPreTrainedModel, bert.BertForPreTraining):
    """
    Pretraining model. `labels` (B, L) are the ids of masked tokens, and -100 elsewhere. `next_sentence_label` (B,) is
    0 if the second segment continues the first, and 1 if it is random. Losses are returned only if both are passed.
    """

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, cls=bert.BertPreTrainingHeads)
        self.sparse_prediction = config.sparse_prediction

    @forward_like(bert.BertForPreTraining)
    def forward(self, attention_mask=None, labels=None, next_sentence_label=None, **inputs):
        sparse = self.sparse_prediction and labels is not None and next_sentence_label is not None
        output_mask = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, output_mask=output_mask, return_dict=True, **inputs)
        next_sentence = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)
        head, hidden_states = self.cls.predictions, outputs.last_hidden_state
        logits, labels = self.predict(head, hidden_states, labels, attention_mask, sparse)
        loss = masked_lm_loss = next_sentence_loss = None
        if labels is not None and next_sentence_label is not None:
            masked_lm_loss = token_loss(logits, labels)
            next_sentence_loss = mean_loss(next_sentence, next_sentence_label.view(-1))
            loss = masked_lm_loss + next_sentence_loss
        outputs = (loss, logits, next_sentence, outputs.hidden_states, outputs.attentions)
        return FixedHeadBertForPreTrainingOutput(*outputs, masked_lm_loss, next_sentence_loss)


class FixedHeadBertForMaskedLM(FixedHeadBertPreTrainedModel, bert.BertForMaskedLM):
    """
    Masked language model. `labels` (B, L) are the ids of masked tokens, and -100 elsewhere. The loss is averaged over
    the labels in the batch, or over all labels in the training step if Trainer passes `num_items_in_batch`.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        if config.is_decoder:
            logger.warning("FixedHeadBertForMaskedLM needs is_decoder=False for bidirectional attention.")
        self.build(config, pooled=False, cls=bert.BertOnlyMLMHead)
        self.sparse_prediction = config.sparse_prediction

    @forward_like(bert.BertForMaskedLM)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, **inputs):
        sparse = self.sparse_prediction and labels is not None
        output_mask = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, output_mask=output_mask, return_dict=True, **inputs)
        hidden_states = outputs.last_hidden_state
        logits, labels = self.predict(self.cls, hidden_states, labels, attention_mask, sparse, num_items_in_batch)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return modeling_outputs.MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertLMHeadModel(FixedHeadBertPreTrainedModel, bert.BertLMHeadModel, GenerationMixin):
    """
    Causal language model: a BERT decoder (`is_decoder=True`), as in the paper's LM1B experiments. `labels` (B, L) are
    token ids, or -100 for tokens that are not predicted. `shift_labels` (B, L) are labels that are already shifted.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        if not config.is_decoder:
            logger.warning("FixedHeadBertLMHeadModel needs is_decoder=True; otherwise, tokens attend to later tokens.")
        self.build(config, pooled=False, cls=bert.BertOnlyMLMHead)
        self.loss_type = "ForCausalLM"  # Trainer then counts the labels that have a predecessor

    @forward_like(bert.BertLMHeadModel)
    def forward(
        self, attention_mask=None, labels=None, shift_labels=None, num_items_in_batch=None, logits_to_keep=0, **inputs
    ):
        if labels is not None:
            inputs["use_cache"] = False
        outputs = self.bert(attention_mask=attention_mask, return_dict=True, **inputs)
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        padding = self.skipped_padding(attention_mask, outputs.last_hidden_state)
        padding = None if padding is None else padding[:, positions]
        logits = apply_to_non_padding(self.cls, outputs.last_hidden_state[:, positions], padding)
        loss = None
        if labels is not None:
            if shift_labels is None:
                labels = mask_padding_labels(labels, logits, attention_mask, num_items_in_batch)
                shift_labels = pad(labels[:, 1:], (0, 1), value=-100)
            # Padding predicts no token.
            shift_labels = mask_padding_labels(shift_labels, logits, attention_mask, num_items_in_batch)
            loss = token_loss(logits.float(), shift_labels, num_items_in_batch)  # in float32, as in transformers
        returned = {name: x for name, x in outputs.items() if name != "last_hidden_state"}
        return modeling_outputs.CausalLMOutputWithCrossAttentions(loss, logits, **returned)


class FixedHeadBertForNextSentencePrediction(FixedHeadBertPreTrainedModel, bert.BertForNextSentencePrediction):
    """Next-sentence classifier. `labels` (B,) are 0 if the second segment continues the first, 1 if it is random."""

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, cls=bert.BertOnlyNSPHead)

    @forward_like(bert.BertForNextSentencePrediction)
    def forward(self, labels=None, **inputs):
        outputs = super().forward(output_mask=False, labels=labels, **inputs, return_dict=True)
        return with_mean_loss(outputs, labels)


def classifier(config: FixedHeadBertConfig) -> nn.Linear:
    return nn.Linear(config.hidden_size, config.num_labels or 0)


def classifier_dropout(config: FixedHeadBertConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


class FixedHeadBertForSequenceClassification(FixedHeadBertPreTrainedModel, bert.BertForSequenceClassification):
    """Text classifier. `labels` (B,) are class ids, or -100 to ignore a text. For regression, see `problem_type`."""

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, dropout=classifier_dropout, classifier=classifier)

    @forward_like(bert.BertForSequenceClassification)
    def forward(self, labels=None, **inputs):
        outputs = super().forward(output_mask=False, labels=labels, **inputs, return_dict=True)
        return with_mean_loss(outputs, labels if self.config.problem_type == "single_label_classification" else None)


class FixedHeadBertForMultipleChoice(FixedHeadBertPreTrainedModel, bert.BertForMultipleChoice):
    """Multiple-choice model for inputs (B, choices, L). `labels` (B,) are the indices of the correct choices."""

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, dropout=classifier_dropout, classifier=lambda config: nn.Linear(config.hidden_size, 1))

    @forward_like(bert.BertForMultipleChoice)
    def forward(self, labels=None, **inputs):
        outputs = super().forward(output_mask=False, labels=labels, **inputs, return_dict=True)
        return with_mean_loss(outputs, labels)


class FixedHeadBertForTokenClassification(FixedHeadBertPreTrainedModel, bert.BertForTokenClassification):
    """Token classifier. `labels` (B, L) are class ids, or -100. For the loss, see FixedHeadBertForMaskedLM."""

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, pooled=False, dropout=classifier_dropout, classifier=classifier)

    @forward_like(bert.BertForTokenClassification)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, **inputs):
        outputs = super().forward(attention_mask=attention_mask, **inputs, return_dict=True)
        loss = None
        if labels is not None:
            labels = mask_padding_labels(labels, outputs.logits, attention_mask, num_items_in_batch)
            loss = token_loss(outputs.logits, labels, num_items_in_batch)
        if (padding := self.skipped_padding(attention_mask, outputs.logits)) is not None:
            outputs.logits = outputs.logits.masked_fill(padding[..., None], 0)
        return modeling_outputs.TokenClassifierOutput(**{"loss": loss, **outputs})


class FixedHeadBertForQuestionAnswering(FixedHeadBertPreTrainedModel, bert.BertForQuestionAnswering):
    """
    Question answering model. `start_positions` and `end_positions` (B,) are the token indices of answers. With
    `unpad_inputs`, the loss ignores padding, and logits at padding are the dtype's minimum, which rules them out.
    """

    def __init__(self, config: FixedHeadBertConfig):
        self.build(config, pooled=False, qa_outputs=classifier)

    @forward_like(bert.BertForQuestionAnswering)
    def forward(self, attention_mask=None, start_positions=None, end_positions=None, **inputs):
        outputs = super().forward(attention_mask=attention_mask, **inputs, return_dict=True)
        if (padding := self.skipped_padding(attention_mask, outputs.start_logits)) is not None:
            for name in ("start_logits", "end_logits"):
                outputs[name] = outputs[name].masked_fill(padding, torch.finfo(outputs[name].dtype).min)
        if start_positions is None or end_positions is None:
            return outputs
        starts = span_loss(outputs.start_logits, start_positions, padding)
        ends = span_loss(outputs.end_logits, end_positions, padding)
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
