"""Measures the latency of sublayers of every size and of entire models."""

import copy
import operator
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from ..conversion.growing import Heads, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..model.unpadding_fixed_head_bert import PackedBatch, SequenceLengths
from ..publishing.model_card import hardware_name
from ..support.errors import InputError
from ..support.files import read_json_object, reading, to_json, write_atomically
from .budget import LayerSize, head_choices, neuron_choices

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
    """

    machine: str
    width: int
    inputs: list[list[int]]
    heads: list[tuple[int, int, int, float]]
    neurons: list[tuple[int, float]]
    rest: float
    serving: str = "with padding, in float32"

    @property
    def is_local(self) -> bool:
        """True if the latencies were measured on this machine."""
        return self.machine == machine_name()

    def attention_times(self) -> dict[Heads, float]:
        """Returns the seconds for each choice of heads. If a larger choice was faster, uses that choice's time."""
        times = {Heads(*shape): seconds for *shape, seconds in self.heads}
        return {
            heads: min(seconds for other, seconds in times.items() if all(map(operator.ge, other, heads)))
            for heads in times
        }

    def feed_forward_times(self) -> dict[int, float]:
        """Returns the seconds for each neuron count. If a larger count was faster, uses that count's time."""
        return {count: min(seconds for other, seconds in self.neurons if other >= count) for count, _ in self.neurons}

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
    inputs = [sublayer_inputs(model, mask) for mask in masks]
    runs: dict[object, list[Callable]] = {}
    for choice in heads:
        attention = layer_with(model, choice).attention
        runs[choice] = [partial(attention, x, **lengths) for x, lengths in inputs]
    for count in neurons:
        feed_forward = layer_with(model, Heads(1, 1, 1), count).feed_forward_chunk
        runs[count] = [partial(feed_forward, x) for x, _ in inputs]
    rounds = {size: [0.0] * ROUNDS for size in runs}
    for index in tqdm(range(ROUNDS), "measuring latencies", unit="round"):
        for size, calls in runs.items():
            calls[0]()  # warm-up
            rounds[size][index] = sum(timed(call, model.device) for call in calls)
    times = {size: median(seconds) / len(inputs) for size, seconds in rounds.items()}
    encoder = sum(
        median_time(partial(model.base_model, input_ids=5 * mask, attention_mask=mask), model.device) for mask in masks
    )
    return LatencyTable(
        machine=machine_name(),
        width=model.config.hidden_size,
        inputs=[mask.sum(1).tolist() for mask in masks],
        heads=[(*size, seconds) for size, seconds in times.items() if isinstance(size, Heads)],
        neurons=[(size, seconds) for size, seconds in times.items() if isinstance(size, int)],
        rest=max(0.0, encoder / len(masks) - sum(times[shape.heads] + times[shape.neurons] for shape in shapes)),
        serving=serving,
    )


def sublayer_inputs(model: FixedHeadBertPreTrainedModel, mask: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """Returns random hidden states (B, L, D), or (1, T, D) without padding, and the lengths of packed sequences."""
    if not model.config.unpad_inputs:
        return torch.randn(*mask.shape, model.config.hidden_size, dtype=model.dtype, device=model.device), {}
    batch = PackedBatch.from_mask(mask.bool())
    states = torch.randn(1, len(batch.indices), model.config.hidden_size, dtype=model.dtype, device=model.device)
    lengths = SequenceLengths(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen)
    return states, lengths._asdict()


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
