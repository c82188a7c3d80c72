"""
python -m benchmarks.shrinking

`fixedbert shrink` on a BERT of BERT-base's shape with random weights beside a plain forward pass over the same text.
Needs FIXEDBERT_DATA with wikipedia/ and vocab/; README.md in this folder says how to read it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import transformers
from transformers import BertConfig, BertModel

from benchmarks.machine import description
from benchmarks.plain_pass import BATCH, LENGTH, Text, plain_pass, save, wikipedia
from benchmarks.turns import in_turns, ratio
from fixedbert.shrinking.rows import Rows
from fixedbert.shrinking.shrink import Target, shrink_to


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def shrunk(model: str, text: Text):
    rows = Rows(files=[text.file], length=LENGTH, most=text.sequences, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        shrink_to(model, Path(folder) / "cut", rows, Target(params=70e6))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shrinking", description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000, help="of 128 tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of both, in turns (default: %(default)s)")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    text = wikipedia(arguments.sequences)
    with tempfile.TemporaryDirectory() as folder:
        save(BertModel(BertConfig()), folder)
        sides = {
            "plain": partial(seconds_of, partial(plain_pass, folder, text)),
            "shrink": partial(seconds_of, partial(shrunk, folder, text)),
        }
        times = in_turns(sides, arguments.rounds)
    print(
        f"{description()}\n{arguments.sequences:,} sequences of {LENGTH} tokens: plain forward "
        f"{statistics.median(times['plain']):.1f} s, shrink {statistics.median(times['shrink']):.1f} s, ratio "
        f"{ratio(times['shrink'], times['plain'])}; target: at most 10"
    )


if __name__ == "__main__":
    main()
