"""Runs a model on sequences, records its attention, and accumulates the statistics defined in results.py."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..counts import layer_shapes
from ..support.errors import InputError

NAME = "fixedbert_inspection"  # name of `attend` in transformers' registry of attention functions
NUMERICAL = 1e-6  # singular values below this fraction of the largest are float32 rounding errors


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Computes and records attention over n tokens: outputs (B, n, heads, size) and patterns (B, heads, n, n)."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    patterns = (query @ key.mT * scaling).softmax(dim=-1)  # (B, H, n, n)
    recorder, layer = module.recorded_by
    recorder.attention_calls += 1
    if recorder.measuring:
        recorder.measure(layer, query * scaling, key, patterns)
    if recorder.patterns is not None:
        recorder.patterns.append(patterns)
    return (patterns @ value).transpose(1, 2).contiguous(), patterns


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)


class Recorder:
    """
    Accumulates statistics of attention heads over sequences. Sets the model's attention function to `attend`.

    Args:
        model: A bidirectional base model in evaluation mode, with BERT's module names.

    Raises:
        AttributeError: If the model lacks one of BERT's modules.
        ValueError: If no layer has heads.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, self.shapes = model, layer_shapes(model.config)
        self.counts, self.sizes = [shape.h for shape in self.shapes], [shape.p for shape in self.shapes]
        if not any(self.counts):
            raise ValueError("no layer has heads")
        self.sums: dict[str, list[Tensor]] = {}  # sum over sequences for each measure and layer
        self.sequences = self.attention_calls = 0
        self.measuring = True
        self.patterns: list[Tensor] | None = None  # for each layer, while `attention` runs
        self.ablated: tuple[int, int] | None = None  # layer and head to ablate
        for number, layer in enumerate(self.encoder_layers):
            if self.counts[number] == 0:
                continue
            vars(layer.get_submodule("attention.self"))["recorded_by"] = self, number
            projection = layer.get_submodule("attention.output.dense")
            projection.register_forward_pre_hook(partial(self.on_heads_output, number))
        model.set_attn_implementation(NAME)

    @property
    def encoder_layers(self) -> list[nn.Module]:
        return list(self.model.get_submodule("encoder.layer").children())

    def on_heads_output(self, layer: int, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        """Hook for concatenated heads (B, n, size). Zeroes the ablated head, or records their condition number."""
        (output,) = args
        if self.ablated is not None and self.ablated[0] == layer:
            size = self.shapes[layer].v
            output = output.clone()
            output[..., self.ablated[1] * size : (self.ablated[1] + 1) * size] = 0
            return (output,)
        if self.measuring:
            singular = singular_values(output.double())
            largest = singular[:, 0].clamp_min(torch.finfo(singular.dtype).tiny)  # outputs may all be zero
            floor = largest * torch.finfo(torch.float32).eps
            self.add(layer, "log_condition_number", (largest / singular[:, -1].maximum(floor)).log())
        return None

    def measure(self, layer: int, query: Tensor, key: Tensor, patterns: Tensor):
        """Updates the sums for H heads: scaled queries and keys (B, H, n, size), and patterns (B, H, n, n)."""
        n = query.shape[2]
        query, key = query.double(), key.double().expand_as(query)
        key = key - key.mean(dim=2, keepdim=True)
        singular = product_singular_values(query, key) if query.shape[-1] < n else singular_values(query @ key.mT)
        self.add(layer, "singular_values", singular)
        self.add(layer, "rank", (singular > NUMERICAL * singular.amax(-1, keepdim=True)).sum(-1))
        shares = singular / singular.sum(-1, keepdim=True).clamp_min(1e-300)
        self.add(layer, "effective_rank", torch.special.entr(shares).sum(-1).exp())
        self.add(layer, "entropy", torch.special.entr(patterns).sum(-1).mean(-1))
        positions = torch.arange(n, device=patterns.device)
        distances = (positions[:, None] - positions).abs().to(patterns.dtype)
        self.add(layer, "distance", (patterns * distances).sum(-1).mean(-1))
        flat = (patterns - 1 / n).flatten(2)
        flat = flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        cosine = flat @ flat.mT  # (B, H, H)
        self.add(layer, "similarities", cosine)
        cosine.diagonal(dim1=1, dim2=2).fill_(-1)
        self.add(layer, "max_similarity", cosine.amax(-1) if len(cosine[0]) > 1 else torch.zeros_like(cosine[..., 0]))

    def add(self, layer: int, name: str, values: Tensor):
        """Adds `values` (B, ...) to the layer's sum for the measure `name`."""
        empty = torch.tensor(math.nan) if values.ndim == 1 else torch.zeros(0)  # for layers without heads
        zero = torch.zeros((), dtype=torch.float64)
        sums = self.sums.setdefault(name, [zero if count else empty for count in self.counts])
        sums[layer] = sums[layer] + values.double().sum(dim=0).cpu()

    @torch.no_grad()
    def run(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Runs the model. Returns the hidden states (B, n, width) before each layer and after the last layer."""
        self.attention_calls = 0
        states = self.model(input_ids=ids.to(self.model.device), output_hidden_states=True).hidden_states
        if self.attention_calls != sum(map(bool, self.counts)):
            raise InputError("attention was not recorded in all layers; pass an encoder with the modules of BERT.")
        return states

    def add_sequences(self, ids: Tensor):
        """Runs the model on the sequences `ids` (B, n) and adds the statistics of its heads to the sums."""
        self.measuring = True
        self.run(ids)
        self.sequences += len(ids)

    def attention(self, ids: Tensor) -> list[Tensor]:
        """Returns, for each layer, the attention patterns (heads, n, n) for one sequence `ids` (1, n)."""
        self.measuring, self.patterns = False, []
        self.run(ids)
        patterns, self.patterns = iter(self.patterns), None
        empty = torch.zeros(0, ids.shape[1], ids.shape[1])
        return [next(patterns)[0].cpu() if count else empty for count in self.counts]

    def importance(self, ids: Tensor, progress: tqdm) -> Tensor:
        """Returns a tensor (layers, heads): the relative change in the last hidden states when a head is ablated."""
        return pad_heads(self.ablate(ids, lambda change, states: change.norm() / states.norm(), progress))

    def token_changes(self, ids: Tensor, progress: tqdm) -> list[Tensor]:
        """Returns, for each layer, relative changes (heads, n) in tokens' last hidden states if a head is ablated."""
        return self.ablate(ids, lambda change, states: (change.norm(dim=-1) / states.norm(dim=-1))[0], progress)

    @torch.no_grad()
    def ablate(self, ids: Tensor, measure: Callable[[Tensor, Tensor], Tensor], progress: tqdm) -> list[Tensor]:
        """
        Ablates each head in turn. Returns one tensor per layer, with the results of `measure` for the layer's heads.
        `measure` is called with the change in the last hidden states (B, n, width) and the states before ablation.
        """
        self.measuring = False
        states = self.run(ids)
        by_layer = []
        for number, count in enumerate(self.counts):
            changes = []
            for head in range(count):
                self.ablated = number, head
                hidden = states[number]  # the outputs of earlier layers do not change
                for layer in self.encoder_layers[number:]:
                    hidden = layer(hidden)
                    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
                changes.append(measure(hidden - states[-1], states[-1]).cpu())
                progress.update()
            by_layer.append(torch.stack(changes) if changes else measure(states[-1], states[-1]).cpu()[None][:0])
        self.ablated = None
        return by_layer

    def means(self, n: int) -> dict[str, Any]:
        """Returns the measures, averaged over the recorded sequences of n tokens. For shapes, see `Inspection`."""
        means: dict[str, Any] = {name: [one / self.sequences for one in sums] for name, sums in self.sums.items()}
        by_layer = {name: means.pop(name) for name in ("singular_values", "similarities")}
        condition_number = torch.stack(means.pop("log_condition_number")).exp()
        measures = {name: pad_heads(values) for name, values in means.items()}
        maximum = torch.tensor([min(size, n - 1) for size in self.sizes], dtype=torch.float64)
        utilization = measures["effective_rank"] / maximum[:, None]
        return {**measures, **by_layer, "condition_number": condition_number, "utilization": utilization}


def pad_heads(by_layer: list[Tensor]) -> Tensor:
    """Stacks tensors (heads,), one per layer, into a tensor (layers, heads). Missing heads are NaN."""
    return pad_sequence(by_layer, batch_first=True, padding_value=math.nan).double()


def product_singular_values(query: Tensor, key: Tensor) -> Tensor:
    """Returns the p largest singular values of Q K^T, for head size p, from the smaller products Q^T Q and K^T K."""
    values, vectors = torch.linalg.eigh(query.mT @ query)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return torch.linalg.eigvalsh(root.mT @ (key.mT @ key) @ root).clamp_min(0).sqrt().flip(-1)


def singular_values(matrix: Tensor) -> Tensor:
    """Returns the singular values of a matrix (..., n, m), largest first, from the smaller of A A^T and A^T A."""
    square = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    return torch.linalg.eigvalsh(square).clamp_min(0).sqrt().flip(-1)
