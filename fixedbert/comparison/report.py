"""The result of a comparison, and its report for the terminal."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..tasks.fidelity import UNITS, Fidelity
from .runtimes import REFERENCE

RANDOM, SINGLE = "random", "single"  # batches of rows in random order, and single rows
SINGLE_ROWS = 64  # number of rows that are timed one at a time
ROUNDS = 3  # minimum number of runs of each batch
CHANGED = "changed.csv"


@dataclass
class ComparedModel:
    """The measurements for a model in one runtime."""

    name: str
    label: str = field(init=False)  # the name, and the runtime if it is not padded float32 PyTorch
    runtime: str
    megabytes: float  # size of the weights or the graph
    rows_per_second: dict[str, float] = field(default_factory=dict)  # for RANDOM batches and SINGLE rows
    speedup: dict[str, float] = field(default_factory=dict)  # ratio to the rows per second of the first model
    scores: dict[str, float] = field(default_factory=dict)  # metrics by name; empty if the rows have no labels
    lost: int | None = None  # number of items that only the first model predicts correctly; None without labels
    gained: int | None = None  # number of items that only this model predicts correctly
    truncated: int = 0  # number of rows with more tokens than `max_seq_length`
    fidelity: Fidelity | None = None  # fidelity to the predictions of the first model; None for the first model itself

    def __post_init__(self):
        self.label = self.name if self.runtime == REFERENCE else f"{self.name}, {self.runtime}"


@dataclass(frozen=True)
class Comparison:
    """The result of `fixedbert.compare`."""

    file: str
    rows: int  # number of rows in the random sample that was used
    available: int  # number of rows in the file
    batch_size: int
    max_seq_length: int  # maximum number of tokens per row
    machine: str  # description of the machine on which the speed was measured
    models: list[ComparedModel]
    item: str  # the unit that is predicted correctly, or changes, such as "row"
    notes: list[str]  # messages about runtimes, such as why they were skipped
    advice: str  # the fastest ways to run a single model, or how to get this advice for one of several models
    folder: str  # output directory, or ""

    def __str__(self) -> str:
        first, *others = self.models
        items, _ = UNITS[self.item]
        metrics, flips = list(first.scores), ["lost", "gained"] if first.lost is not None else []
        flips += ["truncated"] if any(model.truncated for model in self.models) else []
        lines = [["", "rows/s", "speedup", "single", "MB", *metrics, *flips, "predictions"]]
        is_single = len({model.name for model in self.models}) == 1
        for model in self.models:
            rate = model.rows_per_second[RANDOM]
            cells = [model.runtime if is_single else model.label, f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"]
            cells += [f"{model.speedup[order]:.2f}" for order in (RANDOM, SINGLE)]
            cells += [f"{model.megabytes:,.0f}", *(f"{model.scores[name]:.4f}" for name in metrics)]
            predictions = model.fidelity.summary if model.fidelity else ""
            lines.append([*cells, *(str(getattr(model, name)) for name in flips), predictions])
        rows = f"{self.rows:,} of {self.available:,}" if self.rows < self.available else f"{self.rows:,}"
        notes = [
            f"rows/s, speedup: batches of {self.batch_size} rows in random order, without tokenization",
            f"single: speedup for {min(self.rows, SINGLE_ROWS)} single rows",
            f"of {ROUNDS} or more runs of each batch, the fastest counts",
        ]
        if "lost" in flips:
            notes.append(f"lost: {items} correct in the first line, but not in this one; gained: the opposite")
        fidelities = [model.fidelity for model in others if model.fidelity]
        if any(each.agreement is not None for each in fidelities):
            notes.append(f"predictions: {' that '.join(UNITS[fidelities[0].unit])} as in the first line")
        if "truncated" in flips:
            notes.append(f"truncated: rows with more than {self.max_seq_length} tokens; the rest is ignored")
        if self.folder and any(each.unit != "score" for each in fidelities):
            notes.append(f"{items} that changed: {self.folder}/{CHANGED}")
        header = f"{rows} rows from {self.file} with at most {self.max_seq_length} tokens, on {self.machine}"
        text = [header, "", *aligned(lines), "", *notes, *self.notes]
        return "\n".join([*text, "", self.advice] if self.advice else text)


def aligned(lines: list[list[str]]) -> list[str]:
    """Formats table rows as lines of text. The first and last columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides: list[Callable[..., str]] = [str.ljust, *[str.rjust] * (len(widths) - 2), str.ljust]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    ]
