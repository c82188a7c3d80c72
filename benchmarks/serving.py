"""
python -m benchmarks.serving MODEL [MODEL ...]

Models as they are served: in torch, as a graph of ONNX and as one in int8, by turns in the same run. Size on disk, and
sentences a second in batches of 1 and of 32. Of encoders Spearman's correlation on STS-B's dev set, and the mean
cosine to the embeddings of torch; of classifiers that were trained on MNLI the accuracy on its matched dev set, and
how often the label is torch's. Needs FIXEDBERT_DATA with glue/STS-B and glue/MNLI. README.md says how to read it.
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
from transformers import BatchEncoding, PreTrainedModel

from benchmarks.machine import description
from benchmarks.sentence_similarity import SentencePairs, Texts, batch_of, in_batches
from benchmarks.turns import in_turns, ratio
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.conversion.families import task_head
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.labels import align_labels
from fixedbert.fine_tuning.texts import encode_labels, load_task
from fixedbert.publishing.export import GRAPH, QUANTIZED, export
from fixedbert.publishing.pooling import SentencePooling, read_pooling
from fixedbert.support.errors import InputError

BATCHES = (1, 32)


class Measure(NamedTuple):
    """What is asked of a model, and how good its answers (texts, D) are."""

    output: str
    texts: Texts
    answers: Callable[[Tensor, BatchEncoding], Tensor]  # of the output of a batch
    columns: tuple[str, str]
    quality: Callable[[Tensor, Tensor], tuple[str, str]]  # of answers, beside torch's


def embeddings(folder: Path, data: Path) -> Measure:
    """Sentences of STS-B, pooled as the directory says, or else by their mean."""
    pairs, pooling = SentencePairs(data), read_pooling(folder) or SentencePooling(["mean"], normalize=False)

    def quality(found: Tensor, expected: Tensor) -> tuple[str, str]:
        return f"{pairs.spearman(found):.2f}", f"{float(cosine_similarity(found, expected).mean()):.4f}"

    def answers(states: Tensor, batch: BatchEncoding) -> Tensor:
        return pooling(states, batch["attention_mask"])

    return Measure("last_hidden_state", pairs.texts, answers, ("STS-B", "cosine"), quality)


def labels(model: PreTrainedModel, data: Path) -> Measure:
    """
    Pairs of MNLI's matched dev set.

    Raises:
        InputError: the model's labels are others.
    """
    task = load_task("mnli", str(data / "glue"), ("validation",))
    rows = task.splits["validation_matched"]
    right = torch.tensor(encode_labels(rows["label"], align_labels(task.labels, model.config, train=False)[0]))

    def quality(found: Tensor, expected: Tensor) -> tuple[str, str]:
        label = found.argmax(dim=-1)
        accuracy, same = (100 * float((label == wanted).float().mean()) for wanted in (right, expected.argmax(dim=-1)))
        return f"{accuracy:.2f}", f"{same:.2f}"

    texts = list(zip(rows["sentence1"], rows["sentence2"], strict=True))
    return Measure("logits", texts, lambda logits, batch: logits, ("MNLI", "same label"), quality)


def measure_of(model: PreTrainedModel, folder: Path, data: Path) -> Measure:
    """
    Raises:
        InputError: the model has another head than one of these, or other labels.
    """
    head = task_head(type(model).__name__, model.config.model_type)
    if head == "Model":
        return embeddings(folder, data)
    if head == "ForSequenceClassification":
        try:
            return labels(model, data)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
    raise InputError(f"{folder}: has the head {head}; give an encoder, or a classifier that was trained on MNLI.")


def graph_side(file: Path, output: str) -> Callable[[BatchEncoding], Tensor]:
    """The output of a graph for a batch, with as many threads as torch has."""
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(batch: BatchEncoding) -> Tensor:
        given = {x.name: batch[x.name].numpy() for x in session.get_inputs()}
        return torch.from_numpy(session.run([output], given)[0])

    return run


def weights_of(folder: Path) -> int:
    """Bytes of the files that torch loads: one or several, in safetensors or else as pytorch_model.bin."""
    found = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in found)


def sentences_a_second(work: Callable[[BatchEncoding], Tensor], batches: list[BatchEncoding]) -> float:
    began = time.perf_counter()
    for batch in batches:
        work(batch)
    return sum(len(batch["input_ids"]) for batch in batches) / (time.perf_counter() - began)


@torch.no_grad()
def measure(folder: Path, data: Path, sentences: int, rounds: int, exported: Path):
    """
    Export the model and print a row for each side.

    Raises:
        InputError: as `load_bert`, `export` and `measure_of`.
    """
    model, tokenizer = load_bert(folder).float().eval(), load_tokenizer(str(folder))
    asked = measure_of(model, folder, data)
    print(f"\n{export(folder, exported, int8=True)}\n")
    outputs: dict[str, Callable[[BatchEncoding], Tensor]] = {
        "torch": lambda batch: model(**batch)[asked.output],
        "ONNX": graph_side(exported / GRAPH, asked.output),
        "ONNX, int8": graph_side(exported / QUANTIZED, asked.output),
    }
    sizes = [weights_of(folder), *((exported / name).stat().st_size for name in (GRAPH, QUANTIZED))]
    sides = {name: lambda batch, run=run: asked.answers(run(batch), batch) for name, run in outputs.items()}
    found = {name: in_batches(asked.texts, work, tokenizer) for name, work in sides.items()}  # which warms up
    speed = {}
    for size in BATCHES:
        texts = asked.texts[: max(sentences // (1 if size > 1 else 4), size)]  # one by one takes longer
        batches = [batch_of(texts[begin : begin + size], tokenizer) for begin in range(0, len(texts), size)]
        turns = {name: partial(sentences_a_second, work, batches) for name, work in sides.items()}
        speed[size] = in_turns(turns, rounds, f"batches of {size}")
    rows = [["", "MB", *(f"batches of {size}" for size in BATCHES), *asked.columns]]
    rows.append(["---"] * len(rows[0]))
    for name, size in zip(sides, sizes, strict=True):
        rates = [
            f"{sorted(rate[name])[rounds // 2]:,.0f}/s, {ratio(rate[name], rate['torch'])}" for rate in speed.values()
        ]
        rows.append([name, f"{size / 1e6:.1f}", *rates, *asked.quality(found[name], found["torch"])])
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("models", nargs="+", help="directories of encoders, and of classifiers trained on MNLI")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=640, help="or pairs, in batches of 32; a quarter one by one")
    arguments = parser.parse_args(argv)
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where glue/ is.")
    transformers.utils.logging.disable_progress_bar()
    print(description())
    data = Path(os.environ["FIXEDBERT_DATA"])
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            try:
                measure(Path(model), data, arguments.sentences, arguments.rounds, Path(folder) / Path(model).name)
            except InputError as error:
                sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
