"""
Draws docs/paper_tables.png, the picture of the README, from the figures that the presets carry.

    python docs/paper_tables.py
"""

from pathlib import Path

from fixedbert import PRESETS
from fixedbert.support.figures import PAGE, drawing

SERIES = {
    "standard heads, d=1024: head size 128, 64, 32": ("standard-1024-", "s--"),
    "heads fixed at 128, d=512": ("fixed-512-", "o-"),
    "heads fixed at 128, d=768": ("fixed-768-", "^-"),
}
SCORES = {"squad_f1": "SQuAD 1.1 dev F1 (%)", "mnli": "MNLI dev accuracy (%)"}
AXES = {"num_attention_heads": "number of attention heads", "parameters": "parameters (millions)"}


def main():
    with drawing(PAGE, 5.4, Path(__file__).with_suffix(".png")) as figure:
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for row, (score, score_label) in zip(panels, SCORES.items(), strict=True):
            for axes, (field, label) in zip(row, AXES.items(), strict=True):
                for name, (prefix, style) in SERIES.items():
                    shapes = [p for key, p in PRESETS.items() if key.startswith(prefix)]
                    shapes = [shape for shape in shapes if shape.attention_head_size in (None, 128)]
                    places = [getattr(shape, field) for shape in shapes]
                    axes.plot(places, [getattr(shape, score) for shape in shapes], style, label=name)
                axes.set(xlabel=label)
                axes.label_outer()
                axes.grid()
            row[0].set_ylabel(score_label)
        panels[0, 0].set_xscale("log")
        panels[0, 0].set_xticks([8, 12, 16, 20, 32], labels=[8, 12, 16, 20, 32])
        panels[0, 0].minorticks_off()
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


if __name__ == "__main__":
    main()
