"""
python -m benchmarks.shrinking [--model DIR]

`fixedbert shrink` on a BERT of BERT-base's shape with random weights beside a plain forward pass over the same text:
time and memory. With --model, the speed of that model cut by half in several ways, beside the model as it is. Needs
FIXEDBERT_DATA with wikipedia/ and vocab/; README.md in this folder says how to read it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, PreTrainedModel

from benchmarks.machine import description, in_a_process, resident_peak
from benchmarks.plain_pass import plain_pass, save, wikipedia
from benchmarks.turns import in_turns, ratio
from fixedbert import convert
from fixedbert.shrinking.shrink import Sizes, Text, shrink

ROUNDS_OF_SPEED = 9
SPEED_BATCH, SPEED_LENGTHS = 32, (128, 32)
MULTIPLE = 8  # of sizes by --keep where speed is measured
WEIGHTS = "model.safetensors"


class Cost(NamedTuple):
    seconds: float
    memory: int  # resident, at most, in bytes


def cost(work: Callable, *arguments) -> Cost:
    began = time.perf_counter()
    work(*arguments)
    return Cost(time.perf_counter() - began, resident_peak())


def shrink_somewhere(model: str | Path, text: Text, sizes: Sizes):
    with tempfile.TemporaryDirectory() as folder:
        shrink(model, Path(folder) / "cut", text, sizes)


def save_random_base(folder: str | Path):
    save(BertModel(BertConfig()), folder)


def by_half(heads: int, size: int, multiple_of: int = 1) -> dict[str, Sizes]:
    """Ways to cut heads of this number and size."""
    return {
        f"heads of {size // 2}": Sizes(attention_head_size=size // 2, value_head_size=size // 2),
        "half of the parameters": Sizes(keep=0.5, multiple_of=multiple_of),
        f"{heads // 2} heads": Sizes(num_attention_heads=heads // 2),
    }


def measure_cost(folder: str, text: Text, with_intermediate_size: bool, rounds: int):
    """Each in a process of its own. This one loads no model before: a process begins with its parent's peak memory."""
    in_a_process(save_random_base, folder)
    ways = by_half(12, 64)
    if with_intermediate_size:
        sized = next(iter(ways))
        ways[f"{sized}, 1536 neurons"] = replace(ways[sized], intermediate_size=1536)
    sides = {"plain": partial(in_a_process, cost, plain_pass, folder, text)}
    sides |= {name: partial(in_a_process, cost, shrink_somewhere, folder, text, sizes) for name, sizes in ways.items()}
    found = in_turns(sides, rounds)
    size = (Path(folder) / WEIGHTS).stat().st_size
    seconds = {name: [one.seconds for one in costs] for name, costs in found.items()}
    memory = {name: max(one.memory for one in costs) for name, costs in found.items()}
    row = "{:<28} {:>9} {:>18} {:>11} {:>22}"
    print(
        f"12 layers, width 768, 12 heads of 64, feed-forward 3072, {size / 1e9:.2f} GB; {text.most:,} sequences of "
        f"{text.length} tokens, {rounds} rounds; targets: 3 times a plain pass with heads of 32, 2.5 times the model"
    )
    print(row.format("from loading to writing", "seconds", "times plain", "peak memory", "above plain, in models"))
    for name in found:
        above = f"{(memory[name] - memory['plain']) / size:.2f}"
        compared = ("", "") if name == "plain" else (ratio(seconds[name], seconds["plain"]), above)
        middle = f"{statistics.median(seconds[name]):.1f}"
        print(row.format(name, middle, compared[0], f"{memory[name] / 1e9:.2f} GB", compared[1]))


@torch.no_grad()
def seconds_of(model: PreTrainedModel, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    model(input_ids=ids)
    return time.perf_counter() - began


def measure_speed(source: str, text: Text):
    """Time a forward pass of one batch in float32, without padding."""
    config = AutoConfig.from_pretrained(source)
    stock = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    models, weights = {"BERT": stock, "FixedHeadBert": convert(stock)}, Path(source, WEIGHTS).stat().st_size
    sizes_on_disk = dict.fromkeys(models, weights)
    heads = config.num_attention_heads
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in by_half(heads, config.hidden_size // heads, MULTIPLE).items():
            cut = Path(folder) / name
            shrink(source, cut, text, sizes)
            models[name] = AutoModel.from_pretrained(cut, dtype=torch.float32).eval()
            sizes_on_disk[name] = (cut / WEIGHTS).stat().st_size
    generator = torch.Generator().manual_seed(0)
    print(f"\n{source}, cut on the same text; batches of {SPEED_BATCH}, {ROUNDS_OF_SPEED} rounds")
    row = "{:<28} {:>9} {:>9} {:>8} {:>20} {:>24}"
    print(row.format("model", "on disk", "length", "ms", "times as fast as BERT", "as FixedHeadBert"))
    for length in SPEED_LENGTHS:
        ids = torch.randint(config.vocab_size, (SPEED_BATCH, length), generator=generator)
        sides = {name: partial(seconds_of, model, ids) for name, model in models.items()}
        in_turns(sides, 1, "warming up")
        found = in_turns(sides, ROUNDS_OF_SPEED)
        for name, times in found.items():
            ratios = (ratio(found[original], times) for original in ("BERT", "FixedHeadBert"))
            size = f"{sizes_on_disk[name] / 1e6:.1f} MB"
            print(row.format(name, size, length, f"{1000 * statistics.median(times):.1f}", *ratios))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shrinking", description=__doc__)
    parser.add_argument("--model", help="directory of a trained BERT, such as all-MiniLM-L6-v2; default: none")
    parser.add_argument("--sequences", type=int, default=1000, help="of 128 tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of a plain pass and each cut (default: %(default)s)")
    parser.add_argument("--with_intermediate_size", action="store_true", help="cut feed-forward networks too")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    text = wikipedia(arguments.sequences)
    print(description())
    with tempfile.TemporaryDirectory() as folder:
        measure_cost(folder, text, arguments.with_intermediate_size, arguments.rounds)
    if arguments.model:
        measure_speed(arguments.model, text)


if __name__ == "__main__":
    main()
