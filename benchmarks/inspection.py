"""
python -m benchmarks.inspection [--model DIR]

`fixedbert inspect` on 1,000 sequences of 128 tokens beside a plain forward pass that returns attentions, eager. Needs
FIXEDBERT_DATA with wikipedia/; README.md in this folder says how to read it.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModel, BertTokenizer

import fixedbert
from fixedbert.analysis.inspection import inspect
from fixedbert.data.sequences import sequences
from fixedbert.data.tokenizers import load_tokenizer

SEQUENCES, LENGTH, BATCH = 1000, 128, 16


@torch.no_grad()
def plain(folder: str, text: str) -> float:
    """Seconds of model loading, reading and forward passes that give all attention patterns."""
    began = time.perf_counter()
    model, tokenizer = AutoModel.from_pretrained(folder, attn_implementation="eager").eval(), load_tokenizer(folder)
    seen = 0
    for ids in sequences([text], tokenizer, LENGTH, BATCH):
        model(input_ids=ids[: SEQUENCES - seen], output_attentions=True)
        seen += len(ids)
        if seen >= SEQUENCES:
            break
    return time.perf_counter() - began


def inspected(folder: str, text: str) -> float:
    with tempfile.TemporaryDirectory() as output:
        began = time.perf_counter()
        inspect(folder, Path(output) / "out", text, LENGTH, SEQUENCES, batch_size=BATCH)
        return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspection", description=__doc__)
    parser.add_argument("--model", help="directory of a model; default: 6 layers of width 384, 12 heads of 32, random")
    parser.add_argument("--rounds", type=int, default=3, help="of both, in turns")
    arguments = parser.parse_args()
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/ and vocab/ are.")
    data = Path(os.environ["FIXEDBERT_DATA"])
    text = str(min((data / "wikipedia").glob("*.parquet")))
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            BertTokenizer(vocab=str(next((data / "vocab").glob("*.txt")))).save_pretrained(folder)
            shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "attention_head_size": 32}
            config = fixedbert.FixedHeadBertConfig(**shape, intermediate_size=1536)
            fixedbert.FixedHeadBertModel(config).save_pretrained(folder)
        model = arguments.model or folder
        times = {"plain": [], "inspect": []}
        with tqdm(total=2 * arguments.rounds, desc="rounds", leave=False) as progress:
            for number in range(arguments.rounds):
                for name in ("plain", "inspect") if number % 2 else ("inspect", "plain"):
                    times[name].append((plain if name == "plain" else inspected)(model, text))
                    progress.update()
    ratios = sorted(b / a for a, b in zip(times["plain"], times["inspect"], strict=True))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, fixedbert "
        f"{fixedbert.__version__}\n{SEQUENCES:,} sequences of {LENGTH} tokens: plain forward with attentions "
        f"{statistics.median(times['plain']):.1f} s, inspect {statistics.median(times['inspect']):.1f} s, ratio "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}; target: at most 3)"
    )


if __name__ == "__main__":
    main()
