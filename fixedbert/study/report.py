"""`fixedbert study report`: table, picture and findings from the lines of one or more runs.jsonl."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy import stats

from ..errors import InputError
from ..files import reading, write_whole
from ..training.output import new_directory
from .studies import AXES, best_run

METRICS = {  # in the records of runs: what is drawn, and by what factor
    "perplexity": ("held-out perplexity", 1),
    "mnli_accuracy": ("MNLI accuracy, matched (%)", 100),
    "mnli_accuracy_mm": ("MNLI accuracy, mismatched (%)", 100),
    "squad_f1": ("SQuAD 1.1 F1 (%)", 1),
    "squad_exact_match": ("SQuAD 1.1 exact match (%)", 1),
    "error": ("mean squared error", 1),
    "floor": ("least error found", 1),  # of the synthetic tasks, drawn with the error
}
CONFIDENCE = 0.95
SHAPE = (  # what the runs of a shape have in common
    "objective", "hidden_size", "num_hidden_layers", "num_attention_heads", "attention_head_size", "intermediate_size",
    "head_embedding", "qk_norm", "max_seq_length",
)  # fmt: skip
IDENTITY = ("study", "scale", "series", "point", "key")
NUMBER, TEXT = (int, float, type(None)), (str, type(None))
FIELDS = {  # of a record, with their types
    **dict.fromkeys(("study", "axis", "series", "key", "objective", "hardware"), (str,)),
    **dict.fromkeys(("scale", "equal", "to", "head_embedding", "texts", "commit"), TEXT),
    **dict.fromkeys(("point", "seed", "threads", "training_flops", "forward_flops", "tokens"), (int,)),
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "attention_head_size"), (int,)),
    **dict.fromkeys(("intermediate_size", "max_seq_length"), (int,)),
    **dict.fromkeys(("parameters", "non_embedding_parameters", "to_point"), (int, type(None))),
    **dict.fromkeys(("epochs", "seconds"), NUMBER),
    "learning_rate": (int, float),
    "qk_norm": (bool,),
    "results": (dict,),
    "versions": (dict,),
}  # fmt: skip
REPORT, PICTURE = "report.md", "report.png"


@dataclass
class Shape:
    """One shape of a series: its runs with the best learning rate, one for each seed."""

    lines: list[dict]
    grid: list[float]  # of learning rates

    def __getitem__(self, name: str):
        return self.lines[0][name]

    @property
    def metrics(self) -> list[str]:
        return [name for name in METRICS if name in self["results"]]

    def by_seed(self, metric: str) -> dict[int, float]:
        """Without those of runs that diverged."""
        found = {line["seed"]: line["results"].get(metric) for line in self.lines}
        return {seed: METRICS[metric][1] * value for seed, value in found.items() if value is not None}

    def values(self, metric: str) -> list[float]:
        return list(self.by_seed(metric).values())

    def mean(self, metric: str) -> float:
        return float(np.mean(self.values(metric))) if self.values(metric) else float("nan")

    def interval(self, metric: str) -> float:
        """Half the 95 % interval of the mean; nan of a single seed."""
        return half_interval(self.values(metric)) if len(self.values(metric)) > 1 else float("nan")

    def text(self, metric: str) -> str:
        mean, half = self.mean(metric), self.interval(metric)
        if np.isnan(mean):
            return "diverged"
        lost = len(self.lines) - len(self.values(metric))
        text = f"{mean:.4g}" if np.isnan(half) else f"{mean:.4g} ± {half:.2g}"
        return f"{text} ({lost} diverged)" if lost else text


def read_lines(files: Iterable[str | Path]) -> list[dict]:
    """
    The records of runs, each once. A last line that was not written to its end is left out.

    Raises:
        InputError: a file is not there, or a line of it is no record.
    """
    records = {}
    for file in map(Path, files):
        with reading(file, "give the runs.jsonl of a study"):
            lines = file.read_text(encoding="utf-8").split("\n")
        for place, line in enumerate(lines[:-1], start=1):
            with reading(f"{file}, line {place}", "remove the line", "not the record of a run"):
                record = json.loads(line)
                check_record(record)
            records.setdefault(tuple(record[key] for key in IDENTITY), record)
    return list(records.values())


def check_record(record: dict):
    """Raises ValueError where a field that the report or a continued study needs is missing, or of another type."""
    for name, kinds in FIELDS.items():
        if name not in record:
            raise ValueError(f"without {name}")
        value = record[name]
        if not isinstance(value, kinds) or isinstance(value, bool) and bool not in kinds:
            raise ValueError(f"{name}: {str(value)[:100]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value}")
    if record["axis"] not in AXES or "loss" not in record["results"]:
        raise ValueError("without a known axis, or without a loss")
    for name, value in record["results"].items():
        if not isinstance(value, NUMBER) or isinstance(value, bool) or value is not None and not math.isfinite(value):
            raise ValueError(f"results: {name}: {str(value)[:100]}")


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
    with new_directory(output_dir) as folder:
        records = read_lines(files)
        try:
            return write_report(records, folder)
        except InputError as error:
            raise InputError(f"{', '.join(map(str, files))}: {error}") from error


def write_report(records: list[dict], folder: Path) -> str:
    if not records:
        raise InputError("no runs: nothing to report.")
    studies = sorted({f"{line['study']} at scale {line['scale']}" for line in records})
    if len(studies) > 1:
        raise InputError(f"runs of different studies: {', '.join(studies)}; report them one by one.")
    if len({line["texts"] for line in records if line["texts"]}) > 1:
        raise InputError("runs on different texts, or with different tokenizers; report them apart.")
    series = shapes_of(records)
    text = "\n".join([*heading(records), *table(series), "", *findings(series), "", *conditions(records)]) + "\n"
    draw(series, records[0], folder / PICTURE)
    write_whole(folder / REPORT, text)
    return text


def shapes_of(records: list[dict]) -> dict[str, list[Shape]]:
    """By series, its shapes in their order, with the runs of the learning rate that went on to most seeds."""
    series: dict[str, list[Shape]] = {}
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
            series.setdefault(name, []).append(Shape(sorted(best, key=lambda line: line["seed"]), list(by_rate)))
    return series


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
            cells += [f"{shape['forward_flops'] / 1e6:.3g}", rate(shape), len(shape.lines)]
            cells += [shape.text(metric) if metric in shape.metrics else "" for metric in metrics]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def rate(shape: Shape) -> str:
    """The best learning rate, and whether it is at an end of the grid, beyond which a better one may be."""
    grid = shape.grid
    end = {min(grid): "the lowest", max(grid): "the highest"}.get(shape["learning_rate"])
    return f"{shape['learning_rate']:g}" + (f" ({end})" if end and len(grid) > 1 else "")


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
        if metric == "floor":
            continue
        lines.append(f"{METRICS[metric][0]}, differences seed by seed:")
        for name, shapes in series.items():
            shapes = [shape for shape in shapes if metric in shape.metrics]
            if len(shapes) > 1:
                first, last = shapes[0], shapes[-1]
                places = f"{AXES[axis]} {first[axis]:,} to {last[axis]:,}"
                lines.append(f"- {name}, {places}: {difference(first, last, metric)}")
        for name, shapes in series.items():
            for shape in shapes:
                other = next((one for one in series.get(shape["to"], []) if one["point"] == shape["to_point"]), None)
                if other is not None and metric in shape.metrics and metric in other.metrics:
                    place = f"{AXES[axis]} {shape[axis]:,}"
                    lines.append(f"- {name}, less {shape['to']}, {place}: {difference(other, shape, metric)}")
    return lines


def difference(first: Shape, last: Shape, metric: str) -> str:
    """
    `last` less `first`, in the mean over the seeds of both, and whether that is beyond their spread.

    A seed has the same examples in the same order in every shape, so that differences are taken seed by seed.
    """
    before, after = first.by_seed(metric), last.by_seed(metric)
    found = [after[seed] - before[seed] for seed in before.keys() & after.keys()]
    if not found:
        return "no seed in common"
    if len(found) == 1:
        return f"{found[0]:+.4g} (one seed)"
    mean, half = float(np.mean(found)), half_interval(found)
    beyond = "beyond" if abs(mean) > half else "within"
    return f"{mean:+.3g} ± {half:.2g}, {beyond} the spread"


def half_interval(values: list[float]) -> float:
    """Half the 95 % interval of the mean, by Student's t."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stats.sem(values))


def conditions(records: list[dict]) -> list[str]:
    """With what the runs were made."""

    def each(name):
        return ", ".join(sorted({str(line[name]) for line in records}))

    most = max((line["epochs"] for line in records if line["epochs"] is not None), default=None)
    epochs = "" if most is None else f" (at most {most:.2g} epochs)"
    texts = next((line["texts"] for line in records if line["texts"]), None)
    used = sorted({f"{name} {version}" for line in records for name, version in line["versions"].items()})
    seconds = [line["seconds"] for line in {line["key"]: line for line in records}.values()]
    known = sum(value for value in seconds if value is not None)
    tokens = sorted({line["tokens"] for line in records})
    span = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    return [
        f"{len(seconds)} runs of {span} tokens{epochs} in rows of {each('max_seq_length')}, objective "
        f"{each('objective')}; seeds {each('seed')}; learning rates {each('learning_rate')}, of which each shape has "
        f"its best with the first seed, whose run counts too; {known:,.0f} seconds in all"
        + (f" besides {seconds.count(None)} runs that were interrupted" if None in seconds else "")
        + f", on {each('hardware')}; {', '.join(used)}; commit {each('commit')}.",
        *([f"Texts: {texts}."] if texts else []),
        "± is half the 95 % interval of Student's t over seeds, each for itself: among many, one in twenty errs. "
        "MFLOP/token: forward, layers alone.",
    ]


def draw(series: dict[str, list[Shape]], record: dict, file: Path):
    """A row of panels for each metric: against the study's axis, and against parameters."""
    metrics, axis = [metric for metric in metrics_of(series) if metric != "floor"], record["axis"]
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
        color, shown = f"C{number}", [shape for shape in shapes if metric in shape.metrics and shape.values(metric)]
        if metric == "error":  # on a logarithmic axis an interval may reach below zero
            dots = [(shape[column], value) for shape in shown for value in shape.values(metric)]
            panel.plot(*zip(*dots, strict=True), "o", color=color, alpha=0.5, label=f"{name}: a dot for each seed")
            draw_theory(panel, name, shown, color)
        else:
            places, means = [shape[column] for shape in shown], [shape.mean(metric) for shape in shown]
            halves = [shape.interval(metric) for shape in shown]  # nan, of one seed, draws no bar
            panel.errorbar(places, means, halves, fmt="o-", capsize=3, color=color, label=name)
    if metric == "error":
        panel.set_yscale("log")
    panel.set_xscale("log")
    if column == "non_embedding_parameters":
        panel.set_xlabel("parameters besides embeddings")
    else:
        ticks = sorted({shape[column] for shapes in series.values() for shape in shapes})
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(AXES[column])
    panel.set_ylabel(METRICS[metric][0])
    panel.grid(alpha=0.3)


def draw_theory(panel: Axes, name: str, shapes: list[Shape], color: str):
    """Of dense patterns the least errors found, and from where on theory has zero; log2 n for the sparse ones."""
    floors = {shape["attention_head_size"]: shape.mean("floor") for shape in shapes if "floor" in shape.metrics}
    above = {size: value for size, value in floors.items() if value > 0}
    if above:
        panel.plot(above.keys(), above.values(), "-", color=color, linewidth=1, label=f"{name}: least error found")
    if len(above) < len(floors):
        zero = min(floors.keys() - above.keys())
        panel.axvline(zero, color=color, linestyle=":", label=f"{name}: from here on zero by theory")
    if shapes and shapes[0]["objective"] == "sparse":
        length = shapes[0]["max_seq_length"]
        panel.axvline(np.log2(length), color=color, linestyle=":", label=f"{name}: log2 n; that order is enough")
