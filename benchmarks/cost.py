"""
python -m benchmarks.cost FILE

Plots how the cost of a forward pass grows with the number of heads, head size, width, number of layers and sequence
length. The cost is shown as FLOPs calculated by fixedbert.counts and as seconds measured on this machine.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch

from fixedbert import FixedHeadBertConfig, FixedHeadBertModel
from fixedbert.counts import forward_flops
from fixedbert.support.figures import PAGE, new_figure

BASE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "attention_head_size": 32,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}
GROWING = {  # for each panel, a field of the configuration or the sequence length, and the numbers to measure
    "heads": ("num_attention_heads", (2, 4, 8, 16, 32)),
    "head size": ("attention_head_size", (8, 16, 32, 64, 128)),
    "width (feed-forward 4 x)": ("hidden_size", (64, 128, 256, 512)),
    "layers": ("num_hidden_layers", (1, 2, 4, 8, 16)),
    "sequence length": ("length", (32, 64, 128, 256, 512)),
}


@torch.no_grad()
def forward_seconds(config: FixedHeadBertConfig, length: int, tokens: int = 2048) -> np.ndarray:
    """Returns the seconds per token (5,) of five forward passes without the task head, in ascending order."""
    model = FixedHeadBertModel(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(config.vocab_size, (max(1, tokens // length), length))
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
        base = FixedHeadBertConfig(**BASE)
        base_flops = forward_flops(base, 128)
        forward_seconds(base, 128)  # warms up
        base_seconds = float(np.median(forward_seconds(base, 128)))
        for panel, (name, (field, values)) in zip(panels, GROWING.items(), strict=False):
            shapes = []
            for value in values:
                changes = {} if field == "length" else {field: value}
                if field == "hidden_size":
                    changes["intermediate_size"] = 4 * value
                shapes.append((FixedHeadBertConfig(**BASE | changes), value if field == "length" else 128))
            calculated = [forward_flops(*shape) / base_flops for shape in shapes]
            seconds = [forward_seconds(*shape) for shape in shapes]
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
            "Base model: 4 layers of width 256, 8 heads of size 32, feed-forward 1024,\n"
            f"sequence length 128; {base_flops / 1e6:.1f} MFLOP and "
            f"{base_seconds * 1e6:.0f} microseconds per token on {torch.get_num_threads()} of {os.cpu_count()} cores"
        )


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("file", type=Path, help="file for the figure, such as docs/cost.png")
    draw_cost(parser.parse_args().file)


if __name__ == "__main__":
    main()
