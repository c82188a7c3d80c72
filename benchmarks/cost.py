"""
python -m benchmarks.cost FILE

Plots how the cost of a forward pass grows with the number of heads, head size, width, number of layers and sequence
length. The cost is shown as FLOPs calculated by fixedbert.counts and as seconds measured on this machine.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fixedbert.counts import Shape
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertModel
from fixedbert.support.figures import PAGE, new_figure

BASE = Shape(256, 4, 8, 32, 1024, vocabulary=1000)
GROWING = {  # for each panel, a field of Shape or the sequence length, and the numbers to measure
    "heads": ("h", (2, 4, 8, 16, 32)),
    "head size": ("p", (8, 16, 32, 64, 128)),
    "width (feed-forward 4 x)": ("d", (64, 128, 256, 512)),
    "layers": ("L", (1, 2, 4, 8, 16)),
    "sequence length": ("length", (32, 64, 128, 256, 512)),
}


@torch.no_grad()
def forward_seconds(shape: Shape, length: int, tokens: int = 2048) -> np.ndarray:
    """Returns the seconds per token (5,) of five forward passes without the task head, in ascending order."""
    model = FixedHeadBertModel(shape.config(), add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(shape.vocabulary, (max(1, tokens // length), length))
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        model(ids)
        seconds.append(time.perf_counter() - began)
    return np.sort(seconds[1:]) / ids.numel()


def draw_cost(file: Path):
    """
    Plots the FLOPs and seconds per token, relative to the base model, against each dimension.

    Dots are medians over five passes. Error bars show the fastest and slowest pass.
    """
    with new_figure(PAGE, 5, file) as figure:
        panels = list(figure.subplots(2, 3, sharey=True).flat)
        for spare in panels[len(GROWING) :]:
            spare.set_axis_off()
        base_flops = BASE.forward_flops(128, 0) / 128
        forward_seconds(BASE, 128)  # warms up
        base_seconds = float(np.median(forward_seconds(BASE, 128)))
        for panel, (name, (field, values)) in zip(panels, GROWING.items(), strict=False):
            shapes = []
            for value in values:
                changes = {} if field == "length" else {field: value, **({"F": 4 * value} if field == "d" else {})}
                shapes.append((replace(BASE, **changes), value if field == "length" else 128))
            calculated = [shape.forward_flops(length, 0) / length / base_flops for shape, length in shapes]
            seconds = [forward_seconds(shape, length) for shape, length in shapes]
            relative = np.stack(seconds) / base_seconds  # (values, 5)
            middle = np.median(relative, axis=1)
            bars = np.abs(relative[:, [0, -1]].T - middle)
            panel.plot(values, calculated, "-", label="FLOPs, calculated")
            panel.errorbar(values, middle, bars, fmt="o--", capsize=3, label="seconds, measured")
            panel.set(xlabel=name, xscale="log", yscale="log")
            panel.set_xticks(values, labels=map(str, values), minor=False)
            panel.minorticks_off()
        figure.supylabel("cost per token, relative to the base model", fontsize="medium")
        ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8]
        panels[0].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
        panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center")
        figure.suptitle(
            f"Base model: {BASE},\nsequence length 128; {base_flops / 1e6:.1f} MFLOP and "
            f"{base_seconds * 1e6:.0f} microseconds per token on {torch.get_num_threads()} of {os.cpu_count()} cores"
        )


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("file", type=Path, help="file for the figure, such as docs/cost.png")
    draw_cost(parser.parse_args().file)


if __name__ == "__main__":
    main()
