"""
fixedbert: BERT with a free attention head size, as a plugin for Hugging Face transformers.

The model, and what the command `fixedbert` does as functions: `fixedbert.shrink("runs/reviews", "lighter", ...)`. The
flags of the command are their keywords.
"""

from importlib import import_module
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from .conversion.to_bert import to_bert
from .model import modeling_fixed_head_bert
from .model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .model.modeling_fixed_head_bert import *  # noqa: F403  the model, alone and with each head
from .presets import PRESETS, preset_config

__version__ = "0.1.0"

# Functions by name, with the module that each is in: imported when they are first used, which takes seconds.
COMMANDS = {
    "pretrain": "pretraining.pretrain",
    "fine_tune_glue": "fine_tuning.glue",
    "fine_tune_squad": "fine_tuning.squad",
    "convert": "conversion.convert",
    "shrink": "shrinking.shrink",
    "export": "publishing.export",
    "push": "publishing.push",
    "inspect": "inspection.inspect",
    "plan": "planning",
}

__all__ = ["PRESETS", "FixedHeadBertConfig", "preset_config", "to_bert"]
__all__ += [*COMMANDS, *modeling_fixed_head_bert.__all__]  # noqa: PLE0604  all are strings


def __getattr__(name: str) -> Any:
    if name not in COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{COMMANDS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


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
