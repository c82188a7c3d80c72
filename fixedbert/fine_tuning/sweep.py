"""Fine-tuning sweeps over tasks, seeds and hyperparameters, with a summary of the results."""

import gc
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from operator import gt, lt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from accelerate import PartialState

from ..options import FineTuningDataOptions, GlueDataOptions
from ..support.errors import InputError
from ..support.files import to_json, write_atomically
from ..tasks.glue import TASKS
from ..tasks.glue_metrics import METRICS, lower_is_better
from ..training.arguments import make_arguments
from ..training.output import Trained, already_complete, output_directory, publish, read_result
from ..training.plots import draw_sweep, is_metric
from .fine_tune import FineTuningTask, check_metric, fine_tune
from .trainer import FineTuningArguments

# Devlin et al., 2019, appendix A.3. The batch size is the total over all devices.
GRIDS = {
    "bert": {
        "train_batch_size": (16, 32),
        "learning_rate": (5e-5, 3e-5, 2e-5),
        "num_train_epochs": (2.0, 3.0, 4.0),
    }
}


Settings = tuple[tuple[str, float], ...]  # names and values of hyperparameters


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep. `settings` are the hyperparameters from the grid, as (name, value) pairs."""

    task: str | None
    seed: int
    settings: Settings = ()

    @property
    def directory(self) -> str:
        """Path of the run's output directory, relative to the output directory of the sweep."""
        names = [(name.removeprefix("num_train_").replace("_", "-"), value) for name, value in self.settings]
        point = "-".join(f"{name}-{value:g}" for name, value in names)
        return "/".join(part for part in (self.task, point, f"seed-{self.seed}") if part)


def tasks_of(data_args: FineTuningDataOptions, predict: bool) -> list[str | None]:
    """Returns the GLUE tasks in the order in which they run, or [None] for other data."""
    if not isinstance(data_args, GlueDataOptions) or not data_args.task_name:
        return [None]
    names = [name.lower() for name in data_args.task_name]
    if names == ["all"]:
        names = [name for name in TASKS if name != "ax" or predict]
    for name in names:
        if name not in TASKS:
            raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}, all.")
    return sorted(dict.fromkeys(names), key=lambda name: name == "ax")  # ax needs the model trained on MNLI


def plan_runs(tasks: list[str | None], training_args: FineTuningArguments) -> list[PlannedRun]:
    """Returns one run for each combination of task, settings from the grid, and seed."""
    grid = training_args.grid
    if grid is not None and training_args.max_steps > 0:
        raise InputError("cannot be combined with `max_steps`, which overrides the number of epochs.", "grid")
    for task in tasks:
        if (metrics := METRICS.get(task or "")) and len(tasks) > 1:
            check_metric(training_args, ["loss", *metrics])
    values = GRIDS[grid] if grid else {}
    points = [tuple(zip(values, point, strict=True)) for point in product(*values.values())]
    seeds = dict.fromkeys(training_args.seeds or [training_args.seed])
    return [PlannedRun(task, seed, point) for task in tasks for point in points for seed in seeds]


def sweep(task_class: type[FineTuningTask], **given: Any) -> Trained:
    """
    Fine-tunes a model for each combination of task, settings from the grid, and seed.

    Each run writes to a subdirectory of `output_dir`. If there is only one run and `seeds` is not set, it writes to
    `output_dir` itself. After an interruption, the same call continues with the runs that are not complete. `given`
    contains values for the fields of the dataclasses in `task_class.arguments`.
    """
    arguments = make_arguments(given, *task_class.arguments)
    _, data_args, training_args = arguments
    if not training_args.kinds:
        raise InputError("nothing to do; set `do_train`, `do_eval` or `do_predict`.")
    runs = plan_runs(tasks_of(data_args, training_args.do_predict), training_args)
    is_single = len(runs) == 1 and training_args.seeds is None
    if already_complete(training_args.output_dir, given):
        for each in [given] if is_single else [run_fields(run, given, training_args) for run in runs]:
            publish(make_arguments(each, *task_class.arguments)[-1])  # in case the upload failed
        return read_result(training_args.directory)
    if is_single:
        fine_tune(task_class, runs[0].task, arguments, given)
        return read_result(training_args.directory)
    if training_args.resume_from_checkpoint is not None:
        raise InputError("can only be used with a single run; sweeps resume automatically.", "resume_from_checkpoint")
    with output_directory(training_args, given):
        directory = training_args.directory
        for number, run in enumerate(runs, start=1):
            fields = run_fields(run, given, training_args)
            each = make_arguments(fields, *task_class.arguments)
            if (directory / run.directory).exists():
                PartialState().print(f"{run.directory}: already complete")
                publish(each[-1])  # in case the upload failed
                continue
            PartialState().print(f"\n=== run {number} of {len(runs)}: {run.directory}", flush=True)
            fine_tune(task_class, run.task, each, fields)
            gc.collect()
        if PartialState().is_main_process:
            summarize(directory, runs, given.get("metric_for_best_model"))
    return read_result(training_args.directory)


def run_fields(run: PlannedRun, given: dict[str, Any], training_args: FineTuningArguments) -> dict[str, Any]:
    """Returns the fields for a single run, given the fields and the arguments of the sweep."""
    directory = training_args.directory
    fields: dict[str, Any] = given | {"seeds": None, "grid": None, "seed": run.seed, **dict(run.settings)}
    fields["output_dir"] = str(directory / run.directory)
    if training_args.push_to_hub:
        fields["hub_model_id"] = "-".join([str(training_args.hub_model_id), *run.directory.split("/")])
    if run.task:
        fields["task_name"] = [run.task]
    if (batch := fields.pop("train_batch_size", None)) is not None:
        divisor = training_args.world_size * max(training_args.n_gpu, 1) * training_args.gradient_accumulation_steps
        if batch % divisor:
            raise InputError(
                f"the batch size {batch} in `grid` is not divisible by {divisor}, the number of devices times "
                "`gradient_accumulation_steps`."
            )
        fields["per_device_train_batch_size"] = batch // divisor
    if run.task == "ax":  # ax has no training data, and is predicted with the MNLI model
        fields |= dict.fromkeys(("do_train", "do_eval", "load_best_model_at_end", "push_to_hub"), False)
        fields |= {"eval_strategy": "no", "early_stopping_patience": None}
        mnli = directory / run.directory.replace("ax/", "mnli/", 1)
        if mnli.exists():
            fields |= dict.fromkeys(("config_name", "config_overrides", "tokenizer_name"))
            fields["model_name_or_path"] = str(mnli)
    return {name: value for name, value in fields.items() if value is not None}


# The main metric of a task is the first metric in this list that its runs report.
MAIN_METRICS = ("combined_score", "matthews_correlation", "accuracy", "pearson", "f1")


@dataclass
class Summary:
    """
    The results of all seeds for one task and one combination of settings from the grid.

    `metrics` maps the name of each metric to its values, one for each seed. The main metric, which selects the best
    settings, comes first.
    """

    task: str
    settings: dict[str, float]
    metrics: dict[str, list[float]]

    def __post_init__(self):
        self.metric, self.values = next(iter(self.metrics.items()), ("", []))

    @classmethod
    def of(cls, task: str | None, settings: Settings, seeds: list[dict], main_metrics: Iterable[str]) -> "Summary":
        """Summarizes the results of each seed. Omits metrics that are NaN for any seed."""
        known = [name for name in seeds[0] if is_metric(name) or name.removeprefix("eval_") in main_metrics]
        reported = [name for name in known if all(seed[name] is not None for seed in seeds)]
        main = [f"eval_{metric}" for metric in main_metrics if f"eval_{metric}" in reported][:1]
        names = dict.fromkeys([*main, *reported])
        metrics = {name.removeprefix("eval_"): [seed[name] for seed in seeds] for name in names}
        return cls(task or "data", dict(settings), metrics)


def summarize(directory: Path, runs: list[PlannedRun], metric: str | None = None):
    """
    Prints a table with the results of all runs and writes results.json and results.png to `directory`.

    `metric` selects the best settings. By default, this is each task's main metric.
    """
    main_metrics = [metric.removeprefix("eval_"), *MAIN_METRICS] if metric else MAIN_METRICS
    results: dict[PlannedRun, dict] = {}
    seeds: dict[tuple[str | None, Settings], list[dict]] = {}
    for run in runs:
        file = directory / run.directory / "all_results.json"
        if file.exists():
            results[run] = json.loads(file.read_text())
            seeds.setdefault((run.task, run.settings), []).append(results[run])
    summaries = [Summary.of(*point, found, main_metrics) for point, found in seeds.items()]
    summaries = [summary for summary in summaries if summary.metrics]
    if not summaries:  # no run was evaluated
        return
    best: dict[str, Summary] = {}
    for summary in summaries:
        other = best.setdefault(summary.task, summary)
        better = lt if lower_is_better(summary.metric) else gt
        if better(median(summary.values), median(other.values)):
            best[summary.task] = summary
    averages = {"average": average(best.values())} if len(best) > 1 else {}
    if "wnli" in best and averages:  # as in the BERT paper
        averages["average without wnli"] = average(best[task] for task in best if task != "wnli")
    print_table(summaries, best, averages)
    content = {
        "runs": [{"task": run.task, "seed": run.seed, **dict(run.settings), **results[run]} for run in results],
        "best": {task: {**summary.settings, summary.metric: summary.values} for task, summary in best.items()},
        **averages,
    }
    write_atomically(directory / "results.json", to_json(content, indent=1) + "\n")
    draw_sweep(summaries, directory / "results.png")


def print_table(summaries: list[Summary], best: dict[str, Summary], averages: dict[str, list[float]]):
    """Prints all metrics of each task, or the main metric for all settings from the grid, and the averages."""
    print(f"\n{'task':<19} {'metric':<22} {'median':>9} {'mean':>9} {'std':>9} {'min':>9} {'max':>9} {'seeds':>6}")
    for summary in summaries:
        settings = ", ".join(f"{name} {value:g}" for name, value in summary.settings.items())
        if settings:
            note = " <- best" if summary is best[summary.task] else ""
            print_row(summary.task, summary.metric, summary.values, settings + note)
        else:
            for metric, values in summary.metrics.items():
                print_row(summary.task, metric, values)
    for name, values in averages.items():
        print_row(name, "", values)


def print_row(task: str, metric: str, values: list[float], settings: str = ""):
    deviation = f"{stdev(values):.4f}" if len(values) > 1 else "-"
    statistics = f"{median(values):>9.4f} {mean(values):>9.4f} {deviation:>9} {min(values):>9.4f} {max(values):>9.4f}"
    print(f"{task:<19} {metric:<22} {statistics} {len(values):>6}  {settings}".rstrip())


def average(best: Iterable[Summary]) -> list[float]:
    """Averages the main metric over tasks, for each seed. MNLI's value is the average of its two validation sets."""
    scores = []
    for summary in best:
        names = (summary.metric, f"{summary.metric}_mm")
        values = [values for name, values in summary.metrics.items() if name in names]
        scores.append([mean(pair) for pair in zip(*values, strict=True)])
    return [mean(values) for values in zip(*scores, strict=True)]
