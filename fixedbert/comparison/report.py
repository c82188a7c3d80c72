"""The result of a comparison, and its report for the terminal."""

from collections.abc import Callable
from dataclasses import dataclass

from ..shrinking.predictions import Fidelity

SINGLE_ROWS = 64  # number of rows that are timed one at a time
CHANGED = "changed.csv"


@dataclass(frozen=True)
class ComparedModel:
    """
    The measurements for one model.

    Args:
        name: name of the model. For an ONNX graph, it includes the precision.
        rows_per_second: throughput in batches, and one row at a time.
        speedup: median speedup over the first model in batches, and one row at a time.
        scores: metrics by name; empty if the rows have no labels.
        lost, gained: number of items that only the first model, or only this model, predicts correctly. None if the
            rows have no labels, and for regression.
        truncated: number of rows with more tokens than `max_seq_length`.
        fidelity: fidelity of the predictions to the first model; None for the first model itself.
    """

    name: str
    rows_per_second: tuple[float, float]
    speedup: tuple[float, float]
    scores: dict[str, float]
    lost: int | None
    gained: int | None
    truncated: int
    fidelity: Fidelity | None


@dataclass(frozen=True)
class Comparison:
    """
    The result of `fixedbert.compare`.

    Args:
        file: the file that contains the rows.
        rows, available: number of rows in the random sample that was used, and number of rows in the file.
        batch_size, max_seq_length: rows per batch, and maximum tokens per row.
        machine: the machine on which the times were measured.
        models: measurements for each model, in the order of the arguments.
        item: the unit that has a prediction: "row", "word" or "question".
        folder: output directory, or "" if nothing was written.
    """

    file: str
    rows: int
    available: int
    batch_size: int
    max_seq_length: int
    machine: str
    models: list[ComparedModel]
    item: str = "row"
    folder: str = ""

    def __str__(self) -> str:
        first, *others = self.models
        metrics, flips = list(first.scores), ["lost", "gained"] if first.lost is not None else []
        flips += ["truncated"] if any(model.truncated for model in self.models) else []
        lines = [["", "rows/s", "speedup", "single: rows/s", "speedup", *metrics, *flips, "predictions"]]
        for model in self.models:
            speeds = [
                text
                for rows, speedup in zip(model.rows_per_second, model.speedup, strict=True)
                for text in (f"{rows:,.0f}" if rows >= 100 else f"{rows:.3g}", f"{speedup:.2f}")
            ]
            counts = [str(getattr(model, name)) for name in flips]
            scores = [f"{model.scores[name]:.4f}" for name in metrics]
            lines.append([model.name, *speeds, *scores, *counts, str(model.fidelity or "")])
        rows = f"{self.rows:,} of {self.available:,}" if self.rows < self.available else f"{self.rows:,}"
        notes = [
            f"rows/s: in random batches of {self.batch_size}, padded to the longest row, without tokenization",
            f"single: {min(self.rows, SINGLE_ROWS)} rows, one at a time; speedup: median over the first model",
        ]
        if "lost" in flips:
            notes.append(
                f"lost, gained: {self.item}s that only the first model, or only this model, predicts correctly"
            )
        if "truncated" in flips:
            notes.append(f"truncated: rows with more than {self.max_seq_length} tokens, whose end is ignored")
        if self.folder and any(model.fidelity and model.fidelity.agreement is not None for model in others):
            notes.append(f"{self.item}s with different predictions: {self.folder}/{CHANGED}")
        return "\n".join([f"{rows} rows from {self.file}, on {self.machine}", "", *aligned(lines), "", *notes])


def aligned(lines: list[list[str]]) -> list[str]:
    """Formats table rows as lines of text. The first and last columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides: list[Callable[..., str]] = [str.ljust, *[str.rjust] * (len(widths) - 2), str.ljust]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    ]
