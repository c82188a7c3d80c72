"""Every backend of the attention beside eager in float64: values, gradients, dropout."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from tqdm import tqdm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_flash_attn_2_available

from benchmarks.lines import Line
from fixedbert import FixedHeadBertConfig, FixedHeadBertModel
from fixedbert.model import fast_fixed_head_bert
from fixedbert.model.attention_fixed_head_bert import eager_attention_forward
from fixedbert.model.fast_fixed_head_bert import PackedBatch, SequenceLengths, packed_attention_forward

LAYOUTS = ("whole rows", "unpadded", "packed")
HALF = (torch.float16, torch.bfloat16)
DROPOUT = 0.25
# Eager may differ from float64 by so many times the precision of the numbers (epsilon) ...
EAGER_EPSILONS = 32
# ... and another backend by EPSILONS more than TIMES_EAGER times eager's distance. Gradients of queries and keys are
# differences of nearly equal numbers: in float32, with heads of 512, sdpa's are up to 3.5 times as far off as
# eager's. 8 leaves room for other processors.
EPSILONS, TIMES_EAGER = 2, {torch.float32: 8, torch.float16: 3, torch.bfloat16: 3}


class Way(NamedTuple):
    """One of transformers' implementations, and the function for the sequences of a row, where it is not to choose."""

    implementation: str
    within: str | None = None

    def __str__(self) -> str:
        return self.implementation + (f", {self.within.replace('_', ' ')}" if self.within else "")

    def chosen(self) -> AbstractContextManager:
        """While this is open, sequences of a row attend by the function `within`."""
        if self.within is None:
            return nullcontext()
        attend = getattr(fast_fixed_head_bert, self.within)
        return patch.object(fast_fixed_head_bert, "select_packed_attention", lambda *args: attend)


EAGER = Way("eager")
WAYS = (
    EAGER,
    Way("sdpa"),
    Way("sdpa", "padded_attention"),
    Way("sdpa", "looped_attention"),
    Way("flash_attention_2"),
    Way("flex_attention"),
)


@dataclass(frozen=True)
class Case:
    """What a model is asked to compute: the layout of rows, the shape and the precision."""

    layout: str
    causal: bool
    size: int
    value_size: int
    dtype: torch.dtype

    def record(self) -> dict:
        return asdict(self) | {"dtype": str(self.dtype)}


class Scale(NamedTuple):
    """Lengths of the rows, the first the longest, and sizes of heads: of queries and keys, and of values."""

    lengths: list[int]
    sizes: list[tuple[int, int]]


SCALES = {
    "cpu": Scale([19, 1, 8, 16, 17], [(32, 32), (512, 512), (24, 40)]),
    "cuda": Scale([301, 1, 63, 64, 65, 128, 257], [(n, n) for n in (32, 64, 128, 256, 512)] + [(64, 128), (96, 40)]),
}


def missing(way: Way, device: torch.device) -> str | None:
    """Why this machine cannot attend in this way; None if it can."""
    on_gpu = device.type == "cuda"
    ampere = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    if way.implementation == "flash_attention_2":
        if not is_flash_attn_2_available():
            return "flash-attn is not installed"
        return None if ampere else "it needs a GPU of compute capability 8.0"
    if way.implementation == "flex_attention" and not on_gpu:
        return "on a CPU it has no gradient; its values are compared in tests/model/test_attention.py"
    return None


def applies(way: Way, case: Case) -> bool:
    """Whether the case is one for this way: of its precision, and where its own function is called."""
    if way.within is not None and case.layout == "whole rows":
        return False
    if way.implementation == "flex_attention":  # compiled anew for each shape
        return case.size <= 128 and case.dtype == torch.bfloat16
    return case.dtype in HALF or way.implementation != "flash_attention_2"


def cases(scale: Scale) -> Iterator[Case]:
    for size, value_size in scale.sizes:
        for layout in LAYOUTS:
            for causal in (False, True):
                for dtype in (torch.float32, *HALF):
                    yield Case(layout, causal, size, value_size, dtype)


def config_of(case: Case, length: int, way: Way) -> FixedHeadBertConfig:
    return FixedHeadBertConfig(
        vocab_size=99,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        attention_head_size=case.size,
        value_head_size=case.value_size,
        intermediate_size=64,
        max_position_embeddings=length,
        initializer_range=0.08,  # so large that it matters where a token attends
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        is_decoder=case.causal,
        unpad_inputs=case.layout == "unpadded" or way.within is not None,
        attn_implementation=way.implementation,
    )


def inputs_of(case: Case, lengths: list[int], device: torch.device) -> tuple[dict, torch.Tensor]:
    """Inputs of a model, and (B, L), true at real tokens. Packed rows hold a sequence of each length, and the rest."""
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
    """Random weights, rounded to the precision of the case."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FixedHeadBertModel(config_of(case, length, EAGER), add_pooling_layer=False)
    return {name: weight.to(case.dtype) for name, weight in model.state_dict().items()}


def outcome(case: Case, way: Way, lengths: list[int], device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """
    The last hidden states at real tokens (T, D), and the gradients of the matrices of queries, keys and values in each
    layer, all in float64: computed in `dtype`, from the weights of the case.
    """
    config = config_of(case, lengths[0], way)
    model = FixedHeadBertModel(config, add_pooling_layer=False).to(device, dtype)
    model.load_state_dict(weights_of(case, lengths[0]))
    inputs, real = inputs_of(case, lengths, device)
    with way.chosen():
        hidden_states = model(**inputs, use_cache=False).last_hidden_state[real]
    probe = torch.randn(hidden_states.shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    hidden_states.backward(probe)
    heads = [layer.attention.self for layer in model.encoder.layer]
    gradients = [getattr(one, name).weight.grad for one in heads for name in ("query", "key", "value")]
    return [x.detach().double() for x in (hidden_states, *gradients)]


def distance(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest relative error of one of the tensors, by its norm; infinite where a number is not finite."""
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(actual, expected, strict=True)]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def agreement(device: torch.device, ways: list[Way]) -> Iterator[dict]:
    """For each case and each way that applies to it: its distance from eager in float64, and the limit of that."""
    scale = SCALES[device.type]
    for case in tqdm(list(cases(scale)), desc="backends", leave=False):
        plain = replace(case, layout="packed" if case.layout == "packed" else "whole rows")
        expected = outcome(plain, EAGER, scale.lengths, device, torch.float64)
        epsilon = torch.finfo(case.dtype).eps
        limit = EAGER_EPSILONS * epsilon
        for way in (way for way in ways if applies(way, case)):
            error = None
            try:
                found = distance(outcome(case, way, scale.lengths, device, case.dtype), expected)
            except Exception as raised:  # whatever a kernel does on a new machine: the others go on
                found, error = math.inf, f"{type(raised).__name__}: {raised}"
            yield {
                "way": str(way),
                **case.record(),
                "distance": found,
                "limit": limit,
                "right": error is None and found <= limit,
                "error": error,
            }
            if way == EAGER and math.isfinite(found):
                limit = EPSILONS * epsilon + TIMES_EAGER[case.dtype] * found


def dropped(way: Way, lengths: list[int], device: torch.device, dtype: torch.dtype) -> tuple[float, float, int]:
    """
    The share of probabilities that dropout sets to zero, the relative error of the others, and their number: read from
    the output for values that are the unit vectors of their positions.
    """
    size, tokens = 64, sum(lengths)
    assert max(lengths) <= size
    case = Case("unpadded", False, size, size, dtype)
    config = config_of(case, size, way)
    config.attention_probs_dropout_prob = DROPOUT
    model = FixedHeadBertModel(config, add_pooling_layer=False).to(device, dtype).train()
    module = model.encoder.layer[0].attention.self
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(1, 3, tokens, size, generator=generator).to(device, dtype) for _ in range(2))
    position = torch.cat([torch.arange(n) for n in lengths])
    value = torch.eye(size)[position].expand(1, 3, -1, -1).to(device, dtype)
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=device)
    real = torch.arange(size) < torch.tensor(lengths)[:, None]
    batch = PackedBatch.from_mask(real).to(device)
    lengths = SequenceLengths(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen)._asdict()
    with way.chosen(), torch.no_grad():
        heads = {"dropout": DROPOUT, "scaling": module.scaling}
        kernel = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
        if way.implementation != "flash_attention_2":
            kernel = partial(packed_attention_forward, kernel)
        output, _ = kernel(module, query, key, value, None, **heads, **lengths)  # (1, T, H, V)
    zeros, kept, expected = 0, [], []
    for start, length in zip(ends.tolist(), lengths, strict=False):
        part = slice(start, start + length)
        q, k = (x[0, :, part].double() for x in (query, key))
        probabilities = (module.scaling * q @ k.mT).softmax(-1).transpose(0, 1)  # (length, H, length)
        found = output.reshape(tokens, 3, size)[part, :, :length].double()
        zeros += int((found == 0).sum())
        kept.append(found[found != 0])
        expected.append(probabilities[found != 0] / (1 - DROPOUT))
    wanted = torch.cat(expected)
    return zeros / (zeros + len(wanted)), distance([torch.cat(kept)], [wanted]), zeros + len(wanted)


def dropout_line(way: Way, device: torch.device, dtype: torch.dtype) -> Line:
    share, error, count = dropped(way, [61, 1, 40, 64, 17], device, dtype)
    # Four standard deviations, and what flash attention's eight random bits cannot express.
    far = 4 * math.sqrt(DROPOUT * (1 - DROPOUT) / count) + 2**-8
    return Line(
        f"dropout of {DROPOUT}: {way}, {name_of(dtype)}",
        f"{share:.4f} are zero, the others off by {error:.1e}",
        right=abs(share - DROPOUT) <= far and error <= EAGER_EPSILONS * torch.finfo(dtype).eps,
        values={"share": share, "error": error},
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def agreement_lines(device: torch.device) -> Iterator[Line]:
    """A line for each way and precision, by its worst case, and a line for each way that is missing here."""
    ways = [way for way in WAYS if missing(way, device) is None]
    found = list(agreement(device, ways))
    for way in WAYS:
        if way not in ways:
            yield Line(str(way), left_out=missing(way, device))
            continue
        for dtype in (torch.float32, *HALF):
            of_it = [one for one in found if one["way"] == str(way) and one["dtype"] == str(dtype)]
            if of_it:
                worst = max(of_it, key=lambda one: one["distance"] / one["limit"])
                yield Line(
                    f"{way}, {name_of(dtype)}",
                    f"{len(of_it)} cases, off by {worst['distance']:.1e} where {worst['limit']:.1e} is the limit"
                    + (f" ({worst['error']})" if worst["error"] else ""),
                    right=all(one["right"] for one in of_it),
                    values={"cases": of_it},
                )
    for way in ways:
        if way.implementation == "flex_attention":
            yield Line(f"dropout of {DROPOUT}: {way}", left_out="it has none")
        else:
            yield dropout_line(way, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
