"""Text for the command line, of the data that the library returns."""

from .analysis.planning import UTILISATION
from .study.cost import StudyCost

# The size of a unit, its name, from the largest on.
TOKENS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1, "tokens"))
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))


def study_cost_text(cost: StudyCost) -> str:
    """The shapes of a study with their counts, and what all runs cost."""
    row = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12}"
    lines = [
        cost.question,
        "",
        row.format("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token"),
    ]
    for shape in cost.shapes:
        lines.append(
            row.format(
                shape.series[:44], shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads,
                shape.attention_head_size, shape.intermediate_size, f"{shape.parameters / 1e6:,.2f} M",
                f"{shape.forward_flops / 1e6:.3f}",
            )
        )  # fmt: skip
    lines += [
        "",
        f"{cost.runs} runs: of {cost.distinct_shapes} different shapes each {cost.learning_rates} learning rates with "
        f"the first seed, the best of them with {cost.seeds - 1} more; {in_unit(cost.tokens, TOKENS)}, "
        f"{cost.training_flops:.2g} FLOPs in layers, {in_unit(cost.h100_seconds, TIMES)} of an H100 at "
        f"{UTILISATION:.0%} of its peak, an assumption",
    ]
    return "\n".join(lines)


def in_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    """In the largest unit of which there is at least one, with three digits."""
    size, name = next((unit for unit in units if amount >= unit[0]), units[-1])
    if amount < size:
        return f"less than a {name.removesuffix('s')}"
    amount /= size
    return f"{amount:,.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"
