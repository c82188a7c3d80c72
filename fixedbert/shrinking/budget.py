"""Chooses the heads and neurons of each layer to minimize the KL divergence within a budget (a knapsack problem)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..loading.heads import Heads

UNITS = 4000  # number of units into which the budget is divided


@dataclass(frozen=True)
class LayerSize:
    """The attention heads and the number of feed-forward neurons of one layer."""

    heads: Heads
    neurons: int

    def __str__(self) -> str:
        return f"{self.heads} and {self.neurons:,} neurons"


def head_choices(heads: Heads) -> list[Heads]:
    """Returns the choices for a pruned layer: any number of heads, at 1/4, 1/2, 3/4 or 4/4 of the original sizes."""
    sizes, value_sizes = ({-(-size * quarters // 4) for quarters in (1, 2, 3, 4)} for size in heads[1:])
    choices = product(range(heads.num_heads + 1), sorted(sizes), sorted(value_sizes))
    return [Heads(*choice) for choice in choices if choice[0] or choice[1:] == heads[1:]]


def neuron_choices(neurons: int) -> list[int]:
    """Returns the neuron counts that a pruned layer can have: multiples of 1/48 of the original, rounded down."""
    return sorted({neurons * parts // 48 for parts in range(49)})


@dataclass(frozen=True)
class Prices:
    """
    How much of the budget each part of a model uses, in seconds or parameters.

    Args:
        layers: For each layer, a function that returns the price of heads, or of a number of neurons.
        original: Shapes of the original model's layers.
        total: The price of the entire original model.
    """

    layers: Sequence[Callable[[Heads | int], float]]
    original: list[LayerSize]
    total: float

    @property
    def rest(self) -> float:
        """The price of everything outside the layers, such as the embeddings."""
        return max(0.0, self.total - self.of_layers(self.original))

    @property
    def least(self) -> float:
        """The price of the smallest possible model. It has one head, because tokens would otherwise be unconnected."""
        empty = [LayerSize(shape.heads._replace(num_heads=0), 0) for shape in self.original]
        choices = [head_choices(shape.heads)[:2] for shape in self.original]  # no head, one small head
        extra = min(price(one) - price(none) for price, (none, one) in zip(self.layers, choices, strict=True))
        return self.rest + self.of_layers(empty) + extra

    def of_layers(self, shapes: list[LayerSize]) -> float:
        """Returns the total price of layers of these shapes."""
        pairs = zip(self.layers, shapes, strict=True)
        return sum(price(shape.heads) + price(shape.neurons) for price, shape in pairs)


class SublayerSize(NamedTuple):
    """
    A possible size of an attention or feed-forward sublayer.

    Args:
        choice: The remaining heads or the number of remaining neurons.
        cost: The predicted increase in KL divergence, in nats per row.
        price: The part of the budget that the sublayer uses, for example in seconds or parameters.
    """

    choice: Any
    cost: float
    price: float


def solve_knapsack(sublayers: Sequence[Sequence[SublayerSize]], budget: float) -> list[SublayerSize]:
    """
    Chooses one size per sublayer to minimize the total cost, while the total price stays within the budget.

    Uses dynamic programming. Prices are rounded down to multiples of 1/4000 of the budget. The caller must ensure
    that the sizes with the lowest prices fit in the budget.
    """
    units = [np.array([int(size.price / budget * UNITS + 1e-6) for size in sizes]) for sizes in sublayers]
    best = np.zeros(UNITS + 1)  # best[u]: lowest cost of the processed sublayers for at most u units
    chosen_by_units = []
    for sizes, prices in zip(sublayers, units, strict=True):
        costs = np.full((len(sizes), UNITS + 1), np.inf)
        for index, (size, price) in enumerate(zip(sizes, prices, strict=True)):
            if price <= UNITS:
                costs[index, price:] = best[: UNITS + 1 - price] + size.cost
        chosen_by_units.append(costs.argmin(axis=0))
        best = costs.min(axis=0)
    for spent in range(UNITS, -1, -1):  # exact prices can exceed the budget, because units are rounded down
        if np.isfinite(best[spent]):
            chosen, left = [], spent
            for sizes, prices, by_units in zip(*map(reversed, (sublayers, units, chosen_by_units)), strict=True):
                index = int(by_units[left])
                chosen.append(sizes[index])
                left -= int(prices[index])
            if sum(size.price for size in chosen) <= budget * (1 + 1e-9):
                return chosen[::-1]
    return [min(sizes, key=lambda size: size.price) for sizes in sublayers]
