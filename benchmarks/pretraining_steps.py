"""Measures the speed of pretraining steps on a GPU."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.backends import Line
from benchmarks.paired import in_a_process
from fixedbert import FixedHeadBertForPreTraining, preset_config
from fixedbert.counts import training_flops
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.masking import target_count

PRESETS = ("fixed-512-8x128", "fixed-768-12x128", "standard-1024-16x64")
LENGTH = 128
PREDICTED = 0.15  # fraction of tokens that BERT predicts in pretraining
SHORT_FRACTION = 0.1  # fraction of rows that are shorter than LENGTH, as in BERT's recipe
ROWS = 256  # initial batch size, halved until the batch fits in GPU memory
WARM_UP, STEPS = 5, 20
MATRIX_SIZE = 8192  # rows and columns of the matrices that are multiplied


@dataclass
class Measurement:
    """
    The result of measuring `count` steps.

    Args:
        tokens: Number of non-padding tokens.
        flops: FLOPs for the non-padding tokens.
    """

    count: int
    seconds: float
    tokens: int
    flops: float

    def text(self, matmul_speed: float) -> str:
        """Describes the speed, both absolute and relative to `matmul_speed`, the FLOP/s of a matrix product."""
        rate = self.flops / self.seconds
        return (
            f"{self.count / self.seconds:.2f} steps/s, {self.tokens / self.seconds:,.0f} tokens/s, "
            f"{rate / 1e12:.1f} TFLOP/s, {rate / matmul_speed:.0%} of a matrix product"
        )


def make_examples(rows: int, vocabulary: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Returns random segment pairs as in BERT's recipe. Most have the full length, and 15% of tokens are targets."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(rows):
        length = int(rng.integers(5, LENGTH)) if rng.random() < SHORT_FRACTION else LENGTH
        ids, labels = rng.integers(vocabulary, size=length), np.full(length, -100)
        targets = rng.choice(np.arange(1, length), target_count(length - 3, PREDICTED), replace=False)
        labels[targets] = ids[targets]
        types = (np.arange(length) > length // 2).astype(np.int64)
        pair = int(rng.integers(2))
        pairs.append({"input_ids": ids, "token_type_ids": types, "labels": labels, "next_sentence_label": pair})
    return pairs


def on_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: x.to(device, non_blocking=True) for name, x in batch.items()}


def measure_steps(preset: str, device: torch.device, rows: int, count: int) -> Measurement:
    """Measures the speed of training steps in bf16 with AdamW, after a warm-up."""
    torch.manual_seed(0)
    config = preset_config(preset, unpad_inputs=True, sparse_prediction=True, attn_implementation="sdpa")
    model = FixedHeadBertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    collator = PretrainingCollator(0)
    drawn = [make_examples(rows, config.vocab_size, seed) for seed in range(WARM_UP + count)]
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
    synchronize(device)
    began = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(batch)
    synchronize(device)
    seconds = time.perf_counter() - began
    counted = [example for one in drawn[WARM_UP:] for example in one]
    lengths = [len(example["input_ids"]) for example in counted]
    config = preset_config(preset)
    flops = sum(training_flops(config, n, target_count(n - 3, PREDICTED)) for n in lengths)
    return Measurement(count, seconds, sum(lengths), flops)


def synchronize(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_matmul(device: torch.device, size: int) -> float:
    """Returns the FLOP/s achieved when multiplying two square matrices in bf16."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    for _ in range(3):
        left @ right
    synchronize(device)
    began = time.perf_counter()
    for _ in range(STEPS):
        left @ right
    synchronize(device)
    return 2 * size**3 * STEPS / (time.perf_counter() - began)


def largest_batch_size(preset: str, device: torch.device) -> int:
    """Halves the batch size, starting from ROWS, until a training step fits in GPU memory, and returns it."""
    rows = ROWS
    while True:
        try:
            in_a_process(measure_steps, preset, device, rows, 1)
            return rows
        except Exception as error:
            if rows == 1 or not is_out_of_memory(error):
                raise
            rows //= 2


def is_out_of_memory(error: Exception) -> bool:
    """Returns True for out-of-memory errors from torch and CUDA, including errors inside workers."""
    text = f"{type(error).__name__}: {error}"
    return any(words in text for words in ("OutOfMemoryError", "out of memory", "_STATUS_ALLOC_FAILED"))


def speed_lines(device: torch.device) -> Iterator[Line]:
    """Yields lines with the speed of three presets."""
    if device.type != "cuda":
        yield Line("pretraining steps", skipped="no GPU")
        return
    torch.cuda.empty_cache()
    matmul_speed = measure_matmul(device, MATRIX_SIZE)
    title = f"product of two {MATRIX_SIZE} x {MATRIX_SIZE} matrices, bfloat16"
    yield Line(title, f"{matmul_speed / 1e12:.1f} TFLOP/s")
    for preset in PRESETS:
        try:
            rows = largest_batch_size(preset, device)
        except Exception as error:
            yield error_line(f"{preset}: largest batch size", error)
            continue
        yield step_line(f"{preset}, {rows} rows", partial(measure_steps, preset, device, rows, STEPS), matmul_speed)


def step_line(title: str, work: Callable[[], Measurement], matmul_speed: float) -> Line:
    """Measures steps in a new process. Returns a line with their speed, or with the error if they fail."""
    try:
        measured = in_a_process(work)
    except Exception as error:
        return error_line(title, error)
    return Line(title, measured.text(matmul_speed), values=vars(measured))


def error_line(title: str, error: Exception) -> Line:
    """Returns the line for an error. Running out of memory counts as skipped, and any other error as a failure."""
    if is_out_of_memory(error):
        return Line(title, skipped="out of memory")
    return Line(title, f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}", right=False)
