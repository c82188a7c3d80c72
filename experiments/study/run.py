"""One run of a study: pretraining, fine-tuning, and the record of its settings and results."""

import json
import math
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import AutoConfig
from transformers.trainer import TRAINER_STATE_NAME

from fixedbert.counts import forward_flops
from fixedbert.fine_tuning.sweep import sweep
from fixedbert.pretraining import pretrain as pretraining
from fixedbert.publishing.model_card import hardware_name, versions
from fixedbert.support.errors import Divergence, InputError

from .records import COUNTED, SHAPE, Record
from .registry import METRICS, TASKS
from .sources import FINE_TUNED, DataSources
from .studies import FINE_TUNING, Run


def execute(run: Run, folder: Path, sources: DataSources) -> Record:
    """
    Train as `run` says, in `folder`, and go on there with what was interrupted.

    Returns:
        The record of the run: shape, counts, settings, results, and where and with what it ran. `seconds` is None if
        the run was interrupted in between. Of a run that diverged, the results are None or absent; in pretraining
        on a text so are `tokens` and `training_flops`.
    """
    interrupted = folder.exists() and any(folder.iterdir())
    began = time.monotonic()
    config = run.config
    tokens, training_flops, texts, epochs, curve, decay_from = None, None, None, None, None, None
    parameters: dict[str, int] = {}
    results: dict[str, float | None] = {"loss": None}
    try:
        if run.objective in TASKS:
            results = TASKS[run.objective].train(config, run.pretraining[0], run.learning_rate, run.seed)
            examples = int(results["examples"] or 0)
        else:
            trained, summaries = pretrain(run, folder, sources)
            config, parameters = AutoConfig.from_pretrained(trained), summaries[-1]["parameters"]
            counts = summaries[-1]["corpus"]["counts"]
            texts = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
            tokens, training_flops = sum(summary["real tokens seen"] for summary in summaries), run.training_flops
            epochs = sum(summary["results"]["epoch"] for summary in summaries)
            for task in ("pretraining", run.objective):
                results |= recorded_metrics(task, summaries[-1]["results"])
            curve, decay_from = learning_curve(run, trained, summaries)
            for task in FINE_TUNING:
                if task in run.fine_tuning:
                    results |= recorded_metrics(task, fine_tune(run, task, trained, folder, sources))
    except Divergence as error:  # a result too: of this rate, or of this shape
        print(f"{run.name}: {error}", file=sys.stderr)
        examples = error.examples
    if run.objective in TASKS:  # not to the cap
        tokens = examples * (1 if TASKS[run.objective].single_queries else run.length)
        training_flops = 3 * forward_flops(config, run.length) * tokens
    return {
        "key": run.key,
        "objective": run.objective,
        **{name: getattr(config, name) for name in SHAPE},
        "attention_head_size": config.head_dim,
        "value_head_size": max(config.value_head_sizes),
        "parameters": parameters.get("all"),
        COUNTED: parameters.get("besides embeddings"),
        "forward_flops": forward_flops(config, run.length),
        "training_flops": training_flops,
        "max_seq_length": run.length,
        "tokens": tokens,
        "epochs": epochs,
        "texts": texts,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "results": {
            name: value if value is not None and math.isfinite(value) else None for name, value in results.items()
        },
        "curve": curve,
        "decay_from": decay_from,
        "seconds": None if interrupted else round(time.monotonic() - began, 1),
        "hardware": hardware_name(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }


def pretrain(run: Run, folder: Path, sources: DataSources) -> tuple[Path, list[dict]]:
    """The directory of the last stage's model, and the summary of every stage."""
    summaries: list[dict] = []
    for number, stage in enumerate(run.pretraining, start=1):
        output = folder / f"stage-{number}"
        seed = run.seed + 1000 * (number - 1)  # a later stage draws other examples
        settings = {"objective": run.objective, "learning_rate": run.learning_rate, "seed": seed, **stage}
        if number == 1:
            settings |= {"config_name": "tiny", "config_overrides": run.model}
        else:
            settings |= {"model_name_or_path": str(folder / f"stage-{number - 1}")}
        if not output.exists():
            settings |= sources.settings() | flow_settings()
            if sources.store_dir is not None:
                settings["store_dir"] = sources.store_dir
            pretraining.pretrain(**settings, output_dir=str(output))
        summaries.append(json.loads((output / "summary.json").read_text(encoding="utf-8")))
    return output, summaries


def learning_curve(run: Run, trained: Path, summaries: list[dict]) -> tuple[list[list], int | None]:
    """
    [Tokens so far, held-out loss] at every evaluation of the last stage, with tokens of all stages; and the tokens at
    the last of them before the learning rate falls, None where there is none.
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
    """The steps before the learning rate falls; 0 where it begins to fall as soon as the warm-up ends."""
    schedule = stage.get("lr_scheduler_type", "linear")
    if schedule == "warmup_stable_decay":
        return stage["max_steps"] - stage["lr_scheduler_kwargs"]["num_decay_steps"]
    return stage["max_steps"] if schedule.startswith("constant") else 0


def flow_settings() -> dict:
    """Arguments of pretraining and of fine-tuning alike."""
    on_cpu = not torch.accelerator.is_available()
    return {"do_train": True, "do_eval": True, "report_to": "none", "disable_tqdm": True, "use_cpu": on_cpu}


def fine_tune(run: Run, task: str, trained: Path, folder: Path, sources: DataSources) -> dict[str, float]:
    """The results of run_glue.py or run_squad.py on the pretrained model."""
    output = folder / task
    if not output.exists():
        settings = {"model_name_or_path": str(trained), "seed": run.seed, **run.fine_tuning[task], **flow_settings()}
        rows, devices = settings.pop("train_batch_size", None), PartialState().num_processes
        if rows is not None:
            if rows % devices:
                raise InputError(f"fine_tuning: a batch of {rows} cannot be shared out among {devices} processes.")
            settings["per_device_train_batch_size"] = rows // devices
        settings |= sources.fine_tuning_data(task) | {"output_dir": str(output)}  # the command's before the study's
        sweep(FINE_TUNED[task], **settings)
    return json.loads((output / "all_results.json").read_text(encoding="utf-8"))


def recorded_metrics(task: str, results: dict[str, float]) -> dict[str, float | None]:
    """The results of a task that METRICS lists, under the names of records."""
    return {
        name: results[f"eval_{source}"]
        for name, metric in METRICS.items()
        if metric.task == task
        for source in metric.names
        if f"eval_{source}" in results
    }


@cache
def commit() -> str | None:
    """The commit of this checkout, read once; None if the package was installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "fixedbert", "experiments", "*.py"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} with changes" if changed else head
