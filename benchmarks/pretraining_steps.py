"""Measures pretraining steps of presets on a GPU: speed, with and without torch.compile, and synchronizations."""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch._dynamo.utils import counters

from benchmarks.backends import Line
from benchmarks.paired import in_a_process
from fixedbert import FixedHeadBertForPreTraining, preset_config
from fixedbert.counts import PREDICTED
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.masking import target_count
from fixedbert.planning import KNOWN

PRESETS = ("fixed-512-8x128", "fixed-768-12x128", "standard-1024-16x64")
LENGTH = 128
SHORTER = 0.1  # share of short rows, as in BERT's recipe
ROWS = 256  # halved until they fit the memory
WARM_UP, STEPS = 5, 20
PRODUCT = 8192  # rows and columns of the matrix product
VARIANTS = {
    "as in pretraining": {},
    "token positions computed on the GPU": {"places": False},
    "torch.compile": {"compiled": True},
}


@dataclass
class Steps:
    """A measurement: `flops` for real tokens, `waits` of the host per step, `graphs` compiled during counted steps."""

    count: int
    seconds: float
    tokens: int
    flops: float
    waits: int | None
    graphs: int

    def text(self, product: float) -> str:
        rate = self.flops / self.seconds
        text = f"{self.count / self.seconds:.2f} steps/s, {self.tokens / self.seconds:,.0f} tokens/s"
        text += f", {rate / 1e12:.1f} TFLOP/s, {rate / product:.0%} of a matrix product"
        text += f", {self.graphs} graphs compiled after warm-up" if self.graphs else ""
        return text + (f", {self.waits} synchronizations per step" if self.waits is not None else "")


def examples(rows: int, vocabulary: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Returns segment pairs like those of BERT's recipe: most have full length, 15 % of the tokens are masked."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(rows):
        length = int(rng.integers(5, LENGTH)) if rng.random() < SHORTER else LENGTH
        ids, labels = rng.integers(vocabulary, size=length), np.full(length, -100)
        targets = rng.choice(np.arange(1, length), target_count(length - 3, PREDICTED), replace=False)
        labels[targets] = ids[targets]
        types = (np.arange(length) > length // 2).astype(np.int64)
        pair = int(rng.integers(2))
        pairs.append({"input_ids": ids, "token_type_ids": types, "labels": labels, "next_sentence_label": pair})
    return pairs


def on_device(batch, device: torch.device):
    if isinstance(batch, dict):
        return {name: on_device(x, device) for name, x in batch.items()}
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch  # tensors and packed batches


def steps(
    preset: str, device: torch.device, rows: int, count: int, compiled: bool = False, places: bool = True
) -> Steps:
    """
    Times steps in bf16 with AdamW after a warm-up.

    Args:
        compiled: use torch.compile, with batches of one shape.
        places: use the token positions that the collator computes on the CPU.
    """
    torch.manual_seed(0)
    config = preset_config(preset, unpad_inputs=True, sparse_prediction=True, attn_implementation="sdpa")
    model: torch.nn.Module = FixedHeadBertForPreTraining(config).to(device).train()
    if compiled:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    collator = PretrainingCollator(0, "mlm+nsp" if places else None)
    if compiled:
        collator.row_length, collator.row_labels = LENGTH, target_count(LENGTH, PREDICTED)
    seeds = range(WARM_UP + count + 1)
    drawn = [examples(rows, config.vocab_size, seed) for seed in seeds]
    batches = [on_device(collator(one), device) for one in drawn]

    def step(batch):
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for batch in batches[:WARM_UP]:
        step(batch)
    wait_for(device)
    graphs, began = counters["stats"]["unique_graphs"], time.perf_counter()
    for batch in batches[WARM_UP:-1]:
        step(batch)
    wait_for(device)
    seconds = time.perf_counter() - began
    waits = waits_of(partial(step, batches[-1])) if device.type == "cuda" else None
    counted = [example for one in drawn[WARM_UP:-1] for example in one]
    lengths = [len(example["input_ids"]) for example in counted]
    flops = sum(KNOWN[preset].training_flops(n, target_count(n - 3, PREDICTED)) for n in lengths)
    return Steps(count, seconds, sum(lengths), flops, waits, counters["stats"]["unique_graphs"] - graphs)


def wait_for(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waits_of(step) -> int:
    """Returns how often the host waits for the GPU in a step, as reported by torch."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


def product_rate(device: torch.device, size: int) -> float:
    """Returns the FLOP/s of a product of two square matrices in bf16."""
    one, other = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    for _ in range(3):
        one @ other
    wait_for(device)
    began = time.perf_counter()
    for _ in range(STEPS):
        one @ other
    wait_for(device)
    return 2 * size**3 * STEPS / (time.perf_counter() - began)


def largest_batch(preset: str, device: torch.device) -> int:
    """Returns the largest number of rows, halved from ROWS, that fits the memory."""
    rows = ROWS
    while True:
        try:
            in_a_process(steps, preset, device, rows, 1)
            return rows
        except Exception as error:
            if rows == 1 or not is_out_of_memory(error):
                raise
            rows //= 2


def is_out_of_memory(error: Exception) -> bool:
    """Recognizes errors from torch, CUDA, worker processes and torch.compile."""
    text = f"{type(error).__name__}: {error}"
    return any(words in text for words in ("OutOfMemoryError", "out of memory", "_STATUS_ALLOC_FAILED"))


def speed_lines(device: torch.device) -> Iterator[Line]:
    """Yields lines with the speed of three presets in several variants."""
    if device.type != "cuda":
        for title in ("pretraining steps per second", "synchronizations per step", "torch.compile"):
            yield Line(title, skipped="no GPU")
        return
    torch.cuda.empty_cache()
    product = product_rate(device, PRODUCT)
    yield Line(f"product of two {PRODUCT} x {PRODUCT} matrices, bfloat16", f"{product / 1e12:.1f} TFLOP/s")
    for preset in PRESETS:
        try:
            rows = largest_batch(preset, device)
        except Exception as error:
            yield line_without_steps(f"{preset}: largest batch", error)
            continue
        works = {name: partial(steps, preset, device, rows, STEPS, **changes) for name, changes in VARIANTS.items()}
        for name, work in works.items():
            yield step_line(f"{preset}, {rows} rows: {name}", work, product)


def step_line(title: str, work: Callable[[], Steps], product: float) -> Line:
    """Returns the line of steps in a new process, or of its error."""
    try:
        measured = in_a_process(work)
    except Exception as error:
        return line_without_steps(title, error)
    return Line(title, measured.text(product), values=vars(measured))


def line_without_steps(title: str, error: Exception) -> Line:
    """Returns the line of an error; a lack of memory is not wrong."""
    if is_out_of_memory(error):
        return Line(title, skipped="out of memory")
    return Line(title, f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}", right=False)
