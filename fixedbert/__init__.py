"""
BERT with a configurable attention head size, as a plugin for Hugging Face transformers.

Importing this package registers the model with transformers' Auto classes. Each `fixedbert` command is also a function
that takes the command's options as keyword arguments: `fixedbert.shrink("runs/reviews", "lighter", speedup=2)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from .conversion.to_bert import to_bert
from .model import modeling_fixed_head_bert
from .model.configuration_fixed_head_bert import HEADS, VERSION, FixedHeadBertConfig
from .model.modeling_fixed_head_bert import *  # noqa: F403
from .presets import PRESETS, preset_config
from .support.errors import InputError

if TYPE_CHECKING:
    from .comparison.compare import compare as compare
    from .comparison.report import Comparison as Comparison
    from .conversion.convert import convert as convert
    from .exporting.export import export as export
    from .fine_tuning.glue import fine_tune_glue as fine_tune_glue
    from .fine_tuning.squad import fine_tune_squad as fine_tune_squad
    from .inspection.inspect import inspect as inspect
    from .inspection.results import Inspection as Inspection
    from .pretraining.pretrain import pretrain as pretrain
    from .publishing.push import push as push
    from .shrinking.report import ShrinkResult as ShrinkResult
    from .shrinking.shrink import shrink as shrink
    from .tasks.glue_metrics import GlueMetric as GlueMetric
    from .tasks.squad_metrics import SquadMetric as SquadMetric
    from .training.output import Trained as Trained

__version__ = VERSION

# Functions and classes, and their modules, which are imported on first use because importing takes seconds.
LAZY = {
    "pretrain": "pretraining.pretrain",
    "fine_tune_glue": "fine_tuning.glue",
    "fine_tune_squad": "fine_tuning.squad",
    "convert": "conversion.convert",
    "shrink": "shrinking.shrink",
    "compare": "comparison.compare",
    "export": "exporting.export",
    "push": "publishing.push",
    "inspect": "inspection.inspect",
    "GlueMetric": "tasks.glue_metrics",
    "SquadMetric": "tasks.squad_metrics",
    "Trained": "training.output",
    "ShrinkResult": "shrinking.report",
    "Comparison": "comparison.report",
    "Inspection": "inspection.results",
}

# Excludes LAZY, so that `from fixedbert import *` is fast and does not shadow the standard library's `inspect`.
__all__ = ["PRESETS", "FixedHeadBertConfig", "InputError", "preset_config", "to_bert"]
__all__ += modeling_fixed_head_bert.__all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *LAZY, "__version__", "register"])


def register():
    """Registers the model classes with transformers' Auto classes."""
    # exist_ok, because the package can be imported twice, and remote code registers the same model type.
    AutoConfig.register(FixedHeadBertConfig.model_type, FixedHeadBertConfig, exist_ok=True)
    AutoTokenizer.register(FixedHeadBertConfig, BertTokenizer, exist_ok=True)
    for head, auto_classes in HEADS.items():
        model_class = getattr(modeling_fixed_head_bert, f"FixedHeadBert{head}")
        for auto_class in auto_classes:
            getattr(transformers, auto_class).register(FixedHeadBertConfig, model_class, exist_ok=True)


register()
