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
    An option for each part, with the least sum of costs whose prices do not exceed the budget: exactly, but that
    prices are rounded up to a 4000th of the budget.

    Raises:
        InputError: there is none.
    """
    least = sum(min(option.price for option in part) for part in parts)
    if least > budget:
        raise InputError(f"{budget:g}: the least that can be reached is {least:g}.")
    best = np.zeros(UNITS + 1)  # by what is spent at most, so far
    taken = []
    for part in parts:
        units = [min(UNITS + 1, int(np.ceil(option.price / budget * UNITS - 1e-9))) for option in part]
        sums = np.full((len(part), UNITS + 1), np.inf)
        for number, (option, price) in enumerate(zip(part, units, strict=True)):
            if price <= UNITS:
                sums[number, price:] = best[: UNITS + 1 - price] + option.cost
        taken.append((sums.argmin(axis=0), units))
        best = sums.min(axis=0)
    if not np.isfinite(best[UNITS]):
        return [min(part, key=lambda option: option.price) for part in parts]
    chosen, spent = [], UNITS
    for part, (choices, units) in zip(reversed(parts), reversed(taken), strict=True):
        number = int(choices[spent])
        chosen.append(part[number])
        spent -= units[number]
    return chosen[::-1]
