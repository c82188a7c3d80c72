# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""Configuration for FixedHeadBert: BERT's configuration with a head size that does not depend on the width."""

from difflib import get_close_matches
from typing import Literal

import transformers
from transformers.utils.versions import require_version

# Remote code imports this file first. The check comes here because the next import fails with older versions.
for requirement in ("transformers>=5.15.0.dev0", "torch>=2.11.0a0"):
    require_version(requirement, "FixedHeadBert needs it: run pip install -U transformers torch.")

from huggingface_hub.dataclasses import strict  # noqa: E402  must follow the check

logger = transformers.utils.logging.get_logger(__name__)
VERSION = "0.1.0"  # of fixedbert

# Keys that transformers stores in config.json although they are not fields.
TRANSFORMERS_KEYS = set(
    "_attn_implementation _commit_hash _from_auto _from_pipeline _name_or_path attn_implementation auto_map dtype "
    "code_revision experts_implementation finetuning_task label_threshold model_max_length model_type name_or_path "
    "num_labels output_attentions per_layer_config quantization_config text_column_names "
    "tokenizer_class torch_dtype trust_remote_code".split()
)

# Maps the suffix of each model class FixedHeadBert... to the Auto classes that load it. Saving a model registers its
# class under the first. To add a task head, add a line here, and add the class to the modeling file and its `__all__`.
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

# Written to config.json, so that a checkpoint loads with its own code files if this package is not installed.
AUTO_MAP = {"AutoConfig": "configuration_fixed_head_bert.FixedHeadBertConfig"} | {
    auto_class: f"modeling_fixed_head_bert.FixedHeadBert{head}"
    for head, auto_classes in HEADS.items()
    for auto_class in auto_classes
}

HEAD_SIZE_NAMES = ("attention_head_size", "head_size", "head_dim")


def check_aliases(arguments: dict):
    """Raises ValueError if `arguments` contain different head sizes under different names."""
    passed = [name for name in HEAD_SIZE_NAMES if name in arguments]
    for alias in passed[1:]:
        if arguments[alias] != arguments[passed[0]]:
            raise ValueError(f"{alias}={arguments[alias]} contradicts {passed[0]}={arguments[passed[0]]}.")


@strict
class FixedHeadBertConfig(transformers.BertConfig):
    r"""
    BERT's configuration with a configurable attention head size, which need not be hidden_size / num_attention_heads.
    Source: "Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020, section 3).

    Args:
        attention_head_size (`int` or `list[int]`, *optional*, defaults to 128):
            Size of each query, key and value head (d_p in the paper), or a list with one size per layer. `None` means
            `hidden_size // num_attention_heads`, as in BERT; only in this case must `num_attention_heads` divide
            `hidden_size`. `head_size` and `head_dim` are aliases. Reading them returns the largest head size of any
            layer.
        value_head_size (`int` or `list[int]`, *optional*):
            Size of each value head, or a list with one size per layer. Defaults to `attention_head_size`.
        layer_attention_heads (`list[int]`, *optional*):
            Number of attention heads in each layer, if layers differ. The largest must equal `num_attention_heads`.
            A layer may have 0 heads, in which case its attention only adds a bias.
        intermediate_size (`int` or `list[int]`, *optional*, defaults to 3072):
            Number of feed-forward neurons, which may be 0, or a list with one number per layer.
        head_embedding (`"add"` or `"mul"`, *optional*):
            Share one projection among all heads and learn an embedding for each head ("Pit One Against Many", Xue and
            Aletras, 2023, arXiv 2310.07911). Queries, keys and values are either shifted by the embedding (`"add"`)
            or multiplied by 1 + embedding (`"mul"`).
        qk_norm (`bool`, *optional*, defaults to `False`):
            Apply RMSNorm with a learned scale to each query and key, before any head embedding. This makes the
            magnitude of the attention scores independent of the head size.
        pooler_hidden_act (`"tanh"`, `"relu"` or `"gelu"`, *optional*, defaults to `"tanh"`):
            Activation function of the pooler. BERT uses tanh, DistilBERT ReLU and ELECTRA GELU.
        unpad_inputs (`bool`, *optional*, defaults to `False`):
            Skip padding tokens, and in the last layer also tokens that the task head does not read. Outputs keep
            their shape and are zero at skipped tokens, except start and end logits, which are set to the dtype's
            minimum. To change this in an existing model, set `model.base_model.unpad_inputs`.
        sparse_prediction (`bool`, *optional*, defaults to `False`):
            Apply the masked-LM head only to labeled tokens if labels are passed. Logits then have the shape
            (labeled tokens, vocab_size), which Trainer's evaluation does not support. To change this in an existing
            model, set `model.sparse_prediction`.

    Raises:
        StrictDataclassError: If a size is too small, a value has the wrong type, or fields contradict each other.
        ValueError: If two aliases have different values, or if `model_type` belongs to a different model.

    Unknown arguments cause a warning. Unknown keys in config.json cause a warning only if they look like typos.

    Example:

    ```python
    >>> from fixedbert import FixedHeadBertConfig, FixedHeadBertModel

    >>> # BERT-base with heads of 128 instead of 64
    >>> config = FixedHeadBertConfig(hidden_size=768, num_attention_heads=12, attention_head_size=128)
    >>> model = FixedHeadBertModel(config)
    >>> model.encoder.layer[0].attention.self.query
    Linear(in_features=768, out_features=1536, bias=True)
    ```
    """

    model_type = "fixed_head_bert"
    _auto_class = "AutoConfig"  # saves this file with the configuration
    keys_to_ignore_at_inference = ["past_key_values", "cache", "masked_lm_loss", "next_sentence_loss"]  # not logits
    base_model_fsdp_plan = {"embeddings.word_embeddings": "free_full_weight", "encoder.layer.*": "free_full_weight"}

    attention_head_size: int | list[int] | None = 128
    value_head_size: int | list[int] | None = None
    layer_attention_heads: list[int] | None = None
    intermediate_size: int | list[int] = 3072  # type: ignore[assignment]  # an int in BERT
    head_embedding: Literal["add", "mul"] | None = None
    qk_norm: bool = False
    pooler_hidden_act: Literal["tanh", "relu", "gelu"] = "tanh"
    unpad_inputs: bool = False
    sparse_prediction: bool = False

    def __new__(cls, **kwargs):
        # After __init__, a head size that equals the default cannot be distinguished from one that was not passed.
        check_aliases(kwargs)
        return super().__new__(cls)

    def __post_init__(self, **kwargs):
        for alias in HEAD_SIZE_NAMES[1:]:
            if alias in kwargs:
                self.attention_head_size = kwargs.pop(alias)
        super().__post_init__(**kwargs)
        if self.model_type not in (type(self).model_type, FixedHeadBertConfig.model_type):  # would get heads of 128
            raise ValueError(
                f"model_type is {self.model_type!r}: convert the model with fixedbert.convert, or omit model_type and "
                "pass attention_head_size to create a new model."
            )
        self.auto_map = AUTO_MAP | (getattr(self, "auto_map", None) or {})
        # A loaded configuration may contain keys from other libraries, so only likely typos are reported.
        unknown = [key for key in kwargs if key in self.__dict__]
        self._warn_unknown(unknown, only_typos=self.transformers_version is not None)

    @classmethod
    def _warn_unknown(cls, keys, only_typos=False):
        for key in sorted(set(keys) - TRANSFORMERS_KEYS):
            near = get_close_matches(key, cls.__dataclass_fields__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if near or not only_typos:
                logger.warning(f"{cls.__name__} has no field {key!r}, so this setting has no effect.{hint}")

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """
        Creates a configuration and warns about unknown keyword arguments, which transformers drops silently. If
        config.json names an attention kernel on the Hub, the name is ignored, because loading the kernel would run
        its code. Callers can still pass a kernel explicitly as `attn_implementation`.
        """
        check_aliases(kwargs)
        attention = ("attn_implementation", "_attn_implementation")
        config_dict = {key: x for key, x in config_dict.items() if not (key in attention and "/" in str(x))}
        if kwargs.pop("return_unused_kwargs", False):
            return super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        config, unused = super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        cls._warn_unknown(unused)
        return config

    @property
    def head_sizes(self) -> list[int]:
        """Query and key head size in each layer."""
        return self.by_layer("attention_head_size", self.hidden_size // self.num_attention_heads)

    @property
    def value_head_sizes(self) -> list[int]:
        """Value head size in each layer."""
        return self.head_sizes if self.value_head_size is None else self.by_layer("value_head_size", 0)

    @property
    def head_counts(self) -> list[int]:
        """Number of attention heads in each layer."""
        return self.by_layer("layer_attention_heads", self.num_attention_heads)

    @property
    def neuron_counts(self) -> list[int]:
        """Number of feed-forward neurons in each layer."""
        return self.by_layer("intermediate_size", 0)

    def by_layer(self, field: str, default: int) -> list[int]:
        """Returns `field`, one number per layer. A single number is repeated, and None selects `default`."""
        value = getattr(self, field)
        if not isinstance(value, list):
            return [default if value is None else value] * self.num_hidden_layers
        if len(value) != self.num_hidden_layers:
            raise ValueError(f"{field} needs {self.num_hidden_layers} numbers, one per layer, not {len(value)}.")
        return list(value)

    @property
    def head_dim(self) -> int:
        """Largest head size of any layer. Transformers' attention kernels read this attribute."""
        return max(self.head_sizes)

    @head_dim.setter
    def head_dim(self, size: int | list[int] | None):
        self.attention_head_size = size

    head_size = head_dim

    @property
    def num_key_value_heads(self) -> int:
        """Number of key and value heads, which follows from the other fields: 1 if all heads share one projection."""
        return self.num_attention_heads if self.head_embedding is None else 1

    @num_key_value_heads.setter
    def num_key_value_heads(self, number: int | None):
        if number not in (None, self.num_key_value_heads):
            raise ValueError(
                f"num_key_value_heads must be {self.num_key_value_heads}, not {number}: it follows from "
                "num_attention_heads and head_embedding."
            )

    def validate_architecture(self):
        """Validates sizes and combinations of fields. `strict` calls this method after construction."""
        for field in (
            "num_hidden_layers vocab_size hidden_size num_attention_heads intermediate_size max_position_embeddings "
            "type_vocab_size attention_head_size value_head_size layer_attention_heads"
        ).split():
            minimum = 0 if field in ("intermediate_size", "layer_attention_heads") else 1
            if min(self.by_layer(field, 1), default=-1) < minimum:  # -1 if num_hidden_layers is 0
                raise ValueError(f"{field} must be at least {minimum}, not {getattr(self, field)}.")
        if self.attention_head_size is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}: "
                "pass attention_head_size."
            )
        if max(self.head_counts) not in (0, self.num_attention_heads):
            raise ValueError(
                f"layer_attention_heads is {self.layer_attention_heads}: the largest number must equal "
                f"num_attention_heads ({self.num_attention_heads}), or all must be 0."
            )
        if self.is_decoder and 0 in self.head_counts:  # a cache cannot represent a layer without heads
            raise ValueError(f"layer_attention_heads is {self.layer_attention_heads}: all decoder layers need heads.")
        if self.add_cross_attention:
            raise ValueError("add_cross_attention must be False: FixedHeadBert does not support cross-attention.")
        super().validate_architecture()


__all__ = ["FixedHeadBertConfig"]
