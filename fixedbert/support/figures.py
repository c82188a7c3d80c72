"""Figures of matplotlib in the one style of fixedbert, figures.mplstyle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from .errors import InputError, require_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches of a page's text, 740 pixels of 1/96: in a figure as wide as this, a letter is as large as the style says.
PAGE = 7.7
logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")


def style() -> AbstractContextManager[None]:
    """A context in which figures are drawn and saved in the style; outside of it the user's settings stay."""
    import matplotlib.style

    return matplotlib.style.context(Path(__file__).with_suffix(".mplstyle"))


@contextmanager
def new_figure(width: float, height: float, file: str | Path) -> Iterator[Figure]:
    """A figure in the style, in inches, which is saved to `file` at the end."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width, height))
        yield figure
        figure.savefig(file)


def skip_without_matplotlib(draw: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """`draw`, or a warning where matplotlib is not installed: a run goes on without its picture."""

    @wraps(draw)
    def draw_or_warn(*args: Arguments.args, **kwargs: Arguments.kwargs):
        try:
            require_package("matplotlib", "plots")
        except InputError as error:
            logger.warning("no picture: %s", error)
        else:
            draw(*args, **kwargs)

    return draw_or_warn
