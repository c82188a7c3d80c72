"""Fine-tuning sweeps over tasks and seeds, with a summary of the results."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from accelerate import PartialState

from ..option_values import make
from ..options import FineTuningDataOptions, GlueDataOptions
from ..support.errors import InputError
from ..support.files import read_json_object, to_json, write_atomically
from ..tasks.glue import TASKS
from ..tasks.glue_metrics import METRICS
from ..training.output import Trained, already_complete, output_directory, read_result
from ..training.plots import is_metric
from .fine_tune import FineTuningTask, check_metric, fine_tune
from .trainer import FineTuningArguments


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    task: str | None
    seed: int

    @property
    def directory(self) -> str:
        """Path of the run's output directory, relative to the output directory of the sweep."""
        return f"{self.task}/seed-{self.seed}" if self.task else f"seed-{self.seed}"


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
    """Returns one run for each combination of task and seed."""
    for task in tasks:
        if (metrics := METRICS.get(task or "")) and len(tasks) > 1:
            check_metric(training_args, ["loss", *metrics])
    seeds = dict.fromkeys(training_args.seeds or [training_args.seed])
    return [PlannedRun(task, seed) for task in tasks for seed in seeds]


def sweep(task_class: type[FineTuningTask], **given: Any) -> Trained:
    """
    Fine-tunes a model for each combination of task and seed.

    Each run writes to a subdirectory of `output_dir`. If there is only one run and `seeds` is not set, it writes to
    `output_dir` itself. After an interruption, the same call continues with the runs that are not complete. `given`
    contains values for the fields of the dataclasses in `task_class.arguments`.
    """
    arguments = make(given, *task_class.arguments)
    _, data_args, training_args = arguments
    if not training_args.kinds:
        raise InputError("nothing to do; set `do_train`, `do_eval` or `do_predict`.")
    runs = plan_runs(tasks_of(data_args, training_args.do_predict), training_args)
    if already_complete(training_args.output_dir, given):
        return read_result(training_args.directory)
    if len(runs) == 1 and training_args.seeds is None:
        fine_tune(task_class, runs[0].task, arguments, given)
        return read_result(training_args.directory)
    with output_directory(training_args, given):
        directory = training_args.directory
        for number, run in enumerate(runs, start=1):
            if (directory / run.directory).exists():
                PartialState().print(f"{run.directory}: already complete")
                continue
            PartialState().print(f"\n=== run {number} of {len(runs)}: {run.directory}", flush=True)
            fields = run_fields(run, given, training_args)
            fine_tune(task_class, run.task, make(fields, *task_class.arguments), fields)
            gc.collect()
        if PartialState().is_main_process:
            summarize(directory, runs)
    return read_result(training_args.directory)


def run_fields(run: PlannedRun, given: dict[str, Any], training_args: FineTuningArguments) -> dict[str, Any]:
    """Returns the fields for a single run, given the fields and the arguments of the sweep."""
    directory = training_args.directory
    fields: dict[str, Any] = given | {"seeds": None, "seed": run.seed}
    fields["output_dir"] = str(directory / run.directory)
    if run.task:
        fields["task_name"] = [run.task]
    if run.task == "ax":  # ax has no training data, and is predicted with the MNLI model
        unused = ["do_", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"]
        unused += ["load_best_", "metric_for_", "greater_", "early_stopping_"]
        fields = {name: value for name, value in fields.items() if not name.startswith((*unused,))}
        fields["do_predict"] = True
        mnli = directory / run.directory.replace("ax/", "mnli/", 1)
        if mnli.exists():
            fields |= dict.fromkeys(("config_name", "config_overrides", "tokenizer_name"))
            fields["model_name_or_path"] = str(mnli)
    return {name: value for name, value in fields.items() if value is not None}


# The main metric of a task is the first metric in this list that its runs report.
MAIN_METRICS = ("combined_score", "matthews_correlation", "accuracy", "pearson", "f1")

TaskMetrics = dict[str, list[float]]  # the values of each metric, one for each seed; the main metric comes first


def task_metrics(results: list[dict]) -> TaskMetrics:
    """Returns the metrics of a task from the results for each seed. Omits metrics that are NaN for any seed."""
    names = [name for name in results[0] if is_metric(name) and all(seed[name] is not None for seed in results)]
    main = [f"eval_{metric}" for metric in MAIN_METRICS if f"eval_{metric}" in names][:1]
    return {name.removeprefix("eval_"): [seed[name] for seed in results] for name in dict.fromkeys([*main, *names])}


def summarize(directory: Path, runs: list[PlannedRun]):
    """Prints a table with the results of all runs and writes results.json to `directory`."""
    files = {run: directory / run.directory / "all_results.json" for run in runs}
    remedy = "remove the run's directory and run the same command again"
    results = {run: read_json_object(file, remedy) for run, file in files.items() if file.exists()}
    of_tasks: dict[str, list[dict]] = {}
    for run, result in results.items():
        of_tasks.setdefault(run.task or "data", []).append(result)
    found = {task: task_metrics(of_task) for task, of_task in of_tasks.items()}
    tasks = {task: metrics for task, metrics in found.items() if metrics}
    if not tasks:  # no run was evaluated
        return
    averages = {"average": average(tasks.values())} if len(tasks) > 1 else {}
    if "wnli" in tasks and averages:  # as in the BERT paper
        averages["average without wnli"] = average(tasks[task] for task in tasks if task != "wnli")
    print(f"\n{'task':<19} {'metric':<22} {'median':>9} {'mean':>9} {'std':>9} {'min':>9} {'max':>9} {'seeds':>6}")
    for task, metrics in tasks.items():
        for metric, values in metrics.items():
            print_row(task, metric, values)
    for name, values in averages.items():
        print_row(name, "", values)
    content = {
        "runs": [{"task": run.task, "seed": run.seed, **result} for run, result in results.items()],
        "tasks": tasks,
        **averages,
    }
    write_atomically(directory / "results.json", to_json(content, indent=1) + "\n")


def print_row(task: str, metric: str, values: list[float]):
    deviation = f"{stdev(values):.4f}" if len(values) > 1 else "-"
    statistics = f"{median(values):>9.4f} {mean(values):>9.4f} {deviation:>9} {min(values):>9.4f} {max(values):>9.4f}"
    print(f"{task:<19} {metric:<22} {statistics} {len(values):>6}")


def average(tasks: Iterable[TaskMetrics]) -> list[float]:
    """Averages the main metric over tasks, for each seed. MNLI's value is the average of its two validation sets."""
    scores = []
    for metrics in tasks:
        main = next(iter(metrics))
        values = [metrics[name] for name in (main, f"{main}_mm") if name in metrics]
        scores.append([mean(pair) for pair in zip(*values, strict=True)])
    return [mean(values) for values in zip(*scores, strict=True)]
