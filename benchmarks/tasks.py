"""
python -m benchmarks.tasks DIR --output_dir OUT [--models classifier reranker embeddings tagger]

Measures how fast four kinds of models are, and how much they lose, in three versions: stock (PyTorch in float32 with
padding), the fastest runtime that gives nearly the same answers, and shrunk. DIR contains the models, and in data/,
the rows from `benchmarks.task_models`. The environment variable FIXEDBERT_DATA must be set to a directory with glue/.
All versions of a model take turns on the same batches. Writes the shrunk models, a record for each model, the table
and the figure to OUT. The same command continues after an interruption. text_and_models.md explains the table.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.paired import data_directory, description
from benchmarks.resampling import resampled
from fixedbert import shrink
from fixedbert.comparison.candidates import Candidate, load_candidates
from fixedbert.comparison.compare import align_classes, choose_runtimes, measure, names_of, run
from fixedbert.comparison.report import RANDOM, SINGLE
from fixedbert.options import CompareOptions
from fixedbert.support.figures import PAGE, new_figure
from fixedbert.support.files import to_json, write_atomically
from fixedbert.support.machine import machine_name
from fixedbert.tasks.rows import RowPredictions, Rows
from fixedbert.tasks.task_heads import compared_rows, row_length

CALIBRATION_ROWS = 2500
ALL_ROWS = 10**9
SMOKE = {"calibration": 1000, "rows": 60, "runtime": ["torch", "torch-unpadded"]}  # a test of the benchmark itself
STOCK, SAME = "stock", "same answers"
HEADER = "| model | version | runtime | batches | one text | score | points lost | stays (%) |"


@dataclass(frozen=True)
class Task:
    """The rows of a kind of models, and their most important metric."""

    metric: str
    evaluation: str  # file in data/, or "" for the GLUE task sst2
    calibration: str
    distillation: str
    columns: str | None  # names of the text columns
    options: dict[str, Any]  # for the evaluation
    neighbors: str = ""  # file with more texts, whose nearest neighbors are compared


TASKS = {
    "classifier": Task("accuracy", "", "", "", "sentence", {}),
    "reranker": Task(
        "nDCG@10",
        "rerank_dev.csv",
        "rerank_train.csv",
        "rerank_train.csv",
        "query,text",
        {"query_column_name": "query"},
    ),
    "embeddings": Task(
        "spearmanr", "sts_dev.csv", "sentences_train.csv", "unlabeled.csv", None, {}, neighbors="neighbors.csv"
    ),
    "tagger": Task("f1", "tags_dev.jsonl", "tags_train.jsonl", "tags_train.jsonl", None, {}),
}


@dataclass
class Versions:
    """All versions of a model that took turns, with their answers for the same rows."""

    rows: Rows
    candidates: list[Candidate]
    answers: list[RowPredictions]
    notes: list[str]


def take_turns(options: CompareOptions) -> Versions:
    """Does what `fixedbert.compare` does, and also returns the answers, from which standard errors are computed."""
    by_model = [load_candidates(*pair) for pair in names_of(options.models)]
    loaded = [candidate for own in by_model for candidate in own]
    align_classes(loaded)
    models = [(each.model.config, each.model.tokenizer) for each in loaded]
    length = row_length(options.max_seq_length, models)
    rows = compared_rows(options, loaded[0].model.head, models, length)
    rows.sample(options.max_eval_samples)
    for each in loaded:
        each.features, each.result.truncated = rows.features(each.model.tokenizer, each.model.settings, length)
    with TemporaryDirectory() as directory:
        candidates, notes = choose_runtimes(by_model, rows, options, Path(directory))
        run(candidates, len(rows.data), options.batch_size)
    features = [each.features for each in candidates]
    answers = [rows.interpret(each.outputs, each.features, features) for each in candidates]
    for each, own in zip(candidates, answers, strict=True):
        measure(each, own, rows, candidates[0], answers[0])
    return Versions(rows, candidates, answers, notes)


def shrink_all(name: str, arguments: argparse.Namespace) -> dict[str, Path]:
    """Shrinks a model to each speedup with each seed, unless that was done before. Returns the directories."""
    task, directories = TASKS[name], {}
    steps = arguments.distil_steps
    file = task.distillation if steps else task.calibration
    rows = arguments.directory / "data" / file if file else data_directory() / "glue" / "SST-2" / "train.tsv"
    for seed in arguments.seeds:
        for speedup in arguments.speedups:
            suffix = f"-{steps}-steps" if steps else ""
            output = arguments.output_dir / name / f"{speedup:g}x-{seed}{suffix}"
            directories[output.name] = output
            if not (output / "model.safetensors").exists():
                shrink(
                    str((arguments.directory / name).absolute()),
                    output_dir=str(output),
                    train_file=[str(rows)],
                    text_column_names=task.columns,
                    max_train_samples=SMOKE["calibration"] if arguments.smoke else CALIBRATION_ROWS,
                    speedup=[speedup],
                    seed=seed,
                    distil_steps=steps,
                )
    return directories


def evaluation_options(name: str, models: Sequence[Path], arguments: argparse.Namespace) -> CompareOptions:
    task = TASKS[name]
    rows: dict[str, Any] = {"task_name": "sst2", "data_dir": str(data_directory() / "glue")}
    if task.evaluation:
        rows = {"validation_file": str(arguments.directory / "data" / task.evaluation)}
        rows |= {"text_column_names": task.columns, **task.options}
    return CompareOptions(
        models=[str(model.absolute()) for model in models],
        max_eval_samples=SMOKE["rows"] if arguments.smoke else ALL_ROWS,
        runtime=SMOKE["runtime"] if arguments.smoke else None,
        **rows,
    )


def measure_model(name: str, arguments: argparse.Namespace) -> dict:
    """Shrinks and measures a model. Returns its record."""
    shrunk = shrink_all(name, arguments)
    task, models = TASKS[name], [arguments.directory / name, *shrunk.values()]
    options = evaluation_options(name, models, arguments)
    measured = take_turns(options)
    features = [each.features for each in measured.candidates]
    scores = resampled(measured.rows, measured.answers, task.metric, features)
    results = [each.result for each in measured.candidates]
    record = {
        "model": name,
        "metric": task.metric,
        "rows": len(measured.rows.data),
        "notes": measured.notes,
        "versions": [
            {**asdict(result), "version": version_of(result.name, index), "standard_error": float(own.std())}
            | {"lost_standard_error": float((scores[0] - own).std())}
            for index, (result, own) in enumerate(zip(results, scores, strict=True))
        ],
        "resampled": scores.round(6).tolist(),
    }
    if task.neighbors:
        runtimes = sorted({result.runtime for result in results})
        file = str(arguments.directory / "data" / task.neighbors)
        more = take_turns(replace(options, validation_file=file, text_column_names=None, runtime=runtimes))
        record["neighbors"] = [asdict(each.result) for each in more.candidates]
    return record


def version_of(name: str, index: int) -> str:
    """Returns stock, same answers, or the speedup of a shrunk model, such as 2x, from its directory such as 2x-1."""
    if name in TASKS:
        return SAME if index else STOCK
    return name.split("-")[0] + (f", {name.split('-')[2]} steps" if name.endswith("-steps") else "")


def provenance(arguments: argparse.Namespace) -> dict:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    packages = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "nncf")
    return {
        "command": "python -m benchmarks.tasks " + " ".join(sys.argv[1:]),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "machine": f"{machine_name()}; {description()}",
        "versions": {name: version(name) for name in packages},
        "seeds": arguments.seeds,
    }


# The table and the figure


@dataclass(frozen=True)
class Line:
    """A version of a model, with the measurements averaged over its seeds."""

    version: str
    runtimes: str
    batches: float  # speed relative to stock
    one_text: float
    score: float  # multiplied by 100
    lost: float  # points
    standard_error: float  # of the points lost, due to the rows
    by_seed: list[float]  # points lost
    stays: float | None  # fraction of the predictions


def lines_of(record: dict) -> list[Line]:
    """Returns a line for each version, in the order of the record."""
    metric, versions = record["metric"], record["versions"]
    scores = np.array(record["resampled"])
    kept = {each["name"]: each for each in record.get("neighbors", versions)}
    lines = []
    for name in dict.fromkeys(each["version"] for each in versions):
        own = [index for index, each in enumerate(versions) if each["version"] == name]
        results = [versions[index] for index in own]
        lost = [100 * (versions[0]["scores"][metric] - each["scores"][metric]) for each in results]
        fidelities = [kept[each["name"]]["fidelity"] for each in results]
        lines.append(
            Line(
                version=name,
                runtimes=", ".join(sorted({each["runtime"] for each in results})),
                batches=mean(each["speedup"][RANDOM] for each in results),
                one_text=mean(each["speedup"][SINGLE] for each in results),
                score=100 * mean(each["scores"][metric] for each in results),
                lost=mean(lost),
                standard_error=100 * float((scores[0] - scores[own].mean(0)).std()),
                by_seed=lost,
                stays=None if None in fidelities else mean(each["agreement"] for each in fidelities),
            )
        )
    return lines


def table(records: Sequence[dict]) -> str:
    rows = [HEADER, "|---" * HEADER.count(" | ") + "|---|"]
    for record in records:
        for index, line in enumerate(lines_of(record)):
            title = f"{record['model']}, {record['metric']} x 100" if index == 0 else ""
            lost = stays = ""
            if index:
                spread = f" ({min(line.by_seed):.1f} to {max(line.by_seed):.1f})" if len(line.by_seed) > 1 else ""
                lost = f"{line.lost:.1f} ± {line.standard_error:.1f}{spread}"
            if line.stays is not None:
                stays = f"{100 * line.stays:.1f}"
            speeds = f"{line.batches:.2f} | {line.one_text:.2f}"
            rows.append(
                f"| {title} | {line.version} | {line.runtimes} | {speeds} | {line.score:.1f} | {lost} | {stays} |"
            )
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
            axes.errorbar(speeds, lost, [line.standard_error for line in lines], label=label, **style)
            for line in lines[1:]:
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
