"""
Draws docs/paper_tables.png, the picture of the README, from the figures that the presets carry.

    python docs/paper_tables.py
"""

from pathlib import Path

import matplotlib

from fixedbert import PRESETS

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402  after the choice of a backend that needs no screen

SERIES = {
    "standard heads, d=1024: head size 128, 64, 32 (336 M)": ("standard-1024-", "s--"),
    "heads fixed at 128, d=512 (168 to 319 M)": ("fixed-512-", "o-"),
    "heads fixed at 128, d=768 (214 to 327 M)": ("fixed-768-", "^-"),
}


SCORES = {"squad_f1": "SQuAD 1.1 dev F1 (%)", "mnli": "MNLI dev accuracy (%)"}


def main():
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for axes, (score, label) in zip(panels, SCORES.items(), strict=True):
        for name, (prefix, style) in SERIES.items():
            presets = [p for k, p in PRESETS.items() if k.startswith(prefix) and p.attention_head_size in (None, 128)]
            heads = [preset.num_attention_heads for preset in presets]
            axes.plot(heads, [getattr(preset, score) for preset in presets], style, label=name)
        axes.set(xlabel="number of attention heads", ylabel=label, xscale="log")
        axes.set_xticks([8, 12, 16, 20, 32], labels=[8, 12, 16, 20, 32], minor=False)
        axes.minorticks_off()
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=100)


if __name__ == "__main__":
    main()
