"""
python -m benchmarks.serving MODEL [MODEL ...]

Encoders as they are served: in torch, as a graph of ONNX and as one in int8, by turns in the same run. Sentences a
second in batches of 1 and of 32, size on disk, Spearman's correlation on STS-B's dev set, and the mean cosine to the
embeddings of torch. Needs FIXEDBERT_DATA with glue/STS-B. README.md in this folder says how to read it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from onnxruntime import InferenceSession, SessionOptions
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import BatchEncoding

from benchmarks.machine import description
from benchmarks.sentence_similarity import SentencePairs, batch_of
from benchmarks.turns import in_turns, ratio
from fixedbert.checkpoints import load_bert
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.onnx_export import GRAPH, QUANTIZED, export_onnx
from fixedbert.sentence_pooling import SentencePooling, read_pooling

BATCHES = (1, 32)


class Side(NamedTuple):
    states: Callable[[BatchEncoding], Tensor]  # the last hidden states of a batch
    file: Path


def graph_side(file: Path) -> Side:
    """A graph, with as many threads as torch has."""
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def states(batch: BatchEncoding) -> Tensor:
        given = {x.name: batch[x.name].numpy() for x in session.get_inputs()}
        return torch.from_numpy(session.run(["last_hidden_state"], given)[0])

    return Side(states, file)


def sentences_a_second(embed: Callable[[BatchEncoding], Tensor], batches: list[BatchEncoding]) -> float:
    began = time.perf_counter()
    for batch in batches:
        embed(batch)
    return sum(len(batch["input_ids"]) for batch in batches) / (time.perf_counter() - began)


@torch.no_grad()
def measure(folder: Path, pairs: SentencePairs, sentences: int, rounds: int, exported: Path):
    """Export the model and print a row for each side."""
    print(f"\n{export_onnx(folder, exported, int8=True)}\n")
    model, tokenizer = load_bert(folder).float().eval(), load_tokenizer(str(folder))
    pooling = read_pooling(folder) or SentencePooling(["mean"], normalize=False)
    sides = {
        "torch": Side(lambda batch: model(**batch)[0], folder / "model.safetensors"),
        "ONNX": graph_side(exported / GRAPH),
        "ONNX, int8": graph_side(exported / QUANTIZED),
    }
    embed = {
        name: lambda batch, side=side: pooling(side.states(batch), batch["attention_mask"])
        for name, side in sides.items()
    }
    found = {name: pairs.embed(work, tokenizer) for name, work in embed.items()}  # which warms up
    speed = {}
    for size in BATCHES:
        texts = pairs.texts[: max(sentences // (1 if size > 1 else 4), size)]  # one by one takes longer
        batches = [batch_of(texts[begin : begin + size], tokenizer) for begin in range(0, len(texts), size)]
        turns = {name: partial(sentences_a_second, work, batches) for name, work in embed.items()}
        speed[size] = in_turns(turns, rounds, f"batches of {size}")
    print("| " + " | ".join(["", "MB", *(f"batches of {size}" for size in BATCHES), "STS-B", "cosine"]) + " |")
    print("|---" * (4 + len(BATCHES)) + "|")
    for name, side in sides.items():
        rates = [
            f"{sorted(speed[size][name])[rounds // 2]:,.0f}/s, {ratio(speed[size][name], speed[size]['torch'])}"
            for size in BATCHES
        ]
        cosine = float(cosine_similarity(found[name], found["torch"]).mean())
        megabytes = f"{side.file.stat().st_size / 1e6:.1f}"
        print(
            "| " + " | ".join([name, megabytes, *rates, f"{pairs.spearman(found[name]):.2f}", f"{cosine:.4f}"]) + " |"
        )


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("models", nargs="+", help="directories of encoders")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=640, help="of STS-B, in batches of 32; a quarter one by one")
    arguments = parser.parse_args()
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where glue/ is.")
    transformers.utils.logging.disable_progress_bar()
    print(description())
    pairs = SentencePairs(Path(os.environ["FIXEDBERT_DATA"]))
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(model), pairs, arguments.sentences, arguments.rounds, Path(folder) / Path(model).name)


if __name__ == "__main__":
    main()
