"""
fixedbert: BERT with a free attention head size, as a plugin for Hugging Face transformers.

The model, and what the command `fixedbert` does as functions: `fixedbert.shrink("runs/reviews", "lighter", ...)`. The
flags of the command are their keywords.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from .conversion.to_bert import to_bert
from .model import modeling_fixed_head_bert
from .model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from .model.modeling_fixed_head_bert import *  # noqa: F403  the model, alone and with each head
from .presets import PRESETS, preset_config
from .support.errors import InputError

if TYPE_CHECKING:
    from .comparison.compare import SideBySide as SideBySide
    from .comparison.compare import compare as compare
    from .conversion.convert import convert as convert
    from .fine_tuning.glue import fine_tune_glue as fine_tune_glue
    from .fine_tuning.squad import fine_tune_squad as fine_tune_squad
    from .inspection.inspect import inspect as inspect
    from .inspection.results import Inspection as Inspection
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .pretraining.pretrain import pretrain as pretrain
    from .publishing.export import export as export
    from .publishing.push import push as push
    from .shrinking.report import Shrinking as Shrinking
    from .shrinking.shrink import shrink as shrink
    from .training.results import Trained as Trained

__version__ = "0.1.0"

# Functions by name, with the module that each is in: imported when they are first used, which takes seconds.
COMMANDS = {
    "pretrain": "pretraining.pretrain",
    "fine_tune_glue": "fine_tuning.glue",
    "fine_tune_squad": "fine_tuning.squad",
    "convert": "conversion.convert",
    "shrink": "shrinking.shrink",
    "compare": "comparison.compare",
    "export": "publishing.export",
    "push": "publishing.push",
    "inspect": "inspection.inspect",
    "plan": "planning",
}
# What they return.
RESULTS = {
    "Trained": "training.results",
    "Shrinking": "shrinking.report",
    "SideBySide": "comparison.compare",
    "Inspection": "inspection.results",
    "Plan": "planning",
}

# Without the functions: `from fixedbert import *` would take the seconds, and the place of the standard `inspect`.
__all__ = ["PRESETS", "FixedHeadBertConfig", "InputError", "preset_config", "to_bert"]
__all__ += modeling_fixed_head_bert.__all__

if not TYPE_CHECKING:  # for type checkers the names above are all there are

    def __getattr__(name: str) -> Any:
        module = COMMANDS.get(name) or RESULTS.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *COMMANDS, *RESULTS, "__version__"])


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
