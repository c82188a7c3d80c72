"""The papers' tables and figures at any scale, with the controls they lack: `fixedbert study`."""

from .report import report
from .scheduler import study

__all__ = ["report", "study"]
