"""One run of a study: train, fine-tune, and a record of what it was and what came out."""

import json
import math
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import AutoConfig

from ..analysis.counts import forward_flops
from ..data.corpora import CorpusReader, corpus_files, file_format
from ..data.glue import load_task
from ..data.squad import load_squad
from ..errors import Divergence, InputError
from ..model_card import hardware_name, versions
from ..training.arguments import ModelArguments, flags, parse
from ..training.pretraining_data import DataArguments
from .studies import Run, Study
from .synthetic import TASKS, train_synthetic

SQUAD_FILES = {"train_file": "train-v1.1.json", "validation_file": "dev-v1.1.json"}
# What is kept of the metrics that the scripts write, and under which name.
PRETRAINING = {
    "mlm_loss": "loss",
    "clm_loss": "loss",
    "perplexity": "perplexity",
    "mlm_accuracy": "accuracy",
    "clm_accuracy": "accuracy",
    "nsp_accuracy": "nsp_accuracy",
}
FINE_TUNING = {
    "mnli": {"accuracy": "mnli_accuracy", "accuracy_mm": "mnli_accuracy_mm"},
    "squad": {"f1": "squad_f1", "exact_match": "squad_exact_match"},
}


@dataclass(frozen=True)
class Data:
    """
    Where the texts of a study are: arguments of run_pretraining.py; `glue_dir` is --data_dir of run_glue.py, and
    `squad_dir` a folder with SQuAD 1.1's train-v1.1.json and dev-v1.1.json. Without these two the Hub is asked.
    """

    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    dataset_name: list[str] | None = None
    dataset_config_name: list[str] | None = None
    document_boundary: list[str] | None = None
    tokenizer_name: str | None = None
    store_dir: str | None = None
    glue_dir: str | None = None
    squad_dir: str | None = None

    def check(self, study: Study):
        """
        Look at all texts, as the runs will read them; the main process does, others wait.

        Raises:
            InputError: texts that the study needs are not named, not there, or of another form.
        """
        state = PartialState(cpu=not torch.accelerator.is_available())
        if state.is_main_process:
            self.check_texts(study)
        state.wait_for_everyone()

    def check_texts(self, study: Study):
        """Read the first document of every file with columns, and of a text file; of MNLI and SQuAD all rows."""
        objectives = {series.get("objective", study.objective) for series in study.series.values()}
        if objectives - set(TASKS):
            if not (self.train_file or self.dataset_name):
                raise InputError(f"study {study.name}: no corpus: give --train_file, or --dataset_name.")
            for stage in study.pretraining:
                self.check_corpora(stage)
        if "squad" in study.fine_tuning and self.squad_dir:
            for name in SQUAD_FILES.values():
                if not Path(self.squad_dir, name).is_file():
                    raise InputError(f"--squad_dir {self.squad_dir}: there is no {name} in it.")
                load_squad(str(Path(self.squad_dir, name)))
        if "mnli" in study.fine_tuning and self.glue_dir:
            if not Path(self.glue_dir).is_dir():
                raise InputError(f"--glue_dir {self.glue_dir}: no such folder.")
            load_task("mnli", self.glue_dir)

    def check_corpora(self, stage: dict):
        names = {option.name for option in fields(DataArguments)}
        of_texts = {name: value for name, value in {**stage, **self.settings()}.items() if name in names}
        (arguments,) = parse(flags(of_texts), DataArguments)
        corpora = arguments.corpora(ModelArguments())
        corpora += [replace(corpora[0], source=file, on_hub=False) for file in arguments.validation_file or []]
        for corpus in corpora:
            local = not (corpus.on_hub or corpus.is_sample)
            parts = [replace(corpus, source=str(file)) for file in corpus_files(corpus.source)] if local else [corpus]
            found = False
            for part in parts:
                # A text file has no columns that could be missing, and can be a single document.
                if not found or file_format(Path(part.source)) != ".txt":
                    found |= next(iter(CorpusReader(part)), None) is not None
            if not found:
                raise InputError(f"{corpus.source}: there is no document in it.")

    def settings(self) -> dict:
        """What decides which texts pretraining has."""
        return {name: value for name, value in asdict(self).items() if value is not None and not name.endswith("_dir")}

    def pretraining_flags(self) -> list[str]:
        return flags({**self.settings(), "store_dir": self.store_dir})

    def fine_tuning_flags(self, task: str) -> list[str]:
        if task == "mnli":
            return flags({"task_name": "mnli", "data_dir": self.glue_dir})
        if self.squad_dir is None:
            return flags({"dataset_name": "rajpurkar/squad"})
        return flags({name: str(Path(self.squad_dir, file)) for name, file in SQUAD_FILES.items()})


def execute(run: Run, folder: Path, data: Data) -> dict:
    """
    Train as `run` says, in `folder`, and go on there with what was interrupted.

    Returns:
        The record of the run: shape, counts, settings, results, and where and with what it ran. `seconds` is None if
        the run was interrupted in between. Of a run that diverged, the results are None or absent.
    """
    interrupted = folder.exists() and any(folder.iterdir())
    began = time.monotonic()
    config, tokens, parameters, texts, epochs = run.config, run.tokens, {}, None, None
    results = {"loss": math.nan}
    try:
        if run.objective in TASKS:
            results = train_synthetic(run)
        else:
            trained, summaries = pretrain(run, folder, data)
            config, parameters = AutoConfig.from_pretrained(trained), summaries[-1]["parameters"]
            counts = summaries[-1]["corpus"]["counts"]
            texts = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
            tokens = sum(summary["real tokens seen"] for summary in summaries)
            epochs = sum(summary["results"]["epoch"] for summary in summaries)
            results = kept(summaries[-1]["results"], PRETRAINING)
            for task, names in FINE_TUNING.items():
                if task in run.fine_tuning:
                    results |= kept(fine_tune(run, task, trained, folder, data), names)
    except Divergence as error:  # a result too: of this rate, or of this shape
        print(f"{run.name}: {error}", file=sys.stderr)
    return {
        "key": run.key,
        "objective": run.objective,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "head_embedding": config.head_embedding,
        "qk_norm": config.qk_norm,
        "parameters": parameters.get("all"),
        "non_embedding_parameters": parameters.get("besides embeddings"),
        "forward_flops": forward_flops(config, run.length),
        "training_flops": run.training_flops,
        "max_seq_length": run.length,
        "tokens": tokens,
        "epochs": epochs,
        "texts": texts,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "results": {name: value if math.isfinite(value) else None for name, value in results.items()},
        "seconds": None if interrupted else round(time.monotonic() - began, 1),
        "hardware": hardware_name(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }


def pretrain(run: Run, folder: Path, data: Data) -> tuple[Path, list[dict]]:
    """The directory of the last stage's model, and the summary of every stage."""
    import run_pretraining

    trained, summaries = None, []
    for number, stage in enumerate(run.pretraining, start=1):
        output = folder / f"stage-{number}"
        seed = run.seed + 1000 * (number - 1)  # a later stage draws other examples
        settings = {"objective": run.objective, "learning_rate": run.learning_rate, "seed": seed, **stage}
        if trained is None:
            overrides = ",".join(f"{name}={value}" for name, value in run.model.items())
            settings |= {"config_name": "tiny", "config_overrides": overrides}
        else:
            settings |= {"model_name_or_path": str(trained)}
        if not output.exists():
            run_pretraining.main(
                [*flags(settings), *data.pretraining_flags(), *flags({"output_dir": str(output), **common()})]
            )
        trained = output
        summaries.append(json.loads((output / "summary.json").read_text(encoding="utf-8")))
    return trained, summaries


def common() -> dict:
    """Arguments that all scripts get."""
    on_cpu = not torch.accelerator.is_available()
    return {"do_train": True, "do_eval": True, "report_to": "none", "disable_tqdm": True, "use_cpu": on_cpu}


def fine_tune(run: Run, task: str, trained: Path, folder: Path, data: Data) -> dict[str, float]:
    """The results of run_glue.py or run_squad.py on the pretrained model."""
    import run_glue
    import run_squad

    output = folder / task
    if not output.exists():
        settings = {"model_name_or_path": str(trained), "seed": run.seed, **run.fine_tuning[task], **common()}
        rows, devices = settings.pop("train_batch_size", None), PartialState().num_processes
        if rows is not None:
            if rows % devices:
                raise InputError(f"fine_tuning: a batch of {rows} cannot be shared out among {devices} processes.")
            settings["per_device_train_batch_size"] = rows // devices
        main = {"mnli": run_glue, "squad": run_squad}[task].main
        main([*flags(settings), *data.fine_tuning_flags(task), *flags({"output_dir": str(output)})])
    return json.loads((output / "all_results.json").read_text(encoding="utf-8"))


def kept(metrics: dict[str, float], names: dict[str, str]) -> dict[str, float]:
    return {new: metrics[f"eval_{name}"] for name, new in names.items() if f"eval_{name}" in metrics}


@cache
def commit() -> str | None:
    """That of the checkout which this code is in, at the first call; None if it was installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "fixedbert", "*.py"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} with changes" if changed else head
