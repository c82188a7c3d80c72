"""The choice of heads and neurons for all layers at the lowest cost within a budget: a multiple-choice knapsack."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..conversion.growing import Heads
from ..support.errors import InputError

UNITS = 4000  # resolution of the budget


@dataclass(frozen=True)
class LayerShape:
    """Heads and feed-forward neurons of a layer."""

    heads: Heads
    neurons: int


def head_choices(heads: Heads) -> list[Heads]:
    """Returns the heads that can remain: any number of them, with each size a multiple of a quarter of the old one."""
    sizes, value_sizes = ({-(-size * quarters // 4) for quarters in (1, 2, 3, 4)} for size in heads[1:])
    choices = product(range(heads.number + 1), sorted(sizes), sorted(value_sizes))
    return [Heads(*choice) for choice in choices if choice[0] or choice[1:] == heads[1:]]


def neuron_choices(neurons: int) -> list[int]:
    """Returns the numbers of neurons that can remain: multiples of a 48th."""
    return sorted({neurons * share // 48 for share in range(49)})


class Option(NamedTuple):
    """
    An option for one sublayer.

    Args:
        choice: heads or neurons that remain.
        cost: predicted increase of the KL divergence, in nats per row.
        price: share of the budget that it takes, in the budget's unit.
    """

    choice: Any
    cost: float
    price: float


def solve_knapsack(sublayers: Sequence[Sequence[Option]], budget: float) -> list[Option]:
    """
    Chooses one option per sublayer with the lowest total cost whose total price is within the budget, by dynamic
    programming over prices rounded down to a 4000th of the budget.

    Raises:
        InputError: even the cheapest options exceed the budget.
    """
    least = sum(min(option.price for option in options) for options in sublayers)
    if least > budget * (1 + 1e-9):
        raise InputError(
            f"the smallest possible layers take {least:.4g}, and the target leaves {budget:.4g} for them."
        )
    units = [np.array([int(option.price / budget * UNITS + 1e-6) for option in options]) for options in sublayers]
    best = np.zeros(UNITS + 1)  # lowest cost so far, by the units spent at most
    chosen_by_units = []
    for options, prices in zip(sublayers, units, strict=True):
        costs = np.full((len(options), UNITS + 1), np.inf)
        for index, (option, price) in enumerate(zip(options, prices, strict=True)):
            if price <= UNITS:
                costs[index, price:] = best[: UNITS + 1 - price] + option.cost
        chosen_by_units.append(costs.argmin(axis=0))
        best = costs.min(axis=0)
    for spent in range(UNITS, -1, -1):  # the fractions lost by rounding can exceed the budget
        if np.isfinite(best[spent]):
            chosen, left = [], spent
            for options, prices, by_units in zip(*map(reversed, (sublayers, units, chosen_by_units)), strict=True):
                index = int(by_units[left])
                chosen.append(options[index])
                left -= int(prices[index])
            if sum(option.price for option in chosen) <= budget * (1 + 1e-9):
                return chosen[::-1]
    return [min(options, key=lambda option: option.price) for options in sublayers]
