# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
FixedHeadBert: BERT whose attention heads have a size of their own. The layer, the model and its heads.

What is BERT comes from transformers, and so do all parameter names. Written here is the difference: a layer has the
attention of attention_fixed_head_bert.py, and no more is computed than the output needs.

Shapes: B batch, L length, D hidden_size, V vocabulary; T tokens of a batch without its padding.
"""

import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.dynamic_module_utils import custom_object_save
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.bert.modeling_bert import (
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
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_fixed_head_bert import FixedHeadBertAttention, FixedHeadBertSelfAttention
from .backends_fixed_head_bert import implementation_for, implementation_of, mask_for, mask_for_cross_attention
from .configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .inputs_fixed_head_bert import (
    Layout,
    Unpadded,
    answer_loss,
    check_inputs,
    forward_like,
    ids_or_embeddings,
    is_symbolic,
    labels_of_tokens,
    layout_of,
    mean_loss,
    padding_in,
    places_of_labels,
    rows_of_choices,
    token_loss,
    tokens_to_keep,
    zero_where,
)

logger = logging.get_logger(__name__)

# Tensor parallelism of the prediction head: by words, as that of the embeddings that it is tied to.
SPLIT_PREDICTIONS = {"cls.predictions.decoder": "colwise_gather_output", "cls.predictions.bias": "colwise"}


class FixedHeadBertLayer(BertLayer):
    attention: FixedHeadBertAttention

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

    def forward(self, hidden_states: torch.Tensor, *args, queries=None, unpadded=None, **kwargs) -> torch.Tensor:
        """
        BERT's layer, (B, L, D) -> (B, L, D), with zeros where tokens are `blank` (B, L). With `queries`, indices into
        a row (1, T, D), only these tokens are computed: (1, len(queries), D). With an `Unpadded`, input and output are
        (B, L, D), and the row (1, T, D) is computed.
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
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        last_layer: dict | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """BERT's encoder, with `last_layer` as arguments for that layer alone."""
        for layer in self.layer:
            if layer is self.layer[-1]:
                kwargs |= last_layer or {}
            hidden_states = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,  # positional for gradient checkpointing
                encoder_attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        past_key_values = past_key_values if use_cache else None
        return BaseModelOutputWithPastAndCrossAttentions(hidden_states, past_key_values)


class FixedHeadBertPreTrainedModel(BertPreTrainedModel):
    """Weight initialisation, loading and saving: BERT's."""

    config: FixedHeadBertConfig
    # BERT's losses are means over a batch. Where a forward has **kwargs, Trainer assumes that it has divided by the
    # whole accumulated batch: loss and gradient would be too large by the number of accumulation steps. Heads with
    # labels for tokens do divide by what Trainer counted.
    accepts_loss_kwargs = False
    _can_record_outputs = {
        "hidden_states": FixedHeadBertLayer,
        "attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="attention.self"),
        "cross_attentions": OutputRecorder(FixedHeadBertSelfAttention, index=1, layer_name="crossattention.self"),
    }

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if issubclass(cls, GenerationMixin):  # for these names alone Trainer smooths shifted labels
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[cls.__name__] = cls.__name__
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

    def post_init(self):
        super().post_init()
        if self.config.base_model_tp_plan is None:  # no head is split without the embeddings that it is tied to
            self._tp_plan = {}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, FixedHeadBertSelfAttention) and self.config.head_embedding is not None:
            for embedding in module.parameters(recurse=False):
                init.normal_(embedding, mean=0.0, std=self.config.initializer_range)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict:
        """
        BERT has its output bias twice, beside the decoder and in it. The two are one parameter also where the
        embeddings are not tied: the one beside the decoder would never get a gradient.
        """
        tied = super().get_expanded_tied_weights_keys(all_submodels)
        biases = {key: source for key, source in (self._tied_weights_keys or {}).items() if key.endswith("bias")}
        return tied | biases

    def padding(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """(B, L), true where per-token outputs are to be zero: at padding, with `unpad_inputs`. Otherwise None."""
        return padding_in(attention_mask) if self.base_model.unpad_inputs else None

    def predict(
        self,
        head: nn.Module,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        attention_mask,
        sparse: bool,
        labelled: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Logits (B, L, V) of the masked-LM `head`, which is not computed at padding that is left out, and labels (B, L)
        with -100 at padding. With labels and `sparse`, logits (labelled, V) and labels (labelled) of labelled tokens
        alone: the others add nothing to the loss, and in BERT's recipe they are 85 % of the work. Their places are
        looked for where they are not known from `labelled`.
        """
        if labels is not None:
            labels = labels_of_tokens(labels, hidden_states, attention_mask, self.config.vocab_size)
            if sparse:
                labelled = places_of_labels(labels, labelled)
                return head(hidden_states.flatten(0, 1)[labelled]), labels.flatten()[labelled]
        return self.logits_of_tokens(head, hidden_states, attention_mask), labels

    def logits_of_tokens(self, head: nn.Module, hidden_states: torch.Tensor, attention_mask) -> torch.Tensor:
        """Logits (B, L, V) of a `head`, zero at padding that is left out, where it is not computed."""
        padding = self.padding(attention_mask)
        if padding is None or is_symbolic(hidden_states) or padding.shape != hidden_states.shape[:2]:
            return zero_where(padding, head(hidden_states))
        padding = padding.to(hidden_states.device)
        logits = head(hidden_states[~padding])  # (T, V)
        return logits.new_zeros(*padding.shape, logits.shape[-1]).masked_scatter(~padding[..., None], logits)

    def check_equal_layers(self, engine: str):
        """Raises ValueError where heads are not those that an engine allocates for all layers: num_attention_heads of
        head_dim, to which smaller values are padded."""
        config = self.config
        sizes = map(max, config.head_sizes, config.value_head_sizes)
        if set(zip(config.head_counts, sizes, strict=True)) != {(config.num_attention_heads, config.head_dim)}:
            raise ValueError(
                f"{engine} needs the same number and size of heads in every layer, and values no larger than keys; "
                "this model has others: use transformers' forward and generate()."
            )

    @classmethod
    def maybe_distribute_model(cls, model, distributed_config, *args, **kwargs):
        """transformers' own, where every process gets whole heads, and as many as the others, in every layer."""
        processes = getattr(distributed_config, "tp_size", None) or 1
        counts = sorted(set(model.config.head_counts))
        if model.tp_plan and any(heads % processes for heads in counts):
            raise ValueError(
                f"tp_size={processes}: {', '.join(map(str, counts))} heads in a layer cannot be split evenly; give a "
                "number of processes that divides them all."
            )
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        if implementation_of(attn_implementation or "").equal_layers:
            self.check_equal_layers(f"attn_implementation={attn_implementation!r}")
        largest = max(self.config.head_sizes + self.config.value_head_sizes)
        attn_implementation = implementation_for(largest, attn_implementation)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)


class FixedHeadBertModel(FixedHeadBertPreTrainedModel, BertModel):
    """The encoder, or with `is_decoder=True` a decoder: token ids (B, L) -> hidden states (B, L, D), pooled (B, D)."""

    _no_split_modules = ["BertEmbeddings", "FixedHeadBertLayer"]

    def __init__(self, config: FixedHeadBertConfig, add_pooling_layer=True):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.unpad_inputs = config.unpad_inputs
        self.embeddings = BertEmbeddings(config)
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
        unpadded: dict | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | BaseModelOutputWithPoolingAndCrossAttentions:
        """
        BERT's arguments. Without `attention_mask`, a row is several sequences where its `position_ids` (B, L) do not
        rise, and tokens attend within their sequence. The pooled output is that of the first real token of a row.

        `last_layer_at` is for heads that need the last hidden state at some tokens alone: a mask (B, L), beside the
        pooled token, or "pooled" for that one only. With `unpad_inputs` the last layer computes no others.

        `unpadded`, from `Unpadded.for_model`, has the places of the tokens to compute. They are found in the inputs
        where it is not given, for which the host has to wait for a GPU.

        Raises:
            ValueError: inputs of a wrong shape; on a CPU, where checking is cheap, also ids outside their table and
                embeddings that are not finite.
        """
        inputs = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
        }
        for output in ("output_attentions", "output_hidden_states"):
            if kwargs.get(output) is None:
                kwargs[output] = getattr(self.config, output)
        if not is_symbolic(ids_or_embeddings(inputs)):
            past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
            check_inputs(self.embeddings, inputs, attention_mask, past)
        layout = layout_of(inputs, attention_mask, cached=past_key_values is not None, packed=unpadded is not None)
        arguments = {
            "inputs": inputs,
            "attention_mask": attention_mask,
            "packed": layout.packed,
            "encoder_hidden_states": encoder_hidden_states,
            "encoder_attention_mask": encoder_attention_mask,
            "past_key_values": past_key_values,
            "use_cache": bool(use_cache) and self.config.is_decoder and layout.packed is None,
            **kwargs,
        }
        computed, changes = self.plan(arguments, layout, last_layer_at, unpadded)
        outputs = self.encode(**(arguments | changes), return_dict=True)
        last_hidden_state = self.restore(outputs.last_hidden_state, layout, computed)
        hidden_states = outputs.hidden_states
        if hidden_states and hidden_states[-1] is not None:  # where output_hidden_states chose some, others are None
            hidden_states = (*hidden_states[:-1], last_hidden_state)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=last_hidden_state,
            pooler_output=self.pool(last_hidden_state, layout),
            past_key_values=outputs.past_key_values,
            hidden_states=hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    def plan(
        self, arguments: dict, layout: Layout, last_layer_at: torch.Tensor | str | None, known: dict | None
    ) -> tuple[Unpadded | None, dict]:
        """The tokens to compute, None for whole rows, and the changes of the `arguments` of `encode` for them."""
        # The inner states that are returned are inputs of the next layer, so that gradients pass through them.
        returned = arguments["output_attentions"] or arguments["output_hidden_states"]
        # A causal or a block mask needs every query beside its key.
        every_query = self.config.is_decoder or implementation_of(self.config._attn_implementation).needs_mask
        if every_query or arguments["output_hidden_states"]:
            last_layer_at = None
        unpadded = None
        given = ids_or_embeddings(arguments["inputs"])
        # What the places of tokens are is read from values, unless it is given.
        unreadable = is_tracing(given) if known else is_symbolic(given)
        if not unreadable and not self.needs_whole_rows(arguments, layout):
            if known is None:
                unpadded = Unpadded.of(layout, given, last_layer_at)
            else:
                unpadded = Unpadded(given.shape[:2], **known)
        if unpadded is not None:
            changes = self.unpadded_arguments(arguments["inputs"], unpadded, last_layer_at)
            return unpadded, changes | ({"unpadded": unpadded} if returned else {})
        if returned and self.unpad_inputs and layout.real is not None:
            return None, {"blank": ~layout.real}
        return None, {}

    def needs_whole_rows(self, arguments: dict, layout: Layout) -> bool:
        """
        Whether padding stays: nothing asks to remove it, Trainer adds noise to embeddings
        (NEFTune), or an argument has its shape.
        """
        needs_lengths = implementation_of(self.config._attn_implementation).needs_lengths
        return (
            not (self.unpad_inputs or (needs_lengths and layout.packed is not None))
            or (self.training and hasattr(self.get_input_embeddings(), "neftune_noise_alpha"))  # scaled by the length
            or arguments["output_attentions"]
            or (arguments["use_cache"] and not self.training)
            or arguments["past_key_values"] is not None
            or arguments["encoder_hidden_states"] is not None
            or (arguments["attention_mask"] is not None and layout.real is None)
        )

    def unpadded_arguments(self, inputs: dict, unpadded: Unpadded, last_layer_at: torch.Tensor | str | None) -> dict:
        """Arguments of `encode` for these tokens of `inputs` alone, in the last layer for those that are read."""
        if inputs["position_ids"] is None:
            inputs = inputs | {"position_ids": self.embeddings.position_ids[:, : unpadded.shape[1]]}
        arguments = {
            "inputs": {name: None if x is None else unpadded.take(x) for name, x in inputs.items()},
            "attention_mask": None,
            "packed": unpadded.sequence[None],
            "encoder_attention_mask": None,
            "use_cache": False,
            **unpadded.lengths._asdict(),
        }
        if last_layer_at is not None:
            arguments["last_layer"] = unpadded.narrow(last_layer_at, pooled=self.pooler is not None)
        return arguments

    @capture_outputs
    def encode(
        self,
        inputs: dict[str, torch.Tensor | None],
        attention_mask: torch.Tensor | None,
        packed: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor | None,
        encoder_attention_mask: torch.Tensor | None,
        past_key_values: Cache | None,
        use_cache: bool,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Embeddings, masks and layers: ids or embeddings to hidden states (B, L, D), or (1, T, D) without padding."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
            if encoder_hidden_states is not None or self.config.is_encoder_decoder:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        hidden_states = self.embeddings(**inputs, past_key_values_length=past)
        attention_mask = mask_for(self.config, hidden_states, attention_mask, packed, past_key_values, **kwargs)
        if encoder_attention_mask is not None:
            encoder_attention_mask = mask_for_cross_attention(
                self.config, hidden_states, encoder_attention_mask, encoder_hidden_states, **kwargs
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

    def restore(self, hidden_states: torch.Tensor, layout: Layout, unpadded: Unpadded | None) -> torch.Tensor:
        """The last hidden states as (B, L, D): with zeros at padding that is not computed, and never NaN."""
        if unpadded is not None:  # layers whose inner states are returned put the tokens back themselves
            return hidden_states if hidden_states.shape[:2] == unpadded.shape else unpadded.put_back(hidden_states)
        if layout.real is None:
            return hidden_states
        real = layout.real.to(hidden_states.device)  # layers may be spread over devices
        if self.unpad_inputs:
            return zero_where(~real, hidden_states)
        return hidden_states.masked_fill(~real.any(dim=-1)[:, None, None], 0)  # a row without any real token

    def pool(self, hidden_states: torch.Tensor, layout: Layout) -> torch.Tensor | None:
        """BERT's pooler, where there is one, on the first real token of each row: (B, L, D) -> (B, D)."""
        if self.pooler is None:
            return None
        if layout.real is not None:
            index = layout.real.to(hidden_states.device).int().argmax(dim=-1)[:, None, None]  # (B, 1, 1)
            hidden_states = hidden_states.gather(1, index.expand(-1, -1, hidden_states.shape[-1]))  # (B, 1, D)
        return self.pooler(hidden_states)


@dataclass
class FixedHeadBertForPreTrainingOutput(BertForPreTrainingOutput):
    """BERT's output, and after it the two means whose sum is the loss."""

    masked_lm_loss: torch.Tensor | None = None
    next_sentence_loss: torch.Tensor | None = None


class FixedHeadBertForPreTraining(FixedHeadBertPreTrainedModel, BertForPreTraining):
    """
    Masked-LM and next-sentence heads, as in BERT's pretraining. `labels` (B, L): token ids where a token was masked,
    -100 elsewhere; `labelled` (N): their places in the flat batch, if these are known. `next_sentence_label` (B): 0
    where the second segment continues the first, 1 where it is random. The losses are means over labels and over rows,
    and are returned when both kinds of labels are given.
    """

    _tp_plan = SPLIT_PREDICTIONS

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = BertPreTrainingHeads(config)
        self.sparse_prediction = config.sparse_prediction
        self.post_init()

    @forward_like(BertForPreTraining)
    def forward(self, attention_mask=None, labels=None, next_sentence_label=None, labelled=None, **inputs):
        sparse = self.sparse_prediction and labels is not None and next_sentence_label is not None
        wanted = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, last_layer_at=wanted, return_dict=True, **inputs)
        next_sentence = self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)
        head, hidden_states = self.cls.predictions, outputs.last_hidden_state
        logits, labels = self.predict(head, hidden_states, labels, attention_mask, sparse, labelled)
        loss = masked_lm_loss = next_sentence_loss = None
        if labels is not None and next_sentence_label is not None:
            masked_lm_loss = token_loss(logits, labels)
            next_sentence_loss = mean_loss(next_sentence, next_sentence_label.view(-1))
            loss = masked_lm_loss + next_sentence_loss
        return FixedHeadBertForPreTrainingOutput(
            loss,
            logits,
            next_sentence,
            outputs.hidden_states,
            outputs.attentions,
            masked_lm_loss=masked_lm_loss,
            next_sentence_loss=next_sentence_loss,
        )


class FixedHeadBertForMaskedLM(FixedHeadBertPreTrainedModel, BertForMaskedLM):
    """
    Masked-LM head. `labels` (B, L): token ids where a token was masked, -100 elsewhere; `labelled` (N): their places
    in the flat batch, if these are known. The loss is a mean over labelled tokens: of a whole step where Trainer says
    how many it has.
    """

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

    @forward_like(BertForMaskedLM)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, labelled=None, **inputs):
        sparse = self.sparse_prediction and labels is not None
        wanted = labels != -100 if sparse else None
        outputs = self.bert(attention_mask=attention_mask, last_layer_at=wanted, return_dict=True, **inputs)
        hidden_states = outputs.last_hidden_state
        logits, labels = self.predict(self.cls, hidden_states, labels, attention_mask, sparse, labelled)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertLMHeadModel(FixedHeadBertPreTrainedModel, BertLMHeadModel, GenerationMixin):
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
        self.cls = BertOnlyMLMHead(config)
        self.post_init()

    @forward_like(BertLMHeadModel)
    def forward(
        self, attention_mask=None, labels=None, shift_labels=None, num_items_in_batch=None, logits_to_keep=0, **inputs
    ):
        if labels is not None:
            inputs["use_cache"] = False
        outputs = self.bert(attention_mask=attention_mask, return_dict=True, **inputs)
        kept = tokens_to_keep(outputs.last_hidden_state, logits_to_keep)
        logits = self.logits_of_tokens(self.cls, kept, attention_mask)
        loss = None
        if labels is not None:
            at = (logits, attention_mask, logits.shape[-1])
            if shift_labels is None:
                shift_labels = pad(labels_of_tokens(labels, *at)[:, 1:], (0, 1), value=-100)
            shift_labels = labels_of_tokens(shift_labels, *at)  # nothing is predicted from padding either
            loss = token_loss(logits.float(), shift_labels, num_items_in_batch)  # as transformers computes it
        return CausalLMOutputWithCrossAttentions(
            loss, logits, outputs.past_key_values, outputs.hidden_states, outputs.attentions, outputs.cross_attentions
        )

    def init_continuous_batching(self, *args, **kwargs):
        """transformers' own, whose cache has one shape for all layers, and keys and values for every head."""
        self.check_equal_layers("Continuous batching")
        if self.config.head_embedding is not None:
            raise ValueError("Continuous batching does not know heads that share keys and values: use generate().")
        return super().init_continuous_batching(*args, **kwargs)


class FixedHeadBertForNextSentencePrediction(FixedHeadBertPreTrainedModel, BertForNextSentencePrediction):
    """`labels` (B): 0 where the second segment continues the first, 1 where it is random."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.cls = BertOnlyNSPHead(config)
        self.post_init()

    @forward_like(BertForNextSentencePrediction)
    def forward(self, labels=None, **inputs):
        outputs = self.bert(last_layer_at="pooled", return_dict=True, **inputs)
        logits = self.cls(outputs.pooler_output)  # (B, 2)
        loss = None if labels is None else mean_loss(logits, labels.view(-1))
        return NextSentencePredictorOutput(loss, logits, outputs.hidden_states, outputs.attentions)


def classifier_dropout(config: FixedHeadBertConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


def classifier(config: FixedHeadBertConfig) -> nn.Linear:
    """D -> num_labels"""
    assert config.num_labels is not None  # transformers counts the labels as it builds a configuration
    return nn.Linear(config.hidden_size, config.num_labels)


class FixedHeadBertForSequenceClassification(FixedHeadBertPreTrainedModel, BertForSequenceClassification):
    """`labels` (B): a class for every row, -100 for none; or scores, or several classes, by `config.problem_type`."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = classifier(config)
        self.post_init()

    @forward_like(BertForSequenceClassification)
    def forward(self, labels=None, **inputs):
        outputs = self.bert(last_layer_at="pooled", return_dict=True, **inputs)
        logits = self.classifier(self.dropout(outputs.pooler_output))  # (B, num_labels)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            if self.config.problem_type == "single_label_classification":
                loss = mean_loss(logits, labels.view(-1))
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertForMultipleChoice(FixedHeadBertPreTrainedModel, BertForMultipleChoice):
    """Inputs (B, choices, L), and in `labels` (B) which of the choices is right."""

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.bert = FixedHeadBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @forward_like(BertForMultipleChoice)
    def forward(self, labels=None, **inputs):
        choices = ids_or_embeddings(inputs).shape[1]
        outputs = self.bert(last_layer_at="pooled", return_dict=True, **rows_of_choices(inputs))
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, choices)
        loss = None if labels is None else mean_loss(logits, labels.view(-1))
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertForTokenClassification(FixedHeadBertPreTrainedModel, BertForTokenClassification):
    """`labels` (B, L): a class for every token, -100 for none. The loss is a mean as FixedHeadBertForMaskedLM's."""

    accepts_loss_kwargs = True

    def __init__(self, config: FixedHeadBertConfig):
        FixedHeadBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = FixedHeadBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = classifier(config)
        self.post_init()

    @forward_like(BertForTokenClassification)
    def forward(self, attention_mask=None, labels=None, num_items_in_batch=None, **inputs):
        outputs = self.bert(attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))  # (B, L, num_labels)
        loss = None
        if labels is not None:
            labels = labels_of_tokens(labels, logits, attention_mask, logits.shape[-1])
            loss = token_loss(logits, labels, num_items_in_batch)
        logits = zero_where(self.padding(attention_mask), logits)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class FixedHeadBertForQuestionAnswering(FixedHeadBertPreTrainedModel, BertForQuestionAnswering):
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

    @forward_like(BertForQuestionAnswering)
    def forward(self, attention_mask=None, start_positions=None, end_positions=None, **inputs):
        outputs = self.bert(attention_mask=attention_mask, return_dict=True, **inputs)
        logits, padding = self.qa_outputs(outputs.last_hidden_state), self.padding(attention_mask)  # (B, L, 2), (B, L)
        if padding is not None:
            logits = logits.masked_fill(padding[..., None].to(logits.device), torch.finfo(logits.dtype).min)
        starts, ends = (x.squeeze(-1).contiguous() for x in logits.split(1, dim=-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (answer_loss(starts, start_positions, padding) + answer_loss(ends, end_positions, padding)) / 2
        return QuestionAnsweringModelOutput(loss, starts, ends, outputs.hidden_states, outputs.attentions)


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
