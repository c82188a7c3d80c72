"""What shrinking did, in words for the terminal and the card, and as a picture."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from ..publishing.model_card import markdown_table
from ..support.figures import new_figure, skip_without_matplotlib
from .budget import Shape
from .predictions import ONE_ANSWER_A_ROW, Comparison, answers_text, judged

RESULTS, PICTURE = "shrinking.json", "shrinking.png"
REACHED = 0.95  # of the speed that was asked for: less is said; clocks scatter by as much


@dataclass(frozen=True, repr=False)
class Shrinking:
    """
    What `shrink` did.

    Args:
        model: as it was given.
        rows, tokens: that it was cut by, and their tokens in the mean.
        before, after: heads and neurons of each layer.
        predicted: what the cuts cost the answers to second order, in nats for a row.
        comparison: measured on rows that it was not cut by.
        parameters, operations: before and after; operations of a row of the mean length.
        seconds: of a batch, before and after, measured in turns; None for a dry run.
        speedup: the median of their ratios; `by_table`: what the table of latencies had for it; `asked`: the target.
        head: what follows "For" in the name of the model's class.
        repaired: the comparison after training, and its `distil_steps`.
        machine: where the seconds were measured; `table_of`: where the table's were, if that is another.
        folder: where the model is.
    """

    model: str
    rows: int
    tokens: float
    before: list[Shape]
    after: list[Shape]
    predicted: float
    comparison: Comparison
    parameters: tuple[int, int]
    operations: tuple[int, int]
    seconds: tuple[float, float]
    speedup: float
    by_table: float | None = None
    distil_steps: int = 0
    repaired: Comparison | None = None
    machine: str = ""
    table_of: str = ""
    asked: float | None = None
    head: str = ""
    folder: str = ""

    def __repr__(self) -> str:
        return f"Shrinking({self.folder!r}: {verdict(self)})"

    def __str__(self) -> str:
        return shrinking_text(self)


def shown(model: str) -> str:
    """A model as reports name it: a path of this machine by its last part."""
    return Path(model).name if Path(model).is_absolute() else model


def judgement(found: Shrinking) -> str:
    """Whether the answers stayed, in words, and what to do where they did not."""
    remedy = "more distil_steps or another learning_rate" if found.distil_steps else "train it with distil_steps"
    return judged(found.repaired or found.comparison, found.tokens, f"{remedy}, or ask for less")


def verdict(found: Shrinking) -> str:
    """What was reached, in one sentence."""
    (ops, fewer), (params, left) = found.operations, found.parameters
    return (
        f"{speed_text(found)}, with {fewer / ops:.0%} of the operations and {left / params:.0%} of the parameters; of "
        f"its answers on rows that it was not cut by, {answers_text(found.comparison)}."
    )


def speed_text(found: Shrinking) -> str:
    """How many times as fast, measured and by the table."""
    if found.table_of:
        return (
            f"{found.by_table:.2f} times as fast as the original on {found.table_of}, as its table predicts "
            f"({found.speedup:.2f} measured on {found.machine})"
        )
    missed = found.asked is not None and found.speedup < REACHED * found.asked
    asked = f", where {found.asked:g} were asked for" if missed else ""
    return f"{found.speedup:.2f} times as fast as the original{asked}"


def shrinking_text(found: Shrinking) -> str:
    """Heads and neurons of each layer; time, operations, parameters and answers; a judgement, and what comes next."""
    lines = [f"{shown(found.model)}: cut by {found.rows:,} rows of {found.tokens:.0f} tokens in the mean"]
    for number, (before, after) in enumerate(zip(found.before, found.after, strict=True)):
        neurons = f"{before.neurons:,} -> {after.neurons:,} neurons"
        lines.append(f"  layer {number}: {before.heads} -> {after.heads}; {neurons}")
    (seconds, less), (ops, fewer), (params, left) = found.seconds, found.operations, found.parameters
    lines += [
        "",
        f"time        {1000 * seconds:8.1f} -> {1000 * less:.1f} ms for a batch, in the mean of short to long ones",
        f"operations  {ops / 1e6:8,.3g} -> {fewer / 1e6:,.3g} million for a row",
        f"parameters  {params / 1e6:8,.3g} -> {left / 1e6:,.3g} million",
        f"answers     on {found.comparison.rows:,} rows that it was not cut by, {answers_text(found.comparison)}",
    ]
    if found.repaired is not None:
        lines.append(f"            after {found.distil_steps:,} steps of training, {answers_text(found.repaired)}")
    faster = speed_text(found)
    lines += ["", f"{faster[0].upper()}{faster[1:]}. {judgement(found)}."]
    if found.folder:
        folder = found.folder.rstrip("/")
        lines.append("Next:")
        in_memory = Path(found.model).is_absolute() and not Path(found.model).exists()
        if found.head in ONE_ANSWER_A_ROW and found.comparison.kind != "states" and not in_memory:
            places = shlex.join([found.model, folder])
            lines.append(f"  fixedbert compare {places} --validation_file FILE    (rows that neither has seen)")
        lines.append(f"  fixedbert export {shlex.join([folder, '--output_dir', f'{folder}-onnx'])} --int8")
    return "\n".join(lines)


def making(found: Shrinking) -> str:
    """How the model was made, for its card, in Markdown."""
    name = Path(found.model).resolve().name if Path(found.model).exists() else found.model
    layers = zip(found.before, found.after, strict=True)
    rows = [
        (number, before.heads, after.heads, f"{before.neurons:,}", f"{after.neurons:,}")
        for number, (before, after) in enumerate(layers)
    ]
    training = ""
    if found.repaired is not None:
        training = f" After {found.distil_steps:,} steps of training without labels, {answers_text(found.repaired)}."
    machine = f" Times are of {found.machine}." if found.machine else ""
    return f"""
Cut from `{name}` by what {found.rows:,} rows of its task, {found.tokens:.0f} tokens in the mean, say of its answers; \
no labels were used. It is {verdict(found)}{training}{machine}

{markdown_table(rows, ("layer", "heads before", "after", "neurons before", "after"))}

![What is left of each layer](shrinking.png)
"""


@skip_without_matplotlib
def draw(found: Shrinking, file: Path):
    """What is left of each layer, and of the whole model."""
    with new_figure(9, 3.6, file) as figure:
        layers, model = figure.subplots(1, 2, width_ratios=(2, 1))
        places = range(len(found.after))
        layer_pairs = list(zip(found.before, found.after, strict=True))
        for shift, name, left in (
            (
                -0.2,
                "dimensions of heads",
                [share(*(inner(x) for x in pair)) for pair in layer_pairs],
            ),
            (0.2, "neurons", [share(*(x.neurons for x in pair)) for pair in layer_pairs]),
        ):
            layers.bar([place + shift for place in places], left, 0.4, label=name)
        layers.set(xlabel="layer", ylabel="left, per cent", ylim=(0, 105), xticks=list(places))
        layers.legend()
        names, amounts = ("parameters", "operations", "time"), (found.parameters, found.operations, found.seconds)
        bars = model.bar(names, [share(*amount) for amount in amounts], color="C2")
        model.bar_label(bars, fmt="%.0f")
        model.set(ylabel="left, per cent", ylim=(0, 105))
        speedup = found.by_table if found.table_of else found.speedup
        figure.suptitle(f"{speedup:.2f} times as fast; of the answers, {answers_text(found.comparison)}")


def inner(shape: Shape) -> int:
    """Dimensions of all heads together."""
    number, size, value_size = shape.heads
    return number * (size + value_size)


def share(before: float, after: float) -> float:
    """In per cent."""
    return 100 * after / before if before else 0.0
