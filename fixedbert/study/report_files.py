"""report.md and report.png: the files of a report."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import InputError, needs
from ..files import new_directory, write_whole
from .figure import save_figure
from .records import AXES, METRICS, read_records
from .report import Conditions, Finding, Report, make_report
from .shape_results import Estimate, ShapeResult
from .thresholds import MARGIN, Threshold

REPORT, FIGURE = "report.md", "report.png"
COLUMNS = (
    "series", "width", "layers", "heads", "head size", "feed-forward", "parameters", "besides embeddings",
    "MFLOP/token", "learning rate", "seeds",
)  # fmt: skip


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Report the runs of a study, and write report.md and report.png into `output_dir`, a new directory.

    Args:
        files: runs.jsonl of one study, from one or more machines.

    Raises:
        InputError: nothing in the files, or runs of different studies.
    """
    needs("matplotlib", "study")
    with new_directory(output_dir) as folder:
        records = read_records(files)
        try:
            report = make_report(records)
        except InputError as error:
            raise InputError(f"{', '.join(map(str, files))}: {error}") from error
        write_report(report, folder)
    return report


def write_report(report: Report, folder: Path):
    save_figure(report, folder / FIGURE)
    write_whole(folder / REPORT, report_markdown(report))


def report_markdown(report: Report) -> str:
    """What report.md has: a table of the shapes, the findings, and how the runs were made."""
    title = f"# Study {report.study}" + (f", scale {report.scale}" if report.scale else "")
    lines = [title, "", *table_lines(report), "", *threshold_lines(report), *finding_lines(report), ""]
    lines += [*condition_lines(report.conditions), *attention_lines(report)]
    return "\n".join(lines) + "\n"


def table_lines(report: Report) -> list[str]:
    names = [*COLUMNS, *(METRICS[metric].label for metric in report.metrics)]
    lines = [table_row(names), "|---" * len(names) + "|"]
    for name, shapes in report.series.items():
        for shape in shapes:
            cells = [name, *(shape[field] for field in ("hidden_size", "num_hidden_layers"))]
            cells += [shape["num_attention_heads"], head_size(shape), shape["intermediate_size"]]
            cells += [with_commas(shape["parameters"]), with_commas(shape["non_embedding_parameters"])]
            cells += [f"{shape['forward_flops'] / 1e6:.3g}", learning_rate(shape), len(shape.records)]
            cells += [result(shape, metric) if metric in shape.metrics else "" for metric in report.metrics]
            lines.append(table_row(cells))
    return lines


def table_row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def head_size(shape: ShapeResult) -> str:
    size, values = shape["attention_head_size"], shape["value_head_size"]
    return f"{size}" if size == values else f"{size}, values {values}"


def with_commas(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def learning_rate(shape: ShapeResult) -> str:
    end = shape.end_of_grid
    return f"{shape['learning_rate']:g}" + (f" (the {end})" if end else "")


def result(shape: ShapeResult, metric: str) -> str:
    estimate, missing = shape.estimate(metric), METRICS[metric].missing
    if not estimate.values:
        return missing
    without = len(shape.records) - len(estimate.values)
    text = f"{estimate.mean:.4g}"
    if len(estimate.values) > 1:
        text += f" ± {estimate.half_interval:.2g}"
    notes = [f"{without} {missing}"] if without else []
    if shape.not_converged and metric != "steps_to_goal":
        notes.append(f"{shape.not_converged} not converged")
    return f"{text} ({', '.join(notes)})" if notes else text


def threshold_lines(report: Report) -> list[str]:
    """Of tasks for which theory has one."""
    if not report.thresholds:
        return []
    head = f"Thresholds: {AXES[report.axis]} from which on the best seed reaches the goal, or at the knee;"
    limits = (
        "That no run of a shape reached the goal does not show that it cannot: training may be stuck, or its loss be "
        "flat before it goes on. Between two shapes of a series a threshold is not known."
    )
    lines = [f"{head} the margin is a factor of {MARGIN}:", *map(threshold_line, report.thresholds)]
    return [*lines, limits, ""]


def threshold_line(threshold: Threshold) -> str:
    predicted = "none predicted" if threshold.predicted is None else f"predicted {threshold.predicted:g}"
    if threshold.order is not None:
        predicted = f"predicted an order of {threshold.order:g}"
    found = "found none" if threshold.found is None else f"found {threshold.found:.3g}"
    if threshold.by_all != threshold.found:
        found += f" (with every seed {'none' if threshold.by_all is None else format(threshold.by_all, 'g')})"
    verdict = {True: ", within the margin", False: ", not within the margin", None: ""}[threshold.agrees]
    open_runs = f"; {threshold.at_cap} of the runs that decide this had not converged" if threshold.at_cap else ""
    return f"- {threshold.series}: {predicted}, {found}{verdict}{open_runs}"


def finding_lines(report: Report) -> list[str]:
    lines = []
    for metric in report.compared_metrics:
        lines.append(f"{METRICS[metric].label}, differences seed by seed:")
        lines += [finding_line(finding, report.axis) for finding in report.findings if finding.metric == metric]
    return lines


def finding_line(finding: Finding, axis: str) -> str:
    if finding.from_series == finding.to_series:
        place = f"{AXES[axis]} {finding.from_value:,} to {finding.to_value:,}"
    else:
        place = f"less {finding.from_series}, {AXES[axis]} {finding.to_value:,}"
    return f"- {finding.to_series}, {place}: {difference(finding.difference)}"


def difference(estimate: Estimate) -> str:
    if not estimate.values:
        return "no seed in common"
    if len(estimate.values) == 1:
        return f"{estimate.mean:+.4g} (one seed)"
    beyond = "beyond" if estimate.is_beyond_spread else "within"
    return f"{estimate.mean:+.3g} ± {estimate.half_interval:.2g}, {beyond} the spread"


def condition_lines(conditions: Conditions) -> list[str]:
    least, most = conditions.tokens
    tokens = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    epochs = "" if conditions.epochs is None else f" (at most {conditions.epochs:.2g} epochs)"
    interrupted = f" besides {conditions.interrupted} runs that were interrupted" if conditions.interrupted else ""
    return [
        f"{conditions.runs} runs of {tokens} tokens{epochs} in rows of {joined(conditions.max_seq_lengths)}, "
        f"objective {joined(conditions.objectives)}; seeds {joined(conditions.seeds)}; learning rates "
        f"{joined(conditions.learning_rates)}, of which each shape has its best with the first seed, whose run counts "
        f"too; {conditions.seconds:,.0f} seconds in all{interrupted}, on {joined(conditions.hardware)}; "
        f"{', '.join(conditions.versions)}; commit {joined(conditions.commits)}.",
        *([f"Texts: {conditions.texts}."] if conditions.texts else []),
        "± is half the 95 % interval of Student's t over seeds, each for itself: among many, one in twenty errs. "
        "MFLOP/token: forward, layers alone.",
    ]


def attention_lines(report: Report) -> list[str]:
    """Of series whose attention is of a class of the user's."""
    named = {name: [one["attention"] for one in shapes if one["attention"]] for name, shapes in report.series.items()}
    classes = [f"{name}: {joined(set(found))}" for name, found in named.items() if found]
    if not classes:
        return []
    return [
        f"Attention by classes of one's own, after @ the fingerprint of their code: {'; '.join(classes)}. Heads and "
        "head size are the configuration's, FLOPs those that torch counts; what theory predicts is for other series."
    ]


def joined(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))
