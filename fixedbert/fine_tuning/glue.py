"""Fine-tuning, evaluation and prediction for text classification and regression, on GLUE or the user's own data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState
from transformers import AutoModelForSequenceClassification, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.glue import TASKS
from ..data.tokenizers import check_features
from ..support.errors import InputError
from ..support.files import write_atomically
from ..training.arguments import ModelArguments, read_arguments, with_recipe
from ..training.output import Trained, record_metrics
from ..training.plots import draw_glue
from .examples import longest_first, warn_of_overlap
from .fine_tune import FineTuningTask
from .glue_metrics import glue_scores
from .labels import align_labels, default_names, match_names, submitted_names
from .sweep import sweep
from .texts import TextData, load_dataset, load_files, load_task, text_features
from .trainer import FineTuningArguments, FineTuningDataArguments, FineTuningTrainer

ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass
class GlueDataArguments(FineTuningDataArguments):
    """Arguments for the texts and their labels or scores."""

    task_name: list[str] | None = field(
        default=None, metadata={"help": f"One or more GLUE tasks ({', '.join(TASKS)}), or all."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Directory with the original GLUE download; by default, GLUE comes from the Hub."},
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "The text column, or two columns for text pairs, separated by a comma."}
    )
    label_column_name: str = field(default="label", metadata={"help": "The column with labels or scores."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Whether the labels are scores. By default, floats are scores."}
    )

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the tasks in the order in which they run, or [None] for the user's own data."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in TASKS if name != "ax" or predict]
        for name in names:
            if name not in TASKS:
                raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}, all.")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")  # ax needs the model trained on MNLI


def load_texts(task: str | None, arguments: GlueDataArguments, kinds: tuple[str, ...], **hub_options) -> TextData:
    """Loads the splits in `kinds` ("train", "validation", "test") from a GLUE task, a dataset on the Hub or files."""
    given = [name for name in ("task_name", "dataset_name", "train_file") if getattr(arguments, name)]
    if len(given) > 1:
        raise InputError(f"cannot be combined with `{given[1]}`.", given[0])
    limits = {kind: arguments.max_samples(kind) for kind in kinds}
    if task:
        return load_task(task, arguments.data_dir, kinds, arguments.skip_bad_rows, limits, **hub_options)
    texts = tuple(arguments.text_column_names.split(",")) if arguments.text_column_names else None
    if texts and len(texts) > 2:
        raise InputError("accepts at most two columns.", "text_column_names")
    options: dict[str, Any] = {
        "do_regression": arguments.do_regression,
        "skip_bad_rows": arguments.skip_bad_rows,
        "text_columns": texts,
        "label_column": arguments.label_column_name,
        "max_samples": limits,
    }
    if arguments.dataset_name:
        return load_dataset(arguments.dataset_name, arguments.dataset_config_name, kinds, hub_options, **options)
    files = {kind: getattr(arguments, f"{kind}_file") for kind in kinds}
    if absent := [f"`{kind}_file`" for kind, file in files.items() if file is None]:
        raise InputError(f"no data specified; set `task_name` or `dataset_name`, or set {' and '.join(absent)}.")
    return load_files(files, **options)


def main(argv: list[str] | None = None, prog: str | None = None):
    """Fine-tunes with command-line flags (by default `sys.argv`), and prints the results."""
    PartialState().print(fine_tune_glue(**read_arguments(argv, *TextClassification.arguments, prog=prog)))


def fine_tune_glue(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tunes a model for text classification or regression, evaluates it, and writes predictions.

    Args:
        recipe: path to a YAML file with arguments. Keyword arguments take precedence.
        given: the flags listed by `fixedbert glue --help`, as keyword arguments. The most important ones are
            `model_name_or_path`, `task_name` or `train_file` and `validation_file`, `do_train=True`, `do_eval=True`,
            `output_dir`, `num_train_epochs`, `learning_rate`, `per_device_train_batch_size` and `seeds`.

    Returns:
        The output directory and the metrics.

    Raises:
        InputError: If the arguments contradict each other, or the data are invalid.
        KeyboardInterrupt: If the user presses Ctrl-C. The same call then resumes from the last checkpoint.
    """
    return sweep(TextClassification, **with_recipe(recipe, given))


class TextClassification(FineTuningTask):
    """Text classification or regression, on a GLUE task or the user's own texts."""

    arguments = (ModelArguments, GlueDataArguments, FineTuningArguments)
    auto_class = AutoModelForSequenceClassification

    def __init__(
        self, name: str | None, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, arguments: tuple
    ):
        model_args, data_args, training_args = arguments
        hub_options = {"cache_dir": model_args.cache_dir, "token": model_args.token}
        self.name, self.data = name, load_texts(name, data_args, training_args.kinds, **hub_options)
        label_ids, self.new_head = align_labels(self.data.labels, config, training_args.do_train)
        class_names = [] if config.num_labels == 1 else default_names(config)
        self.compute_metrics = self.evaluation = GlueEvaluation(name, class_names)
        self.features, options = {}, data_args.map_options()
        for split, rows in self.data.splits.items():
            self.features[split] = text_features(rows, tokenizer, data_args.max_seq_length, label_ids, **options)
            check_features(split, self.features[split], tokenizer)
        for split, rows in self.data.of_kind("validation").items():
            warn_of_overlap(split, self.data.splits.get("train"), rows, ("sentence1", "sentence2"))
        self.evaluated = {split: longest_first(self.features[split])[0] for split in self.data.of_kind("validation")}

    def evaluate(self, trainer: FineTuningTrainer):
        metrics: dict[str, float] = {}
        panels = []
        for split, rows in self.evaluated.items():
            if split == "validation_mismatched":  # named eval_accuracy_mm, as in run_glue.py
                results = trainer.evaluate(rows, metric_key_prefix="eval_mm") | {"eval_mm_samples": len(rows)}
                results = {f"{name.replace('eval_mm_', 'eval_')}_mm": value for name, value in results.items()}
            else:
                results = trainer.evaluate(rows) | {"eval_samples": len(rows)}
            metrics |= results
            panels.append((split, self.evaluation.label_ids, self.evaluation.predictions))
        record_metrics(trainer, "eval", metrics)
        if trainer.is_world_process_zero():
            title, file = self.name or "validation file", trainer.args.directory / "glue.png"
            draw_glue(trainer.state.log_history, title, panels, self.evaluation.class_names, file)

    def predict(self, trainer: FineTuningTrainer):
        for split, rows in self.data.of_kind("test").items():
            features, order = longest_first(self.features[split])
            predictions = np.empty(len(order))
            output = trainer.predict(features, metric_key_prefix="predict").predictions
            predictions[order] = self.evaluation.predict(output)
            names = self.evaluation.class_names
            if trainer.is_world_process_zero():
                write_predictions(trainer.args.directory, self.name, split, rows, names, predictions)


class GlueEvaluation:
    """
    Computes the metrics for a task. Also keeps the labels and predictions from the last evaluation, for the plot.

    Instances can be passed to Trainer as `compute_metrics`.

    Args:
        task: the GLUE task, or None for other data.
        class_names: label names in the order of the model's logits. Empty for regression.
    """

    def __init__(self, task: str | None, class_names: list[str]):
        self.task = task or ("classification" if class_names else "regression")
        self.class_names = class_names
        self.label_ids = self.predictions = np.array([])  # (examples,)
        names = [*TASKS[task].labels] if task in TASKS else []
        # GLUE's positive class is 1, but the model can use different label ids.
        matched = match_names(names, class_names)
        self.positive = matched[1] if matched else 1

    def predict(self, output: np.ndarray | tuple) -> np.ndarray:
        """Returns label ids or scores (examples,) for logits (examples, classes), or for a tuple of all outputs."""
        logits = output[0] if isinstance(output, tuple) else output
        return logits.argmax(axis=1) if self.class_names else logits[:, 0]

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.label_ids, self.predictions = np.asarray(prediction.label_ids), self.predict(prediction.predictions)
        metrics = glue_scores(self.task, self.predictions, self.label_ids, self.positive)
        if self.task in TASKS and len(metrics) > 1:
            metrics["combined_score"] = float(np.mean(list(metrics.values())))
        return metrics


def write_predictions(
    directory: Path,
    task: str | None,
    split: str,
    rows: datasets.Dataset,
    class_names: list[str],
    predictions: np.ndarray,
):
    """
    Writes the columns `index` and `prediction` to the submission file for a GLUE task, or to predict_results.txt.

    `predictions` (rows,) are indices into `class_names`, or scores if `class_names` is empty.
    """
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    names = submitted_names(task, class_names) if task else class_names
    values = [names[int(number)] for number in predictions] if names else [f"{score:.3f}" for score in predictions]
    file = TASKS[task].submission(split) if task else "predict_results.txt"
    lines = [("index", "prediction"), *zip(rows["index"], values, strict=True)]
    content = "".join("\t".join(cell.translate(ESCAPES) for cell in line) + "\n" for line in lines)
    write_atomically(directory / file, content)
