"""Chooses the shapes of all layers so that they meet a target speed or size at the lowest cost, and prunes to them."""

from functools import partial
from math import ceil, floor, inf

from ..counts import LayerShape
from ..loading.heads import Heads
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import ShrinkOptions
from ..support.errors import InputError
from .budget import LayerSize, Prices, SublayerSize, head_choices, neuron_choices, solve_knapsack
from .context import ShrinkContext
from .latency import measure_prices
from .layers import LayerPruner, prune_layers

TRIES = 6  # maximum number of attempts to meet a target latency
NEAR, ENOUGH = 0.99, 1.04  # a ratio of measured to target speed in this range ends the search


def prices_for(context: ShrinkContext) -> Prices:
    """Returns the prices of all sublayers in the unit of the target: seconds for all batches, or parameters."""
    original, shapes = context.original, context.shapes
    if context.speedup is not None:
        return measure_prices(context.serving.model(original), shapes, context.batches)
    width = original.config.hidden_size

    def parameters(part: Heads | int) -> float:
        sizes = (*part, 0) if isinstance(part, Heads) else (0, 0, 0, part)
        layer = LayerShape(width, *sizes)
        return layer.weights + layer.h * (2 * layer.p + layer.v) + layer.F  # with biases

    return Prices([parameters] * len(shapes), shapes, original.num_parameters())


def prune_to_budget(
    context: ShrinkContext, pruners: list[LayerPruner], prices: Prices
) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original to the shapes that the budget allows. The remaining weights are not refitted."""
    sizes = []
    for pruner, price in zip(pruners, prices.layers, strict=True):
        heads, neurons = head_choices(pruner.shape.heads), neuron_choices(pruner.shape.neurons)
        sizes.append([SublayerSize(choice, pruner.cost_of_heads(choice), price(choice)) for choice in heads])
        sizes.append([SublayerSize(count, pruner.cost_of_neurons(count), price(count)) for count in neurons])
    wanted = budget_for(context.options, prices, context.speedup)
    prune = partial(prune_layers, context.original, pruners)
    if context.speedup is None:
        return prune(choose_shapes(sizes, wanted - prices.rest))
    # The sum of the sublayers' latencies is only an estimate, so the copy is measured and the budget corrected.
    budget, smallest_error = wanted, (True, inf)
    best: list[LayerSize] = []
    for _ in range(TRIES):
        shapes = choose_shapes(sizes, budget - prices.rest)
        pruned = prune(shapes)
        reached = context.measure_speedup(pruned).ratio / context.speedup
        error = (reached < NEAR, abs(reached - 1))  # any model that is fast enough is better than all that are not
        if not best or error < smallest_error:
            best, smallest_error = shapes, error
        if NEAR <= reached <= ENOUGH:
            break
        halved = prices.rest + (budget - prices.rest) / 2
        budget = max(budget * reached, halved, prices.least)
    return pruned if best == shapes else prune(best)


def choose_shapes(sizes: list[list[SublayerSize]], budget: float) -> list[LayerSize]:
    """Chooses the heads and neurons of each layer at the lowest cost within the budget. At least one head remains."""
    chosen = solve_knapsack(sizes, budget)
    if not any(size.choice.num_heads for size in chosen[::2]):
        solutions = []
        for index in range(0, len(sizes), 2):
            with_head = [size for size in sizes[index] if size.choice.num_heads]
            solutions.append(solve_knapsack([*sizes[:index], with_head, *sizes[index + 1 :]], budget))
        affordable = [each for each in solutions if sum(size.price for size in each) <= budget * (1 + 1e-9)]
        chosen = min(affordable, key=lambda solution: sum(size.cost for size in solution))
    return [LayerSize(heads.choice, neurons.choice) for heads, neurons in zip(chosen[::2], chosen[1::2], strict=True)]


def budget_for(options: ShrinkOptions, prices: Prices, speedup: float | None) -> float:
    """
    Returns the budget for the entire model.

    Raises:
        InputError: If the budget is not between the prices of the smallest possible model and the original.
    """
    needed, least = prices.of_layers(prices.original) + prices.rest, prices.least
    wanted = needed / speedup if speedup else options.params or 0
    if least <= wanted < needed:
        return wanted
    if speedup:
        highest = floor(100 * needed / least) / 100
        limits = f"above 1 and at most {highest:g}, the estimated speedup of the smallest possible model"
        raise InputError(f"{speedup:g}: must be {limits}.", "speedup")
    limits = f"at least {ceil(least)}, for the smallest possible model, and below {ceil(needed)}, for the original"
    raise InputError(f"{wanted:g}: must be {limits}.", "params")
