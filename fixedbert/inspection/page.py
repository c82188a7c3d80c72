"""
inspection.html: what `inspect` finds, of one checkpoint or of two side by side, as an interactive page. It needs no
other file and no network.
"""

import json
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template

import torch

from .results import PANELS, Example, Inspection, json_of, limits

FULL = 255  # what a weight of 1 is in the page, which has attention in bytes


def inspection_html(inspections: list[Inspection]) -> str:
    """A page for one inspection, or two."""
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
    """JSON, of finite numbers, for a script element, which no text in it can end."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def names_of(inspections: list[Inspection]) -> list[str]:
    """The last part of each checkpoint's path or id, or the whole where two have the same."""
    names = [Path(inspection.model).name or inspection.model for inspection in inspections]
    return names if len({*names}) == len(names) else [inspection.model for inspection in inspections]


def page_data(inspections: list[Inspection]) -> dict[str, object]:
    """What the script of the page reads: scales of the maps, and for each checkpoint inspection.json and more."""
    return {
        "full": FULL,
        "maps": [
            {"name": name, "title": title, "limits": limits(name, inspections)} for name, title in PANELS.items()
        ],
        "checkpoints": [
            {
                **{name: rounded(value) for name, value in json_of(inspection).items()},
                "name": name,
                "nearest": inspection.nearest,
                "examples": [example_data(example) for example in inspection.examples],
            }
            for name, inspection in zip(names_of(inspections), inspections, strict=True)
        ],
    }


def example_data(example: Example) -> dict[str, object]:
    weights = torch.cat([of_layer.flatten() for of_layer in example.attention])  # by layer, head, query, key
    return {
        "sentence": example.sentence,
        "tokens": example.tokens,
        "attention": b64encode((weights * FULL).round().to(torch.uint8).numpy().tobytes()).decode(),
        "changes": [rounded(of_layer.tolist(), digits=3) for of_layer in example.changes],
    }


def rounded(value: object, digits: int = 4) -> object:
    """The numbers in lists, as short as the page needs them: it shows three digits."""
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
