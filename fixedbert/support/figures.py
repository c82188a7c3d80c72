"""Matplotlib figures in fixedbert's style, which figures.mplstyle defines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = 7.7  # width of a documentation page in inches; the font size is chosen for it


@contextmanager
def new_figure(width: float, height: float, file: str | Path) -> Iterator[Figure]:
    """Context manager that yields a new figure of the given size in inches and saves it to `file` at the end."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(Path(__file__).with_suffix(".mplstyle")):
        figure = Figure(figsize=(width, height))
        yield figure
        figure.savefig(file)


def skip_without_matplotlib(draw: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a function that draws a figure. Without matplotlib, the function only logs a warning."""

    @wraps(draw)
    def draw_or_warn(*args, **kwargs):
        if find_spec("matplotlib") is None:
            logging.getLogger(__name__).warning("matplotlib is not installed, so no figure is drawn")
        else:
            draw(*args, **kwargs)

    return draw_or_warn
