"""
Prunes the layers of a model: collects statistics on calibration data, computes pruned weights, and refits them.

The mathematics is in pruning.py. All statistics ignore padding.
"""

import copy

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from ..conversion.growing import Heads, heads_of, set_heads
from ..fine_tuning.distillation import Batch, recorded
from ..model.attention_fixed_head_bert import FixedHeadBertAttention, FixedHeadBertSelfAttention
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from .budget import LayerSize
from .predictions import Predict, predict, sampled_nll
from .pruning import (
    LeastSquaresRefit,
    SecondMoments,
    head_size_errors,
    least_squares,
    prune_inputs,
    reduce_head_size,
    square_root,
)

NEURON_STEPS = 192  # maximum number of steps for removing all neurons of a layer
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


def non_padding_mask(batch: Batch) -> Tensor:
    """Returns a mask (B, L) that selects the non-padding tokens."""
    return batch["attention_mask"].bool()


class LayerStatistics:
    """
    Second moments over the calibration data for one layer of the original model.

    The layer has H heads of size P and value size V, F neurons and width D. Shapes below are (groups, elements).

    Attributes:
        heads: outputs z of all heads, (1, H V).
        neurons: activations of the neurons, (1, F).
        heads_gradient, neurons_gradient: gradients of the log-likelihood with respect to the outputs of the attention
            and feed-forward blocks, (1, D). Their second moments are the Fisher information.
        queries: queries of all heads, (H, P).
        keys: keys of all heads minus the mean key in their row, (H, P).
        score_errors: maps each reduced head size to the average of |G^(1/2) W_o dz|^2 over tokens, for each head, (H).
    """

    def __init__(self, shape: LayerSize, width: int):
        number, size, value_size = shape.heads
        self.heads, self.heads_gradient = SecondMoments(1, number * value_size), SecondMoments(1, width)
        self.neurons, self.neurons_gradient = SecondMoments(1, shape.neurons), SecondMoments(1, width)
        self.queries, self.keys = SecondMoments(number, size), SecondMoments(number, size)
        self.score_errors: dict[int, Tensor] = {}


def collect_statistics(
    model: FixedHeadBertPreTrainedModel,
    batches: list[Batch],
    head_sizes: list[set[int]],
    predict: Predict = predict,
) -> list[LayerStatistics]:
    """
    Runs forward and backward passes on the calibration data and returns the statistics for each layer.

    Args:
        head_sizes: for each layer, the reduced head sizes for which score errors are measured.

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
        gradients, non_padding = iter(torch.autograd.grad(nll, outputs)), non_padding_mask(batch)
        for layer, (W_o, W_f, query, key) in zip(statistics, modules, strict=True):
            layer.heads.add(seen[W_o][0].detach()[non_padding])
            layer.heads_gradient.add(next(gradients)[non_padding])
            layer.neurons.add(seen[W_f][0].detach()[non_padding])
            layer.neurons_gradient.add(next(gradients)[non_padding])
            layer.queries.add(seen[query][1].detach()[non_padding])
            layer.keys.add(minus_row_mean(seen[key][1].detach(), non_padding)[non_padding])
    for layer in statistics:
        moments = [x for x in vars(layer).values() if isinstance(x, SecondMoments)]
        if not all(x.sum.isfinite().all() for x in moments):
            raise InputError("activations or gradients contain NaN or infinity; the weights are probably corrupted.")
    measure_score_errors(model, batches[::SCORE_STRIDE], statistics, head_sizes, predict)
    return statistics


def minus_row_mean(states: Tensor, non_padding: Tensor) -> Tensor:
    """Returns the states (B, L, N) minus the mean state in each row. The mean excludes padding."""
    weights = non_padding[..., None].to(states.dtype)
    return states - (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


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
        non_padding = non_padding_mask(batch)
        with recorded(*(self_attention(layer.attention) for layer in layers)) as seen:
            predict(model, batch)
        for layer, smaller, metric, sums in zip(layers, variants, metrics, statistics, strict=True):
            states, output = seen[self_attention(layer.attention)]
            mask = attention_mask_for(model, states, batch)
            for size, heads in smaller.items():
                change = heads(states, attention_mask=mask)[0] - output[0]
                change = change[non_padding].unflatten(-1, metric.shape[:2]).transpose(0, 1)  # (H, n, V)
                sums.score_errors[size] += (change @ metric).square().sum(dim=(1, 2)).double().cpu()
    tokens = sum(int(non_padding_mask(batch).sum()) for batch in batches)
    for sums in statistics:
        sums.score_errors = {size: errors / tokens for size, errors in sums.score_errors.items()}


def reduced_scores(
    heads: FixedHeadBertSelfAttention, statistics: LayerStatistics, size: int, kept: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    Returns the weights (h, size, D) and biases (h, size) of the queries, and then of the keys, for the h heads in
    `kept`, after reducing their head size to `size`.
    """
    number = heads.num_attention_heads
    W_q, W_k = (
        torch.cat([x.weight, x.bias[:, None]], dim=1).detach().cpu().double().unflatten(0, (number, -1))[kept]
        for x in (heads.query, heads.key)
    )
    moments = statistics.queries.uncentered[kept], statistics.keys.uncentered[kept]
    reduced = [
        reduce_head_size(q, k[:, :-1], L, R, size)  # the softmax is invariant to the key bias
        for q, k, L, R in zip(W_q, W_k, *moments, strict=True)
    ]
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
    smaller.query, smaller.key, smaller.value = linear(W_q, b_q), linear(W_k, b_k), heads.value
    return smaller


class LayerPruner:
    """
    Computes the cost of each choice of heads and neurons in one layer, and the pruned weights for a given choice.

    Args:
        layer, shape: a layer of the original model and its shape.
        statistics: statistics of this layer on the calibration data.
        tokens: average number of tokens per row.
    """

    def __init__(self, layer: FixedHeadBertLayer, shape: LayerSize, statistics: LayerStatistics, tokens: float):
        self.layer, self.shape, self.statistics = layer, shape, statistics
        number, _, value_size = shape.heads
        W_o, W_f = (
            layer.get_parameter(name).detach().cpu().double()
            for name in ("attention.output.dense.weight", "output.dense.weight")
        )
        self.M_z, self.M_a = statistics.heads.covariance[0], statistics.neurons.covariance[0]
        G_o, G_f = statistics.heads_gradient.uncentered[0], statistics.neurons_gradient.uncentered[0]
        self.head_order = prune_inputs(square_root(G_o) @ W_o, self.M_z, value_size)
        self.neuron_order = prune_inputs(square_root(G_f) @ W_f, self.M_a, 1, -(-shape.neurons // NEURON_STEPS))
        # For values: the covariance of z, and the second moment of its gradient, for each head, (H, V, V).
        self.L = self.M_z.view(number, value_size, number, value_size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        W_h = W_o.T.unflatten(0, (number, -1))  # (H, V, D)
        self.R = W_h @ G_o @ W_h.mT
        half = tokens / 2
        self.head_costs, self.neuron_costs = half * self.head_order.costs, half * self.neuron_order.costs
        self.score_costs = {size: half * errors for size, errors in statistics.score_errors.items()}
        self.value_costs = half * head_size_errors(self.L, self.R)

    def cost_of_heads(self, heads: Heads) -> float:
        """Returns the predicted KL divergence in nats per row if only these heads remain."""
        kept = self.head_order.kept(heads.num_heads)
        removed = self.shape.heads.num_heads - heads.num_heads
        cost = self.head_costs[removed] + self.value_costs[kept, heads.value_size].sum()
        if heads.size < self.shape.heads.size:
            cost = cost + self.score_costs[heads.size][kept].sum()
        return float(cost)

    def cost_of_neurons(self, neurons: int) -> float:
        """Returns the predicted KL divergence in nats per row if only this number of neurons remains."""
        return float(self.neuron_costs[self.shape.neurons - neurons])

    def parameters(self, shape: LayerSize) -> dict[str, Tensor]:
        """Returns the parameters that change if the layer is pruned to `shape`, as a dict of float64 tensors."""
        changed: dict[str, Tensor] = {}
        if shape.heads != self.shape.heads:
            changed |= self.attention_parameters(shape.heads)
        if shape.neurons != self.shape.neurons:
            changed |= self.feed_forward_parameters(shape.neurons)
        return changed

    def attention_parameters(self, heads: Heads) -> dict[str, Tensor]:
        old, kept = self.shape.heads, self.head_order.kept(heads.num_heads)
        state = {name: tensor.cpu().double() for name, tensor in self.layer.attention.state_dict().items()}
        parts = {  # (h, P, D) or (h, P)
            f"{name}.{kind}": state[f"self.{name}.{kind}"].unflatten(0, (old.num_heads, -1))[kept]
            for name in ("query", "key", "value")
            for kind in ("weight", "bias")
        }
        index = torch.arange(old.num_heads * old.value_size).view(old.num_heads, -1)[kept].flatten()
        old_W_o, mean = state["output.dense.weight"], self.statistics.heads.mean[0]
        W_o = least_squares(old_W_o, self.M_z, index) if kept else old_W_o[:, :0]
        state["output.dense.bias"] = state["output.dense.bias"] + (old_W_o @ mean - W_o @ mean[index])
        if heads.size < old.size and kept:
            scores = reduced_scores(self_attention(self.layer.attention), self.statistics, heads.size, kept)
            parts |= zip(("query.weight", "query.bias", "key.weight", "key.bias"), scores, strict=True)
        if heads.value_size < old.value_size and kept:
            values = torch.cat([parts["value.weight"], parts["value.bias"][..., None]], dim=2)
            outputs = W_o.T.unflatten(0, (len(kept), -1))  # (h, V, D)
            reduced = [
                reduce_head_size(v, o, L, R, heads.value_size)
                for v, o, L, R in zip(values, outputs, self.L[kept], self.R[kept], strict=True)
            ]
            values, outputs = map(torch.stack, zip(*reduced, strict=True))
            parts["value.weight"], parts["value.bias"] = values[..., :-1], values[..., -1]
            W_o = outputs.flatten(0, 1).T
        state |= {f"self.{name}": part.flatten(0, 1) for name, part in parts.items()}
        state["output.dense.weight"] = W_o
        return {f"attention.{name}": tensor for name, tensor in state.items()}

    def feed_forward_parameters(self, neurons: int) -> dict[str, Tensor]:
        kept = torch.tensor(self.neuron_order.kept(neurons), dtype=torch.long)
        first, last = self.layer.intermediate.dense, self.layer.output.dense
        old_W, mean = last.weight.detach().cpu().double(), self.statistics.neurons.mean[0]
        W = least_squares(old_W, self.M_a, kept)
        return {
            "intermediate.dense.weight": first.weight.detach().cpu()[kept].double(),
            "intermediate.dense.bias": first.bias.detach().cpu()[kept].double(),
            "output.dense.weight": W,
            "output.dense.bias": last.bias.detach().cpu().double() + old_W @ mean - W @ mean[kept],
        }


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Returns a linear layer with this weight (out, in) and bias (out)."""
    module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    module.weight, module.bias = nn.Parameter(weight), nn.Parameter(bias)
    return module


def attention_mask_for(model: FixedHeadBertPreTrainedModel, states: Tensor, batch: Batch):
    mask = batch["attention_mask"]
    if model.config.is_decoder:
        return create_causal_mask(model.config, states, attention_mask=mask, past_key_values=None)
    return create_bidirectional_mask(model.config, states, attention_mask=mask)


@torch.no_grad()
def refit(original: FixedHeadBertPreTrainedModel, pruned: FixedHeadBertPreTrainedModel, batches: list[Batch]):
    """
    Refits the output projections of attention and of the feed-forward block in each pruned layer, so that the hidden
    states match those in the original model.

    Starts with the first layer. The outputs of a refitted layer are the inputs for refitting the next layer.
    """
    embeddings, width = original.base_model.get_submodule("embeddings"), original.config.hidden_size
    names = ("input_ids", "token_type_ids")
    targets = [embeddings(**{name: batch[name] for name in names if name in batch}) for batch in batches]
    states = list(targets)
    layers = list(zip(layers_of(original), layers_of(pruned), strict=True))
    with tqdm(total=len(layers) * len(batches), desc="refit", unit="batch") as progress:
        for old, new in layers:
            W_o, W_f = new.attention.get_submodule("output.dense"), new.output.get_submodule("dense")
            weights = [weight_of(dense, width) for dense in (W_o, W_f)]
            heads, neurons = (LeastSquaresRefit(weight.shape[1], width) for weight in weights)
            inputs = []
            for index, batch in enumerate(batches):
                mask, non_padding = attention_mask_for(original, targets[index], batch), non_padding_mask(batch)
                z = self_attention(old.attention)(targets[index], attention_mask=mask)[0]
                target = old.attention.get_submodule("output.dense")(z) + targets[index]
                z = self_attention(new.attention)(states[index], attention_mask=mask)[0]
                heads.add(z[non_padding][:, : weights[0].shape[1]], (target - states[index])[non_padding])
                attended = old.attention.get_submodule("output.LayerNorm")(target)
                target = old.output.dense(old.intermediate(attended)) + attended
                targets[index] = old.output.LayerNorm(target)
                inputs.append((z, target))
            set_linear(W_o, *heads.solution(weights[0]))
            for index, (batch, (z, target)) in enumerate(zip(batches, inputs, strict=True)):
                non_padding = non_padding_mask(batch)
                states[index] = new.attention.get_submodule("output.LayerNorm")(W_o(z) + states[index])
                activations = new.intermediate(states[index])[non_padding]
                neurons.add(activations[:, : weights[1].shape[1]], (target - states[index])[non_padding])
            set_linear(W_f, *neurons.solution(weights[1]))
            for index in range(len(batches)):
                states[index] = new.output(new.intermediate(states[index]), states[index])
                progress.update()


def weight_of(dense: nn.Module, width: int) -> Tensor:
    """Returns the weight (width, inputs) of an output projection, or a tensor (width, 0) if only the bias remains."""
    return dense.weight.detach().cpu() if isinstance(dense, nn.Linear) else torch.zeros(width, 0)


def set_linear(dense: nn.Module, weight: Tensor, bias: Tensor):
    if isinstance(dense, nn.Linear):
        dense.weight.data = weight.to(dense.weight)
    parameter = dense.get_parameter("bias")
    parameter.data = bias.to(parameter)
