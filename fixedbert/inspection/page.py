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


def inspection_html(inspections: list[Inspection]) -> str:
    """Returns the HTML page that shows one inspection, or two inspections side by side."""
    names = names_of(inspections)
    about = [f"{name}: {inspection.summary}." for name, inspection in zip(names, inspections, strict=True)]
    return Template(page_file("page.html")).substitute(
        title=escape(f"Heads of {' and '.join(names)}"),
        style=page_file("page.css"),
        about="\n".join(f"<p>{escape(line)}</p>" for line in about),
        # Without `<`, the data cannot end the script element that contains it.
        data=json.dumps(page_data(inspections), allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"),
        script=page_file("page.js"),
    )


def page_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def names_of(inspections: list[Inspection]) -> list[str]:
    """Returns the last component of each model's path or Hub id, or the complete names if two of them are equal."""
    names = [Path(inspection.model).name or inspection.model for inspection in inspections]
    return names if len({*names}) == len(names) else [inspection.model for inspection in inspections]


def page_data(inspections: list[Inspection]) -> dict[str, object]:
    """Returns the data for page.js: the color scales, and the measures and examples for each checkpoint."""
    return {
        "full": FULL,
        "maps": [{"name": name, "title": title, "limits": limits(name, inspections)} for name, title in MAPS.items()],
        "checkpoints": [
            {
                **{name: rounded(value) for name, value in json_fields(inspection).items()},
                "name": name,
                "examples": [example_data(example) for example in inspection.examples],
            }
            for name, inspection in zip(names_of(inspections), inspections, strict=True)
        ],
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
            low, high = limits(name, [inspection])
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
