"""Results of `inspect` as inspection.html, an interactive page that needs no other file, and inspection.png."""

import json
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template
from textwrap import fill

import torch

from ..support.figures import new_figure
from .results import MAPS, Example, Inspection, json_fields, limits

FULL = 255  # an attention weight of 1, which the page stores as a byte


def inspection_html(inspections: list[Inspection]) -> str:
    """Returns the page for one inspection, or for two side by side."""
    names = names_of(inspections)
    about = [f"{name}: {inspection.summary}." for name, inspection in zip(names, inspections, strict=True)]
    about.append(inspections[0].uniform)
    return Template(page_file("page.html")).substitute(
        title=escape(f"Heads of {' and '.join(names)}"),
        style=page_file("page.css"),
        about="\n".join(f"<p>{escape(line)}</p>" for line in about),
        data=json_in_html(page_data(inspections)),
        script=page_file("page.js"),
    )


def page_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def json_in_html(data: object) -> str:
    """Formats JSON so that no text in it can close the script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def names_of(inspections: list[Inspection]) -> list[str]:
    """Returns the last part of each path or id, or the complete one if both end in the same part."""
    names = [Path(inspection.model).name or inspection.model for inspection in inspections]
    return names if len({*names}) == len(names) else [inspection.model for inspection in inspections]


def page_data(inspections: list[Inspection]) -> dict[str, object]:
    """Returns the data of the page: scales of the maps, and for each checkpoint inspection.json and the examples."""
    return {
        "full": FULL,
        "maps": [{"name": name, "title": title, "limits": limits(name, inspections)} for name, title in MAPS.items()],
        "checkpoints": [
            {
                **{name: rounded(value) for name, value in json_fields(inspection).items()},
                "name": name,
                "nearest": inspection.nearest,
                "examples": [example_data(example) for example in inspection.examples],
            }
            for name, inspection in zip(names_of(inspections), inspections, strict=True)
        ],
    }


def example_data(example: Example) -> dict[str, object]:
    weights = torch.cat([of_layer.flatten() for of_layer in example.attention])  # ordered by layer, head, query, key
    return {
        "sentence": example.sentence,
        "tokens": example.tokens,
        "attention": b64encode((weights * FULL).round().to(torch.uint8).numpy().tobytes()).decode(),
        "changes": [rounded(of_layer.tolist(), digits=3) for of_layer in example.changes],
    }


def rounded(value: object, digits: int = 4) -> object:
    """Rounds numbers in nested lists to significant digits; the page shows three."""
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def draw_maps(inspection: Inspection, file: Path):
    """Draws heat maps, layers x heads, and the condition numbers by layer."""
    from matplotlib.ticker import MaxNLocator

    layers = range(inspection.layers)
    with new_figure(12, 3.2 + 0.45 * inspection.layers * 2, file) as figure:
        *maps, condition = figure.subplots(2, 3).flat
        for axes, (name, title) in zip(maps, MAPS.items(), strict=True):
            low, high = limits(name, [inspection])
            image = axes.imshow(getattr(inspection, name).numpy(), aspect="auto", cmap="viridis", vmin=low, vmax=high)
            axes.set(xlabel="head", ylabel="layer", yticks=layers)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_title(title, fontsize="small")
            figure.colorbar(image, ax=axes)
        condition.barh(layers, inspection.condition.numpy(), color="C0")
        condition.set(xlabel="condition number", ylabel="layer", xscale="log", xlim=(1, None), yticks=layers)
        condition.invert_yaxis()
        condition.set_title("concatenated heads (1: all directions equal)", fontsize="small")
        figure.suptitle(fill(f"{Path(inspection.model).name}: {inspection.summary}. {inspection.uniform}", 130))
