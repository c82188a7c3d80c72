"""`fixedbert study report`: table, picture and findings from the lines of one or more runs.jsonl."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy import stats

from ..data.store import write_whole
from ..errors import InputError
from ..training.output import new_directory
from .synthetic import TASKS
from .table import AXES, best_run

METRICS = {  # in the records of runs: what is drawn, and by what factor
    "perplexity": ("held-out perplexity", 1),
    "mnli_accuracy": ("MNLI accuracy, matched (%)", 100),
    "squad_f1": ("SQuAD 1.1 F1 (%)", 1),
    "error": ("mean squared error", 1),
}
CONFIDENCE = 0.95
SHAPE = ("objective", "num_hidden_layers", "num_attention_heads", "attention_head_size", "intermediate_size", "tokens")
REPORT, PICTURE = "report.md", "report.png"


@dataclass
class Shape:
    """One shape of a series: its runs with the best learning rate, one for each seed."""

    lines: list[dict]

    def __getitem__(self, name: str):
        return self.lines[0][name]

    @property
    def metrics(self) -> list[str]:
        return [name for name in METRICS if name in self["results"]]

    def values(self, metric: str) -> list[float]:
        """By seed; runs that diverged have none."""
        found = (line["results"][metric] for line in self.lines)
        return [METRICS[metric][1] * value for value in found if value is not None]

    def mean(self, metric: str) -> float:
        return float(np.mean(self.values(metric))) if self.values(metric) else float("nan")

    def interval(self, metric: str) -> float:
        """Half the 95 % interval of the mean, by Student's t; nan of a single seed."""
        values = self.values(metric)
        if len(values) < 2:
            return float("nan")
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stats.sem(values))

    def text(self, metric: str) -> str:
        mean, half = self.mean(metric), self.interval(metric)
        return "diverged" if np.isnan(mean) else f"{mean:.4g}" if np.isnan(half) else f"{mean:.4g} ± {half:.2g}"


def read_lines(files: Iterable[str | Path]) -> list[dict]:
    """
    The records of runs, each once. A last line that was not written to its end is left out.

    Raises:
        InputError: a file is not there, or a line of it is no record.
    """
    records = {}
    for file in map(Path, files):
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: {error}.") from error
        for place, line in enumerate(lines[:-1], start=1):
            try:
                record = json.loads(line)
                name = tuple(record[key] for key in ("study", "scale", "series", "point", "key"))
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{file}, line {place}: not the record of a run.") from None
            records.setdefault(name, record)
    return list(records.values())


def report(files: Sequence[str | Path], output_dir: str | Path) -> str:
    """
    Write report.md and report.png into `output_dir`, a new directory.

    Args:
        files: runs.jsonl of one study, of one or more machines.

    Returns:
        The report.

    Raises:
        InputError: nothing in the files, or runs of different studies.
    """
    records = read_lines(files)
    with new_directory(output_dir) as folder:
        return write_report(records, folder)


def write_report(records: list[dict], folder: Path) -> str:
    if not records:
        raise InputError("no runs: nothing to report.")
    studies = sorted({f"{line['study']} at scale {line['scale']}" for line in records})
    if len(studies) > 1:
        raise InputError(f"runs of different studies: {', '.join(studies)}; report them one by one.")
    series = shapes_of(records)
    text = "\n".join([*heading(records), *table(series), "", *findings(series), "", *conditions(records)]) + "\n"
    draw(series, records[0], folder / PICTURE)
    write_whole(folder / REPORT, text)
    return text


def shapes_of(records: list[dict]) -> dict[str, list[Shape]]:
    """By series, its shapes in their order, with the runs of the learning rate that went on to most seeds."""
    series: dict[str, list[Shape]] = {}
    records = [{**line, "results": with_error(line)} for line in records]
    names = {line["series"]: None for line in records}
    for name in names:
        for point in sorted({line["point"] for line in records if line["series"] == name}):
            by_rate: dict[float, list[dict]] = {}
            for line in records:
                if (line["series"], line["point"]) == (name, point):
                    by_rate.setdefault(line["learning_rate"], []).append(line)
            if len({tuple(line[field] for field in SHAPE) for lines in by_rate.values() for line in lines}) > 1:
                raise InputError(f"{name}, shape {point + 1}: runs of different shapes; report them apart.")
            most = max(len(found) for found in by_rate.values())
            chosen = [found for found in by_rate.values() if len(found) == most]
            best = best_run([(found[0]["results"], found) for found in chosen])
            series.setdefault(name, []).append(Shape(sorted(best, key=lambda line: line["seed"])))
    return series


def with_error(line: dict) -> dict:
    """Of the synthetic tasks the loss is what is reported."""
    return line["results"] | ({"error": line["results"]["loss"]} if line["objective"] in TASKS else {})


def heading(records: list[dict]) -> list[str]:
    first = records[0]
    return [f"# Study {first['study']}" + (f", scale {first['scale']}" if first["scale"] else ""), ""]


def table(series: dict[str, list[Shape]]) -> list[str]:
    metrics = metrics_of(series)
    names = ["series", "width", "layers", "heads", "head size", "feed-forward", "parameters", "besides embeddings"]
    names += ["MFLOP/token", "learning rate", "seeds", *(METRICS[metric][0] for metric in metrics)]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for name, shapes in series.items():
        for shape in shapes:
            cells = [name, *(shape[field] for field in ("hidden_size", "num_hidden_layers"))]
            cells += [shape[field] for field in ("num_attention_heads", "attention_head_size", "intermediate_size")]
            cells += [count(shape["parameters"]), count(shape["non_embedding_parameters"])]
            cells += [f"{shape['forward_flops'] / 1e6:.3g}", f"{shape['learning_rate']:g}", len(shape.lines)]
            cells += [shape.text(metric) if metric in shape.metrics else "" for metric in metrics]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def metrics_of(series: dict[str, list[Shape]]) -> list[str]:
    found = {metric for shapes in series.values() for shape in shapes for metric in shape.metrics}
    return [metric for metric in METRICS if metric in found]


def findings(series: dict[str, list[Shape]]) -> list[str]:
    """What grows or falls along each series, and between series that were made equal, with intervals."""
    lines = []
    axis = next(iter(series.values()))[0]["axis"]
    for metric in metrics_of(series):
        lines.append(f"{METRICS[metric][0]}, differences with their 95 % intervals (Welch):")
        for name, shapes in series.items():
            shapes = [shape for shape in shapes if metric in shape.metrics]
            if len(shapes) > 1:
                first, last = shapes[0], shapes[-1]
                places = f"from {first[axis]:,} to {last[axis]:,} {AXES[axis]}"
                lines.append(f"- {name}, {places}: {difference(first, last, metric)}")
        for name, shapes in series.items():
            for shape in shapes:
                other = next((one for one in series.get(shape["to"], []) if one["point"] == shape["to_point"]), None)
                if other is not None and metric in shape.metrics and metric in other.metrics:
                    place = f"at {other[axis]:,} {AXES[axis]}"
                    lines.append(f"- {name}, less {shape['to']}, {place}: {difference(other, shape, metric)}")
    return lines


def difference(first: Shape, last: Shape, metric: str) -> str:
    """`last` less `first`, and whether that is beyond the spread of the seeds."""
    found = last.mean(metric) - first.mean(metric)
    before, after = first.values(metric), last.values(metric)
    if min(len(before), len(after)) < 2:
        return f"{found:+.4g} (one seed)"
    interval = stats.ttest_ind(after, before, equal_var=False).confidence_interval(CONFIDENCE)
    low, high = float(interval.low), float(interval.high)
    beyond = "beyond" if low > 0 or high < 0 else "within"
    return f"{found:+.4g} ({low:+.3g} to {high:+.3g}), {beyond} the spread"


def conditions(records: list[dict]) -> list[str]:
    """With what the runs were made."""

    def each(name):
        return ", ".join(sorted({str(line[name]) for line in records}))

    used = sorted({f"{name} {version}" for line in records for name, version in line["versions"].items()})
    seconds = [line["seconds"] for line in {line["key"]: line for line in records}.values()]
    known = sum(value for value in seconds if value is not None)
    tokens = sorted({line["tokens"] for line in records})
    span = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    return [
        f"{len(seconds)} runs of {span} tokens in rows of {each('max_seq_length')}, objective {each('objective')}; "
        f"seeds {each('seed')}; learning rates {each('learning_rate')}, of which each shape has its best with the "
        f"first seed; {known:,.0f} seconds in all"
        + (f" besides {seconds.count(None)} runs that were interrupted" if None in seconds else "")
        + f", on {each('hardware')}; {', '.join(used)}; commit {each('commit')}.",
        "Intervals are Student's t over seeds, each for itself: among many, one in twenty errs. MFLOP/token: forward, "
        "layers alone.",
    ]


def draw(series: dict[str, list[Shape]], record: dict, file: Path):
    """A row of panels for each metric: against the study's axis, and against parameters."""
    metrics, axis = metrics_of(series), record["axis"]
    synthetic = metrics == ["error"]
    columns = [axis] if synthetic or axis == "non_embedding_parameters" else [axis, "non_embedding_parameters"]
    figure = Figure(figsize=(6.5 * len(columns), 4.4 * len(metrics) + 0.3), layout="constrained")
    panels = figure.subplots(len(metrics), len(columns), squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, column in zip(row, columns, strict=True):
            draw_panel(panel, series, metric, column)
    title = f"study {record['study']}" + (f", scale {record['scale']}" if record["scale"] else "")
    figure.suptitle(title + ("" if synthetic else "; mean over seeds, bars: 95 % interval"))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(file, dpi=110)


def draw_panel(panel: Axes, series: dict[str, list[Shape]], metric: str, column: str):
    for number, (name, shapes) in enumerate(series.items()):
        shown = [shape for shape in shapes if shape.metrics and metric in shape.metrics and shape.values(metric)]
        places = [shape[column] for shape in shown]
        means, halves = (
            [f(metric) for shape in shown for f in [getattr(shape, what)]] for what in ("mean", "interval")
        )
        if metric == "error":  # on a logarithmic axis an interval may reach below zero
            for shape, place in zip(shown, places, strict=True):
                panel.plot(
                    [place] * len(shape.values(metric)), shape.values(metric), "o", color=f"C{number}", alpha=0.5
                )
            panel.plot([], [], "o", color=f"C{number}", label=f"{name}: trained, a dot for each seed")
            draw_theory(panel, name, shown, f"C{number}")
        else:
            panel.errorbar(places, means, np.nan_to_num(halves), fmt="o-", capsize=3, color=f"C{number}", label=name)
    if metric == "error":
        panel.set_yscale("log")
    panel.set_xscale("log")
    ticks = sorted({shape[column] for shapes in series.values() for shape in shapes})
    if column == "non_embedding_parameters":
        panel.set_xlabel("parameters besides embeddings")
    else:
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(AXES[column])
    panel.set_ylabel(METRICS[metric][0])
    panel.grid(alpha=0.3)


def draw_theory(panel: Axes, name: str, shapes: list[Shape], color: str):
    """The floors of the dense patterns, down to the size from which they are zero; log n for the sparse ones."""
    length = shapes[0]["max_seq_length"]
    below = [(shape["attention_head_size"], np.mean([line["results"]["floor"] for line in shape.lines]))
             for shape in shapes if shape["results"].get("floor")]  # fmt: skip
    if below:
        panel.plot(*zip(*below, strict=True), "-", color=color, linewidth=1, label=f"{name}: least error, by theory")
        zero = min(s["attention_head_size"] for s in shapes if s["results"].get("floor") == 0)
        panel.axvline(zero, color=color, linestyle=":", label=f"{name}: zero by theory from here on")
    elif shapes[0]["objective"] == "sparse":
        panel.axvline(np.log2(length), color=color, linestyle=":", label=f"{name}: log2 of {length} positions")
