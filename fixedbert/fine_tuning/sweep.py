"""Several fine-tuning runs from one command: tasks, seeds and the BERT paper's grid, in one table and picture."""

import copy
import gc
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median

from accelerate import PartialState

from ..support.errors import InputError, note_what_is_left
from ..support.files import check_free, json_text, output_path, write_whole
from ..training.output import COMMAND_FILE, give_final_name, held, read_command, run_arguments, write_command
from .pictures import draw_sweep
from .trainer import FineTuningArguments, is_metric

# Devlin et al., 2019, appendix A.3. A batch is a step's, on all devices together.
GRIDS = {
    "bert": {
        "train_batch_size": (16, 32),
        "learning_rate": (5e-5, 3e-5, 2e-5),
        "num_train_epochs": (2.0, 3.0, 4.0),
    }
}


@dataclass(frozen=True)
class Run:
    """One run of a sweep; `settings` is a point of a grid."""

    task: str | None
    seed: int
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def folder(self) -> str:
        point = "-".join(
            f"{name.removeprefix('num_train_').replace('_', '-')}-{value:g}" for name, value in self.settings
        )
        return "/".join(part for part in (self.task, point, f"seed-{self.seed}") if part)


def plan_runs(tasks: list[str | None], training_args: FineTuningArguments) -> list[Run]:
    """
    Every task with every point of the grid and every seed.

    Raises:
        InputError: no such grid, a seed is given twice, or several tasks have one teacher.
    """
    grid = training_args.grid
    if grid is not None and grid not in GRIDS:
        raise InputError(f"--grid {grid}: no such grid; there is {', '.join(GRIDS)}.")
    if grid is not None and training_args.max_steps > 0:
        raise InputError("--grid varies the epochs, which --max_steps overrides: give one of the two.")
    seeds = training_args.seeds or [training_args.seed]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {' '.join(map(str, seeds))}: each seed can be there once.")
    if training_args.teacher_model is not None and len(set(tasks) - {"ax"}) > 1:
        raise InputError("--teacher_model is of one task: give one --task_name.")
    values = GRIDS[grid] if grid else {}
    points = [tuple(zip(values, point, strict=True)) for point in product(*values.values())]
    return [Run(task, seed, point) for task in tasks for point in points for seed in seeds]


def sweep(
    fine_tune: Callable, tasks: list[str | None], model_args, data_args, training_args: FineTuningArguments, command
):
    """
    Call `fine_tune(task, model_args, data_args, training_args, command)` for every run, each with an output directory
    of its own; a single run has --output_dir for itself.

    After an interruption the same command runs what is not finished.
    """
    runs = plan_runs(tasks, training_args)
    if len(runs) == 1 and training_args.seeds is None:
        fine_tune(tasks[0], model_args, data_args, training_args, command)
        return
    if training_args.resume_from_checkpoint is not None:
        raise InputError("--resume_from_checkpoint is for one run; several go on by themselves with the same command.")
    with sweep_directory(training_args, command) as folder:
        for number, run in enumerate(runs, start=1):
            output = folder / run.folder
            if output.exists():
                PartialState().print(f"{run.folder}: done already")
                continue
            PartialState().print(f"\n=== run {number} of {len(runs)}: {run.folder}", flush=True)
            run_args, run_model = arguments_of(run, training_args, output), copy.copy(model_args)
            if run.task == "ax":  # no data to train on: MNLI's model predicts it
                run_args.do_train = run_args.do_eval = run_args.load_best_model_at_end = False
                run_args.eval_strategy, run_args.early_stopping_patience = "no", None
                trained = folder / run.folder.replace("ax/", "mnli/", 1)
                if trained.exists():
                    run_model.model_name_or_path = str(trained)
                    run_model.config_name = run_model.config_overrides = run_model.tokenizer_name = None
            fine_tune(run.task, run_model, copy.copy(data_args), run_args, command_of(run, run_args, command))
            gc.collect()
        if PartialState().is_main_process:
            summarize(folder, runs)


def arguments_of(run: Run, training_args: FineTuningArguments, output: Path) -> FineTuningArguments:
    arguments = copy.copy(training_args)
    arguments.output_dir, arguments.seed = str(output), run.seed
    name = arguments.hub_model_id or training_args.folder.name
    arguments.hub_model_id = "-".join([name, *run.folder.split("/")])
    for name, value in run.settings:
        if name == "train_batch_size":
            name = "per_device_train_batch_size"
            at_once = arguments.world_size * max(arguments.n_gpu, 1) * arguments.gradient_accumulation_steps
            if value % at_once:
                raise InputError(f"--grid: a batch of {value} cannot be shared out among {at_once} devices and steps.")
            value //= at_once
        setattr(arguments, name, value)
    return arguments


def command_of(run: Run, arguments: FineTuningArguments, command: list[str]) -> list[str]:
    """The command of this run alone."""
    flags = run_arguments(command, left_out=("--task_name", "--seed", "--seeds", "--grid", "--output_dir"))
    flags += ["--task_name", run.task] if run.task else []
    names = [{"train_batch_size": "per_device_train_batch_size"}.get(name, name) for name, _ in run.settings]
    return flags + [word for name in ("seed", *names) for word in (f"--{name}", str(getattr(arguments, name)))]


@contextmanager
def sweep_directory(training_args: FineTuningArguments, command: list[str]) -> Iterator[Path]:
    """OUTPUT.partial for the runs, renamed when all are done; the same command resumes there."""
    final = output_path(training_args.output_dir)
    with held(final, training_args):
        check_free(final)
        partial = final.with_name(final.name + ".partial")
        state = PartialState()
        if partial.exists() and run_arguments(read_command(partial)) != run_arguments(command):
            raise InputError(
                f"{partial}: unfinished runs with other arguments (its {COMMAND_FILE} has them); remove it, or give "
                "another --output_dir."
            )
        state.wait_for_everyone()
        if state.is_main_process and not partial.exists():
            partial.mkdir(parents=True)
            write_command(partial, command)
        state.wait_for_everyone()
        try:
            yield partial
        except BaseException as error:
            kept = len(list(partial.rglob(COMMAND_FILE))) > 1
            left = f"the same command goes on in {partial}" if kept else f"nothing is left of {final}"
            note_what_is_left(error, left)
            if state.is_main_process and not kept:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        give_final_name(partial, final)


# The main metric of a run is the first of these that it has.
MAIN = ("combined_score", "matthews_correlation", "accuracy", "pearson", "f1")


@dataclass
class Summary:
    """A metric of one task at one point of the grid: its value for every seed."""

    task: str
    settings: dict[str, float]
    metric: str
    values: list[float]
    main: bool

    @property
    def median(self) -> float:
        return median(self.values)

    def line(self, note: str = "") -> str:
        values = f"{self.median:>9.4f} {min(self.values):>9.4f} {max(self.values):>9.4f} {len(self.values):>6}"
        point = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return f"{self.task:<19} {self.metric:<22} {values}  {point} {note}".rstrip()


def summarize(folder: Path, runs: list[Run]):
    """Print one table; write it with every run's results to results.json, and as a picture to results.png."""
    results = {
        run: json.loads((folder / run.folder / "all_results.json").read_text())
        for run in runs
        if has_results(folder, run)
    }
    summaries = []
    for task, settings in dict.fromkeys((run.task, run.settings) for run in results):
        seeds = [results[run] for run in results if (run.task, run.settings) == (task, settings)]
        found = [name for name in seeds[0] if is_metric(name) and all(seed[name] is not None for seed in seeds)]
        metrics = [name.removeprefix("eval_") for name in found]
        main = next((name for name in (*MAIN, *metrics) if name in metrics), None)
        summaries += [
            Summary(task or "data", dict(settings), name, [seed[f"eval_{name}"] for seed in seeds], name == main)
            for name in sorted(metrics, key=lambda name: name != main)
        ]
    if not summaries:
        return
    best: dict[str, Summary] = {}
    for summary in summaries:
        if summary.main and (summary.task not in best or summary.median > best[summary.task].median):
            best[summary.task] = summary
    grid = any(summary.settings for summary in summaries)
    print(f"\n{'task':<19} {'metric':<22} {'median':>9} {'least':>9} {'most':>9} {'seeds':>6}")
    for summary in summaries:
        if summary.main or not grid:
            print(summary.line("<- best" if grid and summary is best[summary.task] else ""))
    averages = {}
    if len(best) > 1:
        averages["average"] = average(best, results)
        if "wnli" in best:  # which the BERT paper leaves out
            averages["average without wnli"] = average({task: best[task] for task in best if task != "wnli"}, results)
        for name, values in averages.items():
            print(Summary(name, {}, "", values, True).line())
    content = {
        "runs": [
            {"task": run.task, "seed": run.seed, **dict(run.settings), **result} for run, result in results.items()
        ],
        "best": {task: {**summary.settings, summary.metric: summary.values} for task, summary in best.items()},
        **averages,
    }
    write_whole(folder / "results.json", json_text(content, indent=1) + "\n")
    draw_sweep([summary for summary in summaries if summary.main], folder / "results.png")


def has_results(folder: Path, run: Run) -> bool:
    return (folder / run.folder / "all_results.json").exists()  # predictions alone have none


def average(best: dict[str, Summary], results: dict[Run, dict]) -> list[float]:
    """The mean over tasks of the main metric, for every seed; MNLI counts with the mean of its two sets."""
    averages = []
    for seed in dict.fromkeys(run.seed for run in results):
        scores = []
        for run, result in results.items():
            summary = best.get(run.task or "data")
            if run.seed == seed and summary is not None and dict(run.settings) == summary.settings:
                names = (f"eval_{summary.metric}", f"eval_{summary.metric}_mm")
                scores.append(mean(result[name] for name in names if name in result))
        averages.append(mean(scores))
    return averages
