"""The result of shrinking: as a report for the terminal, as JSON, as a section of the model card, and as a plot."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ..conversion.growing import Heads
from ..publishing.model_card import markdown_table
from ..support.figures import new_figure, skip_without_matplotlib
from ..support.files import read_json_object, to_json
from .budget import LayerShape
from .predictions import Fidelity

RESULTS, PLOT = "shrinking.json", "shrinking.png"
TOLERANCE = 0.95  # of the target speed: clocks scatter by as much


@dataclass(frozen=True, kw_only=True, repr=False)
class ShrinkResult:
    """
    The result of `fixedbert.shrink`.

    Args:
        model: the original's directory or Hub id.
        rows, tokens: number of calibration rows, and their mean number of tokens.
        before, after: shapes of the layers.
        predicted_divergence: KL divergence after pruning to second order, in nats per row, without the refit.
        fidelity: fidelity of the predictions on held-out rows.
        parameters, operations: numbers before and after; the operations of a row of mean length.
        seconds: times for a batch, the mean over short, medium and long ones, before and after.
        speedup: measured speedup; `target_speedup` is the requested one.
        machine: where the times were measured.
        table_speedup: speedup according to the latency table; `table_machine`: its machine, if not this one.
        distil_steps, distilled: steps of distillation, and the fidelity after it, if it improved.
        folder: directory of the new model.
    """

    model: str
    rows: int
    tokens: float
    before: list[LayerShape]
    after: list[LayerShape]
    predicted_divergence: float
    fidelity: Fidelity
    parameters: tuple[int, int]
    operations: tuple[int, int]
    seconds: tuple[float, float]
    speedup: float
    target_speedup: float | None = None
    machine: str = ""
    table_speedup: float | None = None
    table_machine: str = ""
    distil_steps: int = 0
    distilled: Fidelity | None = None
    folder: str = ""

    def __repr__(self) -> str:
        return f"ShrinkResult({self.folder!r}: {self.summary})"

    def __str__(self) -> str:
        lines = [f"{short_name(self.model)}: pruned with {self.rows:,} rows of {self.tokens:.0f} tokens on average"]
        for index, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            neurons = f"{before.neurons:,} -> {after.neurons:,} neurons"
            lines.append(f"  layer {index}: {before.heads} -> {after.heads}; {neurons}")
        (seconds, less), (ops, fewer), (params, left) = self.seconds, self.operations, self.parameters
        lines += [
            "",
            f"time         {1000 * seconds:8.1f} -> {1000 * less:.1f} ms per batch, on average",
            f"operations   {ops / 1e6:8,.3g} -> {fewer / 1e6:,.3g} million per row",
            f"parameters   {params / 1e6:8,.3g} -> {left / 1e6:,.3g} million",
            f"predictions  on {self.fidelity.rows:,} held-out rows: {self.fidelity}",
        ]
        if self.distilled is not None:
            lines.append(f"             after {self.distil_steps:,} steps of distillation: {self.distilled}")
        return "\n".join([*lines, "", f"{self.speed}."])

    @property
    def speed(self) -> str:
        """The measured speedup, or that of a different machine's latency table."""
        if self.table_machine:
            return (
                f"{self.table_speedup:.2f} times as fast as the original on {self.table_machine}, according to its "
                f"latency table ({self.speedup:.2f} times as fast on {self.machine})"
            )
        missed = self.target_speedup is not None and self.speedup < TOLERANCE * self.target_speedup
        return f"{self.speedup:.2f} times as fast as the original{f', not {self.target_speedup:g}' if missed else ''}"

    @property
    def summary(self) -> str:
        """Speed, size and fidelity in one sentence."""
        (ops, fewer), (params, left) = self.operations, self.parameters
        return (
            f"{self.speed}, with {fewer / ops:.0%} of the operations and {left / params:.0%} of the parameters; "
            f"predictions on held-out rows: {self.fidelity}."
        )

    def write(self, directory: Path):
        """Writes shrinking.json, without the directory and the path of the original."""
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        text = to_json(fields | {"model": short_name(self.model)}, indent=1)
        (directory / RESULTS).write_text(text + "\n")

    @classmethod
    def read(cls, directory: Path) -> "ShrinkResult":
        """Reads what `write` has written, before distillation."""
        fields = read_json_object(directory / RESULTS, "remove the directory")
        shapes = {
            name: [LayerShape(Heads(*x["heads"]), x["neurons"]) for x in fields[name]] for name in ("before", "after")
        }
        pairs = {name: tuple(fields[name]) for name in ("parameters", "operations", "seconds")}
        return cls(**fields | shapes | pairs | {"fidelity": Fidelity(**fields["fidelity"])})

    def provenance(self) -> str:
        """How the model was made, in Markdown for its card."""
        rows = [
            (index, before.heads, after.heads, f"{before.neurons:,}", f"{after.neurons:,}")
            for index, (before, after) in enumerate(zip(self.before, self.after, strict=True))
        ]
        distilled = ""
        if self.distilled is not None:
            distilled = f" After {self.distil_steps:,} steps of distillation: {self.distilled}."
        return f"""
Pruned from `{short_name(self.model)}` with {self.rows:,} unlabelled rows of {self.tokens:.0f} tokens on average: \
{self.summary}{distilled} Times were measured on {self.machine}.

{markdown_table(rows, ("layer", "heads before", "after", "neurons before", "after"))}

![Remaining heads and neurons per layer](shrinking.png)
"""


def short_name(model: str) -> str:
    """Returns a Hub id or relative path as it is, and the last part of an absolute path."""
    return Path(model).name if Path(model).is_absolute() else model


@skip_without_matplotlib
def plot(result: ShrinkResult, file: Path):
    """Plots what remains of each layer, and of parameters, operations and time."""
    with new_figure(9, 3.6, file) as figure:
        layers, model = figure.subplots(1, 2, width_ratios=(2, 1))
        indices, pairs = range(len(result.after)), list(zip(result.before, result.after, strict=True))
        heads = [percent(*(shape.heads.number * sum(shape.heads[1:]) for shape in pair)) for pair in pairs]
        neurons = [percent(before.neurons, after.neurons) for before, after in pairs]
        layers.bar([index - 0.2 for index in indices], heads, 0.4, label="dimensions of heads")
        layers.bar([index + 0.2 for index in indices], neurons, 0.4, label="neurons")
        layers.set(xlabel="layer", ylabel="remaining, per cent", ylim=(0, 105), xticks=list(indices))
        layers.legend()
        amounts = {"parameters": result.parameters, "operations": result.operations, "time": result.seconds}
        bars = model.bar([*amounts], [percent(*amount) for amount in amounts.values()], color="C2")
        model.bar_label(bars, fmt="%.0f")
        model.set(ylabel="remaining, per cent", ylim=(0, 105))
        speedup = result.table_speedup if result.table_machine else result.speedup
        figure.suptitle(f"{speedup:.2f} times as fast; predictions: {result.fidelity}")


def percent(before: float, after: float) -> float:
    return 100 * after / before if before else 0.0
