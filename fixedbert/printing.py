"""What the commands print: the results of the analysis and of studies as text."""

from torch import Tensor

from .analysis.inspection_results import EVEN_SHARE, Inspection
from .analysis.planning import UTILISATION, Plan, PlannedShape
from .counts import size_text
from .study.cost import StudyCost
from .tasks.shrinking import Shrinking

COLUMNS = "{:<20} {:>5} {:>6} {:>5} {:>9} {:>6} {:>8} {:>9} {:>9} {:>13} {:>11} {:>7} {:>7} {:>7} {:>7} {:>7}"
MEASURES = {  # of an inspection, with the headings of their columns
    "rank": "rank",
    "pattern_rank": "pattern",
    "effective_rank": "eff.rank",
    "effective_pattern_rank": "eff.pattern",
    "ceiling": "ceiling",
    "entropy": "entropy",
    "distance": "distance",
    "similarity": "similar",
    "importance": "importance",
}
# The size of a unit, its name, from the largest on.
TOKENS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1, "tokens"))
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))


def plan_text(plan: Plan) -> str:
    """A table of the shapes and the known models, and what its columns mean."""
    budget = ", ".join(f"{name} {value}" for name, value in plan.budgets.items())
    rate = "tokens/s" + (" *" if plan.measured else "")
    return "\n".join(
        [
            f"rows of {plan.max_seq_length} tokens; budget: {budget}",
            COLUMNS.format(
                "", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP fwd", "MFLOP trn", "GB trn/infer",
                rate, "hours", "p>=n-1", "h*p>=d", "log_3 d", "fit L",
            ),
            *map(plan_row, (*plan.shapes, *plan.known)),
            "",
            "p>=n-1: a head has every pattern over n tokens. h*p>=d: every standard layer of this width with as many",
            "heads is included. log_3 d, fit L: layers by a theorem and a law of other networks. The evidence is in",
            "docs/planning.md; nothing says that one of these shapes is better than another.",
            f"Tokens a second and hours: {'measured here (float32), hours' if plan.measured else 'calculated'} for "
            f"{plan.device.upper()} at {UTILISATION:.0%} of its peak, an assumption. Memory: an estimate, 32 rows, "
            "float32.",
        ]
    )  # fmt: skip


def plan_row(planned: PlannedShape) -> str:
    shape = planned.shape
    return COLUMNS.format(
        planned.name, shape.d, shape.L, shape.h, shape.p, shape.F, f"{planned.parameters / 1e6:.1f} M",
        f"{planned.forward_flops / 1e6:.1f}", f"{planned.training_flops / 1e6:.1f}",
        f"{planned.training_memory / 1e9:.2f}/{planned.inference_memory / 1e9:.2f}",
        f"{planned.tokens_per_second:,.0f}", f"{planned.hours:.1f}", "yes" if planned.reaches_length else "no",
        "yes" if planned.reaches_width else "no", f"{planned.log_3_width:.1f}",
        "-" if planned.fitted_depth is None else f"{planned.fitted_depth:.0f}",
    )  # fmt: skip


def inspection_text(inspection: Inspection) -> str:
    """A row for every head, and where larger heads are worth a try; then the same of the model compared with."""
    lines = [
        f"{inspection.model}: {inspection.summary}",
        "layer head " + " ".join(f"{heading:>11}" for heading in MEASURES.values()),
    ]
    measures: list[Tensor] = [getattr(inspection, name) for name in MEASURES]
    for layer in range(inspection.layers):
        for head in range(inspection.head_counts[layer]):
            values = " ".join(f"{float(measure[layer, head]):>11.3g}" for measure in measures)
            lines.append(f"{layer:>5} {head:>4} {values}")
        condition = float(inspection.condition[layer])
        lines.append(f"{layer:>5}      condition number of all heads' output: {condition:.3g}")
    lines += ["", suggestion(inspection)]
    if inspection.compared is not None:
        lines += ["", inspection_text(inspection.compared)]
    return "\n".join(lines)


def suggestion(inspection: Inspection) -> str:
    """Which layers use their heads' size most evenly, and the command that enlarges the heads of just those."""
    n, sizes, share = inspection.max_seq_length, inspection.head_sizes, f"{EVEN_SHARE:.0%}"
    if min(sizes) >= n - 1:
        return f"Heads of {size_text(sizes)} have room for every pattern over {n} tokens: larger add nothing here."
    even = inspection.even_layers
    if not even:
        return f"In no layer has the mean effective rank {share} of the most there can be; no bottleneck is ruled out."
    layers = ", ".join(map(str, even))
    finding = f"In layers {layers} the mean effective rank is {share} or more of the most there can be."
    if not inspection.can_grow:
        return finding
    larger = " ".join(str(2 * size if layer in even else size) for layer, size in enumerate(sizes))
    command = f"fixedbert convert {inspection.model} --output_dir OUTPUT --attention_head_size {larger}"
    return f"{finding} More room just there: `{command}`; whether it helps, training shows."


def shrinking_text(shrinking: Shrinking) -> str:
    """Predicted errors by size, and where the model was cut its heads and the measured errors."""
    layers = shrinking.layers
    lines = [
        f"{shrinking.model}: {len(layers)} layers; {shrinking.tokens:,} tokens in sequences of "
        f"{shrinking.max_seq_length}",
        "relative errors predicted from the singular values on the uncut model, by size:",
    ]
    for name in ("scores", "values", "heads"):
        curves = [getattr(layer, name) for layer in layers]
        places = sorted({round(share * (len(curve) - 1) / 8) for curve in curves for share in range(9)})
        if places == [0]:
            continue
        unit = "left out" if name == "heads" else "size"
        lines.append(f"{name:<8} {unit:>8} " + " ".join(f"{place:>6}" for place in places))
        for number, curve in enumerate(curves):
            shown = (f"{curve[place]:>6.3f}" if place < len(curve) else " " * 6 for place in places)
            lines.append(f"{'layer':>12} {number:>4} " + " ".join(shown))
    if shrinking.cut:
        lines += ["", "cut, with relative errors of the attention's output measured on the text:"]
        for number, layer in enumerate(layers):
            measured = f"{layer.error:.3f} on the same inputs, {layer.from_original:.3f} from the original"
            if shrinking.repaired:
                measured += f", {shrinking.repaired[number]:.3f} after training"
            if layer.feed_forward_error:
                measured += f"; of the feed-forward network's {layer.feed_forward_error:.3f}"
            lines.append(f"  layer {number}: {layer.before} -> {layer.after}: {measured}")
        before, after = shrinking.parameters
        lines.append(f"parameters of the model: {before:,} -> {after:,}, {1 - after / before:.1%} less")
        if shrinking.repaired:
            lines.append(f"{shrinking.distil_steps:,} steps of training: {shrinking.outcome}")
    if shrinking.limit:
        lines.append(f"{shrinking.limit} Give --max_seq_length as long as your inputs.")
    return "\n".join(lines)


def study_cost_text(cost: StudyCost) -> str:
    """The shapes of a study with their counts, and what all runs cost."""
    row = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12}"
    lines = [
        cost.question,
        "",
        row.format("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token"),
    ]
    for shape in cost.shapes:
        counted = "-" if shape.parameters is None else f"{shape.parameters / 1e6:,.2f} M"
        ffn = "-" if shape.intermediate_size is None else shape.intermediate_size
        lines.append(
            row.format(
                shape.series[:44], shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads,
                shape.attention_head_size, ffn, counted, f"{shape.forward_flops / 1e6:.3f}",
            )
        )  # fmt: skip
    more = ", and more where grids are extended" if cost.extended else ""
    grid, seeds = ("in shorter runs ", f"{cost.seeds}") if cost.shorter_grid else ("", f"{cost.seeds - 1} more")
    best = "" if seeds == "0 more" else f", and the best one for {seeds}"
    on_gpu = ""
    if cost.h100_seconds >= 3600:  # small shapes do not reach that share
        on_gpu = f", {in_unit(cost.h100_seconds, TIMES)} of an H100 at {UTILISATION:.0%} of its peak, an assumption"
    lines += [
        "",
        f"{cost.runs} runs{more}: {cost.distinct_shapes} different shapes, each with {cost.learning_rates} learning "
        f"rate{'s' if cost.learning_rates > 1 else ''} {grid}for the first seed{best}; "
        f"{in_unit(cost.tokens, TOKENS)}, {cost.training_flops:.2g} FLOPs in layers{on_gpu}",
    ]
    return "\n".join(lines)


def in_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    """An amount in the largest unit that it fills, with three digits."""
    size, name = next((unit for unit in units if amount >= unit[0]), units[-1])
    if amount < size:
        return f"less than a {name.removesuffix('s')}"
    amount /= size
    return f"{amount:,.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"
