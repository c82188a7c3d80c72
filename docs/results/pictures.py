"""
Draws the figures in this directory from docs/records, experiments/head_size/records and the tables in its pages.

    PYTHONPATH=. python docs/results/pictures.py
"""

import json
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from benchmarks.curves import AXES, draw, ratio
from experiments.study import report_runs
from experiments.study.records import read_records
from experiments.study.report import Report, make_report
from experiments.study.shape_results import Estimate, is_unfinished
from fixedbert.support.figures import PAGE, new_figure

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records"
TASKS = HERE.parents[1] / "experiments" / "head_size" / "records"
STUDIES = {
    "heads": (RECORDS / "heads.jsonl", "report"),
    "head_size": (RECORDS / "head-size.jsonl", "report"),
    "mhe": (RECORDS / "mhe.jsonl", "report"),
    "width": (RECORDS / "width.jsonl", "report"),
    "curves": (RECORDS / "head-size-hour.jsonl", "curves"),
    "extremes": (TASKS / "extremes.jsonl", "report"),
    "recall": (TASKS / "recall.jsonl", "report"),
}
NAMES = {  # for each side of benchmarks.quality, its name in the pages
    "stock-0.001": "stock BERT",
    "stock-0.0005": "stock BERT",
    "pairs_fewer_layers_beta_98": "the recipe",
    "kept_pairs": "4 layers, growing",
    "pairs_ungrown": "4 layers, not growing",
    "kept_heads_of_32": "4 layers, packed rows",
    "base": "no change",
    "short_rows": "short rows first",
    "grow": "grows",
    "rate_2e-3": "rate 2e-3",
    "batch_8": "batch of 8 rows",
    "muon_1e-3": "Muon, 1e-3",
    "muon_1e-2": "Muon, 1e-2",
    "kept": "all that was kept",
}
MARKERS = "os^Dv<>"
STANDARD_ERRORS = {"MNLI": 0.6, "SST-2": 1.0, "STS-B": 0.7, "QQP": 0.6}  # of the scores, in points


def draw_studies():
    with TemporaryDirectory() as folder:
        for name, (file, picture) in STUDIES.items():
            report_runs([file], f"{folder}/{name}")
            copyfile(f"{folder}/{name}/{picture}.png", HERE / f"study_{name}.png")


# Studies whose reports have a useless panel: it shows parameters that were made equal, or the steps of a search.


def draw_depth():
    """Plots perplexity against the number of layers: means with intervals, and a dot for each seed."""
    report = make_report(read_records([RECORDS / "depth.jsonl"]))
    with new_figure(PAGE, 4.2, HERE / "study_depth.png") as figure:
        axes = figure.subplots()
        draw_series(axes, report, "perplexity", layers_aside)
        axes.set_xticks([1, 2, 3, 4])
        axes.set(xlabel="number of layers (about 204,500 parameters without embeddings)", ylabel="held-out perplexity")
        figure.legend(loc="outside lower center", ncols=2)
        figure.suptitle("Depth at equal parameters (mean of three seeds, 95% interval; small: single seeds)")


def draw_memorise():
    """Plots memorized examples against head size, with the slope of proportional growth and the predicted knees."""
    from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

    report = make_report(read_records([TASKS / "memorise.jsonl"]))
    with new_figure(PAGE, 4.6, HERE / "study_memorise.png") as figure:
        axes = figure.subplots()
        draw_series(axes, report, "memorised", lambda shape, aside: shape["attention_head_size"] * 1.02**aside)
        axes.plot([2, 16], [450, 3600], "--", color="black", linewidth=1, label="slope of proportional growth")
        axes.set(xscale="log", yscale="log", xlabel="head size", ylabel="memorized examples")
        axes.set_xticks(sizes := [2, 4, 6, 8, 12, 16, 24, 32, 64], [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks([200, 500, 1000, 2000, 5000])
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(200, 9000)
        for n in (8, 16, 32):
            label = "predicted knee at head size n" if n == 8 else None
            axes.axvline(n, color="black", linestyle=":", linewidth=1, label=label)
            axes.text(n * 1.03, 215, f"n = {n}")
        figure.legend(loc="outside lower center", ncols=3)
        figure.suptitle("Memorized examples (mean of three seeds, 95% interval; hollow: not converged)")


def draw_synthetic():
    """Plots errors against head size, with each pattern's lowest known error and the size that suffices in theory."""
    report = make_report(read_records([TASKS / "synthetic.jsonl"]))
    with new_figure(PAGE, 4.6, HERE / "study_synthetic.png") as figure:
        axes = figure.subplots()
        for number, ((name, shapes), rank) in enumerate(zip(report.series.items(), (11, 6, None), strict=True)):
            sizes, color = [shape["attention_head_size"] for shape in shapes], f"C{number}"
            found = [shape.estimate("error") for shape in shapes]  # no intervals: they reach below zero
            axes.plot(sizes, [one.mean for one in found], f"{MARKERS[number]}-", color=color, linewidth=1, label=name)
            for size, one in zip(sizes, found, strict=True):
                seeds = [*one.by_seed.values()]
                axes.plot([size] * len(seeds), seeds, MARKERS[number], color=color, markersize=3)
            if rank:
                below = [shape for shape in shapes if shape["attention_head_size"] < rank]
                floors, label = [shape.estimate("floor").mean for shape in below], f"{name}: lowest known error"
                axes.plot(sizes[: len(floors)], floors, "--", color=color, linewidth=1, label=label)
                axes.axvline(rank, color=color, linestyle=":", label=f"{name}: exact in theory from here on")
        axes.set(yscale="log", xlabel="head size", ylabel="mean squared error")
        axes.set_xticks(range(1, 17))
        axes.grid()
        figure.legend(loc="outside lower center", ncols=2)
        figure.suptitle("Error of one head on fixed patterns (mean of three seeds; small: single seeds)")


def layers_aside(shape, aside: float) -> float:
    layers = shape["num_hidden_layers"]
    return layers + 0.08 * (aside - 0.5) if layers < 4 else layers  # only one series has four layers


def draw_series(axes, report: Report, metric: str, place):
    """Draws a line through the means of each series. `place` maps a shape to its x position, shifted per series."""
    for number, (name, shapes) in enumerate(report.series.items()):
        aside = number - (len(report.series) - 1) / 2
        places = [place(shape, aside) for shape in shapes]
        found = [shape.estimate(metric) for shape in shapes]
        means, halves = [one.mean for one in found], [one.half_interval for one in found]
        style = {"fmt": f"{MARKERS[number]}-", "color": f"C{number}", "capsize": 3, "linewidth": 1}
        axes.errorbar(places, means, halves, label=name.removesuffix(", equal parameters"), **style)
        for shape, at, estimate in zip(shapes, places, found, strict=True):
            for record in shape.records:
                inside = "none" if is_unfinished(record.results) else f"C{number}"
                dot = {"color": f"C{number}", "markerfacecolor": inside, "markersize": 4, "markeredgewidth": 0.7}
                axes.plot(at, estimate.by_seed[record.seed], MARKERS[number], **dot)
    axes.grid()


def draw_quality():
    """Plots the losses of stock BERT and of recipes against time and FLOPs."""
    with_bf16, without = [], []
    for run in read(RECORDS / "quality-same-shape.jsonl"):
        (without if "without bf16" in run["machine"] else with_bf16).append(run)
    trials = read(RECORDS / "quality-trials.jsonl")
    for name, runs in (("quality", without), ("quality_bf16", with_bf16), ("quality_trials", trials)):
        curves: dict[str, dict[int, list]] = {}
        for run in sorted(runs, key=lambda run: (not run["stock"], [*NAMES].index(run["side"]), run["seed"])):
            curves.setdefault(NAMES[run["side"]], {})[run["seed"]] = run["points"]
        stock = next(iter(curves.values()))
        labels: dict[str, dict[str, str]] = {axis: {} for axis in AXES}
        for axis in AXES:
            for side, by_seed in curves.items():
                found = [ratio(stock[seed], points, axis) for seed, points in by_seed.items() if by_seed is not stock]
                known = [one for one in found if one]
                if known:
                    mean, ends = sum(known) / len(known), f" ({min(known):.1f}-{max(known):.1f})"
                    labels[axis][side] = f": {mean:.1f}" + (ends if len(known) > 1 else "")
        level = sum(points[-1]["loss"] for points in stock.values()) / len(stock)
        title = f"Masked-LM loss during {runs[0]['minutes']:g} minutes; {runs[0]['machine']}"
        draw({side: [*found.values()] for side, found in curves.items()}, labels, level, title, HERE / f"{name}.png")


def draw_trained_rank():
    """Plots the divergence against the remaining fraction of each part, and against the FLOPs removed."""
    runs = [json.loads((RECORDS / f"trained_rank_{task}.json").read_text()) for task in ("mnli", "stsb")]
    with new_figure(PAGE, 6, HERE / "trained_rank.png") as figure:
        rows = figure.subplots(2, 2, sharey="col")
        for run, (upper, lower) in zip(runs, zip(*rows, strict=True), strict=True):
            full = {"rank of scores": run["heads"][1], "size of values": run["heads"][2]}
            full |= {"number of heads": run["heads"][0], "neurons": run["neurons"]}
            for (part, size), marker in zip(full.items(), MARKERS, strict=False):
                cuts = [cut for cut in run["cuts"] if cut["part"] == part]
                index = ["number of heads", "rank of scores", "size of values", "neurons"].index(part)
                kept = [(*cut["heads"], cut["neurons"])[index] / size for cut in cuts]
                loss = [cut["divergence"] for cut in cuts]
                upper.plot(kept, loss, f"{marker}-", label=part.replace("size of values", "value size"))
                lower.plot([100 * cut["removed"] for cut in cuts], loss, f"{marker}-")
            upper.set(title=run["model"], xlabel="remaining fraction", yscale="log")
            lower.set(xlabel="FLOPs removed (%)", yscale="log")
        for axes in rows.flat:
            axes.grid()
        for axes in rows[:, 0]:
            axes.set_ylabel("KL divergence (nats)")
        figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle("Divergence from the original's predictions (12 heads of 32, width 384)")


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# Figures drawn from tables, which contain means of runs whose records were not kept.


@dataclass(frozen=True)
class Shape:
    heads: int
    size: int
    parameters: int
    perplexity: float
    half_interval: float


def tables(page: str) -> dict[str, dict[str, list[list[str]]]]:
    """Returns table rows by heading and first cell. An empty first cell repeats that of the row above."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    heading = first = ""
    for line in (HERE / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("|"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            first = name or first
            found.setdefault(heading, {}).setdefault(first, []).append(cells)
    return found


def shapes_of(table: dict[str, list[list[str]]]) -> dict[str, list[Shape]]:
    shapes = {}
    for series, rows in table.items():
        if series.strip("-") and series != "series":
            shapes[series.replace("`", "")] = [shape_of(row) for row in rows]
    return shapes


def shape_of(row: list[str]) -> Shape:
    heads, size = map(int, row[0].split(" of "))
    mean, half = map(float, row[3].strip(" *").split(" ± "))
    return Shape(heads, size, int(row[2].replace(",", "")), mean, half)


def draw_language_models():
    """Plots perplexity against the number of heads and against head size: means with intervals."""
    found = tables("head_size_language_models.md")
    by_heads, by_size = shapes_of(found["`heads`"]), shapes_of(found["`head-size`"])
    fixed = by_heads["fixed heads of 32"]
    by_heads["standard heads"].insert(0, fixed[0])  # two heads of 32 are standard in width 64
    by_size["16 heads"].append(next(shape for shape in fixed if shape.heads == 16))
    draw_shapes(by_heads, "heads", "number of heads", HERE / "study_heads.png")
    draw_shapes(by_size, "size", "head size", HERE / "study_head_size.png")


def draw_shapes(series: dict[str, list[Shape]], field: str, label: str, file: Path):
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    with new_figure(PAGE, 4.4, file) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for panel, axis in zip(panels, (field, "parameters"), strict=True):
            for number, (name, shapes) in enumerate(series.items()):
                aside = 1 + 0.025 * (number - (len(series) - 1) / 2)
                places = [getattr(shape, axis) * aside for shape in shapes]
                means, halves = zip(*((shape.perplexity, shape.half_interval) for shape in shapes), strict=True)
                form = f"{MARKERS[number]}-"
                panel.errorbar(places, means, halves, fmt=form, color=f"C{number}", label=name, capsize=3, linewidth=1)
            panel.set_xscale("log")
            panel.grid()
        values = sorted({getattr(shape, field) for shapes in series.values() for shape in shapes})
        panels[0].set_xticks(values, [str(value) for value in values])
        panels[0].minorticks_off()
        panels[0].set(xlabel=label, ylabel="held-out perplexity")
        panels[1].set_xlabel("parameters without embeddings")
        panels[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panels[1].xaxis.set_major_formatter(EngFormatter())
        panels[1].xaxis.set_minor_formatter(NullFormatter())
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(
            "Perplexity of language models (mean of three seeds, 95% interval; points are shifted sideways)"
        )


def draw_thin_keys():
    """Plots perplexity against the size of queries and keys, for models trained with it or reduced to it from 32."""
    report = make_report(read_records([RECORDS / "thin-keys.jsonl"]))
    reduced = json.loads((RECORDS / "thin-keys-reduced.json").read_text())
    metrics = {"CLM": ("perplexity", "causal LM"), "MLM": ("masked_perplexity", "masked LM")}
    with new_figure(PAGE, 3.6, HERE / "thin_keys.png") as figure:
        panels = figure.subplots(1, 2)
        for panel, (objective, (metric, title)) in zip(panels, metrics.items(), strict=True):
            shapes = report.series[objective]
            points = [(shape["attention_head_size"], shape.estimate(metric)) for shape in shapes]
            draw_estimates(panel, points, 0, "trained with this size")
            (base,) = (shape for shape in shapes if shape["attention_head_size"] == 32)
            labels = {
                "reduced": "trained with 32, then reduced",
                "retrained": "reduced, then trained for 10% more steps",
            }
            for number, (kind, label) in enumerate(labels.items(), start=1):
                sizes = sorted(reduced[objective][kind].items(), key=lambda item: int(item[0]))
                points = [(int(size), Estimate({int(s): x for s, x in found.items()})) for size, found in sizes]
                draw_estimates(panel, points, number, label)
            shapes = sorted([*report.series[f"{objective}, equal FLOPs"], base], key=itemgetter("attention_head_size"))
            points = [(shape["attention_head_size"], shape.estimate(metric)) for shape in shapes]
            draw_estimates(panel, points, 3, "trained with this size, equal FLOPs")
            panel.set(title=title, xlabel="size of queries and keys (values: 32)", xscale="log")
            panel.set_xticks([8, 16, 32, 64], ["8", "16", "32", "64"])
            panel.minorticks_off()
            panel.grid()
        panels[0].set_ylabel("held-out perplexity")
        panels[1].set_ylabel("perplexity of masked tokens")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def draw_estimates(panel, points: list[tuple[int, Estimate]], number: int, label: str):
    """Draws means with intervals, and a small dot for each seed."""
    aside = 1 + 0.03 * (number - 1)
    places, means = [size * aside for size, _ in points], [one.mean for _, one in points]
    halves = [one.half_interval for _, one in points]
    panel.errorbar(
        places, means, halves, fmt=f"{MARKERS[number]}-", color=f"C{number}", label=label, capsize=3, linewidth=1
    )
    for place, (_, one) in zip(places, points, strict=True):
        panel.plot([place] * len(one.values), one.values, ".", color=f"C{number}", markersize=3)


def draw_head_order():
    """Plots the loss of each seed for each order of heads, and the differences between the orders."""
    series = make_report(read_records([RECORDS / "head-order.jsonl"])).series
    labels = {
        "2 of 64, then 8 of 16": "2 heads of 64,\nthen 8 of 16",
        "4 heads of 32 in all layers": "4 heads of 32\nin all layers",
        "8 of 16, then 2 of 64": "8 heads of 16,\nthen 2 of 64",
    }
    wide_first, equal, wide_last = (series[name][0].estimate("loss") for name in labels)
    with new_figure(PAGE, 3.4, HERE / "head_order.png") as figure:
        losses, differences = figure.subplots(1, 2)
        for seed in equal.by_seed:
            losses.plot([each.by_seed[seed] for each in (wide_first, equal, wide_last)], "o-", linewidth=1, label=seed)
        losses.set_xticks(range(3), [*labels.values()], fontsize="small")
        losses.set(ylabel="held-out loss (nats)", xlim=(-0.3, 2.3))
        losses.legend(title="seed", fontsize="x-small", title_fontsize="x-small")
        pairs = [wide_first.less(equal), wide_last.less(equal), wide_last.less(wide_first)]
        names = ["wide first\nminus equal", "wide last\nminus equal", "wide last minus\nwide first"]
        for x, pair in enumerate(pairs):
            differences.plot([x] * len(pair.values), pair.values, ".", color="C0", markersize=4)
            differences.errorbar(x + 0.1, pair.mean, pair.half_interval, fmt="o", color="black", capsize=4)
        differences.axhline(0, color="black", linewidth=0.8)
        differences.set_xticks(range(3), names, fontsize="small")
        differences.set(ylabel="difference in loss (nats)", xlim=(-0.4, 2.5))
        for panel in (losses, differences):
            panel.grid(axis="y")


RUNTIMES = {  # for each name in docs/records/runtimes_*.json, its label
    "torch-unpadded": "PyTorch, unpadded",
    "torch-unpadded-bf16": "unpadded, bfloat16",
    "onnxruntime-int8": "onnxruntime, int8",
    "openvino-bf16": "OpenVINO, bfloat16",
    "openvino-int8": "OpenVINO, int8",
}
SCORES = {"MNLI": "accuracy", "SST-2": "accuracy", "STS-B": "spearmanr"}


def draw_faster():
    """Plots points gained or lost against speedup, for a model's runtimes and models shrunk for the fastest one."""
    with new_figure(PAGE, 3.2, HERE / "faster.png") as figure:
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        for panel, (task, metric) in zip(panels, SCORES.items(), strict=True):
            name = task.replace("-", "").lower()
            runtimes, shrunk = (
                json.loads((RECORDS / f"{kind}_{name}.json").read_text())["models"] for kind in ("runtimes", "shrunk")
            )
            points = [(RUNTIMES[x["runtime"]], x, runtimes[0]) for x in runtimes if x["runtime"] in RUNTIMES]
            sizes = {Path(x["name"]).name: x for x in shrunk}
            points += [(f"shrunk, {size}", sizes[size], shrunk[0]) for size in ("2x", "3x")]
            panel.axhspan(-STANDARD_ERRORS[task], STANDARD_ERRORS[task], color="C3", alpha=0.25, linewidth=0)
            panel.plot(1, 0, "k+", markersize=10, label="PyTorch, padded")
            for (label, model, original), marker in zip(points, "^osvD*P", strict=True):
                change = 100 * (model["scores"][metric] - original["scores"][metric])
                panel.plot(model["speedup"]["random"], change, marker, label=label)
            panel.set(title=task, xlabel="speedup in batches")
            panel.grid()
        panels[0].set_ylabel("points gained or lost")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


if __name__ == "__main__":
    draw_studies()
    draw_depth()
    draw_memorise()
    draw_synthetic()
    draw_quality()
    draw_trained_rank()
    draw_language_models()
    draw_faster()
    draw_thin_keys()
    draw_head_order()
