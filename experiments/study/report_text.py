"""Writes the text of report.md: a table of shapes, the differences between them, conditions and limits."""

from collections.abc import Callable, Iterable

from .records import AXES, COUNTED
from .registry import EXTENSIONS, METRICS, TASKS, has_feed_forward
from .report import CurveDifference, Finding, Report
from .shape_results import Estimate, ShapeResult

FEW_SEEDS = 5  # with fewer seeds, Student's t exceeds 2.7
Answer = tuple[str, list[str]]  # a paragraph and the items of the list below it


def report_markdown(report: Report) -> str:
    """Returns the report in Markdown: the question, the table, the differences, the conditions and the limits."""
    title = f"# Study {report.study}" + (f", scale {report.scale}" if report.scale else "")
    header, *rows = table(report)
    lines = [title, "", *([report.question, ""] if report.question else [])]
    lines += [markdown_row(header), "|---" * len(header) + "|", *map(markdown_row, rows), ""]
    for text, items in answers(report):
        lines += [text, *(f"- {item}" for item in items), ""]
    lines += [*condition_lines(report), ""]
    return "\n".join([*lines, "What this does not show:", *(f"- {limit}" for limit in limits_of(report))]) + "\n"


def markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def head_size(shape: ShapeResult) -> str:
    size, values = shape["attention_head_size"], shape["value_head_size"]
    return f"{size}" if size == values else f"{size}, values {values}"


def learning_rate(shape: ShapeResult) -> str:
    end = shape.end_of_grid
    return f"{shape['learning_rate']:g}" + (f" (the {end})" if end else "")


def with_commas(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


COLUMNS: dict[str, Callable[[ShapeResult], object]] = {
    "series": lambda shape: shape["series"],
    "width": lambda shape: shape["hidden_size"],
    "layers": lambda shape: shape["num_hidden_layers"],
    "heads": lambda shape: shape["num_attention_heads"],
    "head size": head_size,
    "feed-forward": lambda shape: shape["intermediate_size"] if has_feed_forward(shape["objective"]) else "",
    "parameters": lambda shape: with_commas(shape["parameters"]),
    "without embeddings": lambda shape: with_commas(shape[COUNTED]),
    "MFLOP/token": lambda shape: f"{shape['forward_flops'] / 1e6:.3g}",
    "learning rate": learning_rate,
    "seeds": lambda shape: len(shape.records),
}


def table(report: Report) -> list[list[str]]:
    """Returns the header and a row for each shape. Columns without any values are omitted."""
    columns = [[name, *(str(cell(shape)) for shape in report.shapes)] for name, cell in COLUMNS.items()]
    for metric in report.metrics:
        columns.append([METRICS[metric].label, *(result(shape, metric) for shape in report.shapes)])
    return [list(row) for row in zip(*(column for column in columns if any(column[1:])), strict=True)]


def result(shape: ShapeResult, metric: str) -> str:
    estimate, missing = shape.estimate(metric), METRICS[metric].missing
    if metric not in shape.metrics and shape.diverged < len(shape.records):
        return ""  # a metric of a different task
    if not estimate.values:
        return missing
    without = len(shape.records) - len(estimate.values)
    notes = [f"{without} {missing}"] if without else []
    if shape.not_converged and metric != "steps_to_goal":
        notes.append(f"{shape.not_converged} not converged")
    return with_interval(estimate, ".4g") + (f" ({', '.join(notes)})" if notes else "")


def with_interval(estimate: Estimate, form: str = "+.3g") -> str:
    interval = f" ± {number(estimate.half_interval, '.2g')}" if len(estimate.values) > 1 else ""
    return number(estimate.mean, form) + interval


def number(value: float, form: str) -> str:
    """Formats a number with the significant digits in `form`. Large numbers are written without an exponent."""
    text = f"{value:{form}}"
    is_large = "e+" in text or abs(float(text)) >= 1000
    return f"{float(text):{'+' if '+' in form else ''},.0f}" if is_large else text


def answers(report: Report) -> list[Answer]:
    """Returns the paragraphs from extensions, followed by the differences after and during training."""
    paragraphs = [extension.answer(report) for extension in EXTENSIONS]
    for metric in report.compared_metrics:
        lines = [finding_line(finding, report) for finding in report.findings if finding.metric == metric]
        paragraphs.append((f"{METRICS[metric].label}, differences paired by seed:", lines))
    text = "held-out loss (nats) during training, differences paired by seed:"
    paragraphs.append((text, [curve_line(curve, report) for curve in report.curves]))
    return [(text, lines) for text, lines in paragraphs if lines]


def pair(compared: Finding | CurveDifference, axis: str) -> str:
    """Describes the two compared shapes. The difference is the second shape minus the first."""
    if compared.from_series == compared.to_series:
        return f"{compared.to_series}, {AXES[axis]} {compared.from_value:,} to {compared.to_value:,}"
    minus, place = f"minus {compared.from_series}", f"{AXES[axis]} {compared.to_value:,}"
    if compared.from_value == compared.to_value:
        return f"{compared.to_series}, {minus}, {place}"
    return f"{compared.to_series}, {place}, {minus}, {AXES[axis]} {compared.from_value:,}"


def finding_line(finding: Finding, report: Report) -> str:
    estimate, compared = finding.difference, pair(finding, report.axis)
    if not estimate.values:
        return f"{compared}: no seed has results for both"
    if len(estimate.values) == 1:
        return f"{compared}: {number(estimate.mean, '+.4g')} (one seed)"
    interval = f"95% interval {'excludes' if estimate.excludes_zero else 'includes'} 0"
    return f"{compared}: {with_interval(estimate)}, {interval}{fewer_seeds(estimate, report)}"


def curve_line(curve: CurveDifference, report: Report) -> str:
    last = max(curve.differences)
    half = min(curve.differences, key=lambda tokens: abs(tokens - last / 2))
    shown = sorted({min(curve.differences), half, curve.decay_from or half, last})
    values = ", ".join(f"{with_interval(curve.differences[tokens])} at {tokens:,} tokens" for tokens in shown)
    return f"{pair(curve, report.axis)}: {values}{fewer_seeds(curve.differences[last], report)}"


def fewer_seeds(estimate: Estimate, report: Report) -> str:
    """Returns the number of seeds with results for both shapes in parentheses, or "" if all seeds have results."""
    count, seeds = len(estimate.values), len(report.conditions.seeds)
    return f" ({count} of {seeds} seeds)" if count < seeds else ""


def condition_lines(report: Report) -> list[str]:
    conditions = report.conditions
    tokens = " to ".join(f"{number:,}" for number in sorted(set(conditions.tokens or ()))) or "an unknown number of"
    epochs = "" if conditions.epochs is None else f" (at most {conditions.epochs:.2g} epochs)"
    chosen = " in shorter runs" if conditions.of_grid else ""
    return [
        f"{conditions.runs} runs with {tokens} tokens each{epochs}; sequence length "
        f"{joined(conditions.max_seq_lengths)}; objective {joined(conditions.objectives)}; seeds "
        f"{joined(conditions.seeds)}; learning rates {joined(conditions.learning_rates)}, of which the first seed "
        f"chooses the best for each shape{chosen}; {conditions.seconds:,.0f} seconds for uninterrupted runs on "
        f"{joined(conditions.hardware)}; {', '.join(conditions.versions)}; commit {joined(conditions.commits)}.",
        *([f"Texts: {conditions.texts}."] if conditions.texts else []),
        "The values after ± are half-widths of 95% confidence intervals over seeds (Student's t). MFLOP/token counts "
        "the forward pass of the layers.",
    ]


def joined(values: Iterable) -> str:
    return ", ".join(map(str, sorted(values, key=lambda value: (isinstance(value, str), value or 0))))


def limits_of(report: Report) -> list[str]:
    """Returns a sentence for each limitation that applies to the records."""
    all_limits = [limits_of_runs, missing_controls, *(one.limits for one in EXTENSIONS)]
    return [limit for limits in all_limits for limit, applies in limits(report).items() if applies]


def limits_of_runs(report: Report) -> dict[str, bool]:
    """Maps sentences about the runs to True if they apply."""
    shapes, trained = report.shapes, [one for one in report.conditions.objectives if one not in TASKS]
    seeds = [len(shape.records) for shape in shapes]
    fewer, ends = sum(count < max(seeds) for count in seeds), sum(shape.end_of_grid is not None for shape in shapes)
    untuned = sum(len(shape.learning_rates) == 1 for shape in shapes)
    not_converged, diverged = sum(shape.not_converged for shape in shapes), sum(shape.diverged for shape in shapes)
    few = "With one seed, differences have no confidence intervals."
    if max(seeds) > 1:
        few = f"With at most {max(seeds)} seeds, confidence intervals are wide, and a narrow one can be due to luck."
    return {
        few: max(seeds) < FEW_SEEDS,
        f"Shapes with fewer seeds than others: {fewer} of {len(shapes)}.": fewer > 0,
        f"Shapes trained with a single learning rate: {untuned} of {len(shapes)}.": untuned > 0,
        "Learning rates were chosen in shorter runs. In complete runs, a different one may be best.": (
            report.conditions.of_grid > 0
        ),
        "Shapes whose best learning rate is at an end of the grid, so that a better one may lie beyond it: "
        f"{ends} of {len(shapes)}.": ends > 0,
        f"Runs that did not converge within the maximum number of steps: {not_converged}.": not_converged > 0,
        f"Diverged runs, which are excluded from averages: {diverged}.": diverged > 0,
        f"The losses and perplexities of {' and '.join(trained)} cannot be compared.": len(trained) > 1,
    }


def missing_controls(report: Report) -> dict[str, bool]:
    """Maps sentences about quantities that no series holds constant to True if they apply."""

    def differ(field: str) -> bool:
        return len({shape[field] for shape in report.shapes} - {None}) > 1

    sizes_differ, equal = differ("attention_head_size"), {shape["equal"] for shape in report.shapes}
    has_equal_values = all(shape["value_head_size"] == shape["attention_head_size"] for shape in report.shapes)
    return {
        "No series has equal parameters.": differ(COUNTED) and "parameters" not in equal,
        "No series has equal FLOPs.": differ("forward_flops") and "flops" not in equal,
        "No series controls for the softmax temperature with qk_norm.": sizes_differ
        and not any(shape["qk_norm"] for shape in report.shapes),
        "Values have the same size as queries and keys, so the effects of the two sizes are not separated.": (
            sizes_differ and has_equal_values
        ),
    }
