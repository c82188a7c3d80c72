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
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers.cache_utils import Cache
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing


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


def is_symbolic(x: torch.Tensor) -> bool:
    """Whether values cannot be read: a graph is traced, `x` is on the meta device, or vmap has batched it."""
    return is_tracing(x) or x.is_meta or torch._C._functorch.is_batchedtensor(x)


def rows_of_choices(inputs: dict) -> dict:
    """Inputs of tokens (B, choices, L), and embeddings (B, choices, L, D), with one row for each choice."""
    dims = {"input_ids": 1, "attention_mask": 1, "token_type_ids": 1, "position_ids": 1, "inputs_embeds": 2}
    given = {name: inputs[name] for name in dims if inputs.get(name) is not None}
    return inputs | {name: x.view(-1, *x.shape[-dims[name] :]) for name, x in given.items()}


def check_inputs(embeddings: nn.Module, inputs: dict[str, torch.Tensor | None], attention_mask, past: int):
    """Raises ValueError, with field and value, where inputs make no sense for the tables of BERT's `embeddings`."""
    name, given = next((name, x) for name, x in inputs.items() if x is not None)
    if given.ndim != (2 if name == "input_ids" else 3):
        raise ValueError(f"{name} has the shape {tuple(given.shape)}: it must begin with (batch, length).")
    shape, length = (given.shape[0], given.shape[1]), past + given.shape[1]
    positions = embeddings.get_buffer("position_ids").shape[1]
    if inputs["position_ids"] is None and length > positions:
        raise ValueError(f"{length} tokens are more than max_position_embeddings={positions}.")
    if isinstance(attention_mask, torch.Tensor):
        check_mask(attention_mask, name, shape, past)
    tables = {
        "input_ids": "word_embeddings",
        "token_type_ids": "token_type_embeddings",
        "position_ids": "position_embeddings",
    }
    for field, table in tables.items():
        if (ids := inputs[field]) is not None:  # a table of another class has no size that is known
            check_ids(field, ids, getattr(getattr(embeddings, table), "num_embeddings", 2**63), name, shape)
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
    if labels.device.type == "cpu" and not is_symbolic(labels):
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


def places_of_labels(labels: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
    """
    The places (N) of labels that are not -100 in the flat `labels` (B, L). Those that are `known` may have others too,
    which add nothing to a loss.

    Raises:
        ValueError: on a CPU, the known ones are not all.
    """
    if known is None:
        return labels.flatten().ne(-100).nonzero().squeeze(-1)
    if labels.device.type == "cpu" and not is_symbolic(labels):
        found, all_labels = int(labels.flatten()[known].ne(-100).sum()), int(labels.ne(-100).sum())
        if found != all_labels:
            raise ValueError(f"labelled has {found} of the {all_labels} tokens that have a label.")
    return known


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


def layout_of(inputs: dict, attention_mask, cached: bool = False, packed: bool = False) -> Layout:
    """
    The layout of `inputs`: by the mask, or without one by position ids that restart within a row, which need not be
    looked for in rows known to be `packed`. With a cache the mask also covers what came before, and a row is one
    sequence.
    """
    B, L = ids_or_embeddings(inputs).shape[:2]
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        return Layout((attention_mask[:, -L:] if cached else attention_mask).bool(), None)
    position_ids = inputs.get("position_ids")
    if attention_mask is not None or position_ids is None or cached:
        return Layout(None, None)
    starts = position_ids.expand(B, -1).diff(prepend=position_ids[:, :1].expand(B, -1) - 1) <= 0
    return Layout(None, starts.cumsum(-1) if packed or is_symbolic(starts) or starts.any() else None)


def ends_of(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The ends of sequences in a row, (S + 1) from 0, and the longest of their lengths (S)."""
    return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())


class Unpadded:
    """
    The tokens of a batch (B, L) that are computed, as one row (1, T).

    Args:
        shape: B and L.
        index: their places in the flat batch, (T).
        sequence: the number of the sequence that each is in, (T).
        cu_seq_lens: the ends of the S sequences in the row, (S + 1) from 0.
        max_length: the longest sequence.
        last_layer: from `queries`, at labelled tokens, and with `pooled` also at the first of each row. Without it
            these are looked for where a head asks.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        index: torch.Tensor,
        sequence: torch.Tensor,
        cu_seq_lens: torch.Tensor,
        max_length: int,
        last_layer: dict | None = None,
        pooled: bool = False,
    ):
        self.shape = shape
        self.index = index
        self.sequence = sequence
        self.lengths = Lengths(cu_seq_lens, cu_seq_lens, max_length, max_length)
        self.last_layer = last_layer
        self.pooled = pooled

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
        return cls.of_rows(real, packed)

    @classmethod
    def of_rows(cls, real: torch.Tensor, packed: torch.Tensor | None = None) -> "Unpadded":
        """The tokens where `real` (B, L) is true; `packed` (B, L) as in a Layout."""
        index = real.flatten().nonzero().squeeze(-1)  # (T,)
        row = index // real.shape[1]  # (T,)
        sequence = row if packed is None else row * real.shape[1] + packed.flatten()[index]
        _, sequence, lengths = sequence.unique_consecutive(return_inverse=True, return_counts=True)
        return cls(real.shape, index, sequence, *ends_of(lengths))

    def for_model(self, labelled: torch.Tensor | None, pooled: bool) -> dict:
        """
        The `unpadded` of a model whose head reads the last hidden state where `labelled` (B, L) is true, and with
        `pooled` at the first token of each row; None for a head that reads all.
        """
        return {
            "index": self.index,
            "sequence": self.sequence,
            "cu_seq_lens": self.lengths.cu_seq_lens_k,
            "max_length": self.lengths.max_length_k,
            "last_layer": None if labelled is None else self.queries(labelled, pooled),
            "pooled": pooled,
        }

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, ...) or (1, L, ...) -> (1, T, ...)"""
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.index.to(x.device)][None]

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """(1, T, ...) -> (B, L, ...), zeros elsewhere."""
        B, L = self.shape
        rows = x.new_zeros(B * L, *x.shape[2:]).index_copy(0, self.index.to(x.device), x[0])
        return rows.unflatten(0, (B, L))

    def narrow(self, wanted: torch.Tensor | str, pooled: bool) -> dict:
        """The `queries` of the last layer. After this `put_back` takes these tokens alone."""
        known = isinstance(wanted, torch.Tensor) and self.pooled >= pooled
        last_layer = self.last_layer if known and self.last_layer is not None else self.queries(wanted, pooled)
        if last_layer:
            self.index = self.index[last_layer["queries"]]
        return last_layer

    def queries(self, wanted: torch.Tensor | str, pooled: bool) -> dict:
        """
        Arguments for a layer that computes only the tokens `wanted` (B, L), and with `pooled` the first of each row.
        """
        row = self.index // self.shape[1]
        chosen = torch.zeros_like(row, dtype=torch.bool)
        if isinstance(wanted, torch.Tensor):
            if wanted.shape != self.shape:
                raise ValueError(f"labels have the shape {tuple(wanted.shape)}, the tokens {tuple(self.shape)}.")
            chosen = wanted.flatten()[self.index]
        if pooled:
            chosen = chosen | (row.diff(prepend=row[:1] - 1) != 0)
        queries = chosen.nonzero().squeeze(-1)
        if not len(queries):
            return {}
        lengths = self.sequence[queries].bincount(minlength=len(self.lengths.cu_seq_lens_k) - 1)
        ends, longest = ends_of(lengths)
        return {"queries": queries, "cu_seq_lens_q": ends, "max_length_q": longest}
