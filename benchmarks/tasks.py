"""
python -m benchmarks.tasks DIR --output_dir OUT [--models classifier reranker embeddings tagger]

Measures how fast four kinds of models are, and how much they lose, in three versions: stock (PyTorch in float32 with
padding), the same model in a faster runtime, and shrunk. DIR contains the models, and in data/,
the rows from `benchmarks.task_models`. The environment variable FIXEDBERT_DATA must be set to a directory with glue/.
All versions of a model take turns on the same batches. Writes the shrunk models, a record for each model, the table
and the figure to OUT. The same command continues after an interruption. tasks.md explains the table.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers.utils import CONFIG_NAME

from benchmarks.paired import data_directory, description
from benchmarks.resampling import resampled
from fixedbert import shrink
from fixedbert.comparison import compare as comparison
from fixedbert.comparison.candidates import Candidate
from fixedbert.comparison.report import RANDOM, SINGLE, Comparison
from fixedbert.shrinking.report import FAMILY
from fixedbert.support.figures import PAGE, new_figure
from fixedbert.support.files import to_json, write_atomically
from fixedbert.support.machine import machine_name
from fixedbert.tasks.rows import RowPredictions, Rows

SMOKE = {"calibration": 1000, "rows": 60, "runtime": "torch-unpadded"}  # a test of the benchmark itself
STOCK, SAME = "stock", "same answers"
HEADER = "| model | version | runtime | batches | one text | score | points lost | stays (%) |"


@dataclass(frozen=True)
class Task:
    """The rows of a kind of models, and their most important metric."""

    metric: str
    evaluation: str  # file in data/, or "" for the GLUE task sst2
    calibration: Sequence[str]  # files, which are also used for distillation
    columns: dict[str, str]  # options with the names of columns
    neighbors: str = ""  # file with more texts, whose nearest neighbors are compared


PAIRS = {"text_column_names": "query,text", "query_column_name": "query"}
TASKS = {
    "classifier": Task("accuracy", "", (), {"text_column_names": "sentence"}),
    "reranker": Task("nDCG@10", "rerank_dev.csv", ("rerank_train.csv",), PAIRS),
    "embeddings": Task("spearmanr", "sts_dev.csv", ("sentences_train.csv", "unlabeled.csv"), {}, "neighbors.csv"),
    "tagger": Task("f1", "tags_dev.jsonl", ("tags_train.jsonl",), {}),
}


def compared(options: dict[str, Any]) -> tuple[Comparison, Rows, list[Candidate], list[RowPredictions]]:
    """
    Calls `fixedbert.compare`.

    Returns:
        The result, the rows, the models and their answers, which `compare` passes to its function `measure`.
    """
    with patch.object(comparison, "measure", wraps=comparison.measure) as measure:
        result = comparison.compare(**options)
    candidates, answers, rows, _, _ = zip(*(call.args for call in measure.call_args_list), strict=True)
    return result, rows[0], [*candidates], [*answers]


def shrink_all(name: str, arguments: argparse.Namespace) -> list[Path]:
    """Shrinks a model to all speedups with each seed, unless that was done before. Returns the directories."""
    task, directories, steps = TASKS[name], [], arguments.distil_steps
    files = [arguments.directory / "data" / file for file in task.calibration]
    files = files or [data_directory() / "glue" / "SST-2" / "train.tsv"]
    for seed in arguments.seeds:
        output = arguments.output_dir / name / (f"{seed}-{steps}-steps" if steps else str(seed))
        own = {output / f"{speedup:g}x": [speedup] for speedup in arguments.speedups}
        directories += own
        share = steps is None and len(own) > 1  # one call for all speedups shares the statistics
        for directory, speedups in {output: arguments.speedups}.items() if share else own.items():
            if not (directory / (FAMILY if share else CONFIG_NAME)).exists():
                shrink(
                    str((arguments.directory / name).absolute()),
                    output_dir=str(directory),
                    train_file=[*map(str, files)],
                    max_train_samples=SMOKE["calibration"] if arguments.smoke else None,
                    speedup=speedups,
                    seed=seed,
                    distil_steps=steps,
                    **task.columns,
                )
    return directories


def comparison_options(name: str, models: Sequence[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of `fixedbert.compare` for the evaluation rows of a kind of models."""
    task = TASKS[name]
    rows: dict[str, Any] = {"task_name": "sst2", "data_dir": str(data_directory() / "glue")}
    if task.evaluation:
        rows = {"validation_file": str(arguments.directory / "data" / task.evaluation)}
        rows |= task.columns
    return rows | {
        "models": [str(model.absolute()) for model in models],
        "max_eval_samples": SMOKE["rows"] if arguments.smoke else arguments.max_eval_samples,
        "runtime": [SMOKE["runtime"] if arguments.smoke else arguments.runtime],
    }


def measure_model(name: str, arguments: argparse.Namespace) -> dict:
    """Shrinks and measures a model. Returns its record."""
    task, models = TASKS[name], [arguments.directory / name, *shrink_all(name, arguments)]
    options = comparison_options(name, models, arguments)
    result, rows, candidates, answers = compared(options)
    scores = resampled(rows, answers, task.metric, [each.features for each in candidates])
    versions = [version_of(each.name, index, arguments.distil_steps) for index, each in enumerate(result.models)]
    record = {"model": name, "metric": task.metric, "versions": versions, "comparison": asdict(result)}
    record["resampled"] = scores.round(6).tolist()
    if task.neighbors:
        options["validation_file"] = str(arguments.directory / "data" / task.neighbors)
        record["neighbors"] = asdict(comparison.compare(**options))
    return record


def version_of(source: str, index: int, steps: int | None) -> str:
    """Returns stock, same answers, or the speedup of a shrunk model, which is the name of its directory."""
    name = Path(source).name
    if name in TASKS:
        return SAME if index else STOCK
    return f"{name}, {steps} steps" if steps else name


def provenance(arguments: argparse.Namespace) -> dict:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    packages = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "nncf")
    return {
        "command": "python -m benchmarks.tasks " + " ".join(sys.argv[1:]),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "machine": f"{machine_name()}; {description()}",
        "versions": {name: metadata.version(name) for name in packages},
        "seeds": arguments.seeds,
    }


# The table and the figure


@dataclass(frozen=True)
class Line:
    """A version of a model, with the measurements averaged over its seeds."""

    version: str
    runtimes: str
    batches: float  # speed of batches relative to stock
    one_text: float  # the same for single texts
    score: float  # multiplied by 100
    score_error: float  # standard error, due to the choice of the rows
    lost: float  # points
    lost_error: float
    by_seed: list[float]  # points lost
    stays: float | None  # fraction of the predictions


def lines_of(record: dict) -> list[Line]:
    """Returns a line for each version, in the order of the record."""
    models, metric, scores = record["comparison"]["models"], record["metric"], np.array(record["resampled"])
    compared = record.get("neighbors", record["comparison"])["models"]
    shares = {each["name"]: each["fidelity"]["agreement"] if each["fidelity"] else 1.0 for each in compared}
    lines = []
    for version in dict.fromkeys(record["versions"]):
        own = [index for index, name in enumerate(record["versions"]) if name == version]
        results = [models[index] for index in own]
        lost = [100 * (models[0]["scores"][metric] - each["scores"][metric]) for each in results]
        lines.append(
            Line(
                version=version,
                runtimes=", ".join(sorted({each["runtime"] for each in results})),
                batches=mean(each["speedup"][RANDOM] for each in results),
                one_text=mean(each["speedup"][SINGLE] for each in results),
                score=100 * mean(each["scores"][metric] for each in results),
                score_error=100 * float(scores[own].mean(0).std()),
                lost=mean(lost),
                lost_error=100 * float((scores[0] - scores[own].mean(0)).std()),
                by_seed=lost,
                stays=None if version == STOCK else mean(shares[each["name"]] for each in results),
            )
        )
    return lines


def table(records: Sequence[dict]) -> str:
    rows = [HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
    for record in records:
        for index, line in enumerate(lines_of(record)):
            cells = [f"{record['model']}, {record['metric']}" if index == 0 else "", line.version, line.runtimes]
            cells += [f"{line.batches:.2f}", f"{line.one_text:.2f}", f"{line.score:.1f} ± {line.score_error:.1f}"]
            spread = f" ({min(line.by_seed):.1f} to {max(line.by_seed):.1f})" if len(line.by_seed) > 1 else ""
            cells += [f"{line.lost:.1f} ± {line.lost_error:.1f}{spread}" if index else ""]
            cells += ["" if line.stays is None else f"{100 * line.stays:.1f}"]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def draw(records: Sequence[dict], file: Path):
    """Plots the points lost against the speed of batches, with a line for each model."""
    with new_figure(PAGE, 3.6, file) as figure:
        axes = figure.subplots()
        for color, record in enumerate(records):
            lines = lines_of(record)
            label = f"{record['model']} ({record['metric']})"
            style = {"color": f"C{color}", "capsize": 3, "marker": "os^D"[color]}
            speeds, lost = [line.batches for line in lines], [line.lost for line in lines]
            axes.errorbar(speeds, lost, [line.lost_error for line in lines], label=label, **style)
            for line in lines[1 if color == 0 else 2 :]:  # the marks of all unshrunk models are close to each other
                offset = {"xytext": (4, -10), "textcoords": "offset points", "fontsize": "x-small"}
                axes.annotate(line.version, (line.batches, line.lost), **offset)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(
            xlabel="speed in batches of 32, relative to PyTorch with padding", ylabel="points lost (standard error)"
        )
        axes.invert_yaxis()
        axes.grid()
        figure.legend(loc="outside lower center", ncols=2)


def main(argv: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory with the models and data/")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory for the results")
    parser.add_argument("--models", nargs="+", choices=TASKS, default=[*TASKS], help="default: all")
    parser.add_argument("--speedups", nargs="+", type=float, default=[2.0, 3.0], help="default: 2 3")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of shrunk models (default: 1 2 3)")
    parser.add_argument("--distil_steps", type=int, help="distillation steps (default: none)")
    parser.add_argument("--runtime", default="torch-unpadded-bf16", help="of all but stock (default: %(default)s)")
    parser.add_argument("--max_eval_samples", type=int, default=10**9, help="rows (default: all)")
    parser.add_argument("--threads", type=int, help="number of threads (default: torch's)")
    parser.add_argument("--smoke", action="store_true", help="few rows and runtimes, to test the benchmark itself")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        file = arguments.output_dir / f"{name}.json"
        if not file.exists():
            record = provenance(arguments) | measure_model(name, arguments)
            write_atomically(file, to_json(record, indent=1) + "\n")
    files = [arguments.output_dir / f"{name}.json" for name in TASKS]
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    (arguments.output_dir / "table.md").write_text(table(records), encoding="utf-8")
    draw(records, arguments.output_dir / "tasks.png")
    print(table(records))


if __name__ == "__main__":
    main()
