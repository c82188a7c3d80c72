"""Several fine-tuning runs from one command: tasks, seeds and the BERT paper's grid, in one table and picture."""

import gc
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from accelerate import PartialState

from ..support.errors import InputError, note_what_is_left
from ..support.files import check_free, json_text, output_path, write_whole
from ..training.arguments import make_arguments
from ..training.output import COMMAND_FILE, check_same_command, give_final_name, held, write_command
from ..training.results import Trained, trained
from .fine_tune import FineTuningTask, fine_tune
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
        raise InputError(f"{grid}: no such grid; there is {', '.join(GRIDS)}.", "grid")
    if grid is not None and training_args.max_steps > 0:
        raise InputError("varies the epochs, which `max_steps` overrides: give one of the two.", "grid")
    seeds = training_args.seeds or [training_args.seed]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"{' '.join(map(str, seeds))}: each seed can be there once.", "seeds")
    if training_args.teacher_model is not None and len(set(tasks) - {"ax"}) > 1:
        raise InputError("is of one task: give one `task_name`.", "teacher_model")
    values = GRIDS[grid] if grid else {}
    points = [tuple(zip(values, point, strict=True)) for point in product(*values.values())]
    return [Run(task, seed, point) for task in tasks for point in points for seed in seeds]


def sweep(kind: type[FineTuningTask], **given: Any) -> Trained:
    """
    Fine-tune for every task, seed and point of the grid, each with an output directory of its own; a single run has
    `output_dir` for itself.

    After an interruption the same call runs what is not finished.

    Args:
        given: fields of `kind.arguments`.

    Raises:
        InputError: fields that contradict each other, or input that cannot be used.
    """
    arguments = make_arguments(given, *kind.arguments)
    _, data_args, training_args = arguments
    if not training_args.kinds:
        raise InputError("nothing to do: give `do_train`, `do_eval` or `do_predict`.")
    runs = plan_runs(data_args.tasks(training_args.do_predict), training_args)
    if len(runs) == 1 and training_args.seeds is None:
        fine_tune(kind, runs[0].task, arguments, given)
        return trained(training_args.directory)
    if training_args.resume_from_checkpoint is not None:
        raise InputError("is for one run; several go on by themselves when started again.", "resume_from_checkpoint")
    with sweep_directory(training_args, given) as folder:
        for number, run in enumerate(runs, start=1):
            if (folder / run.folder).exists():
                PartialState().print(f"{run.folder}: done already")
                continue
            PartialState().print(f"\n=== run {number} of {len(runs)}: {run.folder}", flush=True)
            of_run = fields_of(run, given, training_args, folder)
            fine_tune(kind, run.task, make_arguments(of_run, *kind.arguments), of_run)
            gc.collect()
        if PartialState().is_main_process:
            summarize(folder, runs)
    return trained(training_args.directory)


def fields_of(run: Run, given: dict[str, Any], training_args: FineTuningArguments, folder: Path) -> dict[str, Any]:
    """What this run alone is given, in the folder of the sweep."""
    fields: dict[str, Any] = given | {"seeds": None, "grid": None, "seed": run.seed, **dict(run.settings)}
    fields["output_dir"] = str(folder / run.folder)
    if training_args.push_to_hub:
        name = training_args.hub_model_id or training_args.directory.name
        fields["hub_model_id"] = "-".join([name, *run.folder.split("/")])
    if run.task:
        fields["task_name"] = [run.task]
    if (batch := fields.pop("train_batch_size", None)) is not None:
        at_once = training_args.world_size * max(training_args.n_gpu, 1) * training_args.gradient_accumulation_steps
        if batch % at_once:
            raise InputError(f"`grid`: a batch of {batch} cannot be shared out among {at_once} devices and steps.")
        fields["per_device_train_batch_size"] = batch // at_once
    if run.task == "ax":  # no data to train on: MNLI's model predicts it
        fields |= dict.fromkeys(("do_train", "do_eval", "load_best_model_at_end", "push_to_hub"), False)
        fields |= {"eval_strategy": "no", "early_stopping_patience": None}
        trained = folder / run.folder.replace("ax/", "mnli/", 1)
        if trained.exists():
            fields |= dict.fromkeys(("config_name", "config_overrides", "tokenizer_name"))
            fields["model_name_or_path"] = str(trained)
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def sweep_directory(training_args: FineTuningArguments, given: dict[str, Any]) -> Iterator[Path]:
    """OUTPUT.partial for the runs, renamed when all are done; the same command resumes there."""
    final = output_path(training_args.output_dir)
    with held(final, training_args):
        check_free(final)
        partial = final.with_name(final.name + ".partial")
        state = PartialState()
        if partial.exists():
            check_same_command(partial, given)
        state.wait_for_everyone()
        if state.is_main_process and not partial.exists():
            partial.mkdir(parents=True)
            write_command(partial, given)
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
