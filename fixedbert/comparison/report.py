"""The result of a comparison, and its report for the terminal."""

from dataclasses import dataclass, field

from scipy.stats import binomtest

from ..support.tables import aligned, markdown_report
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

    _repr_markdown_ = markdown_report

    @property
    def table(self) -> list[list[str]]:
        """A table with a row for each model, below a header."""
        first = self.models[0]
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
        return lines

    def __str__(self) -> str:
        items, _ = UNITS[self.item]
        columns = self.table[0]
        rows = f"{self.rows:,} of {self.available:,}" if self.rows < self.available else f"{self.rows:,}"
        notes = [
            f"rows/s, speedup: batches of {self.batch_size} rows in random order, without tokenization",
            f"single: speedup for {min(self.rows, SINGLE_ROWS)} single rows",
            f"of {ROUNDS} or more runs of each batch, the fastest counts",
        ]
        if "lost" in columns:
            notes.append(f"lost: {items} correct in the first line, but not in this one; gained: the opposite")
            names = [line[0] for line in self.table[1:]]
            unclear = [name for name, x in zip(names, self.models, strict=True) if may_be_chance(x.lost, x.gained)]
            if unclear:
                notes.append(f"lost and gained may differ by chance (sign test, p > 0.05): {', '.join(unclear)}")
        fidelities = [model.fidelity for model in self.models if model.fidelity]
        if any(each.agreement is not None for each in fidelities):
            notes.append(f"predictions: {' that '.join(UNITS[fidelities[0].unit])} as in the first line")
        if "truncated" in columns:
            notes.append(f"truncated: rows with more than {self.max_seq_length} tokens; the rest is ignored")
        if self.folder and any(each.unit != "score" for each in fidelities):
            notes.append(f"{items} that changed: {self.folder}/{CHANGED}")
        header = f"{rows} rows from {self.file} with at most {self.max_seq_length} tokens, on {self.machine}"
        text = [header, "", aligned(self.table), "", *notes, *self.notes]
        return "\n".join([*text, "", self.advice] if self.advice else text)


def may_be_chance(lost: int | None, gained: int | None) -> bool:
    """Whether two numbers of items differ by no more than chance explains, if each item has the same chance."""
    return lost != gained and binomtest(lost or 0, (lost or 0) + (gained or 0)).pvalue > 0.05
