"""The progress bars of commands: none while weights are loaded, and lines instead of moving bars in a log file."""

import sys
from typing import Any

from tqdm.std import tqdm
from transformers.utils import logging


def configure_progress_bars():
    """Hides transformers' bars for loading weights. If stderr is no terminal, all others print a line per 10%."""
    logging.set_tqdm_hook(lambda factory, args, options: factory(*args, **options | {"disable": True}))
    if not sys.stderr.isatty():
        tqdm.display = print_tenth  # type: ignore[assignment, method-assign]
        tqdm.clear = lambda bar, nolock=False: None  # type: ignore[assignment, method-assign]


def print_tenth(bar: Any, msg: str | None = None, pos: int | None = None):
    """Replaces tqdm's method `display`: prints the bar if it has reached another tenth of its total."""
    bar.leave = False  # otherwise, tqdm ends the bar with an empty line
    tenth = 10 * bar.n // bar.total if bar.total else None
    if tenth != getattr(bar, "tenth", None):
        bar.tenth = tenth
        print(bar, file=bar.fp)
