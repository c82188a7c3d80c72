"""fixedbert: BERT with the size of an attention head set free, as a plugin for Hugging Face transformers."""

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from . import modeling_fixed_head_bert
from .configuration_fixed_head_bert import AUTO_MAP, FixedHeadBertConfig
from .conversion import convert, to_bert
from .modeling_fixed_head_bert import (
    FixedHeadBertForMaskedLM,
    FixedHeadBertForMultipleChoice,
    FixedHeadBertForNextSentencePrediction,
    FixedHeadBertForPreTraining,
    FixedHeadBertForQuestionAnswering,
    FixedHeadBertForSequenceClassification,
    FixedHeadBertForTokenClassification,
    FixedHeadBertLMHeadModel,
    FixedHeadBertModel,
    FixedHeadBertPreTrainedModel,
)
from .presets import PRESETS, preset_config

__version__ = "0.1.0"

# exist_ok: a second import, or remote code of the same model type, must do no harm.
AutoConfig.register(FixedHeadBertConfig.model_type, FixedHeadBertConfig, exist_ok=True)
AutoTokenizer.register(FixedHeadBertConfig, BertTokenizer, exist_ok=True)
for auto_class, reference in AUTO_MAP.items():
    if auto_class != "AutoConfig":
        model_class = getattr(modeling_fixed_head_bert, reference.split(".")[1])
        getattr(transformers, auto_class).register(FixedHeadBertConfig, model_class, exist_ok=True)

__all__ = [
    "PRESETS",
    "FixedHeadBertConfig",
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
    "convert",
    "preset_config",
    "to_bert",
]
