"""What lies beside the package in a checkout, and in no wheel."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def experiment(name: str) -> ModuleType | None:
    """The module `name` of experiments/, such as head_size.theory; None where this is no checkout."""
    if not (ROOT / "experiments").is_dir():
        return None
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return import_module(f"experiments.{name}")
