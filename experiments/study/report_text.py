"""Writes report.md: a table of shapes, their differences, the experimental conditions, and the limitations."""

from collections.abc import Callable, Iterable

from experiments.head_size.tasks import TASKS

from .metrics import METRICS
from .records import AXES, COUNTED
from .report import CurveDifference, Finding, Report
from .shape_results import Estimate, ShapeResult
from .studies import has_feed_forward
from .threshold_text import limits_of_thresholds, threshold_answer

FEW_SEEDS = 5  # with fewer seeds, Student's t exceeds 3


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
    """Formats a number with as many significant digits as `form` sets, but large numbers without an exponent."""
    text = f"{value:{form}}"
    is_large = "e+" in text or abs(float(text)) >= 1000
    return f"{float(text):{'+' if '+' in form else ''},.0f}" if is_large else text


def answers(report: Report) -> list[tuple[str, list[str]]]:
    """Returns paragraphs, each with the items of a list: the thresholds, and differences after and during training."""
    paragraphs = [threshold_answer(report)]
    for metric in report.compared_metrics:
        lines = [finding_line(finding, report) for finding in report.findings if finding.metric == metric]
        paragraphs.append((f"{METRICS[metric].label}, differences paired by seed:", lines))
    text = "held-out loss (nats) during training, differences paired by seed:"
    paragraphs.append((text, [curve_line(curve, report) for curve in report.curves]))
    return [(text, lines) for text, lines in paragraphs if lines]


def pair(compared: Finding | CurveDifference, axis: str) -> str:
    """Describes the two compared shapes. The difference is the second shape minus the first."""
    first, second = compared.first, compared.second
    if first["series"] == second["series"]:
        return f"{second['series']}, {AXES[axis]} {first[axis]:,} to {second[axis]:,}"
    minus, place = f"minus {first['series']}", f"{AXES[axis]} {second[axis]:,}"
    if first[axis] == second[axis]:
        return f"{second['series']}, {minus}, {place}"
    return f"{second['series']}, {place}, {minus}, {AXES[axis]} {first[axis]:,}"


def finding_line(finding: Finding, report: Report) -> str:
    estimate, compared = finding.difference, pair(finding, report.axis)
    if not estimate.values:
        return f"{compared}: no seed has results for both"
    if len(estimate.values) == 1:
        return f"{compared}: {number(estimate.mean, '+.4g')} (one seed)"
    interval = f"95% interval {'excludes' if abs(estimate.mean) > estimate.half_interval else 'includes'} 0"
    return f"{compared}: {with_interval(estimate)}, {interval}{fewer_seeds(estimate, report)}"


def curve_line(curve: CurveDifference, report: Report) -> str:
    last = max(curve.differences)
    half = min(curve.differences, key=lambda tokens: abs(tokens - last / 2))
    shown = sorted({min(curve.differences), half, curve.decay_from or half, last})
    values = ", ".join(f"{with_interval(curve.differences[tokens])} at {tokens:,} tokens" for tokens in shown)
    return f"{pair(curve, report.axis)}: {values}{fewer_seeds(curve.differences[last], report)}"


def fewer_seeds(estimate: Estimate, report: Report) -> str:
    """Returns the number of seeds with results for both shapes in parentheses, or "" if all seeds have results."""
    count, seeds = len(estimate.values), len(report.distinct("seed"))
    return f" ({count} of {seeds} seeds)" if count < seeds else ""


def condition_lines(report: Report) -> list[str]:
    runs = {record.key: record for record in report.records}.values()  # a run in two series has two records
    tokens = sorted({record.tokens for record in runs if not record.of_grid and record.tokens is not None})
    counts = " to ".join(f"{count:,}" for count in sorted({*tokens[:1], *tokens[-1:]})) or "an unknown number of"
    epochs = [record.epochs for record in runs if record.epochs is not None]
    texts = [text for text in report.distinct("texts") if text]
    chosen = " in shorter runs" if any(record.of_grid for record in runs) else ""
    versions = {f"{name} {version}" for record in runs for name, version in record.versions.items()}
    return [
        f"{len(runs)} runs with {counts} tokens each{f' (at most {max(epochs):.2g} epochs)' if epochs else ''}; "
        f"sequence length {joined(report.distinct('max_seq_length'))}; objective "
        f"{joined(report.distinct('objective'))}; seeds {joined(report.distinct('seed'))}; learning rates "
        f"{joined(report.distinct('learning_rate'))}, of which the first seed chooses the best for each shape"
        f"{chosen}; {sum(record.seconds or 0 for record in runs):,.0f} seconds for uninterrupted runs on "
        f"{joined(report.distinct('hardware'))}; {joined(versions)}; commit {joined(report.distinct('commit'))}.",
        *(f"Texts: {text}." for text in texts),
        "The values after ± are half-widths of 95% confidence intervals over seeds (Student's t). MFLOP/token counts "
        "the forward pass of the layers.",
    ]


def joined(values: Iterable) -> str:
    return ", ".join(map(str, sorted(values, key=lambda value: (isinstance(value, str), value or 0))))


def limits_of(report: Report) -> list[str]:
    """Returns a sentence for each limitation that applies to the records."""
    all_limits = [limits_of_runs, missing_controls, limits_of_thresholds]
    return [limit for limits in all_limits for limit, applies in limits(report).items() if applies]


def limits_of_runs(report: Report) -> dict[str, bool]:
    """Maps sentences about the runs to True if they apply."""
    shapes, trained = report.shapes, [one for one in report.distinct("objective") if one not in TASKS]
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
        "Learning rates were chosen in shorter runs. In complete runs, a different one may be best.": any(
            report.distinct("of_grid")
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
        return len({str(shape[field]) for shape in report.shapes if shape[field] is not None}) > 1

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
