"""
python -m benchmarks.model

FixedHeadBert beside transformers' BERT of the same shape: tokens a second and memory, measured in turns on this
machine. README.md in this folder says how to read the table.
"""

import argparse
import ctypes
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import transformers
from tqdm import tqdm
from transformers import BertConfig, BertTokenizer

import fixedbert
from benchmarks.machine import description, resident_peak
from benchmarks.turns import ratio
from fixedbert.fine_tuning.texts import load_task
from fixedbert.training.speed import has_bf16, keep_freed_memory, use_fast_dropout

SHAPE = {"vocab_size": 30522, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
SHAPE |= {"intermediate_size": 2048, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

# Tokens of a pair in MNLI's dev_matched with bert-base-uncased's vocabulary, [CLS] and both [SEP] counted: every 5th
# percentile from the shortest to the longest. Used where FIXEDBERT_DATA does not name the real pairs.
MNLI_LENGTHS = [6, 15, 18, 21, 23, 25, 27, 29, 31, 34, 36, 38, 41, 43, 46, 50, 53, 57, 62, 72, 128]


@dataclass(frozen=True)
class Work:
    """One line of the table. `kind` is pretraining, fine-tuning, inference or rows (forward and backward alone)."""

    title: str
    kind: str
    target: float
    bf16: bool = False
    padded_to: int | None = None  # stock BERT's batches; None: to the longest of the batch
    memory_target: float | None = None
    batch: int = 32
    length: int = 128
    shape: dict = field(default_factory=lambda: SHAPE, hash=False)


FULL, MNLI = "32 full rows of 128", "32 MNLI pairs"
WORKS = {
    "pretraining-fp32": Work(f"pretraining step, {FULL}, fp32", "pretraining", 3.0, memory_target=0.5),
    "pretraining-bf16": Work(f"pretraining step, {FULL}, bf16", "pretraining", 3.0, bf16=True, memory_target=0.5),
    "fine-tuning-longest": Work(f"fine-tuning step, {MNLI}, stock: longest", "fine-tuning", 1.5),
    "fine-tuning-128": Work(f"fine-tuning step, {MNLI}, stock: 128", "fine-tuning", 3.0, padded_to=128),
    "inference-longest": Work(f"inference, {MNLI}, stock: longest", "inference", 1.6),
    "inference-128": Work(f"inference, {MNLI}, stock: 128", "inference", 3.0, padded_to=128),
    "rows-fp32": Work(f"forward and backward, {FULL}, no labels, fp32", "rows", 1.0),
    "rows-bf16": Work(f"forward and backward, {FULL}, no labels, bf16", "rows", 1.0, bf16=True),
}


WARM_UP = 2  # rounds that do not count
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
SAME_SETTINGS = "stock with the same settings"
HEADS = {
    "pretraining": "ForPreTraining",
    "fine-tuning": "ForSequenceClassification",
    "inference": "ForSequenceClassification",
    "rows": "Model",
}


def mnli_lengths() -> list[int]:
    """The lengths in tokens of many pairs: real ones where FIXEDBERT_DATA names them, else drawn from percentiles."""
    if "FIXEDBERT_DATA" in os.environ:
        data = Path(os.environ["FIXEDBERT_DATA"])
        tokenizer = BertTokenizer(vocab=str(data / "vocab" / "bert-base-uncased-vocab.txt"))
        pairs = load_task("mnli", str(data / "glue"), ("validation",)).splits["validation_matched"]
        texts = pairs["sentence1"][:], pairs["sentence2"][:]
        encoded = tokenizer(*texts, truncation=True, max_length=128)
        return [len(ids) for ids in encoded["input_ids"]]
    draws = torch.rand(5000, generator=torch.Generator().manual_seed(0)) * (len(MNLI_LENGTHS) - 1)
    low = draws.long()
    table = torch.tensor(MNLI_LENGTHS, dtype=torch.float)
    return table[low].lerp(table[low + 1], draws - low).round().int().tolist()


def make_batch(work: Work, lengths: list[int], seed: int) -> dict[str, torch.Tensor]:
    """Round `seed`'s batch: the same tokens for both sides."""
    generator = torch.Generator().manual_seed(seed)

    def integers(high, *shape):
        return torch.randint(high, shape, generator=generator)

    if work.kind in ("pretraining", "rows"):
        lengths = torch.full((work.batch,), work.length)
    else:
        lengths = torch.tensor(lengths)[torch.randperm(len(lengths), generator=generator)[: work.batch]]
    width = work.padded_to or int(lengths.max())
    real = torch.arange(width) < lengths[:, None]
    ids = torch.where(real, integers(work.shape["vocab_size"], work.batch, width), 0)
    batch = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": integers(2, work.batch, width)}
    if work.kind == "pretraining":
        masked = torch.rand(ids.shape, generator=generator) < 0.15
        batch |= {"labels": torch.where(masked, ids, -100), "next_sentence_label": integers(2, work.batch)}
    elif work.kind == "fine-tuning":
        batch["labels"] = integers(3, work.batch)
    return batch


def build(side: str, work: Work) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    # On a CPU the README advises eager for training; stock has transformers' default unless settings are the same.
    backend = "sdpa" if side == "stock" or work.kind == "inference" else "eager"
    if side == "fixedbert":
        config = fixedbert.FixedHeadBertConfig(
            **work.shape,
            num_labels=3,
            attention_head_size=None,  # stock's size: the arithmetic is the same
            unpad_inputs=True,
            sparse_prediction=True,
            attn_implementation=backend,
        )
        model = getattr(fixedbert, f"FixedHeadBert{HEADS[work.kind]}")(config)
    else:
        config = BertConfig(**work.shape, num_labels=3, attn_implementation=backend)
        model = getattr(transformers, f"Bert{HEADS[work.kind]}")(config)
    if side != "stock":
        use_fast_dropout(model)  # as our trainers do
    model.train(work.kind != "inference")
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step(work: Work, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]):
    with torch.autocast("cpu", torch.bfloat16, enabled=work.bf16):
        if work.kind == "inference":
            with torch.inference_mode():
                model(**batch)
            return
        outputs = model(**batch)
        loss = outputs.last_hidden_state.sum() if work.kind == "rows" else outputs.loss
        del outputs
    loss.backward()
    if work.kind != "rows":
        optimizer.step()
    optimizer.zero_grad()


def worker(side: str, work: Work, lengths: list[int], exact_memory: bool, pipe):
    """
    One side of a comparison, in a process of its own: takes the steps it is told to and says how long they took, in
    the end its peak memory. With `exact_memory` glibc hands back at once what tensors free: slow, but then resident
    memory is the tensors' own.
    """
    if exact_memory:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)
    elif side != "stock":
        keep_freed_memory(torch.device("cpu"))  # as fixedbert's scripts do
    small = replace(work, shape=SHAPE | {"vocab_size": 99, "hidden_size": 8, "intermediate_size": 8}, batch=2)
    step(small, *build(side, small), make_batch(small, lengths, 0))  # what libraries need for themselves
    before = resident_peak()
    model, optimizer = build(side, work)
    while (seed := pipe.recv()) is not None:
        batch = make_batch(work, lengths, seed)
        start = time.perf_counter()
        step(work, model, optimizer, batch)
        pipe.send(int(batch["attention_mask"].sum()) / (time.perf_counter() - start))
    pipe.send((resident_peak() - before) / 2**30)


@dataclass
class Side:
    """A process that has taken steps: tokens a second in every round that counts, and peak memory in GiB."""

    speeds: list[float]
    memory: float


def measure(
    work: Work, sides: list[str], lengths: list[int], rounds: int, progress: tqdm, exact_memory: bool = False
) -> dict[str, Side]:
    """The sides take turns with the same batches, one process at a time; who begins alternates."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for side in sides:
        pipes[side], theirs = context.Pipe()
        processes.append(context.Process(target=worker, args=(side, work, lengths, exact_memory, theirs), daemon=True))
        processes[-1].start()
    results = {side: Side([], 0.0) for side in sides}
    for seed in range(WARM_UP + rounds):
        for side in sides if seed % 2 else reversed(sides):
            pipes[side].send(seed)
            speed = pipes[side].recv()
            if seed >= WARM_UP:
                results[side].speeds.append(speed)
        progress.update()
    for side in sides:
        pipes[side].send(None)
        results[side].memory = pipes[side].recv()
    for process in processes:
        process.join()
    return results


ROW = "{:<56} {:>10} {:>10} {:>18} {:>7}"


def speed_line(title: str, target: str, stock: Side, ours: Side) -> str:
    speeds = (f"{statistics.median(side.speeds):,.0f}/s" for side in (stock, ours))
    return ROW.format(title, *speeds, ratio(ours.speeds, stock.speeds), target)


def memory_line(title: str, target: str, stock: Side, ours: Side) -> str:
    memories = (f"{side.memory:.2f} GiB" for side in (stock, ours))
    return ROW.format(title, *memories, f"{ours.memory / stock.memory:.2f}", target)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="steps of each side that count (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), help="lines of the table")
    arguments = parser.parse_args()
    works = [WORKS[name] for name in arguments.only]
    emulated = [] if has_bf16(use_cpu=True) else [work for work in works if work.bf16]
    lengths = mnli_lengths()
    print(
        f"{description()}\n"
        "4 layers, width 512, 8 heads of 64, feed-forward 2048, vocabulary 30,522, dropout 0.1; AdamW\n"
        f"MNLI pairs have {statistics.mean(lengths):.1f} tokens in the mean; medians of {arguments.rounds} rounds\n"
    )
    print(ROW.format("work (tokens a second, padding not counted)", "stock", "fixedbert", "ratio (range)", "target"))
    for work in emulated:
        print(f"{work.title}: left out, because this processor has no bf16 instructions and would emulate them")
        works.remove(work)
    rounds = sum(WARM_UP + arguments.rounds + (WARM_UP + 1) * (work.memory_target is not None) for work in works)
    with tqdm(total=rounds, unit="round", leave=False) as progress:
        for work in works:
            done = measure(work, ["stock", "fixedbert", SAME_SETTINGS], lengths, arguments.rounds, progress)
            stock, ours = done["stock"], done["fixedbert"]
            tqdm.write(speed_line(work.title, f">= {work.target}", stock, ours))
            tqdm.write(speed_line(f"  against {SAME_SETTINGS}", "", done[SAME_SETTINGS], ours))
            if work.memory_target is not None:
                exact = measure(work, ["stock", "fixedbert"], lengths, 1, progress, exact_memory=True)
                tqdm.write(memory_line("  its peak memory: tensors", f"<= {work.memory_target}", *exact.values()))
                tqdm.write(memory_line("  its peak memory: resident, with what glibc keeps", "", stock, ours))


if __name__ == "__main__":
    main()
