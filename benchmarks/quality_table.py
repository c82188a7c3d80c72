"""The table of benchmarks.quality: all that was tried, each beside stock BERT, with its spread over seeds."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.curves import AXES, ratio
from fixedbert.support.errors import InputError

BY_SEED = dict[int, dict]  # results
RATIOS = tuple((kind, axis) for kind in ("as_run", "equal") for axis in AXES)
COLUMNS = ("", "parameters, M", "steps", "TFLOP", "loss", "ratio of times", "ratio of FLOPs")
COLUMNS += ("of times, same settings", "of FLOPs, same settings", "seeds", "change")


@dataclass(frozen=True)
class Row:
    """
    One side.

    Args:
        besides_embeddings: parameters.
        steps, flops, loss: at the end, by seed.
        ratios: for each of RATIOS, by seed, how many times as much stock BERT takes to its final loss with the same
            seed, as people run it or with the settings of the recipe; None where the side does not come to it. Empty
            for the stock BERT that is compared with.
    """

    side: str
    change: str
    besides_embeddings: int
    steps: dict[int, int]
    flops: dict[int, float]
    loss: dict[int, float]
    ratios: dict[tuple[str, str], dict[int, float | None]]

    def cells(self) -> list[str]:
        return [
            self.side,
            f"{self.besides_embeddings / 1e6:.2f}",
            f"{statistics.mean(self.steps.values()):,.0f}",
            f"{statistics.mean(self.flops.values()) / 1e12:,.1f}",
            mean_and_range(self.loss.values(), 3),
            *map(self.ratio_cell, RATIOS),
            ", ".join(map(str, self.loss)),
            self.change.replace("|", r"\|"),
        ]

    def ratio_cell(self, of: tuple[str, str]) -> str:
        ratios = self.ratios.get(of, {})
        some = f", over {len(ratios)} of {len(self.loss)} seeds" if 0 < len(ratios) < len(self.loss) else ""
        return ratio_text(ratios) + some


def by_side(results: Iterable[dict]) -> dict[str, BY_SEED]:
    found: dict[str, BY_SEED] = {}
    for result in results:
        found.setdefault(result["side"], {})[result["seed"]] = result
    return found


def final_loss(of_side: BY_SEED) -> float:
    """The mean over the seeds."""
    return statistics.mean(result["points"][-1]["loss"] for result in of_side.values())


def settings_of(runs: BY_SEED) -> dict | None:
    """The settings of a recipe that stock BERT can have too; none for stock BERT as people run it."""
    latest = list(runs.values())[-1]
    equal = latest.get("settings", {}).get("equal")
    return None if latest["stock"] and equal and not equal["keeps_memory"] else equal


def best_stock(sides: dict[str, BY_SEED], settings: dict | None = None) -> str | None:
    """
    The name of stock BERT of these settings with the best learning rate: the lowest mean loss over the seeds that all
    rates have. NaN is worse than any loss. None if there is no stock BERT of these settings.

    Raises:
        InputError: they have no seed in common.
    """
    stock = {name: runs for name, runs in sides.items() if any(result["stock"] for result in runs.values())}
    stock = {name: runs for name, runs in stock.items() if settings_of(runs) == settings}
    if not stock:
        return None
    common = set.intersection(*map(set, stock.values()))
    if not common:
        raise InputError(
            f"results.jsonl: {', '.join(stock)} have no seed in common; give all their rates to --stock_learning_rate "
            "with the same --seeds."
        )

    def loss_of(name: str) -> float:
        loss = final_loss({seed: stock[name][seed] for seed in common})
        return math.inf if math.isnan(loss) else loss

    return min(stock, key=loss_of)


def references(sides: dict[str, BY_SEED], runs: BY_SEED) -> dict[str, str]:
    """The stock BERTs that a side is compared with: as people run it, and for a recipe one with its settings too."""
    found = {"as_run": best_stock(sides)}
    if not list(runs.values())[-1]["stock"] and (settings := settings_of(runs)) is not None:
        found["equal"] = best_stock(sides, settings)
    return {kind: name for kind, name in found.items() if name is not None}


def rows_of(sides: dict[str, BY_SEED]) -> list[Row]:
    """The stock BERT that the others are compared with comes first."""
    reference = best_stock(sides)
    assert reference is not None  # of every folder
    others = [name for name in sides if name != reference]
    return [row_of(name, sides) for name in (reference, *others)]


def row_of(name: str, sides: dict[str, BY_SEED]) -> Row:
    runs = sides[name]
    last = {seed: result["points"][-1] for seed, result in runs.items()}
    stocks = {kind: sides[stock] for kind, stock in references(sides, runs).items() if stock != name}
    common = {kind: [seed for seed in runs if seed in stock] for kind, stock in stocks.items()}
    latest = list(runs.values())[-1]
    return Row(
        name,
        latest["change"],
        latest["besides_embeddings"],
        *({seed: point[field] for seed, point in last.items()} for field in ("steps", "flops", "loss")),
        {
            (kind, axis): {seed: ratio(stocks[kind][seed]["points"], runs[seed]["points"], axis) for seed in seeds}
            for kind, seeds in common.items()
            for axis in AXES
            if seeds
        },
    )


def mean_and_range(values: Iterable[float], digits: int) -> str:
    """The mean and range, as in 3.412 (3.401-3.420), or one value alone."""
    found = list(values)
    mean, *ends = (f"{value:.{digits}f}" for value in (statistics.mean(found), min(found), max(found)))
    return f"{mean} ({'-'.join(ends)})" if len(found) > 1 else mean


def ratio_text(ratios: dict[int, float | None]) -> str:
    """The mean and range over the seeds, and how many do not come to the loss."""
    reached = [ratio for ratio in ratios.values() if ratio is not None]
    if len(reached) == len(ratios):
        return mean_and_range(reached, 2) if reached else ""
    missing = "not reached" if len(ratios) == 1 else f"not reached by {len(ratios) - len(reached)} of {len(ratios)}"
    return f"{mean_and_range(reached, 2)}, {missing}" if reached else missing


def markdown(rows: list[Row]) -> str:
    """The table, whose columns are aligned."""
    cells = [list(COLUMNS), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"
