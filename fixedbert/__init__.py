"""fixedbert: BERT with a free attention head size, as a plugin for Hugging Face transformers."""

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from .conversion.growing import convert
from .conversion.to_bert import to_bert
from .model import modeling_fixed_head_bert
from .model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .model.modeling_fixed_head_bert import *  # noqa: F403  the model, alone and with each head
from .presets import PRESETS, preset_config

__version__ = "0.1.0"

__all__ = ["PRESETS", "FixedHeadBertConfig", "convert", "preset_config", "to_bert"]
__all__ += modeling_fixed_head_bert.__all__


def register():
    """
    Register the classes with transformers' Auto classes, for as long as the process runs.

    Raises:
        ImportError: the model has no class for a head of HEADS.
    """
    # exist_ok: a second import, or remote code of the same model type, must do no harm.
    AutoConfig.register(FixedHeadBertConfig.model_type, FixedHeadBertConfig, exist_ok=True)
    AutoTokenizer.register(FixedHeadBertConfig, BertTokenizer, exist_ok=True)
    for head, auto_classes in HEADS.items():
        name = f"FixedHeadBert{head}"
        if name not in modeling_fixed_head_bert.__all__:
            raise ImportError(f"HEADS has {head}: add a class {name} to modeling_fixed_head_bert.py and its __all__.")
        model_class = getattr(modeling_fixed_head_bert, name)
        for auto_class in auto_classes:
            getattr(transformers, auto_class).register(FixedHeadBertConfig, model_class, exist_ok=True)


register()
