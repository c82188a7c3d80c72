"""The table of benchmarks.quality: all that was tried, each beside stock BERT, with its spread over seeds."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.curves import AXES, ratio
from fixedbert.errors import InputError

BY_SEED = dict[int, dict]  # results
COLUMNS = ("", "parameters, M", "steps", "TFLOP", "loss", "ratio of times", "ratio of FLOPs", "seeds", "change")


@dataclass(frozen=True)
class Row:
    """
    One side.

    Args:
        besides_embeddings: parameters.
        steps, flops, loss: at the end, by seed.
        ratios: for each axis of curves, by seed, how many times as much stock BERT takes to its final loss with the
            same seed; None where the side does not come to it. Empty for the stock BERT that is compared with.
    """

    side: str
    change: str
    besides_embeddings: int
    steps: dict[int, int]
    flops: dict[int, float]
    loss: dict[int, float]
    ratios: dict[str, dict[int, float | None]]

    def cells(self) -> list[str]:
        return [
            self.side,
            f"{self.besides_embeddings / 1e6:.2f}",
            f"{statistics.mean(self.steps.values()):,.0f}",
            f"{statistics.mean(self.flops.values()) / 1e12:,.1f}",
            mean_and_range(self.loss.values(), 3),
            *(self.ratio_cell(axis) for axis in AXES),
            ", ".join(map(str, self.loss)),
            self.change.replace("|", r"\|"),
        ]

    def ratio_cell(self, axis: str) -> str:
        ratios = self.ratios.get(axis, {})
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


def best_stock(sides: dict[str, BY_SEED]) -> str:
    """
    The name of stock BERT with the best learning rate: the lowest mean loss over the seeds that all rates have. NaN is
    worse than any loss.

    Raises:
        InputError: they have no seed in common.
    """
    stock = {name: runs for name, runs in sides.items() if any(result["stock"] for result in runs.values())}
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


def rows_of(sides: dict[str, BY_SEED]) -> list[Row]:
    """The stock BERT that the others are compared with comes first."""
    reference = best_stock(sides)
    others = [name for name in sides if name != reference]
    return [row_of(name, sides[name], sides[reference]) for name in (reference, *others)]


def row_of(name: str, runs: BY_SEED, stock: BY_SEED) -> Row:
    last = {seed: result["points"][-1] for seed, result in runs.items()}
    common = [seed for seed in runs if seed in stock and runs is not stock]
    latest = list(runs.values())[-1]
    return Row(
        name,
        latest["change"],
        latest["besides_embeddings"],
        *({seed: point[field] for seed, point in last.items()} for field in ("steps", "flops", "loss")),
        {
            axis: {seed: ratio(stock[seed]["points"], runs[seed]["points"], axis) for seed in common}
            for axis in AXES
            if common
        },
    )


def mean_and_range(values: Iterable[float], digits: int) -> str:
    """As 3.412 (3.401-3.420), or one value alone."""
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
