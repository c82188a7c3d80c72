"""
python -m benchmarks.inspection [--model DIR]

`fixedbert inspect` on 1,000 sequences of 128 tokens beside a plain forward pass that returns attentions, eager. Needs
FIXEDBERT_DATA with wikipedia/; README.md in this folder says how to read it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import transformers

import fixedbert
from benchmarks.machine import description
from benchmarks.plain_pass import BATCH, LENGTH, Text, plain_pass, save, wikipedia
from benchmarks.turns import in_turns, ratio
from fixedbert.inspection.inspect import inspect

SEQUENCES = 1000


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def inspected(folder: str, text: Text):
    with tempfile.TemporaryDirectory() as output:
        inspect(folder, Path(output) / "out", text.file, LENGTH, text.sequences, batch_size=BATCH)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspection", description=__doc__)
    parser.add_argument("--model", help="directory of a model; default: 6 layers of width 384, 12 heads of 32, random")
    parser.add_argument("--rounds", type=int, default=3, help="of both, in turns")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    text = wikipedia(SEQUENCES)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "attention_head_size": 32}
            config = fixedbert.FixedHeadBertConfig(**shape, intermediate_size=1536)
            save(fixedbert.FixedHeadBertModel(config), folder)
        model = arguments.model or folder
        sides = {
            "plain": partial(seconds_of, partial(plain_pass, model, text, "eager", output_attentions=True)),
            "inspect": partial(seconds_of, partial(inspected, model, text)),
        }
        times = in_turns(sides, arguments.rounds)
    print(
        f"{description()}\n{SEQUENCES:,} sequences of {LENGTH} tokens: plain forward with attentions "
        f"{statistics.median(times['plain']):.1f} s, inspect {statistics.median(times['inspect']):.1f} s, ratio "
        f"{ratio(times['inspect'], times['plain'])}; target: at most 3"
    )


if __name__ == "__main__":
    main()
