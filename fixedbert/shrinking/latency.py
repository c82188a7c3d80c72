"""How long each part of a model takes on this machine: a table of measured times, by heads, sizes and neurons."""

import copy
import operator
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from ..conversion.growing import Heads, set_heads
from ..model.attention_fixed_head_bert import FixedHeadBertAttention
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..publishing.model_card import hardware_name
from ..support.errors import InputError
from ..support.files import read_json_object, to_json, write_atomically
from .budget import Shape, head_choices, neuron_choices

CPUINFO = Path("/proc/cpuinfo")  # where Linux names the processor
ROUNDS = 5  # measurements, of which the median counts
Inputs = tuple[int, int]  # rows and tokens of a batch


@dataclass(frozen=True)
class LatencyTable:
    """
    Seconds that parts of a layer take, the mean over the batches `inputs`.

    Args:
        machine: cores or GPU, processor, threads, and version of torch.
        width: hidden_size.
        inputs: rows and tokens of batches.
        heads: (heads, size, value size, seconds) of each attention with its residual and LayerNorm.
        neurons: (neurons, seconds) of each feed-forward network with its residual and LayerNorm.
        rest: seconds of the encoder beside its layers, which is not cut.
    """

    machine: str
    width: int
    inputs: list[Inputs]
    heads: list[tuple[int, int, int, float]]
    neurons: list[tuple[int, float]]
    rest: float

    @property
    def is_of_this_machine(self) -> bool:
        return self.machine == machine_name()

    def of_heads(self) -> dict[Heads, float]:
        """Seconds of each attention, or of a larger one if that took less: it could be used in its place."""
        found = {Heads(*shape): seconds for *shape, seconds in self.heads}
        return {
            heads: min(seconds for other, seconds in found.items() if all(map(operator.ge, other, heads)))
            for heads in found
        }

    def of_neurons(self) -> dict[int, float]:
        """Seconds of each feed-forward network, or of a larger one if that took less."""
        return {
            number: min(seconds for other, seconds in self.neurons if other >= number) for number, _ in self.neurons
        }

    def write(self, file: Path):
        write_atomically(file, to_json(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path, width: int, shapes: Iterable[Shape]) -> "LatencyTable":
        """
        The table in a file.

        Raises:
            InputError: it is no table, or of a model of another width, or lacks shapes of this one.
        """
        fields = read_json_object(file, "leave --latency_table out to measure here")
        try:
            inputs = [(int(rows), int(tokens)) for rows, tokens in fields["inputs"]]
            table = cls(**fields | {"inputs": inputs, "rest": float(fields["rest"])})
            heads, neurons = table.of_heads(), table.of_neurons()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file}: not a table of latencies: {error}.", "latency_table") from error
        if table.width != width:
            raise InputError(f"{file}: measured for a width of {table.width}, not of {width}.", "latency_table")
        for shape in shapes:
            if {*head_choices(shape.heads)} - {*heads} or {*neuron_choices(shape.neurons)} - {*neurons}:
                raise InputError(
                    f"{file}: lacks cuts of layers of {shape.heads} and {shape.neurons} neurons.",
                    "latency_table",
                )
        return table


def machine_name() -> str:
    count = torch.get_num_threads()
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"{hardware_name()}, {processor_name()}, {threads}, torch {torch.__version__}"


def processor_name() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@torch.inference_mode()
def measure(model: FixedHeadBertPreTrainedModel, shapes: Sequence[Shape], inputs: list[Inputs]) -> LatencyTable:
    """Measure all parts that layers of these shapes can become, with random weights, in the model's type."""
    parts: dict[object, Callable] = {}
    for heads in dict.fromkeys(shape.heads for shape in shapes):
        parts |= {choice: attention_of(model, choice) for choice in head_choices(heads) if choice not in parts}
    for neurons in dict.fromkeys(shape.neurons for shape in shapes):
        parts |= {choice: feed_forward_of(model, choice) for choice in neuron_choices(neurons) if choice not in parts}
    width, times = model.config.hidden_size, {part: [0.0] * ROUNDS for part in parts}
    states = [torch.randn(*shape, width, dtype=model.dtype, device=model.device) for shape in inputs]
    for turn in tqdm(range(ROUNDS), "measuring", unit="round"):
        for part, run in parts.items():
            run(states[0])  # not counted
            times[part][turn] = sum(seconds_of(partial(run, x), model.device) for x in states)
    found = {part: median(seconds) / len(inputs) for part, seconds in times.items()}
    ids = [torch.full(shape, 5, device=model.device) for shape in inputs]
    whole = sum(duration(partial(model.base_model, x), model.device) for x in ids)
    layers = sum(found[shape.heads] + found[shape.neurons] for shape in shapes)
    return LatencyTable(
        machine_name(),
        width,
        inputs,
        [(*part, seconds) for part, seconds in found.items() if isinstance(part, Heads)],
        [(part, seconds) for part, seconds in found.items() if isinstance(part, int)],
        max(0.0, whole / len(inputs) - layers),
    )


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """How long a call takes."""
    wait(device)
    begin = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - begin


def wait(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def attention_of(model: FixedHeadBertPreTrainedModel, heads: Heads) -> Callable:
    config = copy.copy(model.config)
    config.num_hidden_layers = 1
    set_heads(config, [heads])
    attention = FixedHeadBertAttention(config, layer_idx=0).to(model.device, model.dtype).eval()
    return lambda states: attention(states)[0]


def feed_forward_of(model: FixedHeadBertPreTrainedModel, neurons: int) -> Callable:
    config = copy.copy(model.config)
    config.intermediate_size, config.num_hidden_layers = neurons, 1
    set_heads(config, [Heads(1, 1, 1)])
    layer = FixedHeadBertLayer(config, layer_idx=0).to(model.device, model.dtype).eval()
    return layer.feed_forward_chunk


@torch.inference_mode()
def duration(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes: the median over some rounds."""
    run()  # not counted
    return median(seconds_of(run, device) for _ in range(ROUNDS))


@torch.inference_mode()
def ratio(before: Callable[[], object], after: Callable[[], object], device: torch.device, rounds: int = 7):
    """Seconds of each, measured in turns, and how many times faster the second is: the median over the rounds."""
    before(), after()  # not counted
    pairs = [(seconds_of(before, device), seconds_of(after, device)) for _ in range(rounds)]
    first, second = zip(*pairs, strict=True)
    return median(first), median(second), median(a / b for a, b in pairs)
