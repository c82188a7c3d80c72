"""
Collects statistics for each layer on calibration data: activations, and the Fisher information of the predictions.
All statistics exclude padding.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from ..loading.heads import Heads, heads_of, set_heads
from ..model.attention_fixed_head_bert import FixedHeadBertAttention, FixedHeadBertSelfAttention
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..model.unpadding_fixed_head_bert import CACHE
from ..support.errors import InputError
from ..tasks.predictions import Batch, Predict, predict, sampled_nll
from .budget import LayerSize
from .distillation import recorded
from .pruning import SecondMoments, reduce_head_size, square_root

SCORE_STRIDE = 4  # errors of attention scores are measured on every fourth batch


def layer_sizes(model: FixedHeadBertPreTrainedModel) -> list[LayerSize]:
    return [LayerSize(*shape) for shape in zip(heads_of(model.config), model.config.neuron_counts, strict=True)]


def layers_of(model: FixedHeadBertPreTrainedModel) -> list[FixedHeadBertLayer]:
    layers = model.base_model.get_submodule("encoder.layer").children()
    return [layer for layer in layers if isinstance(layer, FixedHeadBertLayer)]


def self_attention(attention: FixedHeadBertAttention) -> FixedHeadBertSelfAttention:
    module = attention.get_submodule("self")
    assert isinstance(module, FixedHeadBertSelfAttention)
    return module


class LayerStatistics:
    """
    Second moments over the calibration data for one layer of the original model.

    The layer has H heads of size P and value size V, F neurons and width D. Shapes below are (groups, elements).

    Attributes:
        heads: Outputs z (1, H V) of all heads.
        neurons: Activations (1, F) of the neurons.
        heads_gradient, neurons_gradient: Gradients (1, D) of the log-likelihood with respect to the outputs of the
            attention and feed-forward blocks. Their second moments are the Fisher information.
        queries: Queries (H, P) of all heads.
        keys: Keys (H, P) of all heads, minus the mean key in the same row.
        score_errors: For each reduced head size, the averages (H,) of |G^(1/2) W_o dz|^2 over tokens, for all heads.
            dz is the change in z at this head size, W_o the output projection of a head, and G the Fisher information
            of the attention block.
    """

    def __init__(self, shape: LayerSize, width: int):
        number, size, value_size = shape.heads
        self.heads, self.heads_gradient = SecondMoments(1, number * value_size), SecondMoments(1, width)
        self.neurons, self.neurons_gradient = SecondMoments(1, shape.neurons), SecondMoments(1, width)
        self.queries, self.keys = SecondMoments(number, size), SecondMoments(number, size)
        self.score_errors: dict[int, Tensor] = {}


def collect_statistics(
    model: FixedHeadBertPreTrainedModel, batches: list[Batch], head_sizes: list[set[int]], predict: Predict = predict
) -> list[LayerStatistics]:
    """
    Runs forward and backward passes on the calibration data and returns the statistics for each layer.

    Args:
        head_sizes: For each layer, the reduced head sizes for which score errors are measured.

    Raises:
        InputError: If activations or gradients contain NaN or infinity.
    """
    statistics = [LayerStatistics(shape, model.config.hidden_size) for shape in layer_sizes(model)]
    modules = [
        (
            layer.attention.get_submodule("output.dense"),
            layer.output.dense,
            self_attention(layer.attention).query,
            self_attention(layer.attention).key,
        )
        for layer in layers_of(model)
    ]
    for batch in tqdm(batches, "Fisher information", unit="batch"):
        with recorded(*(module for layer in modules for module in layer)) as seen:
            nll = torch.stack([sampled_nll(predictions) for predictions in predict(model, batch)]).sum()
        outputs = [seen[module][1] for W_o, W_f, *_ in modules for module in (W_o, W_f)]
        gradients, non_padding = iter(torch.autograd.grad(nll, outputs)), batch["attention_mask"].bool()
        for layer, (W_o, W_f, query, key) in zip(statistics, modules, strict=True):
            layer.heads.add(seen[W_o][0].detach()[non_padding])
            layer.heads_gradient.add(next(gradients)[non_padding])
            layer.neurons.add(seen[W_f][0].detach()[non_padding])
            layer.neurons_gradient.add(next(gradients)[non_padding])
            layer.queries.add(seen[query][1].detach()[non_padding])
            layer.keys.add(minus_row_mean(seen[key][1].detach(), non_padding)[non_padding])
    for layer in statistics:
        moments = [x for x in vars(layer).values() if isinstance(x, SecondMoments)]
        if not all(x.mean.isfinite().all() for x in moments):
            raise InputError("activations or gradients contain NaN or infinity; the weights are probably corrupted.")
    measure_score_errors(model, batches[::SCORE_STRIDE], statistics, head_sizes, predict)
    return statistics


def minus_row_mean(states: Tensor, non_padding: Tensor) -> Tensor:
    """Returns the states (B, L, size) minus their mean over the non-padding tokens of each row."""
    weights = non_padding[..., None].to(states.dtype)
    return states - (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


def attention_mask_for(model: FixedHeadBertPreTrainedModel, states: Tensor, batch: Batch):
    mask = batch["attention_mask"]
    if model.config.is_decoder:
        no_cache: dict[str, Any] = {CACHE: None}
        return create_causal_mask(model.config, states, attention_mask=mask, **no_cache)
    return create_bidirectional_mask(model.config, states, attention_mask=mask)


@torch.no_grad()
def measure_score_errors(
    model: FixedHeadBertPreTrainedModel,
    batches: list[Batch],
    statistics: list[LayerStatistics],
    head_sizes: list[set[int]],
    predict: Predict,
):
    """Measures how smaller queries and keys change each layer's outputs. Sets `score_errors` in the statistics."""
    layers = layers_of(model)
    variants, metrics = [], []
    for layer, sums, sizes in zip(layers, statistics, head_sizes, strict=True):
        heads = self_attention(layer.attention)
        number = heads.num_attention_heads
        reduced = sorted(sizes - {heads.attention_head_size})
        variants.append({size: with_reduced_scores(heads, sums, size) for size in reduced})
        sums.score_errors = {size: torch.zeros(number, dtype=torch.float64) for size in reduced}
        W_o = layer.attention.get_parameter("output.dense.weight")
        metric = square_root(sums.heads_gradient.uncentered[0]).to(W_o) @ W_o  # (D, H V)
        metrics.append(metric.T.unflatten(0, (number, -1)))  # (H, V, D)
    for batch in tqdm(batches, "score errors", unit="batch"):
        non_padding = batch["attention_mask"].bool()
        with recorded(*(self_attention(layer.attention) for layer in layers)) as seen:
            predict(model, batch)
        for layer, smaller, metric, sums in zip(layers, variants, metrics, statistics, strict=True):
            states, output = seen[self_attention(layer.attention)]
            mask = attention_mask_for(model, states, batch)
            for size, heads in smaller.items():
                change = heads(states, attention_mask=mask)[0] - output[0]
                change = change[non_padding].unflatten(-1, metric.shape[:2]).transpose(0, 1)  # (H, n, V)
                sums.score_errors[size] += (change @ metric).square().sum(dim=(1, 2)).double().cpu()
    tokens = sum(int(batch["attention_mask"].bool().sum()) for batch in batches)
    for sums in statistics:
        sums.score_errors = {size: errors / tokens for size, errors in sums.score_errors.items()}


def reduced_scores(
    heads: FixedHeadBertSelfAttention, statistics: LayerStatistics, size: int, kept: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    Reduces the queries and keys of the heads in `kept` to `size`. Returns the query weights (h, size, D), query biases
    (h, size), key weights and key biases, where h is the number of heads in `kept` and D the width.
    """
    number = heads.num_attention_heads
    W_q, W_k = (
        torch.cat([x.weight, x.bias[:, None]], dim=1).detach().cpu().double().unflatten(0, (number, -1))[kept]
        for x in (heads.query, heads.key)
    )
    moments = statistics.queries.uncentered[kept], statistics.keys.uncentered[kept]
    # The softmax is invariant to the key bias.
    reduced = [reduce_head_size(q, k[:, :-1], L, R, size) for q, k, L, R in zip(W_q, W_k, *moments, strict=True)]
    queries, keys = map(torch.stack, zip(*reduced, strict=True))
    queries = queries * (size / heads.attention_head_size) ** 0.5  # attention divides by the root of the new size
    return queries[..., :-1], queries[..., -1], keys, torch.zeros_like(queries[..., -1])


def with_reduced_scores(
    heads: FixedHeadBertSelfAttention, statistics: LayerStatistics, size: int
) -> FixedHeadBertSelfAttention:
    """Returns a copy of an attention module with smaller queries and keys. The copy shares the value projection."""
    number = heads.num_attention_heads
    config = copy.copy(heads.config)
    config.num_hidden_layers = 1
    set_heads(config, [Heads(number, size, heads.value_head_size)])
    with torch.device("meta"):
        smaller = self_attention(FixedHeadBertAttention(config, heads.is_causal, layer_idx=0)).eval()
    W_q, b_q, W_k, b_k = (
        x.flatten(0, 1).to(heads.query.weight) for x in reduced_scores(heads, statistics, size, list(range(number)))
    )
    smaller.query.weight, smaller.query.bias = nn.Parameter(W_q), nn.Parameter(b_q)
    smaller.key.weight, smaller.key.bias = nn.Parameter(W_k), nn.Parameter(b_k)
    smaller.value = heads.value
    return smaller
