"""
python -m benchmarks.pruning TASK ORIGINAL --by magnitude|fisher|layers [--like LIGHTER] [--refit] --output_dir DIR

What `fixedbert shrink` is compared with: whole heads and neurons of a classifier, chosen in a plainer way, with at
most the operations of another model of it, LIGHTER, on rows of a task of GLUE. `benchmarks.lighter` measures what is
left. Needs FIXEDBERT_DATA with glue/.

- magnitude: in each layer the half of the heads with the largest weights (the norm of their queries, keys, values and
  outputs), and as many neurons as the operations allow, equally many in each layer.
- fisher: as Kwon et al. (2022) choose them, without their second step, which arranges the choice anew in each layer. A
  mask of ones is put on heads and neurons. What one is worth is the mean over the rows of the square of its gradient.
  Those worth most stay, in all layers together. The gradients are of answers drawn from the model: no labels are used.

- layers: half of the layers, rounded up, whatever their operations: of all choices, the one that moves the answers to
  some 256 of the rows least.

With --refit, what stays is fitted by the least squares of `fixedbert shrink`; without it, its weights are the
original's.
"""

import argparse
import copy
import os
import sys
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn

from fixedbert.conversion.checkpoints import load_bert
from fixedbert.conversion.growing import Heads
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertLayer, FixedHeadBertPreTrainedModel
from fixedbert.shrinking.budget import Shape
from fixedbert.shrinking.calibration import Rows
from fixedbert.shrinking.layers import LayerCosts, heads_in, layers_of, refit, shapes_of
from fixedbert.shrinking.predictions import compare
from fixedbert.shrinking.shrink import Target, Work, prices_of, with_shapes
from fixedbert.support.errors import InputError

OfLayers = list[tuple[Tensor, Tensor]]  # something of heads, and of neurons


class Choice(LayerCosts):
    """
    The heads and neurons of a layer that stay, with the weights that they had.

    Args:
        layer: the original.
        heads, neurons: their numbers.
    """

    def __init__(self, layer: FixedHeadBertLayer, shape: Shape, heads: Tensor, neurons: Tensor):
        self.layer, self.shape, self.kept_heads, self.kept_neurons = layer, shape, heads, neurons

    @property
    def left(self) -> Shape:
        return Shape(Heads(len(self.kept_heads), *self.shape.heads[1:]), len(self.kept_neurons))

    def cut_heads(self, heads: Heads) -> dict[str, Tensor]:
        state, number = dict(self.layer.attention.state_dict()), self.shape.heads.number
        for name in ("query", "key", "value"):
            for kind in ("weight", "bias"):
                place = f"self.{name}.{kind}"
                state[place] = state[place].unflatten(0, (number, -1))[self.kept_heads].flatten(0, 1)
        W_o = state["output.dense.weight"]
        state["output.dense.weight"] = W_o.unflatten(1, (number, -1))[:, self.kept_heads].flatten(1)
        return state

    def cut_neurons(self, neurons: int) -> dict[str, Tensor]:
        first, last = self.layer.intermediate.dense, self.layer.output.dense
        return {
            "intermediate.dense.weight": first.weight.detach()[self.kept_neurons],
            "intermediate.dense.bias": first.bias.detach()[self.kept_neurons],
            "output.dense.weight": last.weight.detach()[:, self.kept_neurons],
            "output.dense.bias": last.bias.detach(),
        }


def magnitudes(work: Work) -> OfLayers:
    """Norms of the weights of each head and of each neuron, by layer."""
    found = []
    for layer, shape in zip(layers_of(work.model), shapes_of(work.model), strict=True):
        attention = heads_in(layer.attention)
        rows = [getattr(attention, name).weight for name in ("query", "key", "value")]
        rows.append(layer.attention.get_parameter("output.dense.weight").T)
        heads = sum(x.detach().unflatten(0, (shape.heads.number, -1)).square().sum(dim=(1, 2)) for x in rows)
        first, last = layer.intermediate.dense.weight.detach(), layer.output.dense.weight.detach()
        found.append((torch.as_tensor(heads).sqrt(), (first.square().sum(dim=1) + last.square().sum(dim=0)).sqrt()))
    return found


def fisher(work: Work) -> OfLayers:
    """The Fisher information of masks on each head and on each neuron, by layer: the mean over the rows."""
    model = work.model
    seen: dict[nn.Module, Tensor] = {}  # what feeds W_o, and the last map of the feed-forward network

    def keep(module, args, _output):
        args[0].retain_grad()
        seen[module] = args[0]

    pairs = [(layer.attention.get_submodule("output.dense"), layer.output.dense) for layer in layers_of(model)]
    found = [(torch.zeros(shape.heads.number), torch.zeros(shape.neurons)) for shape in shapes_of(model)]
    embeddings = model.base_model.get_submodule("embeddings")
    model.requires_grad_(False)
    handles = [module.register_forward_hook(keep) for pair in pairs for module in pair]
    handles.append(embeddings.register_forward_hook(lambda module, args, output: output.requires_grad_()))
    for batch in work.rows:
        torch.stack([answers.surprise() for answers in work.ask(model, batch)]).sum().backward()
        for pair, sums in zip(pairs, found, strict=True):
            for module, of_part in zip(pair, sums, strict=True):
                x = seen[module].detach() * seen[module].grad  # (B, L, N)
                of_part += x.sum(dim=1).unflatten(1, (len(of_part), -1)).sum(dim=2).square().sum(dim=0)
    for handle in handles:
        handle.remove()
    count = sum(len(batch["input_ids"]) for batch in work.rows)
    return [(heads / count, neurons / count) for heads, neurons in found]


def in_each_layer(worth: OfLayers, head: float, neuron: float, budget: float) -> OfLayers:
    """Half of the heads of each layer, and equally many neurons of each for what is left of the budget."""
    halves = [len(heads) // 2 for heads, _ in worth]
    neurons = int((budget - head * sum(halves)) / neuron) // len(worth)
    return [
        (x.topk(half).indices.sort().values, y.topk(min(neurons, len(y))).indices.sort().values)
        for half, (x, y) in zip(halves, worth, strict=True)
    ]


def in_all_layers(worth: OfLayers, head: float, neuron: float, budget: float) -> OfLayers:
    """The heads and neurons with the largest sum within the budget."""
    heads, neurons = (torch.cat(parts) for parts in zip(*worth, strict=True))
    first, second = (x.sort(descending=True) for x in (heads, neurons))
    sums = [torch.cat([torch.zeros(1), x.values.cumsum(0)]) for x in (first, second)]
    counts = range(min(len(heads), int(budget / head)) + 1)
    left = [min(len(neurons), int((budget - head * count) / neuron)) for count in counts]
    best = max(counts, key=lambda count: float(sums[0][count] + sums[1][left[count]]))
    masks = [torch.zeros(len(x), dtype=torch.bool) for x in (heads, neurons)]
    masks[0][first.indices[:best]] = True
    masks[1][second.indices[: left[best]]] = True
    sizes = [[len(part) for part in parts] for parts in zip(*worth, strict=True)]
    kept = ([part.nonzero().flatten() for part in mask.split(size)] for mask, size in zip(masks, sizes, strict=True))
    return list(zip(*kept, strict=True))


WAYS = {"magnitude": (magnitudes, in_each_layer), "fisher": (fisher, in_all_layers)}


@torch.no_grad()
def half_of_layers(work: Work) -> FixedHeadBertPreTrainedModel:
    """The model with the half of its layers, all of one shape, that keeps the answers best."""
    layers = layers_of(work.model)
    left = copy.deepcopy(work.model)
    encoder = left.base_model.get_submodule("encoder")
    left.config.num_hidden_layers = -(-len(layers) // 2)

    def take(kept: tuple[int, ...]):
        encoder.layer = nn.ModuleList(layers[number] for number in kept)

    def lost(kept: tuple[int, ...]) -> float:
        take(kept)
        return compare(work.model, left, rows, work.ask).divergence

    step = max(1, len(work.rows) * work.rows[0]["input_ids"].shape[0] // 256)
    rows = work.rows[::step]  # of all lengths
    best = min(combinations(range(len(layers)), left.config.num_hidden_layers), key=lost)
    take(best)
    print(f"layers {', '.join(map(str, best))}")
    return left


def pruned(
    task: str, original: Path, by: str, like: Path | None, refitted: bool, data: Path
) -> tuple[Work, nn.Module]:
    """
    The original with its rows, and the model that is left of it.

    Raises:
        InputError: as `Work.load`.
    """
    work = Work.load(original, Rows(task, str(data / "glue")))
    if by == "layers":
        return work, half_of_layers(work)
    assert like is not None
    shapes = shapes_of(work.model)
    prices = prices_of(work, Target(flops=1))
    head, neuron = prices.heads(Heads(1, *shapes[0].heads[1:])), prices.neurons(1)
    layers = sum(prices.heads(shape.heads) + prices.neurons(shape.neurons) for shape in shapes)
    budget = work.operations(load_bert(like)) - (work.operations(work.model) - layers)
    values, choose = WAYS[by]
    with torch.random.fork_rng():
        torch.manual_seed(work.seed)
        kept = choose(values(work), head, neuron, budget)
    choices = [Choice(*of_layer, *parts) for *of_layer, parts in zip(layers_of(work.model), shapes, kept, strict=True)]
    cut = with_shapes(work.model, choices, [choice.left for choice in choices])
    if refitted:
        refit(work.model, cut, work.rows)
    return work, cut


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pruning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help="a task of GLUE")
    parser.add_argument("original", type=Path)
    parser.add_argument("--by", choices=[*WAYS, "layers"], required=True)
    parser.add_argument("--like", type=Path, help="a lighter model, for its operations")
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--output_dir", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if (arguments.by == "layers") == bool(arguments.like) or arguments.by == "layers" and arguments.refit:
        parser.error("heads and neurons need --like; layers take neither --like nor --refit")
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where glue/ is.")
    data = Path(os.environ["FIXEDBERT_DATA"])
    try:
        work, cut = pruned(arguments.task, arguments.original, arguments.by, arguments.like, arguments.refit, data)
    except InputError as error:
        sys.exit(f"error: {error}")
    cut.save_pretrained(arguments.output_dir)
    work.tokenizer.save_pretrained(arguments.output_dir)
    for number, shape in enumerate(shapes_of(cut)):
        print(f"layer {number}: {shape.heads.number} heads, {shape.neurons} neurons")
    print(f"{work.operations(cut) / work.operations(work.model):.3f} of the original's operations")


if __name__ == "__main__":
    main()
