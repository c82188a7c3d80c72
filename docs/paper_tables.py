"""
Draws docs/paper_tables.png from the shapes of the presets and the table in docs/paper.md.

    python docs/paper_tables.py
"""

import re
from pathlib import Path

from fixedbert import PRESETS
from fixedbert.support.figures import PAGE, new_figure

SERIES = {
    "standard heads, d=1024: head size 128, 64, 32; feed-forward 4096": ("standard-1024-", "s--"),
    "heads fixed at 128, d=512, feed-forward 4096": ("fixed-512-", "o-"),
    "heads fixed at 128, d=768, feed-forward 3072": ("fixed-768-", "^-"),
}
SIZES = "8 heads, d=512, feed-forward 4096: 130 M to 218 M parameters"
SCORES = ("SQuAD 1.1 dev F1 (%)", "MNLI dev accuracy (%)")  # in the order of the table
AXES = {"num_attention_heads": "number of heads", "parameters": "parameters (millions)"}


def printed() -> dict[str, list[tuple[float, float]]]:
    """Returns the F1 and accuracy of each preset, each with the ± printed in the paper."""
    page = Path(__file__).with_name("paper.md").read_text(encoding="utf-8")
    rows = (line.split("|") for line in page.splitlines() if " ± " in line)
    scores = {re.search("`(.+)`", row[4]): row[-3:-1] for row in rows if len(row) == 10}
    return {name[1]: [tuple(map(float, cell.split("±"))) for cell in cells] for name, cells in scores.items() if name}


def main():
    scores = printed()
    with new_figure(PAGE, 5.6, Path(__file__).with_suffix(".png")) as figure:
        panels = figure.subplots(2, 3, sharex="col", sharey="row")
        for number, (row, score) in enumerate(zip(panels, SCORES, strict=True)):
            for axes, (field, label) in zip(row, AXES.items(), strict=False):
                for aside, (name, (prefix, style)) in enumerate(SERIES.items(), -1):
                    shapes = {key: p for key, p in PRESETS.items() if key.startswith(prefix)}
                    shapes = {key: shape for key, shape in shapes.items() if shape.attention_head_size in (None, 128)}
                    places = [getattr(shape, field) for shape in shapes.values()]
                    if field == "num_attention_heads":
                        places = [place * 1.02**aside for place in places]
                    elif prefix == "standard-1024-":  # all have 336 M parameters
                        places, style = [place + 4 * (one - 1) for one, place in enumerate(places)], "s"
                    means, spreads = zip(*(scores[key][number] for key in shapes), strict=True)
                    axes.errorbar(places, means, spreads, fmt=style, label=name, capsize=3, elinewidth=1)
                axes.set(xlabel=label)
            sizes = {size: scores[f"fixed-512-8x{size}"][number] for size in (32, 64, 128, 256)}
            means, spreads = zip(*sizes.values(), strict=True)
            row[2].errorbar([*sizes], means, spreads, fmt="D-", color="C3", label=SIZES, capsize=3, elinewidth=1)
            row[2].set(xlabel="head size")
            for axes in row:
                axes.label_outer()
                axes.grid()
            row[0].set_ylabel(score)
        for axes, ticks in ((panels[0, 0], [8, 12, 16, 20, 32]), (panels[0, 2], [32, 64, 128, 256])):
            axes.set_xscale("log")
            axes.set_xticks(ticks, labels=ticks)
            axes.minorticks_off()
        handles = [line for axes in panels[0, ::2] for line in axes.containers]
        figure.legend(handles=handles, loc="outside lower center")
        figure.suptitle("Scores printed in the paper (± as printed; points are shifted sideways)")


if __name__ == "__main__":
    main()
