"""inspection.png: what `inspect` finds, as a picture."""

from pathlib import Path
from textwrap import fill

from ..support.figures import new_figure
from .results import PANELS, Inspection, limits


def draw(inspection: Inspection, file: Path):
    """A page of heat maps, layers x heads, and the condition numbers by layer."""
    from matplotlib.ticker import MaxNLocator

    layers = range(inspection.layers)
    with new_figure(12, 3.2 + 0.45 * inspection.layers * 2, file) as figure:
        *maps, condition = figure.subplots(2, 3).flat
        for panel, (name, title) in zip(maps, PANELS.items(), strict=True):
            low, high = limits(name, [inspection])
            image = panel.imshow(getattr(inspection, name).numpy(), aspect="auto", cmap="viridis", vmin=low, vmax=high)
            panel.set(xlabel="head", ylabel="layer", yticks=layers)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_title(title, fontsize="small")
            figure.colorbar(image, ax=panel)
        condition.barh(layers, inspection.condition.numpy(), color="C0")
        condition.set(xlabel="condition number", ylabel="layer", xscale="log", xlim=(1, None), yticks=layers)
        condition.invert_yaxis()
        condition.set_title("output of all heads (1: all directions alike)", fontsize="small")
        figure.suptitle(fill(f"{Path(inspection.model).name}: {inspection.summary}. {inspection.uniform}", 130))
