"""report.md: a table of the shapes, differences between them, conditions and limits."""

from collections.abc import Callable, Iterable

from .records import AXES, COUNTED
from .registry import EXTENSIONS, METRICS, TASKS, has_feed_forward
from .report import CurveDifference, Finding, Report
from .shape_results import Estimate, ShapeResult
from .studies import named_studies

FEW_SEEDS = 5  # with fewer seeds, Student's t exceeds 2.7
Answer = tuple[str, list[str]]  # a paragraph and the list below it


def report_markdown(report: Report) -> str:
    """Returns the report: question, table, differences, conditions and limits."""
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
    """Returns the header and a row for each shape, without empty columns."""
    columns = [[name, *(str(cell(shape)) for shape in report.shapes)] for name, cell in COLUMNS.items()]
    for metric in report.metrics:
        columns.append([METRICS[metric].label, *(result(shape, metric) for shape in report.shapes)])
    return [list(row) for row in zip(*(column for column in columns if any(column[1:])), strict=True)]


def result(shape: ShapeResult, metric: str) -> str:
    estimate, missing = shape.estimate(metric), METRICS[metric].missing
    if metric not in shape.metrics and shape.diverged < len(shape.records):
        return ""  # the metric of a different task
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
    """Formats a number with the significant digits of `form`, without a power of ten."""
    text = f"{value:{form}}"
    is_large = "e+" in text or abs(float(text)) >= 1000
    return f"{float(text):{'+' if '+' in form else ''},.0f}" if is_large else text


def answers(report: Report) -> list[Answer]:
    """Returns paragraphs of extensions, then final differences and differences during training."""
    paragraphs = [extension.answer(report) for extension in EXTENSIONS]
    for metric in report.compared_metrics:
        lines = [finding_line(finding, report) for finding in report.findings if finding.metric == metric]
        paragraphs.append((f"{METRICS[metric].label}, differences paired by seed:", lines))
    text = "held-out loss (nats) during training, differences paired by seed:"
    paragraphs.append((text, [curve_line(curve, report) for curve in report.curves]))
    return [(text, lines) for text, lines in paragraphs if lines]


def pair(compared: Finding | CurveDifference, axis: str) -> str:
    """Names the two shapes; the first is subtracted from the second."""
    if compared.from_series == compared.to_series:
        return f"{compared.to_series}, {AXES[axis]} {compared.from_value:,} to {compared.to_value:,}"
    minus, place = f"minus {compared.from_series}", f"{AXES[axis]} {compared.to_value:,}"
    if compared.from_value == compared.to_value:
        return f"{compared.to_series}, {minus}, {place}"
    return f"{compared.to_series}, {place}, {minus}, {AXES[axis]} {compared.from_value:,}"


def finding_line(finding: Finding, report: Report) -> str:
    estimate, compared = finding.difference, pair(finding, report.axis)
    if not estimate.values:
        return f"{compared}: no seed has a result in both"
    if len(estimate.values) == 1:
        return f"{compared}: {number(estimate.mean, '+.4g')} (one seed)"
    interval = f"95 % interval {'excludes' if estimate.excludes_zero else 'includes'} 0"
    return f"{compared}: {with_interval(estimate)}, {interval}{fewer_seeds(estimate, report)}"


def curve_line(curve: CurveDifference, report: Report) -> str:
    last = max(curve.differences)
    half = min(curve.differences, key=lambda tokens: abs(tokens - last / 2))
    shown = sorted({min(curve.differences), half, curve.decay_from or half, last})
    values = ", ".join(f"{with_interval(curve.differences[tokens])} at {tokens:,} tokens" for tokens in shown)
    return f"{pair(curve, report.axis)}: {values}{fewer_seeds(curve.differences[last], report)}"


def fewer_seeds(estimate: Estimate, report: Report) -> str:
    """Says how many seeds have a result in both shapes, if some do not."""
    count, seeds = len(estimate.values), len(report.conditions.seeds)
    return f" ({count} of {seeds} seeds)" if count < seeds else ""


def condition_lines(report: Report) -> list[str]:
    conditions = report.conditions
    tokens = " to ".join(f"{number:,}" for number in sorted(set(conditions.tokens or ()))) or "unknown numbers of"
    epochs = "" if conditions.epochs is None else f" (at most {conditions.epochs:.2g} epochs)"
    interrupted = f" without {conditions.interrupted} interrupted runs" if conditions.interrupted else ""
    chosen = "in shorter runs" if conditions.of_grid else "in runs that count too"
    return [
        f"{conditions.runs} runs of {tokens} tokens{epochs} with a sequence length of "
        f"{joined(conditions.max_seq_lengths)}, objective {joined(conditions.objectives)}; seeds "
        f"{joined(conditions.seeds)}; learning rates {joined(conditions.learning_rates)}, the best chosen for each "
        f"shape with the first seed {chosen}; {conditions.seconds:,.0f} seconds in total{interrupted}, on "
        f"{joined(conditions.hardware)}; {', '.join(conditions.versions)}; commit {joined(conditions.commits)}.",
        *([f"Texts: {conditions.texts}."] if conditions.texts else []),
        "± is half the 95 % interval of Student's t over seeds; about one in twenty such intervals misses by chance. "
        "MFLOP/token: forward pass of the layers.",
    ]


def joined(values: Iterable) -> str:
    return ", ".join(map(str, sorted(values, key=lambda value: (isinstance(value, str), value or 0))))


def commands(report: Report) -> list[str]:
    """Returns the commands that repeat the runs and the report."""
    is_named = report.scale in named_studies().get(report.study, {}).get("scales", {})
    study = report.study if is_named else f"{report.study}.yaml"
    scale = f" --scale {report.scale}" if report.scale else ""
    texts = " --train_file TEXTS" if report.conditions.texts else ""
    return [
        f"fixedbert study {study}{scale}{texts} --output_dir {report.study}",
        f"fixedbert study report {report.study}/runs.jsonl --output_dir {report.study}-report",
    ]


def limits_of(report: Report) -> list[str]:
    """Returns a sentence for each limit that applies to the records."""
    all_limits = [limits_of_runs, missing_controls, limits_of_subject, *(one.limits for one in EXTENSIONS)]
    return [limit for limits in all_limits for limit, applies in limits(report).items() if applies]


def limits_of_runs(report: Report) -> dict[str, bool]:
    shapes = report.shapes
    seeds = [len(shape.records) for shape in shapes]
    fewer, ends = sum(count < max(seeds) for count in seeds), sum(shape.end_of_grid is not None for shape in shapes)
    in_shorter_runs = report.conditions.of_grid > 0
    untuned = sum(len(shape.learning_rates) == 1 for shape in shapes)
    not_converged, diverged = sum(shape.not_converged for shape in shapes), sum(shape.diverged for shape in shapes)
    few = "One seed: no difference has an interval."
    if max(seeds) > 1:
        few = f"At most {max(seeds)} seeds: intervals are wide, and a narrow one can be luck."
    return {
        few: max(seeds) < FEW_SEEDS,
        f"Shapes with fewer seeds than others: {fewer} of {len(shapes)}.": fewer > 0,
        f"Shapes trained with a single learning rate: {untuned} of {len(shapes)}.": untuned > 0,
        "Learning rates were chosen in shorter runs: a different one may be best in full.": in_shorter_runs,
        "Shapes whose best learning rate is at an end of the grid, beyond which a better one may lie: "
        f"{ends} of {len(shapes)}.": ends > 0,
        f"Runs that did not converge within the maximum number of steps: {not_converged}.": not_converged > 0,
        f"Runs that diverged and are not part of any mean: {diverged}.": diverged > 0,
        "Some of the code was not committed.": any(
            (commit or "").endswith("with changes") for commit in report.conditions.commits
        ),
        "The learning rate decays between evaluations: only the last one is the end of a run.": bool(report.curves),
    }


def missing_controls(report: Report) -> dict[str, bool]:
    """Returns what varies along the axis without a series that holds it constant."""

    def differ(field: str) -> bool:
        return len({shape[field] for shape in report.shapes} - {None}) > 1

    sizes_differ, equal = differ("attention_head_size"), {shape["equal"] for shape in report.shapes}
    has_equal_values = all(shape["value_head_size"] == shape["attention_head_size"] for shape in report.shapes)
    return {
        "No series has equal parameters.": differ(COUNTED) and "parameters" not in equal,
        "No series has equal FLOPs.": differ("forward_flops") and "flops" not in equal,
        "No control for the softmax temperature: no series has qk_norm.": sizes_differ
        and not any(shape["qk_norm"] for shape in report.shapes),
        "Values have the size of queries and keys: the effects of the two sizes are not separated.": sizes_differ
        and has_equal_values,
    }


def limits_of_subject(report: Report) -> dict[str, bool]:
    conditions = report.conditions
    trained = [objective for objective in conditions.objectives if objective not in TASKS]
    if not trained:
        return {"The tasks are synthetic: they do not show which heads language needs.": True}
    parameters = max((shape[COUNTED] for shape in report.shapes if shape[COUNTED] is not None), default=0)
    tokens = max(conditions.tokens or (0,))
    return {
        f"Only {trained[0]}: other objectives can differ.": len(trained) == 1,
        f"Losses and perplexities of {' and '.join(trained)} cannot be compared with each other.": len(trained) > 1,
        f"Models have at most {parameters:,} parameters besides embeddings and have seen at most {tokens:,} tokens: "
        "larger models or longer training can differ.": parameters > 0 and tokens > 0,
        f"One text ({conditions.texts}): results differ on other texts.": conditions.texts is not None,
    }
