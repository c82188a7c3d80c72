"""Matplotlib figures in fixedbert's style, which figures.mplstyle defines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
