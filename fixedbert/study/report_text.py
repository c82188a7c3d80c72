"""The sentences and the table of a report, for report.md."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .curves import CurveDifference
from .limits import limits_of
from .records import AXES, METRICS
from .report import Finding, Report
from .shape_results import Estimate, ShapeResult
from .studies import named_studies
from .tasks import has_feed_forward

COLUMNS = (
    "series", "width", "layers", "heads", "head size", "feed-forward", "parameters", "besides embeddings",
    "MFLOP/token", "learning rate", "seeds",
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A paragraph, and the list that it introduces."""

    text: str
    items: list[str]


FIRST: list[Callable[[Report], Section]] = []  # what a checkout adds at the beginning of the answers


def report_markdown(report: Report) -> str:
    """What report.md has: question, table, answers, how the runs were made, and what they do not show."""
    lines = [f"# {title(report)}", "", *([report.question, ""] if report.question else [])]
    header, *rows = table(report)
    lines += [markdown_row(header), "|---" * len(header) + "|", *map(markdown_row, rows), ""]
    for section in answers(report):
        lines += [section.text, *(f"- {item}" for item in section.items), ""]
    lines += [*condition_lines(report), "", *(f"    {command}" for command in commands(report)), ""]
    limits = (f"- {limit}" for limit in limits_of(report))
    return "\n".join([*lines, "What this does not show:", *limits]) + "\n"


def markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def title(report: Report) -> str:
    return f"Study {report.study}" + (f", scale {report.scale}" if report.scale else "")


def table(report: Report) -> list[list[str]]:
    """The header, and a row for each shape, without the columns that are empty for all."""
    rows = [[*COLUMNS, *(METRICS[metric].label for metric in report.metrics)]]
    for name, shapes in report.series.items():
        for shape in shapes:
            cells = [name, *(shape[field] for field in ("hidden_size", "num_hidden_layers"))]
            cells += [shape["num_attention_heads"], head_size(shape), feed_forward(shape)]
            cells += [with_commas(shape["parameters"]), with_commas(shape["non_embedding_parameters"])]
            cells += [f"{shape['forward_flops'] / 1e6:.3g}", learning_rate(shape), len(shape.records)]
            cells += [result(shape, metric) for metric in report.metrics]
            rows.append([str(cell) for cell in cells])
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


def head_size(shape: ShapeResult) -> str:
    size, values = shape["attention_head_size"], shape["value_head_size"]
    return f"{size}" if size == values else f"{size}, values {values}"


def feed_forward(shape: ShapeResult) -> str:
    return str(shape["intermediate_size"]) if has_feed_forward(shape["objective"]) else ""


def with_commas(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def learning_rate(shape: ShapeResult) -> str:
    end = shape.end_of_grid
    return f"{shape['learning_rate']:g}" + (f" (the {end})" if end else "")


def result(shape: ShapeResult, metric: str) -> str:
    estimate, missing = shape.estimate(metric), METRICS[metric].missing
    if metric not in shape.metrics and shape.diverged < len(shape.records):
        return ""  # another task
    if not estimate.values:
        return missing
    without = len(shape.records) - len(estimate.values)
    text = number(estimate.mean, ".4g")
    if len(estimate.values) > 1:
        text += f" ± {number(estimate.half_interval, '.2g')}"
    notes = [f"{without} {missing}"] if without else []
    if shape.not_converged and metric != "steps_to_goal":
        notes.append(f"{shape.not_converged} not converged")
    return f"{text} ({', '.join(notes)})" if notes else text


def number(value: float, form: str) -> str:
    """A number with the significant digits of `form`; large ones with commas, without a power of ten."""
    text = f"{value:{form}}"
    is_large = "e+" in text or abs(float(text)) >= 1000
    return f"{float(text):{'+' if '+' in form else ''},.0f}" if is_large else text


def answers(report: Report) -> list[Section]:
    """What FIRST says; differences in the end; differences along the training."""
    sections = [section(report) for section in FIRST]
    for metric in report.compared_metrics:
        found = [finding_line(finding, report) for finding in report.findings if finding.metric == metric]
        sections.append(Section(f"{METRICS[metric].label}, differences seed by seed:", found))
    text = (
        "held-out loss (nats) along the training, differences seed by seed; changes are from half of the training to "
        "its end, or, where the learning rate falls only after a constant part, from half of that part to its end:"
    )
    sections.append(Section(text, [curve_line(one, report) for one in report.curves]))
    return [section for section in sections if section.items]


def finding_line(finding: Finding, report: Report) -> str:
    return f"{pair(finding, report.axis)}: {difference(finding.difference, report)}"


def pair(compared: Finding | CurveDifference, axis: str) -> str:
    """The two shapes; the first is subtracted from the second."""
    if compared.from_series == compared.to_series:
        return f"{compared.to_series}, {AXES[axis]} {compared.from_value:,} to {compared.to_value:,}"
    less, place = f"less {compared.from_series}", f"{AXES[axis]} {compared.to_value:,}"
    if compared.from_value == compared.to_value:
        return f"{compared.to_series}, {less}, {place}"
    return f"{compared.to_series}, {place}, {less}, {AXES[axis]} {compared.from_value:,}"


def difference(estimate: Estimate, report: Report) -> str:
    if not estimate.values:
        return "no seed has a result in both"
    if len(estimate.values) == 1:
        return f"{number(estimate.mean, '+.4g')} (one seed)"
    spread = "beyond the spread" if estimate.is_beyond_spread else "within the spread"
    return f"{with_interval(estimate)}, {spread}{fewer_seeds(estimate, report)}"


def fewer_seeds(estimate: Estimate, report: Report) -> str:
    """How many have a result in both shapes, where not all of the study have."""
    found, seeds = len(estimate.values), len(report.conditions.seeds)
    return f" ({found} of {seeds} seeds)" if found < seeds else ""


def with_interval(estimate: Estimate) -> str:
    interval = f" ± {number(estimate.half_interval, '.2g')}" if len(estimate.values) > 1 else ""
    return number(estimate.mean, "+.3g") + interval


def curve_line(curve: CurveDifference, report: Report) -> str:
    *_, judged = curve.judged
    places = sorted({min(curve.differences), curve.middle, judged, max(curve.differences)})
    values = ", ".join(f"{with_interval(curve.differences[tokens])} at {tokens:,} tokens" for tokens in places)
    trend = f"{curve.trend}{fewer_seeds(curve.change, report)}" if curve.trend else "one seed"
    change = f"change from {curve.middle:,} to {judged:,} tokens {with_interval(curve.change)}"
    return f"{pair(curve, report.axis)}: {values}; {change}, {trend}"


def condition_lines(report: Report) -> list[str]:
    conditions = report.conditions
    tokens = " to ".join(f"{number:,}" for number in sorted(set(conditions.tokens or ()))) or "unknown numbers of"
    epochs = "" if conditions.epochs is None else f" (at most {conditions.epochs:.2g} epochs)"
    interrupted = f" besides {conditions.interrupted} runs that were interrupted" if conditions.interrupted else ""
    chosen = f"in {conditions.of_grid} shorter runs" if conditions.of_grid else "whose run counts too"
    return [
        f"{conditions.runs} runs of {tokens} tokens{epochs} in rows of {joined(conditions.max_seq_lengths)}, "
        f"objective {joined(conditions.objectives)}; seeds {joined(conditions.seeds)}; learning rates "
        f"{joined(conditions.learning_rates)}, of which each shape has its best with the first seed, {chosen}; "
        f"{conditions.seconds:,.0f} seconds in all{interrupted}, on {joined(conditions.hardware)}; "
        f"{', '.join(conditions.versions)}; commit {joined(conditions.commits)}.",
        *([f"Texts: {conditions.texts}."] if conditions.texts else []),
        "± is half the 95 % interval of Student's t over seeds; about one in twenty such intervals misses by chance. "
        "MFLOP/token: forward, layers alone.",
    ]


def joined(values: Iterable[Any]) -> str:
    """Values in their order, numbers by size."""
    return ", ".join(map(str, sorted(values, key=lambda value: (isinstance(value, str), value or 0))))


def commands(report: Report) -> list[str]:
    """What makes the runs, and the report of them."""
    is_named = report.scale in named_studies().get(report.study, {}).get("scales", {})
    study = report.study if is_named else f"{report.study}.yaml"
    scale = f" --scale {report.scale}" if report.scale else ""
    texts = " --train_file TEXTS" if report.conditions.texts else ""
    return [
        f"fixedbert study {study}{scale}{texts} --output_dir {report.study}",
        f"fixedbert study report {report.study}/runs.jsonl --output_dir {report.study}-report",
    ]
