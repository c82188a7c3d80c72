"""What attention modules do with sequences: the sums behind the measures of `results.py`."""

import math
import weakref
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

from ..counts import head_counts, head_sizes, value_head_sizes
from ..support.errors import InputError

NAME = "fixedbert_inspection"  # by which transformers knows the attention function
NUMERICAL = 1e-6  # of the largest singular value; float32 leaves no more

# The recorder, and the number of the layer, to which an attention module belongs.
RECORDED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention (B, n, H, P) of queries, keys and values (B, H, n, P), recorded on the way."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    patterns = (query @ key.mT * scaling).softmax(dim=-1)  # (B, H, n, n)
    reference, layer = RECORDED[module]
    recorder = reference()
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
    Sums of the measures over sequences, collected by an attention function that every model of transformers calls.

    Args:
        model: bare, bidirectional, in evaluation mode, with BERT's names of modules.

    Raises:
        AttributeError, ValueError: modules of other names, or an attention that cannot be exchanged.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, config = model, model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.counts, self.sizes, self.value_sizes = head_counts(config), head_sizes(config), value_head_sizes(config)
        if not any(self.counts):
            raise ValueError("no layer has heads to look at")
        self.sums: dict[str, list[Tensor]] = {}  # over sequences, for each layer
        self.sequences = self.attention_calls = 0
        self.measuring = True
        self.patterns: list[Tensor] | None = None  # of each layer, where they are asked for
        self.ablated: tuple[int, int] | None = None  # layer and head
        for number, layer in enumerate(self.encoder_layers):
            if self.counts[number] == 0:
                continue
            RECORDED[layer.get_submodule("attention.self")] = weakref.ref(self), number
            projection = layer.get_submodule("attention.output.dense")
            projection.register_forward_pre_hook(partial(self.on_heads_output, number))
        model.set_attn_implementation(NAME)

    @property
    def encoder_layers(self) -> list[nn.Module]:
        return list(self.model.get_submodule("encoder.layer").children())

    def on_heads_output(self, layer: int, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        """Zero the ablated head's part of the heads' output (B, n, H V), or measure that output's condition number."""
        (output,) = args
        if self.ablated is not None and self.ablated[0] == layer:
            size = self.value_sizes[layer]
            output = output.clone()
            output[..., self.ablated[1] * size : (self.ablated[1] + 1) * size] = 0
            return (output,)
        if self.measuring:
            singular = svd(output.double())
            largest = singular[:, 0].clamp_min(torch.finfo(singular.dtype).tiny)  # of heads that give zeros alone
            floor = largest * torch.finfo(torch.float32).eps
            self.add(layer, "log_condition", (largest / singular[:, -1].maximum(floor)).log())
        return None

    def measure(self, layer: int, query: Tensor, key: Tensor, patterns: Tensor):
        n = query.shape[2]
        query, key = query.double(), key.double().expand_as(query)
        for prefix, keys in (("", key), ("pattern_", key - key.mean(dim=2, keepdim=True))):
            singular = product_singular_values(query, keys) if query.shape[-1] < n else svd(query @ keys.mT)
            self.add(layer, f"{prefix}rank", (singular > NUMERICAL * singular.amax(-1, keepdim=True)).sum(-1))
            self.add(layer, f"effective_{prefix}rank", effective_rank(singular))
        self.add(layer, "singular_values", singular)
        self.add(layer, "entropy", torch.special.entr(patterns).sum(-1).mean(-1))
        positions = torch.arange(n, device=patterns.device)
        distances = (positions[:, None] - positions).abs().to(patterns.dtype)
        self.add(layer, "distance", (patterns * distances).sum(-1).mean(-1))
        flat = (patterns - 1 / n).flatten(2)
        flat = flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        cosine = flat @ flat.mT  # (B, H, H)
        self.add(layer, "likeness", cosine)
        cosine.diagonal(dim1=1, dim2=2).fill_(-1)
        self.add(layer, "similarity", cosine.amax(-1) if len(cosine[0]) > 1 else torch.zeros_like(cosine[..., 0]))

    def add(self, layer: int, name: str, values: Tensor):
        """Sum `values` (B, ...) over the batch. Of a layer without heads the sum stays empty, its condition NaN."""
        nothing = torch.tensor(math.nan) if values.ndim == 1 else torch.zeros(0)
        zero = torch.zeros((), dtype=torch.float64)
        sums = self.sums.setdefault(name, [zero if count else nothing for count in self.counts])
        sums[layer] = sums[layer] + values.double().sum(dim=0).cpu()

    @torch.no_grad()
    def run(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The hidden states before each layer, and after the last (B, n, D)."""
        self.attention_calls = 0
        states = self.model(input_ids=ids.to(self.model.device), output_hidden_states=True).hidden_states
        if self.attention_calls != (layers := sum(map(bool, self.counts))):  # that have heads
            raise InputError(
                f"of {layers} layers the attention of {self.attention_calls} can be seen: no BERT inside."
            )
        return states

    def add_sequences(self, ids: Tensor):
        """Add the measures of sequences `ids` (B, n)."""
        self.measuring = True
        self.run(ids)
        self.sequences += len(ids)

    def attention(self, ids: Tensor) -> list[Tensor]:
        """Attention of each layer over one sequence `ids` (1, n): (heads, n, n), a row for each query."""
        self.measuring, self.patterns = False, []
        self.run(ids)
        patterns, self.patterns = iter(self.patterns), None
        nothing = torch.zeros(0, ids.shape[1], ids.shape[1])
        return [next(patterns)[0].cpu() if count else nothing for count in self.counts]

    def importance(self, ids: Tensor, progress: tqdm) -> Tensor:
        """(layers, heads): the change of the last hidden states without a head, relative to their size."""
        return table(self.silenced(ids, lambda change, states: change.norm() / states.norm(), progress))

    def token_changes(self, ids: Tensor, progress: tqdm) -> list[Tensor]:
        """By layer, each token's relative change without each head in one sequence `ids` (1, n): (heads, n)."""
        return self.silenced(ids, lambda change, states: (change.norm(dim=-1) / states.norm(dim=-1))[0], progress)

    @torch.no_grad()
    def silenced(self, ids: Tensor, measure: Callable[[Tensor, Tensor], Tensor], progress: tqdm) -> list[Tensor]:
        """By layer and head, `measure` of what the head changes in the last hidden states (B, n, D), and of these."""
        self.measuring = False
        states = self.run(ids)
        found = []
        for number, count in enumerate(self.counts):
            changes = []
            for head in range(count):
                self.ablated = number, head
                hidden = states[number]  # layers before this one do not change
                for layer in self.encoder_layers[number:]:
                    hidden = layer(hidden)
                    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
                changes.append(measure(hidden - states[-1], states[-1]).cpu())
                progress.update()
            found.append(torch.stack(changes) if changes else measure(states[-1], states[-1]).cpu()[None][:0])
        self.ablated = None
        return found

    def means(self, n: int) -> dict[str, Any]:
        """
        The measures for sequences of n tokens: each (layers, heads), `condition` (layers,), and for each layer
        `singular_values` and `likeness`.
        """
        means: dict[str, Any] = {name: [one / self.sequences for one in sums] for name, sums in self.sums.items()}
        by_layer = {name: means.pop(name) for name in ("singular_values", "likeness")}
        condition = torch.stack(means.pop("log_condition")).exp()
        found = {name: table(values) for name, values in means.items()}
        most = torch.tensor([min(size, n - 1) for size in self.sizes], dtype=torch.float64)
        ceiling = found["effective_pattern_rank"] / most[:, None]
        return {**found, **by_layer, "condition": condition, "ceiling": ceiling}


def table(by_layer: list[Tensor]) -> Tensor:
    """(layers, heads), NaN where a layer has no such head."""
    return pad_sequence(by_layer, batch_first=True, padding_value=math.nan).double()


def product_singular_values(query: Tensor, key: Tensor) -> Tensor:
    """Singular values of Q K^T from Q^T Q and K^T K (B, H, P, P): roots of the eigenvalues of their product."""
    values, vectors = torch.linalg.eigh(query.mT @ query)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return torch.linalg.eigvalsh(root.mT @ (key.mT @ key) @ root).clamp_min(0).sqrt().flip(-1)


def svd(matrix: Tensor) -> Tensor:
    """Singular values, largest first, of (..., n, m), from the smaller of the two products with its transpose."""
    square = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    return torch.linalg.eigvalsh(square).clamp_min(0).sqrt().flip(-1)


def effective_rank(singular: Tensor) -> Tensor:
    shares = singular / singular.sum(-1, keepdim=True).clamp_min(1e-300)
    return torch.special.entr(shares).sum(-1).exp()
