"""The result of shrinking, as a terminal report, a JSON file, a section of the model card, and a plot."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ..support.figures import new_figure, skip_without_matplotlib
from ..support.files import short_name, to_json
from ..support.tables import markdown_table
from ..tasks.fidelity import Fidelity
from .budget import LayerSize

RESULTS, PLOT = "shrinking.json", "shrinking.png"
FAMILY = "models.txt"  # for several target speedups
TOLERANCE = 0.95  # minimum fraction of the target speedup, because measured latencies vary by about 5%


@dataclass(frozen=True, kw_only=True)
class Cost:
    """
    The size and speed of a model.

    Args:
        layers: Shapes of the layers.
        parameters: Number of parameters.
        operations: FLOPs for a row of average length.
        seconds: Latency per batch, averaged over up to three batches.
    """

    layers: list[LayerSize]
    parameters: int
    operations: int
    seconds: float


@dataclass(frozen=True, kw_only=True, repr=False)
class ShrinkResult:
    """
    The result of `fixedbert.shrink`.

    Args:
        model: Directory or Hub id of the original.
        rows, tokens: Number of calibration rows, and the average number of tokens per row.
        before, after: Size and speed of the original and of the pruned model.
        fidelity: Fidelity of the pruned model's predictions on held-out rows.
        speedup: Measured speedup: the ratio of the latencies, which are medians over several rounds.
        speedup_range: Lowest and highest speedup in a round.
        target_speedup: Requested speedup; None for other targets.
        machine: The machine on which the speed was measured.
        serving: The inference settings of both models, for example "without padding, in bfloat16".
        distil_steps: Number of distillation steps.
        distilled: Fidelity after distillation. None if there was none, or if it did not reduce the KL divergence.
        folder: Directory of the new model.
    """

    model: str
    rows: int
    tokens: float
    before: Cost
    after: Cost
    fidelity: Fidelity
    speedup: float
    speedup_range: tuple[float, float]
    target_speedup: float | None = None
    machine: str = ""
    serving: str = ""
    distil_steps: int = 0
    distilled: Fidelity | None = None
    folder: str = ""

    def __repr__(self) -> str:
        return f"ShrinkResult({self.folder!r}: {self.summary})"

    def __str__(self) -> str:
        lines = [f"{short_name(self.model)}: pruned on {self.rows:,} rows with {self.tokens:.0f} tokens on average"]
        for index, (old, new) in enumerate(self.layers):
            lines.append(f"  layer {index}: {old.heads} -> {new.heads}; {old.neurons:,} -> {new.neurons:,} neurons")
        before, after = self.before, self.after
        lines += [
            "",
            f"time         {1e3 * before.seconds:8.1f} -> {1e3 * after.seconds:.1f} ms per batch, {self.serving}",
            f"operations   {before.operations / 1e6:8,.3g} -> {after.operations / 1e6:,.3g} million per row",
            f"parameters   {before.parameters / 1e6:8,.3g} -> {after.parameters / 1e6:,.3g} million",
            f"predictions  on {self.fidelity.rows:,} held-out rows: {self.fidelity}",
        ]
        if self.distilled is not None:
            lines.append(f"             after {self.distil_steps:,} distillation steps: {self.distilled}")
        return "\n".join([*lines, "", f"{self.speed}.{self.warning}"])

    @property
    def layers(self) -> list[tuple[LayerSize, LayerSize]]:
        """The shape of each layer before and after pruning."""
        return list(zip(self.before.layers, self.after.layers, strict=True))

    def remaining(self, name: str) -> float:
        """Returns what remains of `parameters`, `operations` or `seconds`, in percent."""
        return percent(getattr(self.before, name), getattr(self.after, name))

    @property
    def speed(self) -> str:
        """A phrase with the speedup, and with the target if it was missed."""
        missed = self.target_speedup is not None and self.speedup < TOLERANCE * self.target_speedup
        target = f", below the target of {self.target_speedup:g}; repeat on an idle machine" if missed else ""
        lowest, highest = self.speedup_range
        return f"{self.speedup:.2f} times as fast as the original ({lowest:.2f} to {highest:.2f} by round){target}"

    @property
    def warning(self) -> str:
        """For embeddings, what to do because they cannot be compared with the original's."""
        remedy = " Embed all texts with the new model, and build their index again."
        return remedy if self.fidelity.unit == "text" else ""

    @property
    def summary(self) -> str:
        """A sentence with the speed, size and fidelity of the model."""
        return (
            f"{self.speed}, with {self.remaining('operations'):.0f}% of the operations and "
            f"{self.remaining('parameters'):.0f}% of the parameters; predictions on held-out rows: {self.fidelity}."
        )

    def write(self, directory: Path):
        """Writes the result to shrinking.json, without the output directory or the absolute path to the original."""
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        text = to_json(fields | {"model": short_name(self.model)}, indent=1)
        (directory / RESULTS).write_text(text + "\n")

    def provenance(self) -> str:
        """Returns a description of how the model was made, as a Markdown section for the model card."""
        return f"{self._repr_markdown_()}\n![Remaining heads and neurons per layer](shrinking.png)\n"

    def _repr_markdown_(self) -> str:
        rows = [("layer", "heads before", "after", "neurons before", "after")]
        for index, (old, new) in enumerate(self.layers):
            rows.append((str(index), str(old.heads), str(new.heads), f"{old.neurons:,}", f"{new.neurons:,}"))
        distilled = ""
        if self.distilled is not None:
            distilled = f" After {self.distil_steps:,} distillation steps: {self.distilled}."
        return f"""
Pruned from `{short_name(self.model)}` on {self.rows:,} unlabeled rows with {self.tokens:.0f} tokens on average: \
{self.summary}{distilled}{self.warning} Times were measured on {self.machine}, {self.serving}.

{markdown_table(rows)}
"""


@dataclass(frozen=True)
class ShrinkFamily:
    """The results of pruning one model to several target speedups with the same statistics."""

    results: list[ShrinkResult]

    def __str__(self) -> str:
        lines = [f"{short_name(self.results[0].model)}, {self.results[0].serving}, on {self.results[0].machine}"]
        for result in self.results:
            sizes = f"{1e3 * result.after.seconds:.1f} ms per batch, {result.after.parameters / 1e6:,.3g} M parameters"
            lines.append(f"  {Path(result.folder).name}: {sizes}, {result.speed}; {result.fidelity}")
        return "\n".join(lines)


@skip_without_matplotlib
def plot(result: ShrinkResult, file: Path):
    """Plots the remaining percentages of heads and neurons in each layer, and of parameters, operations and time."""
    with new_figure(9, 3.6, file) as figure:
        layers, model = figure.subplots(1, 2, width_ratios=(2, 1))
        indices = range(len(result.layers))
        heads = [percent(*(shape.heads.num_heads * sum(shape.heads[1:]) for shape in pair)) for pair in result.layers]
        neurons = [percent(before.neurons, after.neurons) for before, after in result.layers]
        layers.bar([index - 0.2 for index in indices], heads, 0.4, label="head dimensions")
        layers.bar([index + 0.2 for index in indices], neurons, 0.4, label="neurons")
        layers.set(xlabel="layer", ylabel="remaining (%)", ylim=(0, 105), xticks=list(indices))
        layers.legend()
        names = {"parameters": "parameters", "operations": "operations", "time": "seconds"}
        bars = model.bar([*names], [result.remaining(name) for name in names.values()], color="C2")
        model.bar_label(bars, fmt="%.0f")
        model.set(ylabel="remaining (%)", ylim=(0, 105))
        figure.suptitle(f"{result.speedup:.2f} times as fast; predictions: {result.fidelity}")


def percent(before: float, after: float) -> float:
    """Returns `after` as a percentage of `before`."""
    return 100 * after / before
