"""
A model cut layer after layer: each is calibrated on what the layers before it give once they are cut, and measured.

The hidden states of the text are kept in files and read a batch at a time: memory does not grow with the text.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers.masking_utils import create_causal_mask

from ..conversion.growing import Heads, heads_of, set_heads
from ..model.attention_fixed_head_bert import FixedHeadBertAttention, FixedHeadBertSelfAttention
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from .budget import Curves, curves_of, heads_for_error, score_errors
from .cut import RANK_TOLERANCE, Moments, SecondMoments, cut_attention, remove_inputs

PILOT = 16  # sequences, at most, on which the effect of scores on the output is measured
ROUNDING = 1e-6  # of the sum of squares, up to which a predicted error may be rounding
# Of all sequences: what layers take in the original model and in the cut one, what the feed-forward network takes in
# the cut one, and W_o's output in the original model, and before the cut in the cut one.
STATES = ("original", "cut", "attended", "original output", "uncut output")


@dataclass(frozen=True)
class LayerErrors:
    """
    Relative errors of a layer in the Frobenius norm, over all tokens of the text.

    Attributes:
        before, after: its heads.
        scores: predicted from the singular values on the uncut model, of the scores less their mean for each query, by
            the size that is kept, from 0 on.
        values: the same of the attention's output (W_o's with bias, before the residual), by the size of values.
        heads: the same by the number of heads that are left out; of 0 alone where none may be.
        error: measured, of the attention's output after the cut against before, on the same inputs.
        from_original: measured, of the attention's output in the cut model against that in the original.
        feed_forward_error: measured, of the feed-forward network's output on the same inputs; 0 where it is not cut.
    """

    before: Heads
    after: Heads
    scores: list[float]
    values: list[float]
    heads: list[float]
    error: float = 0.0
    from_original: float = 0.0
    feed_forward_error: float = 0.0

    @classmethod
    def predicted(cls, moments: Moments, curves: Curves) -> "LayerErrors":
        """Without a cut."""
        scores = score_errors(moments)
        of_scores = (scores / scores[0]).sqrt() if scores[0] > 0 else scores
        of_values = curves.values.sum(dim=0).sqrt()
        of_heads = curves.heads_removed.sqrt()
        return cls(moments.heads, moments.heads, of_scores.tolist(), of_values.tolist(), of_heads.tolist())


class HiddenStates:
    """
    Hidden states (N, L, D) of sequences, in a file. Only the batch that is read or written is in memory. The file is
    not mapped: on a full disk, writing to a map kills the process.
    """

    def __init__(self, file: Path, length: int, width: int, dtype: torch.dtype, device: torch.device):
        self.file, self.shape, self.device = file, (length, width), device
        self.dtype = np.dtype(str(dtype).removeprefix("torch."))
        file.touch()

    def place(self, row: int) -> int:
        """Where a sequence begins, in bytes."""
        return row * math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, batch: slice) -> Tensor:
        count = (batch.stop - batch.start) * math.prod(self.shape)
        states = np.fromfile(self.file, self.dtype, count, offset=self.place(batch.start))
        return torch.from_numpy(states).view(-1, *self.shape).to(self.device)

    def __setitem__(self, batch: slice, states: Tensor):
        with open(self.file, "r+b") as file:
            file.seek(self.place(batch.start))
            file.write(states.cpu().numpy().tobytes())


class Watched:
    """Tensors of the last forward pass: queries and keys (B, L, H P), z (B, L, H V), and W_o's output."""

    queries: Tensor
    keys: Tensor
    z: Tensor
    output: Tensor  # (B, L, D)


def layers_of(model: FixedHeadBertPreTrainedModel) -> list[FixedHeadBertLayer]:
    layers = model.base_model.get_submodule("encoder.layer").children()
    return [layer for layer in layers if isinstance(layer, FixedHeadBertLayer)]


def heads_in(attention: FixedHeadBertAttention) -> FixedHeadBertSelfAttention:
    module = attention.get_submodule("self")
    assert isinstance(module, FixedHeadBertSelfAttention)
    return module


@contextmanager
def watched(attention: FixedHeadBertAttention) -> Iterator[Watched]:
    """What `attention` computes in here."""
    seen, heads = Watched(), heads_in(attention)

    def see(*names: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def hook(module, args, output):
            seen.__dict__.update(zip(names, (output, *args), strict=False))

        return hook

    handles = [
        heads.query.register_forward_hook(see("queries")),
        heads.key.register_forward_hook(see("keys")),
        attention.get_submodule("output.dense").register_forward_hook(see("output", "z")),
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Difference:
    """Sums of squares over a text, in float64: of a difference, and of what it is relative to."""

    def __init__(self):
        self.of_difference = self.of_reference = 0.0

    def add(self, other: Tensor, reference: Tensor):
        self.of_difference += float((other.double() - reference.double()).square().sum())
        self.of_reference += float(reference.double().square().sum())

    @property
    def relative(self) -> float:
        return (self.of_difference / self.of_reference) ** 0.5 if self.of_difference else 0.0


class LayerByLayer:
    """
    Args:
        model: in evaluation mode. `cut` makes it the cut model, its configuration too, and can be called once.
        text: gives the batches of the text, ids (B, L), anew at each call.
        dtype: that the cut model is saved in; its weights are rounded to it as they are made, and errors are those of
            rounded weights. By default that of `model`, in which all is computed.
    """

    def __init__(
        self,
        model: FixedHeadBertPreTrainedModel,
        text: Callable[[], Iterator[Tensor]],
        dtype: torch.dtype | None = None,
    ):
        self.model, self.text, self.dtype = model, text, dtype or model.dtype
        self.embeddings, self.layers = model.base_model.get_submodule("embeddings"), layers_of(model)
        self.heads = heads_of(model.config)
        self.tokens = 0  # of the text, when it has been read

    def attend(self, attention: FixedHeadBertAttention, hidden_states: Tensor) -> Tensor:
        """The attention of a layer with residual and LayerNorm, (B, L, D) -> (B, L, D)."""
        mask, config = None, self.model.config
        if config.is_decoder:
            mask = create_causal_mask(config, hidden_states, attention_mask=None, past_key_values=None)
        return attention(hidden_states, attention_mask=mask)[0]

    @torch.no_grad()
    def curves(self) -> tuple[list[Curves], list[LayerErrors]]:
        """
        What is predicted of the uncut model, from one forward pass over the text.

        Raises:
            InputError: too little text, or a text without variance.
        """
        moments = [Moments(heads, of_all=True) for heads in self.heads]
        inputs = [torch.empty(0)] * len(self.layers)  # of each layer, for the first sequences
        for ids in tqdm(self.text(), "reading", unit="batch"):
            hidden_states = self.embeddings(input_ids=ids.to(self.model.device))
            for number, layer in enumerate(self.layers):
                inputs[number] = torch.cat([inputs[number], hidden_states])[:PILOT].clone()  # not a view of a batch
                with watched(layer.attention) as seen:
                    hidden_states = layer.feed_forward_chunk(self.attend(layer.attention, hidden_states))
                moments[number].add(seen.queries, seen.keys, seen.z, seen.output)
        self.tokens = moments[0].z.tokens
        for number, of_layer in enumerate(moments):
            check(of_layer, number)
        found = [
            self.curves_of(layer.attention, of_layer, states)
            for layer, of_layer, states in zip(self.layers, moments, inputs, strict=True)
        ]
        return found, [LayerErrors.predicted(*of_layer) for of_layer in zip(moments, found, strict=True)]

    def curves_of(self, attention: FixedHeadBertAttention, moments: Moments, inputs: Tensor) -> Curves:
        """
        Curves of a layer. How far an error of scores moves its output is measured on hidden states `inputs` (B, L, D),
        with queries and keys of half the size, or of less where half loses nothing.
        """
        errors, sensitivity = score_errors(moments), 0.0
        felt = int((errors > ROUNDING * errors[0]).sum()) - 1  # the largest size at which something is lost
        less = moments.heads._replace(size=max(1, min(moments.heads.size // 2, felt)))
        error = float(errors[less.size])
        if error > 0:
            cut, difference = self.with_heads(attention, less, moments), Difference()
            with watched(attention) as before, watched(cut) as after:
                self.attend(attention, inputs)
                self.attend(cut, inputs)
            difference.add(after.output, before.output)
            sensitivity = difference.relative**2 / error
        return curves_of(tensors_of(attention), moments, sensitivity)

    def with_heads(self, attention: FixedHeadBertAttention, heads: Heads, moments: Moments) -> FixedHeadBertAttention:
        """The attention cut to these heads; itself where nothing changes."""
        if heads == moments.heads:
            return attention
        return self.attention_of(cut_attention(tensors_of(attention), heads, moments), heads)

    def attention_of(self, tensors: dict[str, Tensor], heads: Heads) -> FixedHeadBertAttention:
        """An attention with these parameters, rounded."""
        config = copy.copy(self.model.config)
        set_heads(config, [heads] * config.num_hidden_layers)
        with torch.device("meta"):
            attention = FixedHeadBertAttention(config, is_causal=config.is_decoder)
        heads_in(attention).config = self.model.config  # what is set there later is for this layer too
        attention.load_state_dict({name: self.rounded(tensor) for name, tensor in tensors.items()}, assign=True)
        return attention.eval().to(self.model.device)

    def rounded(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).to(tensor.dtype)

    @torch.no_grad()
    def cut(
        self,
        folder: Path,
        heads: list[Heads] | None = None,
        tolerance: float = 0.0,
        multiple_of: int = 1,
        intermediate_size: int | None = None,
    ) -> list[LayerErrors]:
        """
        Cut the model.

        Args:
            folder: a new one, for the hidden states of the text.
            heads: of each layer; None for the smallest whose error is at most `tolerance`.
            multiple_of: what sizes that follow from `tolerance` are multiples of.
            intermediate_size: neurons of the feed-forward networks; None for all.

        Raises:
            InputError: as `curves`.
        """
        folder.mkdir()
        config, found = self.model.config, []
        self.batches: list[slice] = []
        self.states: dict[str, HiddenStates] = {}
        self.tokens = 0
        for ids in self.text():
            if not self.batches:
                shape = ids.shape[1], config.hidden_size, self.model.dtype, self.model.device
                self.states = {name: HiddenStates(folder / name, *shape) for name in STATES}
            begin = self.batches[-1].stop if self.batches else 0
            self.batches.append(slice(begin, begin + len(ids)))
            embedded = self.embeddings(input_ids=ids.to(self.model.device))
            self.states["original"][self.batches[-1]] = self.states["cut"][self.batches[-1]] = embedded
            self.tokens += ids.numel()
        with tqdm(total=len(self.layers) * len(self.batches), desc="cutting", unit="batch") as self.progress:
            for number in range(len(self.layers)):
                wanted = None if heads is None else heads[number]
                errors = self.cut_attention(number, wanted, tolerance, multiple_of)
                lost = self.cut_feed_forward(number, intermediate_size or config.neuron_counts[number])
                found.append(replace(errors, feed_forward_error=lost))
        set_heads(config, [layer.after for layer in found])
        config.intermediate_size = intermediate_size or config.intermediate_size
        return found

    def cut_attention(self, number: int, wanted: Heads | None, tolerance: float, multiple_of: int) -> LayerErrors:
        """
        Cut the attention of a layer. States of the original model move on to the next layer, those of the cut one to
        the feed-forward network.
        """
        layer, old, states = self.layers[number], self.heads[number], self.states
        attention = layer.attention
        leave_out = wanted is None or wanted.number < old.number
        of_original, of_cut = Moments(old, leave_out), Moments(old, leave_out)
        with watched(attention) as seen:
            for batch in self.batches:
                attended = self.attend(attention, states["original"][batch])
                of_original.add(seen.queries, seen.keys, seen.z, seen.output)
                states["original output"][batch] = seen.output
                states["original"][batch] = layer.feed_forward_chunk(attended)
                self.attend(attention, states["cut"][batch])
                of_cut.add(seen.queries, seen.keys, seen.z, seen.output)
                states["uncut output"][batch] = seen.output
                self.progress.update()
        check(of_cut, number)
        curves = (
            None
            if wanted
            else self.curves_of(attention, of_cut, states["cut"][slice(0, min(PILOT, self.batches[-1].stop))])
        )
        aim = tolerance
        while True:
            heads = wanted or old
            if curves is not None and aim > RANK_TOLERANCE:
                heads = heads_for_error(curves, aim, multiple_of)
            layer.attention = self.with_heads(attention, heads, of_cut)
            heads_in(layer.attention).layer_idx = number
            error, from_original = Difference(), Difference()
            with watched(layer.attention) as seen:
                for batch in self.batches:
                    states["attended"][batch] = self.attend(layer.attention, states["cut"][batch])
                    error.add(seen.output, states["uncut output"][batch])
                    from_original.add(seen.output, states["original output"][batch])
            if wanted or error.relative <= tolerance:
                break
            aim *= 0.9 * tolerance / error.relative  # more was lost than predicted
        predicted = LayerErrors.predicted(of_original, curves_of(tensors_of(attention), of_original))
        return replace(predicted, after=heads, error=error.relative, from_original=from_original.relative)

    def cut_feed_forward(self, number: int, size: int) -> float:
        """Cut the feed-forward network of a layer. States of the cut model move on to the next. Returns the error."""
        states, layer = self.states, self.layers[number]
        first, last = layer.intermediate, layer.output
        if size == first.dense.out_features:
            for batch in self.batches:
                states["cut"][batch] = layer.feed_forward_chunk(states["attended"][batch])
            return 0.0
        moments = SecondMoments(1, first.dense.out_features)
        for batch in self.batches:
            neurons = first(states["attended"][batch])  # (B, L, F)
            moments.add(neurons)
            states["uncut output"][batch] = last.dense(neurons)
        check(moments, number)
        removal = remove_inputs(last.dense.weight.cpu(), moments.mean[0], moments.about_mean[0], 1, size)
        weights = first.dense.weight[removal.kept], first.dense.bias[removal.kept]
        first.dense = linear(*weights)
        bias = last.dense.bias + removal.lost_mean.to(last.dense.bias)
        last.dense = linear(self.rounded(removal.weight.to(bias)), self.rounded(bias))
        error = Difference()
        for batch in self.batches:
            attended = states["attended"][batch]
            output = last.dense(first(attended))
            error.add(output, states["uncut output"][batch])
            states["cut"][batch] = last.LayerNorm(output + attended)
        return error.relative


@torch.no_grad()
def errors_from_original(
    cut: FixedHeadBertPreTrainedModel, original: FixedHeadBertPreTrainedModel, batches: Iterator[Tensor]
) -> list[float]:
    """The relative errors of each layer's attention output, as `LayerErrors.from_original`, of a whole model."""
    found = [Difference() for _ in layers_of(original)]
    for ids in tqdm(batches, "comparing", unit="batch"):
        with ExitStack() as stack:
            seen = []
            for model in (cut, original):
                seen.append([stack.enter_context(watched(layer.attention)) for layer in layers_of(model)])
                model.base_model(input_ids=ids.to(model.device))
        for difference, after, before in zip(found, *seen, strict=True):
            difference.add(after.output, before.output)
    return [difference.relative for difference in found]


def check(moments: Moments | SecondMoments, number: int):
    """
    Raises:
        InputError: the text shows too little to the layer of this number.
    """
    try:
        moments.check()
    except InputError as error:
        raise InputError(f"layer {number}: {error}") from error


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear map with these parameters, (out, in) and (out)."""
    module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    module.weight, module.bias = nn.Parameter(weight), nn.Parameter(bias)
    return module


def tensors_of(attention: FixedHeadBertAttention) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in attention.state_dict().items()}
