# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""Configuration of FixedHeadBert: BERT's, with a head size that does not depend on the width."""

import copy
from difflib import get_close_matches

import torch
import transformers

# Of a checkpoint's code this file runs first. Older versions lack what it imports next.
if any(
    [*map(int, library.__version__.split(".")[:2])] < oldest
    for library, oldest in ((transformers, [5, 15]), (torch, [2, 11]))
):
    raise ImportError(
        "FixedHeadBert needs transformers 5.15 or later and torch 2.11 or later; installed are transformers "
        f"{transformers.__version__} and torch {torch.__version__}: run pip install -U transformers torch."
    )

from huggingface_hub.dataclasses import strict

logger = transformers.utils.logging.get_logger(__name__)

# Keys that transformers, or fine-tuning (labels_are_names), gives to a configuration although they are not fields.
TRANSFORMERS_KEYS = set(
    "_attn_implementation _commit_hash _from_auto _from_pipeline _name_or_path attn_implementation auto_map dtype "
    "code_revision experts_implementation labels_are_names model_max_length model_type name_or_path num_labels "
    "output_attentions per_layer_config quantization_config tokenizer_class torch_dtype trust_remote_code".split()
)

# The model alone and with each head: what follows "FixedHeadBert" in the name of the class, and the Auto classes that
# open it, its own first. A new head is a line here, and a class and a name of __all__ in modeling_fixed_head_bert.py.
HEADS = {
    "Model": ("AutoModel", "AutoModelForTextEncoding"),
    "ForPreTraining": ("AutoModelForPreTraining",),
    "ForMaskedLM": ("AutoModelForMaskedLM",),
    "LMHeadModel": ("AutoModelForCausalLM",),
    "ForNextSentencePrediction": ("AutoModelForNextSentencePrediction",),
    "ForSequenceClassification": ("AutoModelForSequenceClassification",),
    "ForMultipleChoice": ("AutoModelForMultipleChoice",),
    "ForTokenClassification": ("AutoModelForTokenClassification",),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering",),
}

# In every config.json: a checkpoint opens by its own files of code where this package is not installed.
AUTO_MAP = {"AutoConfig": "configuration_fixed_head_bert.FixedHeadBertConfig"} | {
    auto_class: f"modeling_fixed_head_bert.FixedHeadBert{head}"
    for head, auto_classes in HEADS.items()
    for auto_class in auto_classes
}


@strict
class FixedHeadBertConfig(transformers.BertConfig):
    r"""
    BERT's configuration and the size of an attention head, which BERT computes as hidden_size / num_attention_heads
    and which "Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, section 3) sets free.

    Args:
        attention_head_size (`int` or `list[int]`, *optional*, defaults to 128):
            Size of each query, key and value head, d_p in the paper; a list has one for each layer. The number of
            heads need not divide `hidden_size`. `None` is the prevalent heuristic, `hidden_size //
            num_attention_heads`: stock BERT; only then must the division be exact. `head_size` and `head_dim` are
            aliases; reading one gives the effective size, the largest if layers differ.
        value_head_size (`int` or `list[int]`, *optional*):
            Size of each value head where it differs from `attention_head_size`; a list has one for each layer.
        layer_attention_heads (`list[int]`, *optional*):
            Number of heads of each layer, the largest of which is `num_attention_heads`. `None`: the same in all. A
            layer may have none: of its attention a bias is left.
        intermediate_size (`int` or `list[int]`, *optional*, defaults to 3072):
            Neurons of the feed-forward network; a list has one number for each layer, which may be 0.
        head_embedding (`"add"` or `"mul"`, *optional*):
            One projection that all heads share, and an embedding for each head, as in "Pit One Against Many" (Xue and
            Aletras, 2023, arXiv 2310.07911): added to queries, keys and values, or multiplied as 1 + embedding.
        qk_norm (`bool`, *optional*, defaults to `False`):
            Normalise every projected query and key (RMSNorm with a learned scale, before any head embedding): the
            size of a head then no longer sets the temperature of its softmax.
        pooler_hidden_act (`"tanh"`, `"relu"` or `"gelu"`, *optional*, defaults to `"tanh"`):
            Activation of the pooler: BERT's, DistilBERT's or ELECTRA's.
        unpad_inputs (`bool`, *optional*, defaults to `False`):
            Compute real tokens only, and in the last layer only what the head reads. Outputs keep their shape, with
            zeros at padding (start and end logits of answers: the lowest number). Read when a model is built;
            afterwards, set `model.base_model.unpad_inputs`.
        sparse_prediction (`bool`, *optional*, defaults to `False`):
            With labels, compute the masked-LM head only where there is one: logits (labelled tokens, vocab_size),
            which Trainer's own evaluation does not expect. In a built model, set `model.sparse_prediction`.

    Raises:
        StrictDataclassError: a size or a count that is too small, a value of the wrong type, or heads that do not
            divide the width without `attention_head_size`.
        ValueError: fields that contradict each other, or those of another type of model.

    An unknown argument is kept, as transformers does, with a warning; of a file's keys only a misspelt one is said.
    """

    model_type = "fixed_head_bert"
    _auto_class = "AutoConfig"  # its file is saved along
    keys_to_ignore_at_inference = ["past_key_values", "masked_lm_loss", "next_sentence_loss"]  # no logits to evaluate
    base_model_fsdp_plan = {"embeddings.word_embeddings": "free_full_weight", "encoder.layer.*": "free_full_weight"}
    base_model_tp_plan = {
        "embeddings.word_embeddings": "embedding_rowwise",
        "encoder.layer.*.attention.self.query": "colwise",
        "encoder.layer.*.attention.self.key": "colwise",
        "encoder.layer.*.attention.self.value": "colwise",
        "encoder.layer.*.attention.output.dense": "rowwise",
        "encoder.layer.*.intermediate.dense": "colwise",
        "encoder.layer.*.output.dense": "rowwise",
    }

    attention_head_size: int | list[int] | None = 128
    value_head_size: int | list[int] | None = None
    layer_attention_heads: list[int] | None = None
    intermediate_size: int | list[int] = 3072  # type: ignore[assignment]  # BERT's is an int
    head_embedding: str | None = None
    qk_norm: bool = False
    pooler_hidden_act: str = "tanh"
    unpad_inputs: bool = False
    sparse_prediction: bool = False

    def __post_init__(self, **kwargs):
        for alias in kwargs.keys() & {"head_size", "head_dim"}:
            size, default = kwargs.pop(alias), type(self).attention_head_size
            if self.attention_head_size not in (default, size):
                raise ValueError(f"{alias}={size} and attention_head_size={self.attention_head_size} disagree.")
            self.attention_head_size = size
        if self.qk_norm:  # every process normalises its own heads with the same scale
            norms = ("encoder.layer.*.attention.self.q_norm", "encoder.layer.*.attention.self.k_norm")
            plan = self.base_model_tp_plan | dict.fromkeys(norms, "replicated_with_grad_allreduce")
            self.__dict__["base_model_tp_plan"] = plan
        super().__post_init__(**kwargs)
        if self.model_type not in (type(self).model_type, FixedHeadBertConfig.model_type):  # heads are not of 128
            raise ValueError(
                f"model_type {self.model_type!r}: fixedbert.convert makes a FixedHeadBert of such a model; for a new "
                "one leave model_type out and give attention_head_size."
            )
        self.auto_map = AUTO_MAP | (getattr(self, "auto_map", None) or {})
        # What __init__ left to kwargs and transformers stored as an attribute: in a file others may keep their own.
        unknown = [key for key in kwargs if key in self.__dict__]
        self._warn_of_unknown(unknown, always=self.transformers_version is None)

    def __repr__(self) -> str:
        """transformers' own, without `auto_map`, which is the same in all."""
        shown = copy.copy(self)
        vars(shown).pop("auto_map", None)
        return super(FixedHeadBertConfig, shown).__repr__()

    @classmethod
    def _warn_of_unknown(cls, keys, always=True):
        for key in sorted(set(keys) - TRANSFORMERS_KEYS):
            near = get_close_matches(key, cls.__dataclass_fields__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if near or always:
                logger.warning(f"{cls.__name__} has no field {key!r}: it has no effect.{hint}")

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """
        transformers' own, which drops unknown keyword arguments of `from_pretrained` without a word, and runs the
        attention kernel on the Hub that a config.json names: here only the caller can name one.
        """
        attention = ("attn_implementation", "_attn_implementation")
        config_dict = {key: x for key, x in config_dict.items() if not (key in attention and "/" in str(x))}
        if kwargs.pop("return_unused_kwargs", False):
            return super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        config, unused = super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        cls._warn_of_unknown(unused)
        return config

    @property
    def head_sizes(self) -> list[int]:
        """The size of queries and keys in force in each layer."""
        return self.by_layer("attention_head_size", self.hidden_size // self.num_attention_heads)

    @property
    def value_head_sizes(self) -> list[int]:
        """The size of values in force in each layer."""
        return self.head_sizes if self.value_head_size is None else self.by_layer("value_head_size", 0)

    @property
    def head_counts(self) -> list[int]:
        """The number of heads in force in each layer."""
        return self.by_layer("layer_attention_heads", self.num_attention_heads)

    @property
    def neuron_counts(self) -> list[int]:
        """The number of neurons in force in each layer."""
        return self.by_layer("intermediate_size", 0)

    def by_layer(self, field: str, default: int) -> list[int]:
        """The value of `field` in each layer: a list has them all, a number is for all, None means `default`."""
        value = getattr(self, field)
        if not isinstance(value, list):
            return [default if value is None else value] * self.num_hidden_layers
        if len(value) != self.num_hidden_layers:
            raise ValueError(f"{field} has {len(value)} values for {self.num_hidden_layers} layers; give each one.")
        return list(value)

    @property
    def head_dim(self) -> int:
        """The largest head size. Attention kernels of transformers look for it under this name."""
        return max(self.head_sizes)

    @head_dim.setter
    def head_dim(self, size: int | list[int] | None):
        self.attention_head_size = size

    head_size = head_dim

    @property
    def num_key_value_heads(self) -> int:
        """Heads of keys and values that are computed and cached. A config.json may have their true number too."""
        return self.num_attention_heads if self.head_embedding is None else 1

    @num_key_value_heads.setter
    def num_key_value_heads(self, number: int | None):
        if number not in (None, self.num_key_value_heads):
            raise ValueError(f"num_key_value_heads is {self.num_key_value_heads}, not {number}: leave it out.")

    @property
    def per_layer_config(self) -> list["FixedHeadBertConfig"]:
        """A configuration for each layer: transformers reads from it the shapes of keys and values in a cache."""
        layers = []
        for heads, size, value_size in zip(self.head_counts, self.head_sizes, self.value_head_sizes, strict=True):
            layer = copy.copy(self)
            vars(layer).update(num_attention_heads=heads, layer_attention_heads=None)
            vars(layer).update(attention_head_size=size, value_head_size=value_size)
            vars(layer).update(qk_head_dim=None if size == value_size else size)  # where given, there is no static one
            layers.append(layer)
        return layers

    @per_layer_config.setter
    def per_layer_config(self, fields: dict | None):
        raise AttributeError("per_layer_config follows from the other fields: give attention_head_size, ... as lists.")

    def validate_architecture(self):
        """Called by `strict` after construction."""
        for field in (
            "num_hidden_layers vocab_size hidden_size num_attention_heads intermediate_size max_position_embeddings "
            "type_vocab_size attention_head_size value_head_size layer_attention_heads"
        ).split():
            least = 0 if field in ("intermediate_size", "layer_attention_heads") else 1
            if min(self.by_layer(field, 1), default=-1) < least:  # by layer, as there is none where that number is 0
                raise ValueError(f"{field} must be at least {least}, not {getattr(self, field)}.")
        if self.attention_head_size is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}: "
                "give attention_head_size."
            )
        if max(self.head_counts) not in (0, self.num_attention_heads):
            raise ValueError(
                f"layer_attention_heads {self.layer_attention_heads}: the largest must be num_attention_heads, which "
                f"is {self.num_attention_heads}, or all 0."
            )
        if self.is_decoder and 0 in self.head_counts:  # whose keys a cache would count
            raise ValueError(f"layer_attention_heads {self.layer_attention_heads}: a decoder needs some in each.")
        if self.head_embedding not in (None, "add", "mul"):
            raise ValueError(f'head_embedding must be None, "add" or "mul", not {self.head_embedding!r}.')
        if self.pooler_hidden_act not in ("tanh", "relu", "gelu"):
            raise ValueError(f'pooler_hidden_act must be "tanh", "relu" or "gelu", not {self.pooler_hidden_act!r}.')
        super().validate_architecture()


__all__ = ["FixedHeadBertConfig"]
