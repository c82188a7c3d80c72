"""
A model's layers while rows pass through them: what is summed up for the mathematics of cut.py, and the cut itself.

Rows are batches of a model's arguments. Padding is left out of all sums.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from ..conversion.growing import Heads, heads_of
from ..model.attention_fixed_head_bert import FixedHeadBertAttention, FixedHeadBertSelfAttention
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from .budget import Shape, head_choices
from .predictions import Answering, Batch, forward, real
from .pruning import (
    TOKENS_PER_DIMENSION,
    Refit,
    SecondMoments,
    check_finite,
    cut_size,
    least_squares,
    remove_inputs,
    root,
    size_errors,
)

NEURON_STEPS = 192  # at most so many steps of a removal of neurons


def shapes_of(model: FixedHeadBertPreTrainedModel) -> list[Shape]:
    return [Shape(*shape) for shape in zip(heads_of(model.config), model.config.neuron_counts, strict=True)]


def layers_of(model: FixedHeadBertPreTrainedModel) -> list[FixedHeadBertLayer]:
    layers = model.base_model.get_submodule("encoder.layer").children()
    return [layer for layer in layers if isinstance(layer, FixedHeadBertLayer)]


def heads_in(attention: FixedHeadBertAttention) -> FixedHeadBertSelfAttention:
    module = attention.get_submodule("self")
    assert isinstance(module, FixedHeadBertSelfAttention)
    return module


class LayerStatistics:
    """
    What a layer of the original computes with the rows.

    Attributes:
        heads: z of all heads together, (1, H V); neurons: (1, F).
        heads_metric, neurons_metric: gradients behind W_o and behind the feed-forward network, (1, D).
        queries, keys: (H, P), the keys less their mean in a row.
        score_errors: by size, (H): the mean of |G^(1/2) W_o dz|^2 over the tokens, as cut.py says.
    """

    def __init__(self, shape: Shape, width: int):
        number, size, value_size = shape.heads
        self.heads, self.heads_metric = SecondMoments(1, number * value_size), SecondMoments(1, width)
        self.neurons, self.neurons_metric = SecondMoments(1, shape.neurons), SecondMoments(1, width)
        self.queries, self.keys = SecondMoments(number, size), SecondMoments(number, size)
        self.score_errors: dict[int, Tensor] = {}


def statistics(
    model: FixedHeadBertPreTrainedModel, rows: list[Batch], answering: Answering
) -> tuple[list[LayerStatistics], float]:
    """One pass forwards and backwards. Returns the sums of each layer, and the tokens of a row in the mean."""
    layers = layers_of(model)
    found = [LayerStatistics(shape, model.config.hidden_size) for shape in shapes_of(model)]
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # inputs and outputs, with their gradients

    def keep(module, args, output):
        output.retain_grad()
        seen[module] = args[0].detach(), output

    def begin(module, args, output):
        return output.requires_grad_()

    modules = [
        (
            x.attention.get_submodule("output.dense"),
            x.output.dense,
            heads_in(x.attention).query,
            heads_in(x.attention).key,
        )
        for x in layers
    ]
    handles = [module.register_forward_hook(keep) for of_layer in modules for module in of_layer]
    handles.append(model.base_model.get_submodule("embeddings").register_forward_hook(begin))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = 0
    model.requires_grad_(False)
    try:
        for batch in tqdm(rows, "what moves the answers", unit="batch"):
            torch.stack([answers.surprise() for answers in answering(model, batch)]).sum().backward()
            place, count = real(batch), count + len(batch["input_ids"])
            for sums, of_layer in zip(found, modules, strict=True):
                (z, heads), (a, neurons), (_, query), (_, key) = (seen[module] for module in of_layer)
                sums.heads.add(z[place])
                sums.heads_metric.add(gradient(heads)[place])
                sums.neurons.add(a[place])
                sums.neurons_metric.add(gradient(neurons)[place])
                sums.queries.add(query.detach()[place])
                sums.keys.add(less_mean(key.detach(), place)[place])
            seen.clear()
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_()
    for sums in found:
        for moments in (sums.heads, sums.neurons, sums.queries, sums.keys, sums.heads_metric, sums.neurons_metric):
            check_finite(moments.sum)
    measure_scores(model, rows, found)
    return found, found[0].heads.tokens / count


# Rows to give, for one that is cut by: a sixth is for the comparison of the answers, and rows differ in length.
MORE_ROWS = 1.25


def check_tokens(shapes: list[Shape], rows: list[Batch]):
    """Refuse rows that are too few for least squares on what feeds the largest sublayer."""
    largest = max(max(shape.neurons, shape.heads.number * shape.heads.value_size) for shape in shapes)
    count, tokens = sum(len(batch["input_ids"]) for batch in rows), sum(int(real(batch).sum()) for batch in rows)
    if tokens < (needed := TOKENS_PER_DIMENSION * largest):
        raise InputError(
            f"{count:,} rows to cut by have {tokens:,} tokens, too few for {largest:,} neurons: give about "
            f"{ceil(MORE_ROWS * needed * count / tokens):,} rows like these, with a `max_samples` that takes them."
        )


def gradient(states: Tensor) -> Tensor:
    assert states.grad is not None
    return states.grad


def less_mean(states: Tensor, place: Tensor) -> Tensor:
    """States (B, L, N) less the mean of each row's real tokens."""
    weights = place[..., None].to(states.dtype)
    return states - (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


@torch.no_grad()
def measure_scores(model: FixedHeadBertPreTrainedModel, rows: list[Batch], found: list[LayerStatistics]):
    """Fill in what smaller queries and keys do to the heads' outputs, in the metric of the answers."""
    layers, shapes = layers_of(model), shapes_of(model)
    variants, maps = [], []
    for layer, shape, sums in zip(layers, shapes, found, strict=True):
        heads = heads_in(layer.attention)
        sizes = sorted({choice.size for choice in head_choices(shape.heads)} - {shape.heads.size})
        variants.append({size: with_smaller_scores(heads, sums, size) for size in sizes})
        sums.score_errors = {size: torch.zeros(shape.heads.number, dtype=torch.float64) for size in sizes}
        sums.score_errors[shape.heads.size] = torch.zeros(shape.heads.number, dtype=torch.float64)
        W_o = layer.attention.get_parameter("output.dense.weight")
        to_metric = root(sums.heads_metric.about_zero[0]).to(W_o) @ W_o  # (D, H V)
        maps.append(to_metric.T.unflatten(0, (shape.heads.number, -1)))  # (H, V, D)
    for batch in tqdm(rows[::4], "what scores do", unit="batch"):
        place = real(batch)
        with watched(*(heads_in(layer.attention) for layer in layers)) as seen:
            forward(model, batch)
        for layer, of_layer, to_metric, sums in zip(layers, variants, maps, found, strict=True):
            hidden_states, output = seen[heads_in(layer.attention)]
            mask = attention_mask_for(model, hidden_states, batch)
            for size, smaller in of_layer.items():
                change = smaller(hidden_states, attention_mask=mask)[0] - output[0]
                change = change[place].unflatten(-1, to_metric.shape[:2]).transpose(0, 1)  # (H, n, V)
                sums.score_errors[size] += (change @ to_metric).square().sum(dim=(1, 2)).double().cpu()
    tokens = sum(int(real(batch).sum()) for batch in rows[::4])
    for sums in found:
        sums.score_errors = {size: errors / tokens for size, errors in sums.score_errors.items()}


def smaller_scores(heads: FixedHeadBertSelfAttention, sums: LayerStatistics, size: int, kept: list[int]):
    """Weights and biases of queries and keys of the heads `kept` with this size: (h, p, D) and (h, p) each."""
    number = heads.num_attention_heads
    weights = {
        name: torch.cat([x.weight, x.bias[:, None]], dim=1).detach().cpu().double().unflatten(0, (number, -1))[kept]
        for name, x in (("query", heads.query), ("key", heads.key))
    }
    moments = sums.queries.about_zero[kept], sums.keys.about_zero[kept]
    cut = [
        cut_size(q, k[:, :-1], L, R, size)  # the softmax forgets the bias of keys
        for q, k, L, R in zip(weights["query"], weights["key"], *moments, strict=True)
    ]
    queries, keys = map(torch.stack, zip(*cut, strict=True))
    queries = queries * (size / heads.attention_head_size) ** 0.5  # scores are divided by the root of the new size
    return queries[..., :-1], queries[..., -1], keys, torch.zeros_like(queries[..., -1])


def with_smaller_scores(heads: FixedHeadBertSelfAttention, sums: LayerStatistics, size: int):
    smaller = copy.copy(heads)  # shares all but queries and keys
    smaller._modules = dict(heads._modules)
    smaller.attention_head_size, smaller.scaling = size, size**-0.5
    W_q, b_q, W_k, b_k = (
        x.flatten(0, 1).to(heads.query.weight)
        for x in smaller_scores(heads, sums, size, list(range(heads.num_attention_heads)))
    )
    smaller.query, smaller.key = linear(W_q, b_q), linear(W_k, b_k)
    return smaller


class LayerCosts:
    """
    What cuts of a layer cost, in nats for a row, and the parameters that they leave.

    Args:
        layer: the original.
        sums: what it computes with the rows.
        tokens: of a row in the mean.
    """

    def __init__(self, layer: FixedHeadBertLayer, shape: Shape, sums: LayerStatistics, tokens: float):
        self.layer, self.shape, self.sums = layer, shape, sums
        value_size = shape.heads.value_size
        names = ("attention.output.dense.weight", "output.dense.weight")
        W_o, W_f = (layer.get_parameter(name).detach().cpu().double() for name in names)
        self.M_z, self.M_a = sums.heads.about_mean[0], sums.neurons.about_mean[0]
        metric_o, metric_f = sums.heads_metric.about_zero[0], sums.neurons_metric.about_zero[0]
        self.heads = remove_inputs(root(metric_o) @ W_o, self.M_z, value_size)
        self.neurons = remove_inputs(root(metric_f) @ W_f, self.M_a, 1, -(-shape.neurons // NEURON_STEPS))
        half, number = tokens / 2, shape.heads.number
        self.z = self.M_z.view(number, value_size, number, value_size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        W_h = W_o.T.unflatten(0, (number, -1))  # (H, V, D)
        self.g = W_h @ metric_o @ W_h.mT  # (H, V, V), of the gradients at z
        self.scores = {size: half * errors for size, errors in sums.score_errors.items()}
        self.values = half * size_errors(self.z, self.g)
        self.heads_left_out, self.neurons_left_out = half * self.heads.costs, half * self.neurons.costs

    def of_heads(self, heads: Heads) -> float:
        kept = self.heads.kept(heads.number)
        cost = self.heads_left_out[self.shape.heads.number - heads.number]
        return float(cost + self.scores[heads.size][kept].sum() + self.values[kept, heads.value_size].sum())

    def of_neurons(self, neurons: int) -> float:
        return float(self.neurons_left_out[self.shape.neurons - neurons])

    def cut_heads(self, heads: Heads) -> dict[str, Tensor]:
        """The attention's parameters by BERT's names, in float64, fitted to the original's inputs."""
        old, kept = self.shape.heads, self.heads.kept(heads.number)
        state = {name: tensor.cpu().double() for name, tensor in self.layer.attention.state_dict().items()}
        parts = {
            f"{name}.{kind}": state[f"self.{name}.{kind}"].unflatten(0, (old.number, -1))[kept]  # (h, P, D) or (h, P)
            for name in ("query", "key", "value")
            for kind in ("weight", "bias")
        }
        places = torch.arange(old.number * old.value_size).view(old.number, -1)[kept].flatten()
        W_o = (
            least_squares(state["output.dense.weight"], self.M_z, places)
            if kept
            else state["output.dense.weight"][:, :0]
        )
        bias = state["output.dense.weight"] @ self.sums.heads.mean[0] - W_o @ self.sums.heads.mean[0][places]
        if heads.size < old.size and kept:
            smaller = smaller_scores(heads_in(self.layer.attention), self.sums, heads.size, kept)
            parts |= zip(("query.weight", "query.bias", "key.weight", "key.bias"), smaller, strict=True)
        if heads.value_size < old.value_size and kept:
            values = torch.cat([parts["value.weight"], parts["value.bias"][..., None]], dim=2)
            outputs = W_o.T.unflatten(0, (len(kept), -1))  # (h, V, D)
            cut = [
                cut_size(v, o, L, R, heads.value_size)
                for v, o, L, R in zip(values, outputs, self.z[kept], self.g[kept], strict=True)
            ]
            values, outputs = map(torch.stack, zip(*cut, strict=True))
            parts["value.weight"], parts["value.bias"], W_o = (
                values[..., :-1],
                values[..., -1],
                outputs.flatten(0, 1).T,
            )
        state |= {f"self.{name}": part.flatten(0, 1) for name, part in parts.items()}
        state["output.dense.weight"], state["output.dense.bias"] = W_o, state["output.dense.bias"] + bias
        return state

    def cut_neurons(self, neurons: int) -> dict[str, Tensor]:
        """The feed-forward network's parameters by BERT's names, in float64, fitted to the original's inputs."""
        kept = torch.tensor(self.neurons.kept(neurons), dtype=torch.long)
        first, last = self.layer.intermediate.dense, self.layer.output.dense
        weight, mean = last.weight.detach().cpu().double(), self.sums.neurons.mean[0]
        W = least_squares(weight, self.M_a, kept)
        return {
            "intermediate.dense.weight": first.weight.detach().cpu()[kept].double(),
            "intermediate.dense.bias": first.bias.detach().cpu()[kept].double(),
            "output.dense.weight": W,
            "output.dense.bias": last.bias.detach().cpu().double() + weight @ mean - W @ mean[kept],
        }


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear map with these parameters, (out, in) and (out)."""
    module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    module.weight, module.bias = nn.Parameter(weight), nn.Parameter(bias)
    return module


@contextmanager
def watched(*modules: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """The first argument and the output of each module, of its last call."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    handles = [
        module.register_forward_hook(lambda module, args, output: seen.update({module: (args[0], output)}))
        for module in modules
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def attention_mask_for(model: FixedHeadBertPreTrainedModel, hidden_states: Tensor, batch: Batch):
    mask = batch["attention_mask"]
    if model.config.is_decoder:
        return create_causal_mask(model.config, hidden_states, attention_mask=mask, past_key_values=None)
    return create_bidirectional_mask(model.config, hidden_states, attention_mask=mask)


@torch.no_grad()
def refit(original: FixedHeadBertPreTrainedModel, cut: FixedHeadBertPreTrainedModel, rows: list[Batch]):
    """
    Give W_o and the last map of each feed-forward network of `cut` weights that bring its hidden states nearest to the
    original's: in the model's order, each on what the cut model really gives.
    """
    embeddings = original.base_model.get_submodule("embeddings")
    names = ("input_ids", "token_type_ids")
    states = [embeddings(**{name: batch[name] for name in names if name in batch}) for batch in rows]
    own = list(states)
    pairs = list(zip(layers_of(original), layers_of(cut), strict=True))
    with tqdm(total=len(pairs) * len(rows), desc="refitting", unit="batch") as progress:
        for before, after in pairs:
            W_o, W_f = after.attention.get_submodule("output.dense"), after.output.get_submodule("dense")
            width = original.config.hidden_size
            heads, neurons = Refit(inputs_of(W_o), width), Refit(inputs_of(W_f), width)
            inputs = []
            for number, batch in enumerate(rows):
                mask = attention_mask_for(original, states[number], batch)
                place = real(batch)
                wanted = heads_in(before.attention)(states[number], attention_mask=mask)[0]
                wanted = before.attention.get_submodule("output.dense")(wanted) + states[number]
                attended = before.attention.get_submodule("output.LayerNorm")(wanted)
                a = heads_in(after.attention)(own[number], attention_mask=mask)[0] if inputs_of(W_o) else own[number]
                heads.add(a[place][:, : inputs_of(W_o)], (wanted - own[number])[place])
                last = before.output.dense(before.intermediate(attended)) + attended
                states[number] = before.output.LayerNorm(last)
                inputs.append((a, last))
            set_linear(W_o, *heads.solution(weight_of(W_o, width)))
            for number, batch in enumerate(rows):
                a, last = inputs[number]
                place = real(batch)
                own[number] = after.attention.get_submodule("output.LayerNorm")(W_o(a) + own[number])
                neurons.add(after.intermediate(own[number])[place][:, : inputs_of(W_f)], (last - own[number])[place])
            set_linear(W_f, *neurons.solution(weight_of(W_f, width)))
            for number in range(len(rows)):
                own[number] = after.output(after.intermediate(own[number]), own[number])
                progress.update()


def inputs_of(dense: nn.Module) -> int:
    """None where the sublayer is a bias alone."""
    return dense.in_features if isinstance(dense, nn.Linear) else 0


def weight_of(dense: nn.Module, width: int) -> Tensor:
    return dense.weight.detach().cpu() if isinstance(dense, nn.Linear) else torch.zeros(width, 0)


def set_linear(dense: nn.Module, weight: Tensor, bias: Tensor):
    if isinstance(dense, nn.Linear):
        dense.weight.data = weight.to(dense.weight)
    parameter = dense.get_parameter("bias")
    parameter.data = bias.to(parameter)
