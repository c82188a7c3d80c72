"""Renders the results of `inspect` as inspection.html, a self-contained interactive page, and inspection.png."""

import json
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template
from textwrap import fill

import torch

from ..support.figures import PAGE, new_figure
from .results import MAPS, Example, Inspection, json_fields, limits

FULL = 255  # the byte that represents an attention weight of 1 on the page


def inspection_html(inspection: Inspection) -> str:
    """Returns the HTML page that shows an inspection."""
    return Template(page_file("page.html")).substitute(
        title=escape(f"Heads of {Path(inspection.model).name or inspection.model}"),
        style=page_file("page.css"),
        about=escape(f"{inspection.model}: {inspection.summary}."),
        # Without `<`, the data cannot end the script element that contains it.
        data=json.dumps(page_data(inspection), allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"),
        script=page_file("page.js"),
    )


def page_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def page_data(inspection: Inspection) -> dict[str, object]:
    """Returns the data for page.js: the color scales, the measures and the examples."""
    return {
        "full": FULL,
        "maps": [{"name": name, "title": title, "limits": limits(name, inspection)} for name, title in MAPS.items()],
        "checkpoint": {name: rounded(value) for name, value in json_fields(inspection).items()}
        | {"examples": [example_data(example) for example in inspection.examples]},
    }


def example_data(example: Example) -> dict[str, object]:
    weights = torch.cat([layer.flatten() for layer in example.attention])  # ordered by layer, head, query, key
    return {
        "sentence": example.sentence,
        "tokens": example.tokens,
        "attention": b64encode((weights * FULL).round().to(torch.uint8).numpy().tobytes()).decode(),
        "changes": [rounded(layer.tolist(), digits=3) for layer in example.changes],
    }


def rounded(value: object, digits: int = 4) -> object:
    """Rounds a float, or all floats in nested lists, to `digits` significant digits."""
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def draw_maps(inspection: Inspection, file: Path):
    """Plots a heat map (layers, heads) for each measure in MAPS, and a bar chart of the layers' condition numbers."""
    from matplotlib.ticker import MaxNLocator

    layers = range(inspection.layers)
    with new_figure(PAGE, 3 * (1.2 + 0.2 * inspection.layers), file) as figure:
        *maps, condition = figure.subplots(3, 2).flat
        for axes, (name, title) in zip(maps, MAPS.items(), strict=True):
            low, high = limits(name, inspection)
            image = axes.imshow(getattr(inspection, name).numpy(), aspect="auto", cmap="viridis", vmin=low, vmax=high)
            axes.set(xlabel="head", ylabel="layer", yticks=layers)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_title(title, fontsize="small")
            figure.colorbar(image, ax=axes)
        condition.barh(layers, inspection.condition_number.numpy(), color="C0")
        condition.set(xlabel="1: all directions equal", ylabel="layer", xscale="log", xlim=(1, None), yticks=layers)
        condition.invert_yaxis()
        condition.set_title("condition number of the concatenated heads", fontsize="small")
        figure.suptitle(fill(f"{Path(inspection.model).name}: {inspection.summary}", 90))
