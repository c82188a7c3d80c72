"""Sides that take turns, and their ratios."""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from tqdm import tqdm

Result = TypeVar("Result")


def in_turns(sides: Mapping[str, Callable[[], Result]], rounds: int, title: str = "rounds") -> dict[str, list[Result]]:
    """What each side gives in each round. Who begins alternates."""
    found: dict[str, list[Result]] = {name: [] for name in sides}
    with tqdm(total=rounds * len(sides), desc=title, leave=False) as progress:
        for number in range(rounds):
            for name in sides if number % 2 else reversed(list(sides)):
                found[name].append(sides[name]())
                progress.update()
    return found


def ratio(numerators: list[float], denominators: list[float]) -> str:
    """The median of the rounds' ratios and their range, as 2.05 (2.05-2.11)."""
    ratios = sorted(one / other for one, other in zip(numerators, denominators, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
