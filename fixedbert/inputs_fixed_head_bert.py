# Copyright 2026 The fixedbert authors. Licensed under the Apache License, Version 2.0.
"""
Inputs and labels: how heads take them, their checks, the tokens that are computed, and the losses.

Shapes: B batch, L length, D hidden_size, V vocabulary; T tokens of a batch without its padding, S sequences in it.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy, pad
from transformers.cache_utils import Cache
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_fixed_head_bert import FixedHeadBertConfig


def forward_like(stock: type[PreTrainedModel]) -> Callable:
    """A decorator: the forward of a head, which takes arguments by name, gets the signature of BERT's `stock` head."""
    names = [name for name, x in signature(stock.forward).parameters.items() if x.kind is not x.VAR_KEYWORD][1:]

    def decorate(forward: Callable) -> Callable:
        @can_return_tuple
        @wraps(stock.forward)
        def by_name(self, *args, **kwargs):
            if len(args) > len(names):
                raise TypeError(f"forward takes {len(names)} arguments by position, not {len(args)}.")
            return forward(self, **dict(zip(names, args, strict=False)), **kwargs)

        return by_name

    return decorate


def ids_or_embeddings(inputs: dict[str, torch.Tensor | None]) -> torch.Tensor:
    """
    The ids (B, L), or the embeddings (B, L, D) in their place.

    Raises:
        ValueError: there are neither, or both.
    """
    ids, embeddings = inputs.get("input_ids"), inputs.get("inputs_embeds")
    if ids is not None and embeddings is None:
        return ids
    if embeddings is not None and ids is None:
        return embeddings
    raise ValueError("Give either input_ids or inputs_embeds.")


def rows_of_choices(inputs: dict) -> dict:
    """Inputs of tokens (B, choices, L), and embeddings (B, choices, L, D), with one row for each choice."""
    dims = {"input_ids": 1, "attention_mask": 1, "token_type_ids": 1, "position_ids": 1, "inputs_embeds": 2}
    given = {name: inputs[name] for name in dims if inputs.get(name) is not None}
    return inputs | {name: x.view(-1, *x.shape[-dims[name] :]) for name, x in given.items()}


def check_inputs(config: FixedHeadBertConfig, inputs: dict[str, torch.Tensor | None], attention_mask, past: int):
    """Raises ValueError, with field and value, where the inputs of the model make no sense."""
    name, given = next((name, x) for name, x in inputs.items() if x is not None)
    if given.ndim != (2 if name == "input_ids" else 3):
        raise ValueError(f"{name} has the shape {tuple(given.shape)}: it must begin with (batch, length).")
    shape, length = (given.shape[0], given.shape[1]), past + given.shape[1]
    if inputs["position_ids"] is None and length > config.max_position_embeddings:
        raise ValueError(f"{length} tokens are more than max_position_embeddings={config.max_position_embeddings}.")
    if isinstance(attention_mask, torch.Tensor):
        check_mask(attention_mask, name, shape, past)
    tables = {
        "input_ids": config.vocab_size,
        "token_type_ids": config.type_vocab_size,
        "position_ids": config.max_position_embeddings,
    }
    for field, size in tables.items():
        if (ids := inputs[field]) is not None:
            check_ids(field, ids, size, name, shape)
    if name == "inputs_embeds":
        check_embeddings(given)


def check_mask(attention_mask: torch.Tensor, name: str, shape: tuple[int, int], past: int):
    """
    A mask of two dimensions has 0 and 1 for the input `name` of this shape, after the `past` tokens in the cache. One
    of four dimensions has the keys that a query sees, or numbers to add to its scores.
    """
    if attention_mask.ndim not in (2, 4):
        raise ValueError(
            f"attention_mask has {attention_mask.ndim} dimensions: it takes 2, or 4 with heads and queries."
        )
    if attention_mask.ndim == 4:
        if attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
            raise ValueError(
                f"attention_mask holds {attention_mask.dtype} in four dimensions: true where a query sees a key, "
                "or a number to add to its score."
            )
        return
    if attention_mask.shape != (shape[0], past + shape[1]):
        after = f" after {past} tokens in the cache" if past else ""
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} where {name} has {shape}{after}."
        )
    wrong = (attention_mask != 0) & (attention_mask != 1)
    if attention_mask.device.type == "cpu" and wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"attention_mask[{row}, {column}] is {attention_mask[row, column]}: 1 for a token, 0 for padding."
        )


def check_ids(field: str, ids: torch.Tensor, size: int, name: str, shape: tuple[int, int]):
    """Ids are integers, have the shape of the input `name`, and on a CPU are rows of a table of this size."""
    if ids.is_floating_point():
        raise ValueError(f"{field} holds {ids.dtype} where integers belong.")
    if ids.ndim != 2 or ids.shape[0] not in (1, shape[0]) or ids.shape[1] != shape[1]:
        raise ValueError(f"{field} has the shape {tuple(ids.shape)} where {name} has {shape}.")
    if ids.device.type == "cpu" and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= size:
            row, column = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
            raise ValueError(f"{field}[{row}, {column}] is {ids[row, column]}: the model knows 0 to {size - 1}.")


def check_embeddings(embeddings: torch.Tensor):
    """Embeddings (B, L, D) on a CPU are finite."""
    if embeddings.device.type == "cpu" and not embeddings.isfinite().all():
        row, column, place = embeddings.isfinite().logical_not().nonzero()[0].tolist()
        raise ValueError(f"inputs_embeds[{row}, {column}, {place}] is {embeddings[row, column, place]}.")


def check_cache(cache: Cache, layer: int, new: dict[str, torch.Tensor]):
    """
    Check that the `keys` (B, G, L, P) and `values` (B, G, L, V) of a layer have heads of the same number and size as
    those in the cache.

    Raises:
        ValueError: the cache was allocated, or filled, for a layer of another shape.
    """
    there = vars(cache.layers[layer]) if layer < len(cache.layers) else {}
    for name, x in new.items():
        cached = there.get(name)
        if cached is not None and cached.ndim == 4 and cached.shape[1::2] != x.shape[1::2]:
            raise ValueError(
                f"past_key_values has {cached.shape[1]} heads of {cached.shape[3]} for the {name} of layer {layer}, "
                f"which has {x.shape[1]} of {x.shape[3]}: it must have the shape of every layer, which a DynamicCache "
                "or a StaticCache without early_initialization takes from the first tokens."
            )


def labels_of_tokens(
    labels: torch.Tensor, outputs: torch.Tensor, attention_mask: torch.Tensor | None, classes: int
) -> torch.Tensor:
    """
    `labels` (B, L) with -100 at padding, which has no loss, computed or not.

    Raises:
        ValueError: they have another shape than the outputs (B, L, ...), or on a CPU are no class.
    """
    if labels.shape != outputs.shape[:2]:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, the tokens {tuple(outputs.shape[:2])}.")
    if labels.device.type == "cpu" and not is_tracing(labels):
        wrong = ((labels < 0) & (labels != -100)) | (labels >= classes)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"labels[{row}, {column}] is {labels[row, column]}: -100 or 0 to {classes - 1} belongs there."
            )
    labels, padding = labels.to(outputs.device), padding_in(attention_mask)
    if padding is None:
        return labels
    return labels.masked_fill(padding[:, -labels.shape[1] :].to(labels.device), -100)  # the mask may cover a cache


def token_loss(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """
    Cross-entropy of logits (..., V) and labels (...): the mean over labels that are not -100, zero if there is none,
    or the sum divided by `num_items_in_batch`, which Trainer counts over all batches and processes of a step.
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if num_items_in_batch is None:
        return mean_loss(logits, labels)
    items = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
    return cross_entropy(logits, labels, reduction="sum") / items


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """
    Cross-entropy of logits (N, classes) and labels (N): the mean over labels that are not `ignore_index`, zero if
    there is none. There torch would divide by zero, in the gradient too, so it gets labels whose loss is masked.
    """
    none = labels.eq(ignore_index).all()
    return cross_entropy(logits, labels.masked_fill(none, 0), ignore_index=ignore_index).masked_fill(none, 0)


def answer_loss(logits: torch.Tensor, places: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """`mean_loss` of logits (B, L) and places (B); a place outside the row, or at padding (B, L), is no label."""
    L = logits.shape[1]
    places = places.view(-1).clamp(0, L)
    if padding is not None:
        outside = pad(padding, (0, 1), value=True)  # (B, L + 1)
        places = places.masked_fill(outside.gather(1, places[:, None]).squeeze(1), L)
    return mean_loss(logits, places, ignore_index=L)


def tokens_to_keep(hidden_states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """
    The hidden states (B, L, D) to compute logits of: the last ones, 0 for all; places, (K) for every row or (B, K); or
    a boolean mask (B, L), which gives one row of them, (K, D).
    """
    if isinstance(logits_to_keep, int):
        return hidden_states[:, slice(-logits_to_keep, None)]
    if logits_to_keep.ndim < 2:
        return hidden_states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return hidden_states[logits_to_keep]
    return hidden_states.take_along_dim(logits_to_keep[..., None], dim=1)


def padding_in(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """(B, L), true at padding; None without a mask of two dimensions, which alone says what is padding."""
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return ~attention_mask.bool()
    return None


def zero_where(blank: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """`x` (B, L, ...) with zeros where `blank` (B, L) is true."""
    return x if blank is None or blank.shape != x.shape[:2] else x.masked_fill(blank[..., None].to(x.device), 0)


class Layout(NamedTuple):
    """Padding and sequences in the rows of a batch."""

    real: torch.Tensor | None  # (B, L), false at padding; None where no mask says so
    packed: torch.Tensor | None  # (B, L), the number of a token's sequence in its row; None where a row is one


class Lengths(NamedTuple):
    """Ends of the S sequences in a row, (S + 1) from 0, and the longest length, by transformers' names for them."""

    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def layout_of(config: FixedHeadBertConfig, inputs: dict, attention_mask, past_key_values: Cache | None) -> Layout:
    """
    The layout of `inputs`: by the mask, or without one by position ids that restart within a row. With a cache the
    mask also covers what came before, and a row is one sequence.

    Raises:
        ValueError: as `ids_or_embeddings` and `check_inputs`.
    """
    given, cached = ids_or_embeddings(inputs), past_key_values is not None
    if not is_tracing(given):
        past = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        check_inputs(config, inputs, attention_mask, past)
    B, L = given.shape[:2]
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return Layout((attention_mask[:, -L:] if cached else attention_mask).bool(), None)
    position_ids = inputs["position_ids"]
    if attention_mask is not None or position_ids is None or cached:
        return Layout(None, None)
    starts = position_ids.expand(B, -1).diff(prepend=position_ids[:, :1].expand(B, -1) - 1) <= 0
    return Layout(None, starts.cumsum(-1) if is_tracing(given) or starts.any() else None)


class Unpadded:
    """
    The tokens of a batch (B, L) that are computed, as one row (1, T).

    `real` (B, L) is true for these, `packed` (B, L) has the number of each token's sequence in its row, where a row
    has more than one. From `lengths` the attention knows where sequences begin and end.
    """

    def __init__(self, real: torch.Tensor, packed: torch.Tensor | None = None):
        self.shape = real.shape
        self.index = real.flatten().nonzero().squeeze(-1)  # (T,)
        self.row = self.index // real.shape[1]  # (T,)
        sequence = self.row if packed is None else self.row * real.shape[1] + packed.flatten()[self.index]
        _, self.sequence, lengths = sequence.unique_consecutive(return_inverse=True, return_counts=True)
        ends, longest = self.ends(lengths)
        self.lengths = Lengths(ends, ends, longest, longest)

    @classmethod
    def of(cls, layout: Layout, given: torch.Tensor, last_layer_at: torch.Tensor | str | None) -> "Unpadded | None":
        """The tokens of ids or embeddings (B, L, ...); None if these are all, in every layer, in unpacked rows."""
        real, packed = layout
        if real is None:
            if packed is None and last_layer_at is None:
                return None
            real = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
        elif not real.any() or (real.all() and last_layer_at is None):
            return None
        return cls(real, packed)

    @staticmethod
    def ends(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
        return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, ...) or (1, L, ...) -> (1, T, ...)"""
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.index.to(x.device)][None]

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """(1, T, ...) -> (B, L, ...), zeros elsewhere."""
        B, L = self.shape
        rows = x.new_zeros(B * L, *x.shape[2:]).index_copy(0, self.index.to(x.device), x[0])
        return rows.unflatten(0, (B, L))

    def narrow(self, wanted: torch.Tensor | str, pooled: bool) -> dict:
        """
        Arguments for a layer that computes only the tokens `wanted` (B, L), and with `pooled` the first of each row.
        After this `put_back` takes these tokens alone.
        """
        chosen = torch.zeros_like(self.row, dtype=torch.bool)
        if isinstance(wanted, torch.Tensor):
            if wanted.shape != self.shape:
                raise ValueError(f"labels have the shape {tuple(wanted.shape)}, the tokens {tuple(self.shape)}.")
            chosen = wanted.flatten()[self.index]
        if pooled:
            chosen = chosen | (self.row.diff(prepend=self.row[:1] - 1) != 0)
        queries = chosen.nonzero().squeeze(-1)
        if not len(queries):
            return {}
        lengths = self.sequence[queries].bincount(minlength=len(self.lengths.cu_seq_lens_k) - 1)
        ends, longest = self.ends(lengths)
        self.index = self.index[queries]
        return {"queries": queries, "cu_seq_lens_q": ends, "max_length_q": longest}
