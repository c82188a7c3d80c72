"""The cuts of all layers that cost least within a budget: of time, of parameters, or of operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..conversion.growing import Heads
from ..support.errors import InputError

UNITS = 4000  # in which a budget is counted


@dataclass(frozen=True)
class Shape:
    """A layer's heads and neurons."""

    heads: Heads
    neurons: int


def head_choices(heads: Heads) -> list[Heads]:
    """Fewer and smaller heads in the steps of a table: each number of them, and each quarter of a size."""
    sizes, value_sizes = ({-(-size * quarters // 4) for quarters in (1, 2, 3, 4)} for size in heads[1:])
    shapes = product(range(heads.number + 1), sorted(sizes), sorted(value_sizes))
    return [Heads(*shape) for shape in shapes if shape[0] or shape[1:] == heads[1:]]


def neuron_choices(neurons: int) -> list[int]:
    """Fewer neurons in the steps of a table: each 48th."""
    return sorted({neurons * share // 48 for share in range(49)})


class Option(NamedTuple):
    """
    What can be left of a part of a model.

    Args:
        choice: what is left.
        cost: what the answers lose, in nats for a row.
        price: what it takes of the budget.
    """

    choice: Any
    cost: float
    price: float


def cheapest(parts: Sequence[Sequence[Option]], budget: float) -> list[Option]:
    """
    An option for each part, with the least sum of costs whose prices do not exceed the budget, counted in 4000ths.

    Raises:
        InputError: there is none.
    """
    least = sum(min(option.price for option in part) for part in parts)
    if least > budget * (1 + 1e-9):
        raise InputError(f"the least that the layers can take is {least:.4g}, and the target leaves {budget:.4g}.")
    units = [np.array([int(option.price / budget * UNITS + 1e-6) for option in part]) for part in parts]
    best = np.zeros(UNITS + 1)  # by what is spent at most, so far
    taken = []
    for part, prices in zip(parts, units, strict=True):
        sums = np.full((len(part), UNITS + 1), np.inf)
        for number, (option, price) in enumerate(zip(part, prices, strict=True)):
            if price <= UNITS:
                sums[number, price:] = best[: UNITS + 1 - price] + option.cost
        taken.append(sums.argmin(axis=0))
        best = sums.min(axis=0)
    for spent in range(UNITS, -1, -1):  # fractions of units, which are not counted, can make a sum too large
        if np.isfinite(best[spent]) and fits(chosen := chosen_at(spent, parts, units, taken), budget):
            return chosen
    return [min(part, key=lambda option: option.price) for part in parts]


def chosen_at(spent: int, parts: Sequence[Sequence[Option]], units: list, taken: list) -> list[Option]:
    chosen = []
    for part, prices, choices in zip(reversed(parts), reversed(units), reversed(taken), strict=True):
        number = int(choices[spent])
        chosen.append(part[number])
        spent -= int(prices[number])
    return chosen[::-1]


def fits(chosen: list[Option], budget: float) -> bool:
    return sum(option.price for option in chosen) <= budget * (1 + 1e-9)
