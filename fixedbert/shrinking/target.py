"""Chooses the shapes of all layers so that they meet a target speed or size at the lowest cost, and prunes to them."""

from math import inf

from ..counts import LayerShape
from ..loading.heads import Heads
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from ..tasks.calibration import mean_tokens
from .budget import LayerSize, Prices, SublayerSize, head_choices, neuron_choices, solve_knapsack
from .context import ShrinkContext
from .fisher_information import layer_sizes
from .latency import measure_prices
from .layers import LayerPruner, prune_layers

TRIES = 6  # maximum number of attempts to meet a target latency
NEAR, ENOUGH = 0.99, 1.04  # a ratio of measured to target speed in this range ends the search


def prices_for(context: ShrinkContext) -> Prices:
    """Returns the prices of all sublayers in the unit of the target: seconds for all batches, parameters or FLOPs."""
    original, shapes = context.original, context.shapes
    if context.speedup is not None:
        return measure_prices(context.serving.model(original), shapes, context.batches)
    width, length = original.config.hidden_size, round(mean_tokens(context.calibration))

    def parameters(part: Heads | int) -> float:
        layer = layer_shape(width, part)
        return layer.weights + layer.h * (2 * layer.p + layer.v) + layer.F  # with biases

    def operations(part: Heads | int) -> float:
        return 2 * length * layer_shape(width, part).macs_per_token(length)

    if context.options.params is not None:
        return Prices([parameters] * len(shapes), shapes, original.num_parameters())
    return Prices([operations] * len(shapes), shapes, context.operations(original))


def layer_shape(width: int, part: Heads | int) -> LayerShape:
    """Returns the shape of a layer that has only these heads, or only this number of neurons."""
    return LayerShape(width, *part, 0) if isinstance(part, Heads) else LayerShape(width, 0, 0, 0, part)


def prune_to_budget(
    context: ShrinkContext, pruners: list[LayerPruner], prices: Prices
) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original to the shapes that the budget allows. The remaining weights are not refitted."""
    sizes = []
    for pruner, price in zip(pruners, prices.layers, strict=True):
        heads, neurons = head_choices(pruner.shape.heads), neuron_choices(pruner.shape.neurons)
        sizes.append([SublayerSize(choice, pruner.cost_of_heads(choice), price(choice)) for choice in heads])
        sizes.append([SublayerSize(count, pruner.cost_of_neurons(count), price(count)) for count in neurons])
    least = prices.rest + sum(min(size.price for size in sublayer) for sublayer in sizes)
    wanted = budget_for(context, prices, least)

    def pruned_within(budget: float) -> FixedHeadBertPreTrainedModel:
        chosen = [size.choice for size in solve_knapsack(sizes, budget - prices.rest)]
        shapes = [LayerSize(heads, neurons) for heads, neurons in zip(chosen[::2], chosen[1::2], strict=True)]
        return prune_layers(context.original, pruners, shapes)

    if context.speedup is None:
        return with_heads(pruned_within(wanted))
    # The sum of the sublayers' latencies is only an estimate, so the copy is measured and the budget corrected.
    budget, best, smallest_error = wanted, None, (True, inf)
    for _ in range(TRIES):
        pruned = pruned_within(budget)
        reached = context.measure_speedup(pruned).ratio / context.speedup
        error = (reached < NEAR, abs(reached - 1))  # any model that is fast enough is better than all that are not
        if best is None or error < smallest_error:
            best, smallest_error = pruned, error
        if NEAR <= reached <= ENOUGH:
            break
        halved = prices.rest + (budget - prices.rest) / 2
        budget = max(budget * reached, halved, least)
    assert best is not None
    return with_heads(best)


def with_heads(pruned: FixedHeadBertPreTrainedModel) -> FixedHeadBertPreTrainedModel:
    """Returns the model. Raises InputError if no layer has heads, because tokens then don't depend on each other."""
    if not any(size.heads.num_heads for size in layer_sizes(pruned)):
        raise InputError("the target leaves no attention heads in any layer; choose a target closer to the original.")
    return pruned


def budget_for(context: ShrinkContext, prices: Prices, least: float) -> float:
    """
    Returns the budget for the entire model. `least` is the price of the smallest possible model.

    Raises:
        InputError: If the budget is not between the prices of the smallest possible model and the original.
    """
    needed = prices.of_layers(prices.original) + prices.rest
    options = context.options
    wanted = needed / context.speedup if context.speedup else options.params or options.flops or 0
    if not least <= wanted < needed or wanted == prices.rest:  # nothing would be left for the layers
        unit = "seconds" if context.speedup else "parameters" if options.params else "FLOPs"
        raise InputError(
            f"the target is {wanted:.4g} {unit}, but the original needs {needed:.4g} and the smallest possible model "
            f"needs {least:.4g}; choose a target in between."
        )
    return wanted
