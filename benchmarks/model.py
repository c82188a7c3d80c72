"""
python -m benchmarks.model

Compares the speed and memory use of FixedHeadBert with those of transformers' BERT of the same shape. The models take
turns on this machine, step by step. README.md in this directory explains the table.
"""

import argparse
import ctypes
import multiprocessing
import resource
import statistics
import time
from dataclasses import dataclass

import torch
import transformers
from tqdm import tqdm
from transformers import BertConfig

import fixedbert
from benchmarks.paired import description, ratio
from fixedbert.support.machine import has_bf16
from fixedbert.training.speed import keep_freed_memory, use_fast_dropout

SHAPE = {"vocab_size": 30522, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
SHAPE |= {"intermediate_size": 2048, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
TINY = SHAPE | {"vocab_size": 99, "hidden_size": 8, "intermediate_size": 8}
BATCH, LENGTH = 32, 128
# Every 5th percentile of the lengths, in tokens, of MNLI's dev_matched pairs.
MNLI_LENGTHS = [6, 15, 18, 21, 23, 25, 27, 29, 31, 34, 36, 38, 41, 43, 46, 50, 53, 57, 62, 72, 128]
WARM_UP = 2  # rounds that are discarded
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
SAME_SETTINGS = "stock with the same settings"
HEADS = {
    "pretraining": "ForPreTraining",
    "fine-tuning": "ForSequenceClassification",
    "inference": "ForSequenceClassification",
    "rows": "Model",
}


@dataclass(frozen=True)
class Work:
    """
    The work measured in one line of the table.

    Args:
        kind: A key of HEADS. "rows" means a forward and backward pass of the encoder alone.
        padded_to: Length to which batches are padded. Defaults to the length of the longest row.
    """

    title: str
    kind: str
    target: float
    bf16: bool = False
    padded_to: int | None = None
    memory_target: float | None = None


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


def make_batch(work: Work, lengths: list[int], seed: int, rows: int = BATCH, vocabulary: int = 30522):
    """Returns the batch for the round with this seed. All sides get the same batch."""
    generator = torch.Generator().manual_seed(seed)

    def integers(high, *shape):
        return torch.randint(high, shape, generator=generator)

    if work.kind in ("pretraining", "rows"):
        drawn = torch.full((rows,), LENGTH)
    else:
        drawn = torch.tensor(lengths)[torch.randperm(len(lengths), generator=generator)[:rows]]
    width = work.padded_to or int(drawn.max())
    real = torch.arange(width) < drawn[:, None]
    ids = torch.where(real, integers(vocabulary, rows, width), 0)
    batch = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": integers(2, rows, width)}
    if work.kind == "pretraining":
        masked = torch.rand(ids.shape, generator=generator) < 0.15
        batch |= {"labels": torch.where(masked, ids, -100), "next_sentence_label": integers(2, rows)}
    elif work.kind == "fine-tuning":
        batch["labels"] = integers(3, rows)
    return batch


def build(side: str, work: Work, shape: dict) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    # On a CPU, fixedbert trains with eager attention. transformers' default is sdpa.
    backend = "sdpa" if side == "stock" or work.kind == "inference" else "eager"
    if side == "fixedbert":
        config = fixedbert.FixedHeadBertConfig(
            **shape, num_labels=3, attention_head_size=None, unpad_inputs=True, sparse_prediction=True,
            attn_implementation=backend,
        )  # fmt: skip
        model = getattr(fixedbert, f"FixedHeadBert{HEADS[work.kind]}")(config)
    else:
        config = BertConfig(**shape, num_labels=3, attn_implementation=backend)
        model = getattr(transformers, f"Bert{HEADS[work.kind]}")(config)
    if side != "stock":
        use_fast_dropout(model)
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


def resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB to bytes


def worker(side: str, work: Work, lengths: list[int], exact_memory: bool, pipe):
    """
    Takes a step for each seed that it receives and sends the tokens per second. At the end, it sends its peak memory.

    With `exact_memory`, glibc releases freed memory immediately, so the peak counts only live tensors. This is slow.
    """
    if exact_memory:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)
    elif side != "stock":
        keep_freed_memory(torch.device("cpu"))
    step(work, *build(side, work, TINY), make_batch(work, lengths, 0, 2, 99))  # so library memory is not counted
    before = resident_peak()
    model, optimizer = build(side, work, SHAPE)
    while (seed := pipe.recv()) is not None:
        batch = make_batch(work, lengths, seed)
        start = time.perf_counter()
        step(work, model, optimizer, batch)
        pipe.send(int(batch["attention_mask"].sum()) / (time.perf_counter() - start))
    pipe.send((resident_peak() - before) / 2**30)


@dataclass
class Side:
    """Tokens per second in each round after the warm-up, and peak memory in GiB."""

    speeds: list[float]
    memory: float


def measure(work: Work, sides: list[str], lengths: list[int], rounds: int, exact_memory: bool = False):
    """Measures the sides in alternation on the same batches. Each side runs in its own process."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for side in sides:
        pipes[side], theirs = context.Pipe()
        processes.append(context.Process(target=worker, args=(side, work, lengths, exact_memory, theirs), daemon=True))
        processes[-1].start()
    results = {side: Side([], 0.0) for side in sides}
    for seed in tqdm(range(WARM_UP + rounds), desc=work.title, leave=False):
        for side in sides if seed % 2 else reversed(sides):
            pipes[side].send(seed)
            speed = pipes[side].recv()
            if seed >= WARM_UP:
                results[side].speeds.append(speed)
    for side in sides:
        pipes[side].send(None)
        results[side].memory = pipes[side].recv()
    for process in processes:
        process.join()
    return results


ROW = "{:<56} {:>10} {:>10} {:>18} {:>7}".format


def speed_line(title: str, target: str, stock: Side, ours: Side) -> str:
    speeds = (f"{statistics.median(side.speeds):,.0f}/s" for side in (stock, ours))
    return ROW(title, *speeds, ratio(ours.speeds, stock.speeds), target)


def memory_line(title: str, target: str, stock: Side, ours: Side) -> str:
    memories = (f"{side.memory:.2f} GiB" for side in (stock, ours))
    return ROW(title, *memories, f"{ours.memory / stock.memory:.2f}", target)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="measured steps for each side (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=WORKS, default=list(WORKS), help="lines of the table to measure (default: all)"
    )
    arguments = parser.parse_args()
    lengths = MNLI_LENGTHS * 100
    print(
        f"{description()}\n"
        "4 layers, width 512, 8 heads of size 64, feed-forward size 2048, vocabulary size 30,522, dropout 0.1; AdamW\n"
        f"MNLI pairs have {statistics.mean(lengths):.1f} tokens on average; medians of {arguments.rounds} rounds\n"
    )
    print(ROW("work (non-padding tokens per second)", "stock", "fixedbert", "ratio (range)", "target"))
    for work in (WORKS[name] for name in arguments.only):
        if work.bf16 and not has_bf16(use_cpu=True):
            print(f"{work.title}: skipped, because this processor has no bf16 instructions")
            continue
        done = measure(work, ["stock", "fixedbert", SAME_SETTINGS], lengths, arguments.rounds)
        stock, ours = done["stock"], done["fixedbert"]
        print(speed_line(work.title, f">= {work.target}", stock, ours))
        print(speed_line(f"  compared with {SAME_SETTINGS}", "", done[SAME_SETTINGS], ours))
        if work.memory_target is not None:
            exact = measure(work, ["stock", "fixedbert"], lengths, 1, exact_memory=True)
            print(memory_line("  peak memory: tensors", f"<= {work.memory_target}", *exact.values()))
            print(memory_line("  peak memory: resident, including freed memory", "", stock, ours))


if __name__ == "__main__":
    main()
