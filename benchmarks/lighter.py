"""
python -m benchmarks.lighter measure TASK ORIGINAL [MODEL ...] [--int8 MODEL ...] --output FILE

Lighter models beside the original: quality on the dev sets of a task of GLUE, how many answers are the original's, and
speed, by turns in the same run: batches of 32 texts on all threads and on one, and one text at a time on all threads.
The task is STS-B for encoders that make an embedding of a text: their cosines are compared with the scores. Models of
`--int8` are also measured as graphs of ONNX in int8. Needs FIXEDBERT_DATA with glue/.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize
from transformers import BatchEncoding, PreTrainedTokenizerBase

from benchmarks.machine import description
from benchmarks.sentence_similarity import batch_of, in_batches
from benchmarks.serving import graph_side
from benchmarks.turns import in_turns
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.counts import forward_flops
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.glue_metrics import glue_scores
from fixedbert.fine_tuning.labels import align_labels
from fixedbert.fine_tuning.texts import encode_labels, load_task
from fixedbert.publishing.export import QUANTIZED, export
from fixedbert.publishing.pooling import SentencePooling, read_pooling
from fixedbert.support.errors import InputError

Model = Callable[[BatchEncoding], Tensor]  # logits, or embeddings of length one
MAIN = {"mnli": "accuracy", "sst2": "accuracy", "qqp": "accuracy", "stsb": "spearmanr"}
SIZE = 32  # texts at once


class Task:
    """The dev sets of a task, with what is asked of a model."""

    def __init__(self, name: str, model, tokenizer: PreTrainedTokenizerBase, data: Path):
        self.name, self.tokenizer = name, tokenizer
        self.embeds = not hasattr(model, "classifier")
        task = load_task(name, str(data / "glue"), ("validation",))
        self.label_ids = {} if self.embeds else align_labels(task.labels, model.config, train=False)[0]
        self.splits = task.splits

    def texts(self, split: str) -> list:
        rows = self.splits[split]
        columns = [rows[name] for name in ("sentence1", "sentence2") if name in rows.column_names]
        if self.embeds:
            return [text for column in columns for text in column]
        return list(zip(*columns, strict=True)) if len(columns) > 1 else list(columns[0])

    def scores(self, split: str, found: Tensor) -> dict[str, float]:
        labels = encode_labels(self.splits[split]["label"], self.label_ids)
        if self.embeds:
            one, other = found.chunk(2)
            predicted = (one * other).sum(dim=-1)
        else:
            predicted = found.squeeze(-1) if found.shape[-1] == 1 else found.argmax(dim=-1)
        return glue_scores(self.name, predicted.numpy(), labels)

    def answers(self, model: Model) -> dict[str, Tensor]:
        return {split: in_batches(self.texts(split), model, self.tokenizer) for split in self.splits}

    def batches(self) -> dict[int, list[BatchEncoding]]:
        """By size: texts of a short, a middling and a long batch, at once and (four of each) one by one."""
        texts = sorted(self.texts(next(iter(self.splits))), key=lambda text: len("".join(text)))
        places = [len(texts) * sixth // 6 for sixth in (1, 3, 5)]
        groups = [texts[place - SIZE // 2 : place + SIZE // 2] for place in places]
        alone = [[text] for group in groups for text in group[:: SIZE // 4]]
        return {size: [batch_of(group, self.tokenizer) for group in of] for size, of in ((SIZE, groups), (1, alone))}


def torch_side(model, pooling: SentencePooling | None) -> Model:
    if hasattr(model, "classifier"):
        return lambda batch: model(**batch).logits
    pooled = pooling or SentencePooling(["mean"], normalize=False)
    return lambda batch: normalize(pooled(model(**batch).last_hidden_state, batch["attention_mask"]), dim=-1)


def int8_side(file: Path, pooling: SentencePooling | None, classifies: bool) -> Model:
    run = graph_side(file, "logits" if classifies else "last_hidden_state")
    if classifies:
        return run
    pooled = pooling or SentencePooling(["mean"], normalize=False)
    return lambda batch: normalize(pooled(run(batch), batch["attention_mask"]), dim=-1)


def seconds_of(model: Model, batches: list[BatchEncoding]) -> float:
    began = time.perf_counter()
    for batch in batches:
        model(batch)
    return time.perf_counter() - began


def speeds(sides: dict[str, Model], batches: list[BatchEncoding], rounds: int, title: str) -> dict[str, list[float]]:
    """How many times faster than the first side: the median of the rounds, the least and the most."""
    times = in_turns({name: partial(seconds_of, side, batches) for name, side in sides.items()}, rounds, title)
    first = times[next(iter(sides))]
    ratios = {name: sorted(a / b for a, b in zip(first, own, strict=True)) for name, own in times.items()}
    return {name: [statistics.median(found), found[0], found[-1]] for name, found in ratios.items()}


@torch.no_grad()
def measure(task_name: str, folders: list[Path], int8: list[Path], rounds: int, data: Path, temporary: Path) -> dict:
    """
    Measure models, the original first.

    Raises:
        InputError: as `load_bert`, `export`, `load_task` and `align_labels`.
    """
    threads = torch.get_num_threads()
    models = {folder.name: load_bert(folder).float().eval() for folder in folders}
    task = Task(task_name, next(iter(models.values())), load_tokenizer(str(folders[0])), data)
    pooling = read_pooling(folders[0])
    inputs, found = task.batches(), {}
    graphs = {f"{folder.name} int8": temporary / folder.name for folder in int8}
    for folder, exported in zip(int8, graphs.values(), strict=True):
        export(folder, exported, int8=True)
    for name, count, size in (("one thread", 1, SIZE), ("one text", threads, 1), ("batches", threads, SIZE)):
        torch.set_num_threads(count)  # which the graphs' sessions take over
        sides = {folder: torch_side(model, pooling) for folder, model in models.items()}
        for side, exported in graphs.items():
            sides[side] = int8_side(exported / QUANTIZED, pooling, not task.embeds)
        found[name] = speeds(sides, inputs[size], rounds, name)
    answers = {side: task.answers(model) for side, model in sides.items()}
    first = answers[folders[0].name]
    length = round(statistics.mean(batch["input_ids"].shape[1] for batch in inputs[SIZE]))
    rows = []
    for side, of_splits in answers.items():
        model = models[side.removesuffix(" int8")]
        row = {"name": side, "speed": {name: ratios[side] for name, ratios in found.items()}}
        row["parameters"], row["flops"] = model.num_parameters(), length * forward_flops(model.config, length)
        row["scores"] = {split: task.scores(split, answer) for split, answer in of_splits.items()}
        row["same"] = statistics.mean(same(answer, first[split], task.embeds) for split, answer in of_splits.items())
        rows.append(row)
    return {"task": task_name, "zero_shot": task.embeds, "machine": description(), "tokens": length, "rows": rows}


def same(one: Tensor, other: Tensor, embeds: bool) -> float:
    """Share of the answers with the same class; of numbers their correlation, of embeddings the mean cosine."""
    if one.shape[1] == 1:
        return float(torch.corrcoef(torch.stack([one[:, 0], other[:, 0]]))[0, 1])
    if embeds:
        return float((one * other).sum(dim=-1).mean())
    return float((one.argmax(dim=-1) == other.argmax(dim=-1)).float().mean())


def quality(task: str, scores: dict[str, dict[str, float]]) -> str:
    return " / ".join(f"{100 * of_split[MAIN[task]]:.2f}" for of_split in scores.values())


def print_table(found: dict):
    print(f"{found['machine']}\n{found['task']}, batches of {SIZE} texts of {found['tokens']} tokens in the mean\n")
    print("| | speed | one thread | one text | parameters, M | MFLOP | same answers | quality |")
    print("|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        times = (f"{row['speed'][name][0]:.2f}" for name in ("batches", "one thread", "one text"))
        print(
            f"| {row['name']} | {' | '.join(times)} | {row['parameters'] / 1e6:.1f} | {row['flops'] / 1e6:.1f} | "
            f"{row['same']:.3f} | {quality(found['task'], row['scores'])} |"
        )


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lighter", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("task", choices=MAIN)
    measuring.add_argument("models", nargs="+", type=Path, help="directories, the original first")
    measuring.add_argument("--int8", nargs="*", type=Path, default=[], help="some of the models")
    measuring.add_argument("--rounds", type=int, default=7)
    measuring.add_argument("--output", type=Path, required=True, help="a file of JSON")
    arguments = parser.parse_args(argv)
    if len({folder.name for folder in arguments.models}) < len(arguments.models):
        measuring.error("two models have the same name of their folder, by which they are told apart")
    if not {*arguments.int8} <= {*arguments.models}:
        measuring.error("--int8 takes some of the models")
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where glue/ is.")
    transformers.utils.logging.disable_progress_bar()
    data = Path(os.environ["FIXEDBERT_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(arguments.task, arguments.models, arguments.int8, arguments.rounds, data, Path(folder))
        except InputError as error:
            sys.exit(f"error: {error}")
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print_table(found)


if __name__ == "__main__":
    main()
