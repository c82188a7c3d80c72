"""Executes one run of a study: pretrains and fine-tunes a model, then returns the fields of the record."""

import json
import math
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import torch
from accelerate import PartialState
from transformers.trainer import TRAINER_STATE_NAME

from experiments.head_size.tasks import TASKS, train_synthetic
from experiments.head_size.tasks.training import TaskDivergence
from fixedbert.counts import forward_flops
from fixedbert.fine_tuning.sweep import sweep
from fixedbert.loading.heads import int_or_list
from fixedbert.pretraining import pretrain as pretraining
from fixedbert.publishing.model_card import versions
from fixedbert.support.errors import Divergence, InputError
from fixedbert.support.machine import hardware_name

from .metrics import METRICS
from .records import COUNTED, SHAPE
from .sources import DataSources
from .studies import FINE_TUNED, Run


def execute(run: Run, folder: Path, sources: DataSources) -> dict:
    """Executes or resumes a run in `folder`. Returns the fields of its Record, except the position in the study."""
    interrupted = folder.exists() and any(folder.iterdir())
    began = time.monotonic()
    fields = {
        "key": run.key,
        "objective": run.objective,
        **{name: getattr(run.config, name) for name in SHAPE},
        "num_attention_heads": int_or_list(run.config.head_counts),
        "attention_head_size": int_or_list(run.config.head_sizes),
        "value_head_size": int_or_list(run.config.value_head_sizes),
        "forward_flops": forward_flops(run.config, run.length),
        "max_seq_length": run.length,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "hardware": hardware_name(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }
    fields |= train_task(run) if run.objective in TASKS else train_on_text(run, folder, sources)
    results = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in fields["results"].items()
    }
    return fields | {"results": results, "seconds": None if interrupted else round(time.monotonic() - began, 1)}


ABSENT = dict.fromkeys(
    ("parameters", COUNTED, "training_flops", "tokens", "epochs", "texts", "curve", "decay_from"), None
)


def train_task(run: Run) -> dict:
    """Trains on a task with generated examples. If training diverges, the only result is a loss of None."""
    results: dict[str, float | None] = {"loss": None}
    try:
        results = train_synthetic(run.objective, run.config, run.pretraining[0], run.learning_rate, run.seed)
        examples = int(results["examples"] or 0)
    except TaskDivergence as error:
        print(f"{run.name}: {error}", file=sys.stderr)
        examples = error.examples
    tokens = examples * (1 if run.objective == "memorise" else run.length)  # its examples are single queries
    training_flops = 3 * forward_flops(run.config, run.length) * tokens
    return ABSENT | {"results": results, "tokens": tokens, "training_flops": training_flops}


def train_on_text(run: Run, folder: Path, sources: DataSources) -> dict:
    """Pretrains on text and fine-tunes. If pretraining diverges, the only result is a loss of None."""
    fields: dict = ABSENT.copy()
    results: dict[str, float | None] = {"loss": None}
    try:
        trained, summaries = pretrain(run, folder, sources)
        last = summaries[-1]
        counts = last["corpus"]["counts"]
        fields |= {
            "parameters": last["parameters"]["all"],
            COUNTED: last["parameters"]["besides embeddings"],
            "training_flops": run.training_flops,
            "tokens": sum(summary["real tokens seen"] for summary in summaries),
            "epochs": sum(summary["results"]["epoch"] for summary in summaries),
            "texts": f"{counts['documents']:,} documents, {counts['tokens']:,} tokens",
        }
        fields["curve"], fields["decay_from"] = learning_curve(run, trained, summaries)
        for task in ("pretraining", run.objective):
            results |= recorded_metrics(task, last["results"])
        for task in run.fine_tuning:
            results |= recorded_metrics(task, fine_tune(run, task, trained, folder, sources))
    except Divergence as error:
        print(f"{run.name}: {error}", file=sys.stderr)
    return fields | {"results": results}


def pretrain(run: Run, folder: Path, sources: DataSources) -> tuple[Path, list[dict]]:
    """Runs all stages of pretraining. Returns the directory of the last model and the summaries of the stages."""
    summaries: list[dict] = []
    for number, stage in enumerate(run.pretraining, start=1):
        output = folder / f"stage-{number}"
        seed = run.seed + 1000 * (number - 1)  # different examples in later stages
        settings = {"objective": run.objective, "learning_rate": run.learning_rate, "seed": seed, **stage}
        if number == 1:
            settings |= {"config_name": "tiny", "config_overrides": run.model}
        else:
            settings |= {"model_name_or_path": str(folder / f"stage-{number - 1}")}
        if not output.exists():
            settings |= sources.settings() | flow_settings()
            pretraining.pretrain(**settings, store_dir=sources.store_dir, output_dir=str(output))
        summaries.append(json.loads((output / "summary.json").read_text(encoding="utf-8")))
    return output, summaries


def learning_curve(run: Run, trained: Path, summaries: list[dict]) -> tuple[list[list], int | None]:
    """
    Returns [tokens seen in all stages, held-out loss] for each evaluation in the last stage, and the tokens seen at
    the last evaluation before the learning rate decays. The latter is None if there is no such evaluation.
    """
    *earlier, last = summaries
    before = sum(summary["real tokens seen"] for summary in earlier)
    log = json.loads((trained / TRAINER_STATE_NAME).read_text(encoding="utf-8"))["log_history"]
    evaluations = [(entry["num_input_tokens_seen"], entry["step"], entry) for entry in log if "eval_loss" in entry]
    evaluations.append((last["real tokens seen"], last["steps"], last["results"]))
    losses = {before + tokens: recorded_metrics("pretraining", found)["loss"] for tokens, _, found in evaluations}
    constant = [before + tokens for tokens, step, _ in evaluations if step <= constant_steps(run.pretraining[-1])]
    return [list(point) for point in sorted(losses.items())], max(constant, default=None)


def constant_steps(stage: dict) -> int:
    """Returns the step at which the learning rate starts to decay, or 0 if it decays right after warm-up."""
    schedule = stage.get("lr_scheduler_type", "linear")
    if schedule == "warmup_stable_decay":
        return stage["max_steps"] - stage["lr_scheduler_kwargs"]["num_decay_steps"]
    return stage["max_steps"] if schedule.startswith("constant") else 0


def flow_settings() -> dict:
    """Returns the arguments that pretraining and fine-tuning have in common."""
    on_cpu = not torch.accelerator.is_available()
    return {"do_train": True, "do_eval": True, "report_to": "none", "disable_tqdm": True, "use_cpu": on_cpu}


def fine_tune(run: Run, task: str, trained: Path, folder: Path, sources: DataSources) -> dict[str, float]:
    """Fine-tunes the pretrained model on a task, unless this is already done. Returns the results."""
    output = folder / task
    if not output.exists():
        settings = {"model_name_or_path": str(trained), "seed": run.seed, **run.fine_tuning[task], **flow_settings()}
        rows, devices = settings.pop("train_batch_size", None), PartialState().num_processes
        if rows is not None:
            if rows % devices:
                raise InputError(f"fine_tuning: a batch of {rows} rows cannot be divided among {devices} processes.")
            settings["per_device_train_batch_size"] = rows // devices
        sweep(FINE_TUNED[task], **settings, **sources.fine_tuning_data(task), output_dir=str(output))
    return json.loads((output / "all_results.json").read_text(encoding="utf-8"))


def recorded_metrics(task: str, results: dict[str, float]) -> dict[str, float | None]:
    """Returns those results of a task that are listed in METRICS, with their names in records as keys."""
    return {
        name: results[f"eval_{source}"]
        for name, metric in METRICS.items()
        if metric.task == task
        for source in metric.names
        if f"eval_{source}" in results
    }


@cache
def commit() -> str | None:
    """Returns the commit of this checkout, or None outside of a git repository."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    commands = ["rev-parse", "HEAD"], ["status", "--porcelain", "--", "fixedbert", "experiments", "*.py"]
    try:
        head, changed = (
            subprocess.check_output([*git, *words], stderr=subprocess.DEVNULL, text=True).strip() for words in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} with changes" if changed else head
