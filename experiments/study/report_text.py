"""report.md: a table of the shapes, what was found, how the runs were made, and what they do not show."""

from collections.abc import Callable, Iterable

from .records import AXES, COUNTED
from .registry import EXTENSIONS, METRICS, TASKS, has_feed_forward
from .report import CurveDifference, Finding, Report
from .shape_results import Estimate, ShapeResult
from .studies import named_studies

FEW_SEEDS = 5  # with fewer, Student's t is above 2.7
Answer = tuple[str, list[str]]  # a paragraph, and the list that it introduces


def report_markdown(report: Report) -> str:
    """Question, table, answers, how the runs were made, and what they do not show."""
    title = f"# Study {report.study}" + (f", scale {report.scale}" if report.scale else "")
    header, *rows = table(report)
    lines = [title, "", *([report.question, ""] if report.question else [])]
    lines += [markdown_row(header), "|---" * len(header) + "|", *map(markdown_row, rows), ""]
    for text, items in answers(report):
        lines += [text, *(f"- {item}" for item in items), ""]
    lines += [*condition_lines(report), "", *(f"    {command}" for command in commands(report)), ""]
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
    "besides embeddings": lambda shape: with_commas(shape[COUNTED]),
    "MFLOP/token": lambda shape: f"{shape['forward_flops'] / 1e6:.3g}",
    "learning rate": learning_rate,
    "seeds": lambda shape: len(shape.records),
}


def table(report: Report) -> list[list[str]]:
    """The header, and a row for each shape, without the columns that are empty for all."""
    columns = [[name, *(str(cell(shape)) for shape in report.shapes)] for name, cell in COLUMNS.items()]
    for metric in report.metrics:
        columns.append([METRICS[metric].label, *(result(shape, metric) for shape in report.shapes)])
    return [list(row) for row in zip(*(column for column in columns if any(column[1:])), strict=True)]


def result(shape: ShapeResult, metric: str) -> str:
    estimate, missing = shape.estimate(metric), METRICS[metric].missing
    if metric not in shape.metrics and shape.diverged < len(shape.records):
        return ""  # another task
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
    """A number with the significant digits of `form`; large ones with commas, without a power of ten."""
    text = f"{value:{form}}"
    is_large = "e+" in text or abs(float(text)) >= 1000
    return f"{float(text):{'+' if '+' in form else ''},.0f}" if is_large else text


def answers(report: Report) -> list[Answer]:
    """What extensions say; differences in the end; differences along the training."""
    found = [extension.answer(report) for extension in EXTENSIONS]
    for metric in report.compared_metrics:
        lines = [finding_line(finding, report) for finding in report.findings if finding.metric == metric]
        found.append((f"{METRICS[metric].label}, differences seed by seed:", lines))
    text = (
        "held-out loss (nats) along the training, differences seed by seed; changes are from half of the training to "
        "its end, or, where the learning rate falls only after a constant part, from half of that part to its end:"
    )
    found.append((text, [curve_line(curve, report) for curve in report.curves]))
    return [(text, lines) for text, lines in found if lines]


def pair(compared: Finding | CurveDifference, axis: str) -> str:
    """The two shapes; the first is subtracted from the second."""
    if compared.from_series == compared.to_series:
        return f"{compared.to_series}, {AXES[axis]} {compared.from_value:,} to {compared.to_value:,}"
    less, place = f"less {compared.from_series}", f"{AXES[axis]} {compared.to_value:,}"
    if compared.from_value == compared.to_value:
        return f"{compared.to_series}, {less}, {place}"
    return f"{compared.to_series}, {place}, {less}, {AXES[axis]} {compared.from_value:,}"


def finding_line(finding: Finding, report: Report) -> str:
    estimate, places = finding.difference, pair(finding, report.axis)
    if not estimate.values:
        return f"{places}: no seed has a result in both"
    if len(estimate.values) == 1:
        return f"{places}: {number(estimate.mean, '+.4g')} (one seed)"
    spread = "beyond the spread" if estimate.is_beyond_spread else "within the spread"
    return f"{places}: {with_interval(estimate)}, {spread}{fewer_seeds(estimate, report)}"


def curve_line(curve: CurveDifference, report: Report) -> str:
    *_, judged = curve.judged
    places = sorted({min(curve.differences), curve.middle, judged, max(curve.differences)})
    values = ", ".join(f"{with_interval(curve.differences[tokens])} at {tokens:,} tokens" for tokens in places)
    trend = f"{curve.trend}{fewer_seeds(curve.change, report)}" if curve.trend else "one seed"
    change = f"change from {curve.middle:,} to {judged:,} tokens {with_interval(curve.change)}"
    return f"{pair(curve, report.axis)}: {values}; {change}, {trend}"


def fewer_seeds(estimate: Estimate, report: Report) -> str:
    """How many have a result in both shapes, where not all of the study have."""
    found, seeds = len(estimate.values), len(report.conditions.seeds)
    return f" ({found} of {seeds} seeds)" if found < seeds else ""


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


def joined(values: Iterable) -> str:
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


def limits_of(report: Report) -> list[str]:
    """What the study does not show: a sentence for each limit that applies to the records."""
    all_limits = [limits_of_runs, missing_controls, limits_of_subject, *(one.limits for one in EXTENSIONS)]
    return [limit for limits in all_limits for limit, holds in limits(report).items() if holds]


def limits_of_runs(report: Report) -> dict[str, bool]:
    shapes = report.shapes
    seeds = [len(shape.records) for shape in shapes]
    fewer, ends = sum(count < max(seeds) for count in seeds), sum(shape.end_of_grid is not None for shape in shapes)
    untuned = sum(len(shape.learning_rates) == 1 for shape in shapes)
    not_converged, diverged = sum(shape.not_converged for shape in shapes), sum(shape.diverged for shape in shapes)
    few = "One seed: no difference has an interval."
    if max(seeds) > 1:
        few = f"At most {max(seeds)} seeds: intervals are wide, and a narrow one can be luck."
    return {
        few: max(seeds) < FEW_SEEDS,
        f"Shapes with fewer seeds than others: {fewer} of {len(shapes)}.": fewer > 0,
        f"Shapes trained with a single learning rate: {untuned} of {len(shapes)}.": untuned > 0,
        "Learning rates were chosen in shorter runs: the best in full may be another.": report.conditions.of_grid > 0,
        "Shapes whose best learning rate is at an end of the grid, beyond which a better one may lie: "
        f"{ends} of {len(shapes)}.": ends > 0,
        f"Runs that ended at their cap, neither at the goal nor with a flat loss: {not_converged}.": not_converged > 0,
        f"Runs that diverged, and are in no mean: {diverged}.": diverged > 0,
        "Some of the code was in no commit.": any(
            (commit or "").endswith("with changes") for commit in report.conditions.commits
        ),
        "The learning rate falls between evaluations: none but the last is the end of a run, and what the fall gains "
        "is part of every change.": any(curve.decay_from is None for curve in report.curves),
        "Changes along a run are those before the learning rate falls: what the fall adds to a difference is in its "
        "end alone.": any(curve.rate_falls for curve in report.curves),
    }


def missing_controls(report: Report) -> dict[str, bool]:
    """What varies with the axis and no series holds constant."""

    def differ(field: str) -> bool:
        return len({shape[field] for shape in report.shapes} - {None}) > 1

    sizes_differ, equal = differ("attention_head_size"), {shape["equal"] for shape in report.shapes}
    all_alike = all(shape["value_head_size"] == shape["attention_head_size"] for shape in report.shapes)
    return {
        "No trained series is made equal in parameters.": differ(COUNTED) and "parameters" not in equal,
        "No trained series is made equal in FLOPs.": differ("forward_flops") and "flops" not in equal,
        "No control for the temperature of scores: no series has qk_norm.": sizes_differ
        and not any(shape["qk_norm"] for shape in report.shapes),
        "Values are as large as queries and keys: what their sizes do is not separated.": sizes_differ and all_alike,
    }


def limits_of_subject(report: Report) -> dict[str, bool]:
    conditions = report.conditions
    trained = [objective for objective in conditions.objectives if objective not in TASKS]
    if not trained:
        return {"The tasks are synthetic: what language needs of heads they do not say.": True}
    parameters = max((shape[COUNTED] for shape in report.shapes if shape[COUNTED] is not None), default=0)
    tokens = max(conditions.tokens or (0,))
    return {
        f"{trained[0]} alone: other objectives can differ.": len(trained) == 1,
        f"Losses and perplexities of {' and '.join(trained)} cannot be compared with each other.": len(trained) > 1,
        f"Models have at most {parameters:,} parameters besides embeddings and have seen at most {tokens:,} tokens: "
        "larger ones, or more training, can differ.": parameters > 0 and tokens > 0,
        f"One text ({conditions.texts}): on others figures differ.": conditions.texts is not None,
    }
