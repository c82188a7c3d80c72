"""Measures the latency of sublayers of every size and of entire models."""

import copy
import operator
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from ..conversion.growing import Heads, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..model.unpadding_fixed_head_bert import SHORT_TEXT, PackedBatch, SequenceLengths
from ..publishing.model_card import hardware_name
from ..support.errors import InputError
from ..support.files import read_json_object, reading, to_json, write_atomically
from .budget import LayerSize, head_choices, neuron_choices
from .predictions import encode, reads_first_token

CPUINFO = Path("/proc/cpuinfo")  # contains the name of the processor on Linux
ROUNDS = 5  # number of measurements per latency, of which the median is used


@dataclass(frozen=True)
class LatencyTable:
    """
    Measured latencies of sublayers, in seconds per batch. Latencies are averaged over the batches in `inputs`.

    Args:
        machine: the machine on which the latencies were measured, as returned by `machine_name`.
        width: hidden_size of the model.
        inputs: lengths of the rows in each batch.
        heads: (number of heads, head size, value head size, seconds) for each attention block, including its residual
            connection and LayerNorm.
        neurons: (number of neurons, seconds) for each feed-forward block, including its residual connection and
            LayerNorm.
        rest: seconds for everything in the base model except the layers.
        serving: how the model ran, for example "without padding, in bfloat16".
        last_heads, last_neurons: latencies for the last layer of a model that computes only the first token of each
            row there, as a text classifier without padding does. Empty for other models.
    """

    machine: str
    width: int
    inputs: list[list[int]]
    heads: list[tuple[int, int, int, float]]
    neurons: list[tuple[int, float]]
    rest: float
    serving: str = "with padding, in float32"
    last_heads: list[tuple[int, int, int, float]] = field(default_factory=list)
    last_neurons: list[tuple[int, float]] = field(default_factory=list)

    @property
    def is_local(self) -> bool:
        """True if the latencies were measured on this machine."""
        return self.machine == machine_name()

    def attention_times(self, is_last: bool = False) -> dict[Heads, float]:
        """Returns the seconds for each choice of heads. If a larger choice was faster, uses that choice's time."""
        measured = self.last_heads if is_last and self.last_heads else self.heads
        times = {Heads(*shape): seconds for *shape, seconds in measured}
        return {
            heads: min(seconds for other, seconds in times.items() if all(map(operator.ge, other, heads)))
            for heads in times
        }

    def feed_forward_times(self, is_last: bool = False) -> dict[int, float]:
        """Returns the seconds for each neuron count. If a larger count was faster, uses that count's time."""
        times = self.last_neurons if is_last and self.last_neurons else self.neurons
        return {count: min(seconds for other, seconds in times if other >= count) for count, _ in times}

    def prices(self, layers: int) -> list[tuple[Callable[[Heads], float], Callable[[int], float]]]:
        """Returns two functions for each layer: the seconds for heads, and the seconds for a number of neurons."""
        return [
            (self.attention_times(is_last).__getitem__, self.feed_forward_times(is_last).__getitem__)
            for is_last in [False] * (layers - 1) + [True]
        ]

    def write(self, file: Path):
        write_atomically(file, to_json(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path, width: int, shapes: list[LayerSize]) -> "LatencyTable":
        """
        Reads a latency table for a model with the given width and layer shapes.

        Raises:
            InputError: If the file is not a latency table, or was measured for a model with a different shape.
        """
        with reading(file, "omit `latency_table` to measure again"):
            table = cls(**read_json_object(file))
            heads, neurons = table.attention_times(), table.feed_forward_times()
        choices = {choice for shape in shapes for choice in head_choices(shape.heads)}
        counts = {count for shape in shapes for count in neuron_choices(shape.neurons)}
        if table.width != width or choices - {*heads} or counts - {*neurons}:
            raise InputError(f"{file}: measured for a model with a different shape.", "latency_table")
        return table


def machine_name() -> str:
    """Returns a description of this machine: GPU or core count, processor, number of threads, and torch version."""
    count = torch.get_num_threads()
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"{hardware_name()}, {processor_name()}, {threads}, torch {torch.__version__}"


def processor_name() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@torch.inference_mode()
def measure_latencies(
    model: FixedHeadBertPreTrainedModel, shapes: list[LayerSize], masks: list[torch.Tensor], serving: str
) -> LatencyTable:
    """
    Measures, with random weights, the latency of each sublayer to which layers of these shapes can be pruned.

    Args:
        model: the model as it is served. Its dtype and `unpad_inputs` apply to the sublayers, too.
        masks: attention masks (B, L) of the batches.
        serving: description of how the model is served.
    """
    heads = dict.fromkeys(choice for shape in shapes for choice in head_choices(shape.heads))
    neurons = dict.fromkeys(choice for shape in shapes for choice in neuron_choices(shape.neurons))
    runs: dict[tuple[bool, Heads | int], list[Callable]] = {}  # the key's first item is True for the last layer
    for is_last in (False, True) if has_short_last_layer(model, masks) else (False,):
        inputs = [sublayer_inputs(model, mask, is_last) for mask in masks]
        for choice in heads:
            attention = layer_with(model, choice).attention
            runs[is_last, choice] = [partial(attention, x, **options) for x, options in inputs]
        for count in neurons:
            feed_forward = layer_with(model, Heads(1, 1, 1), count).feed_forward_chunk
            runs[is_last, count] = [partial(feed_forward, x) for x, _ in inputs]
    rounds = {key: [0.0] * ROUNDS for key in runs}
    for index in tqdm(range(ROUNDS), "measuring latencies", unit="round"):
        for key, calls in runs.items():
            calls[0]()  # warm-up
            rounds[key][index] = sum(timed(call, model.device) for call in calls)
    times: dict[bool, dict] = {False: {}, True: {}}
    for (is_last, size), seconds in rounds.items():
        times[is_last][size] = median(seconds) / len(masks)
    table = LatencyTable(
        machine=machine_name(),
        width=model.config.hidden_size,
        inputs=[mask.sum(1).tolist() for mask in masks],
        heads=[(*size, seconds) for size, seconds in times[False].items() if isinstance(size, Heads)],
        neurons=[(size, seconds) for size, seconds in times[False].items() if isinstance(size, int)],
        rest=0.0,
        serving=serving,
        last_heads=[(*size, seconds) for size, seconds in times[True].items() if isinstance(size, Heads)],
        last_neurons=[(size, seconds) for size, seconds in times[True].items() if isinstance(size, int)],
    )
    layers = sum(
        time_of_heads(shape.heads) + time_of_neurons(shape.neurons)
        for shape, (time_of_heads, time_of_neurons) in zip(shapes, table.prices(len(shapes)), strict=True)
    )
    encoder = sum(median_time(partial(encode(model), 5 * mask, mask), model.device) for mask in masks)
    return replace(table, rest=max(0.0, encoder / len(masks) - layers))


def has_short_last_layer(model: FixedHeadBertPreTrainedModel, masks: list[torch.Tensor]) -> bool:
    """Returns True if the last layer computes only the first token in each row, which it does not for a short row."""
    return reads_first_token(model) and any(len(mask) > 1 or mask.shape[1] > SHORT_TEXT for mask in masks)


def sublayer_inputs(
    model: FixedHeadBertPreTrainedModel, mask: torch.Tensor, first_tokens: bool
) -> tuple[torch.Tensor, dict]:
    """
    Returns random hidden states (B, L, D), or (1, T, D) without padding, and further arguments for the attention.

    If `first_tokens`, the states are (1, B, D), and the arguments contain the states of all tokens.
    """
    if not model.config.unpad_inputs:
        return torch.randn(*mask.shape, model.config.hidden_size, dtype=model.dtype, device=model.device), {}
    batch = PackedBatch.from_mask(mask.bool())
    states = torch.randn(1, len(batch.indices), model.config.hidden_size, dtype=model.dtype, device=model.device)
    lengths = SequenceLengths(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen)
    if not first_tokens:
        return states, lengths._asdict()
    first = torch.arange(len(mask) + 1, dtype=torch.int32, device=model.device)  # one query per row
    lengths = lengths._replace(cu_seq_lens_q=first, max_length_q=1)
    return states[:, batch.cu_seqlens[:-1]], {"encoder_hidden_states": states, **lengths._asdict()}


def layer_with(model: FixedHeadBertPreTrainedModel, heads: Heads, neurons: int = 1) -> FixedHeadBertLayer:
    config = copy.copy(model.config)
    config.num_hidden_layers, config.intermediate_size = 1, neurons
    set_heads(config, [heads])
    return FixedHeadBertLayer(config, layer_idx=0).to(model.device, model.dtype).eval()


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Calls `run` once and returns the elapsed seconds."""
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    synchronize()
    begin = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - begin


@torch.inference_mode()
def median_time(run: Callable[[], object], device: torch.device) -> float:
    """Calls `run` several times and returns the median of the elapsed seconds."""
    run()  # warm-up
    return median(timed(run, device) for _ in range(ROUNDS))


@torch.inference_mode()
def measure_speedup(
    before: Callable[[], object], after: Callable[[], object], device: torch.device, rounds: int = 7
) -> tuple[float, float, float]:
    """Calls both functions in turn. Returns each function's median seconds, and the median ratio before / after."""
    before(), after()  # warm-up
    pairs = [(timed(before, device), timed(after, device)) for _ in range(rounds)]
    first, second = zip(*pairs, strict=True)
    return median(first), median(second), median(a / b for a, b in pairs)
