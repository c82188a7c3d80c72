"""Compares the outputs and gradients of every attention backend with those of eager attention in float64."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from tqdm import tqdm
from transformers.utils import is_flash_attn_2_available

from fixedbert import FixedHeadBertConfig, FixedHeadBertModel

LAYOUTS = ("full rows", "unpadded", "packed")
HALF = (torch.float16, torch.bfloat16)
# Error limits: EAGER_EPSILONS times the machine epsilon for eager attention. For the other backends, TIMES_EAGER times
# the error of eager attention plus EPSILONS times the machine epsilon. Gradients of queries and keys are differences
# between nearly equal numbers. In float32 with head size 512, the error of sdpa is up to 3.5 times that of eager.
EAGER_EPSILONS = 32
EPSILONS, TIMES_EAGER = 2, {torch.float32: 8, torch.float16: 3, torch.bfloat16: 3}


@dataclass
class Line:
    """
    A line in the printed table.

    Args:
        right: True if the result is within its limit, or None if there is no limit.
        skipped: Reason why there is no result.
        values: Numbers to write to the results file.
    """

    title: str
    result: str = ""
    right: bool | None = None
    skipped: str | None = None
    values: dict = field(default_factory=dict)

    def __str__(self) -> str:
        text = self.result if self.skipped is None else f"skipped: {self.skipped}"
        return f"{self.title:<58} {text}" + ("  WRONG" if self.right is False else "")


BACKENDS = ("eager", "sdpa", "flash_attention_2", "flex_attention")


@dataclass(frozen=True)
class Case:
    """The layout of a batch, and the head sizes and precision of a model."""

    layout: str
    causal: bool
    size: int
    value_size: int
    dtype: torch.dtype

    def record(self) -> dict:
        return asdict(self) | {"dtype": str(self.dtype)}


class Scale(NamedTuple):
    """Sequence lengths, starting with the longest, and head sizes as pairs (queries and keys, values)."""

    lengths: list[int]
    sizes: list[tuple[int, int]]


SCALES = {
    "cpu": Scale([19, 1, 8, 16, 17], [(32, 32), (512, 512), (24, 40)]),
    "cuda": Scale([301, 1, 63, 64, 65, 128, 257], [(n, n) for n in (32, 64, 128, 256, 512)] + [(64, 128), (96, 40)]),
}


def unavailable(backend: str, device: torch.device) -> str | None:
    """Returns the reason why a backend cannot run on this machine, or None if it can."""
    on_gpu = device.type == "cuda"
    ampere = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    if backend == "flash_attention_2":
        if not is_flash_attn_2_available():
            return "flash-attn is not installed"
        return None if ampere else "requires a GPU with compute capability 8.0"
    if backend == "flex_attention" and not on_gpu:
        return "does not compute gradients on a CPU"
    return None


def supports(backend: str, case: Case) -> bool:
    """Returns True if a backend supports the precision and layout of a case."""
    if backend == "flex_attention":  # limited, because every shape is compiled
        return case.size <= 128 and case.dtype == torch.bfloat16
    return case.dtype in HALF or backend != "flash_attention_2"


def cases(scale: Scale) -> Iterator[Case]:
    for size, value_size in scale.sizes:
        for layout in LAYOUTS:
            for causal in (False, True):
                for dtype in (torch.float32, *HALF):
                    yield Case(layout, causal, size, value_size, dtype)


def config_of(case: Case, length: int, backend: str) -> FixedHeadBertConfig:
    return FixedHeadBertConfig(
        vocab_size=99,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        attention_head_size=case.size,
        value_head_size=case.value_size,
        intermediate_size=64,
        max_position_embeddings=length,
        initializer_range=0.08,  # large, so that attention weights are not uniform
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        is_decoder=case.causal,
        unpad_inputs=case.layout != "full rows",
        attn_implementation=backend,
    )


def inputs_of(case: Case, lengths: list[int], device: torch.device) -> tuple[dict, torch.Tensor]:
    """Returns model inputs and a mask (B, L) of non-padding tokens. Packed rows contain two sequences."""
    L = max(lengths)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(99, (len(lengths), L), generator=generator).to(device)
    if case.layout == "packed":
        rows = [[*range(n), *range(L - n)] for n in lengths]
        return {"input_ids": ids, "position_ids": torch.tensor(rows, device=device)}, torch.ones_like(ids).bool()
    real = torch.arange(L, device=device) < torch.tensor(lengths, device=device)[:, None]
    return {"input_ids": ids, "attention_mask": real.long()}, real


@cache
def weights_of(case: Case, length: int) -> dict[str, torch.Tensor]:
    """Returns random weights, rounded to the precision of a case."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FixedHeadBertModel(config_of(case, length, "eager"), add_pooling_layer=False)
    return {name: weight.to(case.dtype) for name, weight in model.state_dict().items()}


def outputs_and_gradients(
    case: Case, backend: str, lengths: list[int], device: torch.device, dtype: torch.dtype
) -> list[torch.Tensor]:
    """
    Returns the last hidden states of non-padding tokens (T, D), and each layer's query, key and value gradients.

    They are computed in `dtype` and converted to float64.
    """
    config = config_of(case, lengths[0], backend)
    model = FixedHeadBertModel(config, add_pooling_layer=False).to(device, dtype)
    model.load_state_dict(weights_of(case, lengths[0]))
    inputs, real = inputs_of(case, lengths, device)
    hidden_states = model(**inputs, use_cache=False).last_hidden_state[real]
    probe = torch.randn(hidden_states.shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    hidden_states.backward(probe)
    heads = [layer.attention.self for layer in model.encoder.layer]
    gradients = [getattr(one, name).weight.grad for one in heads for name in ("query", "key", "value")]
    return [x.detach().double() for x in (hidden_states, *gradients)]


def distance(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Returns the largest relative error in norm over all tensors, or infinity if an error is not finite."""
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(actual, expected, strict=True)]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def agreement(device: torch.device, backends: list[str]) -> Iterator[dict]:
    """For each case and backend, yields the error relative to eager attention in float64, and the error limit."""
    scale = SCALES[device.type]
    for case in tqdm(list(cases(scale)), desc="backends", leave=False):
        plain = replace(case, layout="packed" if case.layout == "packed" else "full rows")
        expected = outputs_and_gradients(plain, "eager", scale.lengths, device, torch.float64)
        epsilon = torch.finfo(case.dtype).eps
        limit = EAGER_EPSILONS * epsilon
        for backend in (backend for backend in backends if supports(backend, case)):
            error = None
            try:
                actual = outputs_and_gradients(case, backend, scale.lengths, device, case.dtype)
                deviation = distance(actual, expected)
            except Exception as raised:  # kernels raise various exceptions
                deviation, error = math.inf, f"{type(raised).__name__}: {raised}"
            yield {
                "backend": backend,
                **case.record(),
                "distance": deviation,
                "limit": limit,
                "right": error is None and deviation <= limit,
                "error": error,
            }
            if backend == "eager" and math.isfinite(deviation):
                limit = EPSILONS * epsilon + TIMES_EAGER[case.dtype] * deviation


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def agreement_lines(device: torch.device) -> Iterator[Line]:
    """Yields a line with the worst case of each backend and precision, or the reason why a backend cannot run."""
    backends = [backend for backend in BACKENDS if unavailable(backend, device) is None]
    results = list(agreement(device, backends))
    for backend in BACKENDS:
        if backend not in backends:
            yield Line(backend, skipped=unavailable(backend, device))
            continue
        for dtype in (torch.float32, *HALF):
            selected = [one for one in results if one["backend"] == backend and one["dtype"] == str(dtype)]
            if selected:
                worst = max(selected, key=lambda one: one["distance"] / one["limit"])
                yield Line(
                    f"{backend}, {name_of(dtype)}",
                    f"{len(selected)} cases, error {worst['distance']:.1e}, limit {worst['limit']:.1e}"
                    + (f" ({worst['error']})" if worst["error"] else ""),
                    right=all(one["right"] for one in selected),
                    values={"cases": selected},
                )
