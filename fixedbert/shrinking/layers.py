"""
Prunes the layers of a model, given their statistics: computes pruned weights, and refits them.
pruning.py explains the mathematics.
"""

import copy

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..loading.families import build_model
from ..loading.heads import Heads, int_or_list, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from ..tasks.predictions import Batch
from .budget import LayerSize
from .fisher_information import LayerStatistics, attention_mask_for, layers_of, reduced_scores, self_attention
from .pruning import SecondMoments, fit, head_size_errors, least_squares, prune_inputs, reduce_head_size, square_root

NEURON_STEPS = 192  # maximum number of steps for removing all neurons of a layer
REFIT_TOKENS = 32  # maximum number of tokens for refitting, per neuron of the original; more need more memory


class LayerPruner:
    """
    Computes the cost of each choice of heads and neurons in one layer, and the pruned weights for a given choice.

    Args:
        layer, shape: A layer of the original model and its shape.
        statistics: Statistics of this layer on the calibration data.
        tokens: Average number of tokens per row.
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
        # For value sizes: the covariance (H, V, V) of each head's z, and the second moment of the gradient of z.
        self.L = self.M_z.view(number, value_size, number, value_size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        W_h = W_o.T.unflatten(0, (number, -1))  # (H, V, D)
        self.R = W_h @ G_o @ W_h.mT
        half = tokens / 2
        self.head_costs, self.neuron_costs = half * self.head_order.costs, half * self.neuron_order.costs
        self.score_costs = {size: half * errors for size, errors in statistics.score_errors.items()}
        self.value_costs = half * head_size_errors(self.L, self.R)

    def cost_of_heads(self, heads: Heads) -> float:
        """Returns the predicted KL divergence in nats per row if this many heads of these sizes remain."""
        kept = self.head_order.kept(heads.num_heads)
        removed = self.shape.heads.num_heads - heads.num_heads
        cost = self.head_costs[removed] + self.value_costs[kept, heads.value_size].sum()
        if heads.size < self.shape.heads.size:
            cost = cost + self.score_costs[heads.size][kept].sum()
        return float(cost)

    def cost_of_neurons(self, neurons: int) -> float:
        """Returns the predicted KL divergence in nats per row if only `neurons` neurons remain."""
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


def prune_layers(
    original: FixedHeadBertPreTrainedModel, pruners: list[LayerPruner], shapes: list[LayerSize]
) -> FixedHeadBertPreTrainedModel:
    """Returns a copy of the original with its layers pruned to `shapes`."""
    config = copy.deepcopy(original.config)
    set_heads(config, [shape.heads for shape in shapes])
    config.intermediate_size = int_or_list([shape.neurons for shape in shapes])
    tensors = {name: tensor.detach().clone() for name, tensor in original.state_dict().items()}
    prefix = next(name for name in tensors if "encoder.layer.0." in name).split("encoder.layer.0.")[0]
    for index, (pruner, shape) in enumerate(zip(pruners, shapes, strict=True)):
        for name, tensor in pruner.parameters(shape).items():
            tensors[f"{prefix}encoder.layer.{index}.{name}"] = tensor.to(original.dtype)
    # A sublayer without inputs keeps only its bias.
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    return build_model(type(original), config, tensors, original).eval()


@torch.no_grad()
def refit(original: FixedHeadBertPreTrainedModel, pruned: FixedHeadBertPreTrainedModel, batches: list[Batch]):
    """
    Refits the output projections of attention and of the feed-forward block in each pruned layer by least squares, so
    that the hidden states match those of the original model. Begins with the first layer, because the outputs of a
    refitted layer are the inputs for refitting the next layer. Uses a part of the batches if there are many tokens,
    because all hidden states are kept in memory.
    """
    embeddings, width = original.base_model.get_submodule("embeddings"), original.config.hidden_size
    batches = spread(batches, REFIT_TOKENS * max(width, *original.config.neuron_counts))
    masks = [batch["attention_mask"].bool() for batch in batches]
    names = ("input_ids", "token_type_ids")
    targets = [embeddings(**{name: batch[name] for name in names if name in batch}) for batch in batches]
    states = list(targets)
    layers = list(zip(layers_of(original), layers_of(pruned), strict=True))
    with tqdm(total=len(layers) * len(batches), desc="refit", unit="batch") as progress:
        for old, new in layers:
            W_o, W_f = new.attention.get_submodule("output.dense"), new.output.get_submodule("dense")
            weights = [weight_of(dense, width) for dense in (W_o, W_f)]
            heads, neurons = (SecondMoments(1, weight.shape[1], width) for weight in weights)
            outputs = []
            for index, (batch, non_padding) in enumerate(zip(batches, masks, strict=True)):
                mask = attention_mask_for(original, targets[index], batch)
                z = self_attention(old.attention)(targets[index], attention_mask=mask)[0]
                target = old.attention.get_submodule("output.dense")(z) + targets[index]
                z = self_attention(new.attention)(states[index], attention_mask=mask)[0]
                a = z[..., : weights[0].shape[1]]
                heads.add(torch.cat([a, target - states[index]], dim=-1)[non_padding])
                attended = old.attention.get_submodule("output.LayerNorm")(target)
                targets[index] = old.output.dense(old.intermediate(attended)) + attended  # before the LayerNorm
                outputs.append(z)
            set_linear(W_o, *fit(heads, weights[0]))
            for index, (z, non_padding) in enumerate(zip(outputs, masks, strict=True)):
                states[index] = new.attention.get_submodule("output.LayerNorm")(W_o(z) + states[index])
                a = new.intermediate(states[index])[..., : weights[1].shape[1]]
                neurons.add(torch.cat([a, targets[index] - states[index]], dim=-1)[non_padding])
            set_linear(W_f, *fit(neurons, weights[1]))
            for index in range(len(batches)):
                states[index] = new.output(new.intermediate(states[index]), states[index])
                targets[index] = old.output.LayerNorm(targets[index])
                progress.update()


def spread(batches: list[Batch], tokens: int) -> list[Batch]:
    """Returns all batches, or evenly spaced ones with about this number of tokens, at least one."""
    count = min(len(batches), max(1, len(batches) * tokens // sum(batch["input_ids"].numel() for batch in batches)))
    return [batches[number * len(batches) // count] for number in range(count)]


def weight_of(dense: nn.Module, width: int) -> Tensor:
    """Returns the weight (width, inputs) of an output projection, or a tensor (width, 0) if only the bias remains."""
    return dense.weight.detach().cpu() if isinstance(dense, nn.Linear) else torch.zeros(width, 0)


def set_linear(dense: nn.Module, weight: Tensor, bias: Tensor):
    if isinstance(dense, nn.Linear):
        dense.weight.data = weight.to(dense.weight)
    parameter = dense.get_parameter("bias")
    parameter.data = bias.to(parameter)
