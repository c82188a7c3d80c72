"""Text classification and regression: fine-tunes, evaluates and predicts on GLUE tasks or the user's own data."""

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
from .examples import longest_first, print_overlap
from .fine_tune import FineTuningTask
from .glue_metrics import glue_scores
from .labels import align_labels, default_names, label_numbers, same_names, submitted_names
from .sweep import sweep
from .texts import TextData, load_dataset, load_files, load_task, text_features
from .trainer import FineTuningArguments, FineTuningDataArguments, FineTuningTrainer

ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass
class GlueDataArguments(FineTuningDataArguments):
    """The texts, labels and scores."""

    task_name: list[str] | None = field(default=None, metadata={"help": f"GLUE tasks: {', '.join(TASKS)}; or all."})
    data_dir: str | None = field(
        default=None, metadata={"help": "Directory with the GLUE download; defaults to the copy on the Hub."}
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "The text column, or the two columns of a pair separated by a comma."}
    )
    label_column_name: str = field(default="label", metadata={"help": "The label column."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "True if the labels are scores; by default, if they are floats."}
    )

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the tasks in the order of their runs, with ax last, because it requires the MNLI model."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in TASKS if name != "ax" or predict]
        for name in names:
            if name not in TASKS:
                raise InputError(f"{name}: unknown task; choose from {', '.join(TASKS)}, or all.", "task_name")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")


def load_texts(task: str | None, arguments: GlueDataArguments, kinds: tuple[str, ...], **hub_options) -> TextData:
    """Loads the splits for `kinds` from a GLUE task, a dataset on the Hub or files."""
    given = [name for name in ("task_name", "dataset_name", "train_file") if getattr(arguments, name)]
    if len(given) > 1:
        raise InputError(f"cannot be combined with `{given[1]}`.", given[0])
    limits = {kind: arguments.max_samples(kind) for kind in kinds}
    if task:
        return load_task(task, arguments.data_dir, kinds, arguments.skip_bad_rows, limits, **hub_options)
    texts = tuple(arguments.text_column_names.split(",")) if arguments.text_column_names else None
    if texts and len(texts) > 2:
        raise InputError("name one or two columns.", "text_column_names")
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
        raise InputError(f"no data; set {' and '.join(absent)}, `task_name` or `dataset_name`.")
    return load_files(files, **options)


def main(argv: list[str] | None = None, prog: str | None = None):
    """Fine-tunes on one or several tasks and seeds. `argv` are flags, as in `read_arguments`."""
    PartialState().print(fine_tune_glue(**read_arguments(argv, *TextClassification.arguments, prog=prog)))


def fine_tune_glue(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tunes, evaluates and predicts on GLUE tasks or on the user's own texts.

    Args:
        recipe: a YAML file with arguments; keyword arguments take precedence.
        given: the flags that `fixedbert glue --help` lists. The most important ones are `model_name_or_path`,
            `task_name` or `train_file` and `validation_file`, `do_train=True`, `do_eval=True`, `output_dir`,
            `num_train_epochs`, `learning_rate`, `per_device_train_batch_size` and `seeds`.

    Returns:
        The output directory, with the metrics.

    Raises:
        InputError: the arguments contradict each other, or the data cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed. The same call resumes from the checkpoint saved before.
    """
    return sweep(TextClassification, **with_recipe(recipe, given))


class TextClassification(FineTuningTask):
    """A GLUE task, or the user's own texts with class labels or scores."""

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
            print_overlap(split, self.data.splits.get("train"), rows, ("sentence1", "sentence2"))
        self.evaluated = {split: longest_first(self.features[split])[0] for split in self.data.of_kind("validation")}

    def evaluate(self, trainer: FineTuningTrainer):
        metrics: dict[str, float] = {}
        panels = []
        for split, rows in self.evaluated.items():
            if split == "validation_mismatched":  # eval_accuracy_mm, like in transformers' run_glue.py
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
    Computes the metrics of a task as Trainer's `compute_metrics`, and keeps labels and predictions for the plot.

    `class_names` are in the order of the model's logits; empty for regression.
    """

    def __init__(self, task: str | None, class_names: list[str]):
        self.task = task or ("classification" if class_names else "regression")
        self.class_names = class_names
        self.label_ids = self.predictions = np.array([])  # (examples,)
        names = [*TASKS[task].labels] if task in TASKS else []
        # In GLUE class 1 is the positive class, but the model may have different label ids.
        self.positive = label_numbers(class_names, names)[1] if names and same_names(names, class_names) else 1

    def predict(self, output: np.ndarray | tuple) -> np.ndarray:
        """Returns class ids or scores, (examples,), from logits, (examples, classes), or from all outputs."""
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
    """Writes the columns `index` and `prediction` to a GLUE submission or to predict_results.txt."""
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    names = submitted_names(task, class_names) if task else class_names
    values = [names[int(number)] for number in predictions] if names else [f"{score:.3f}" for score in predictions]
    file = TASKS[task].submission(split) if task else "predict_results.txt"
    lines = [("index", "prediction"), *zip(rows["index"], values, strict=True)]
    content = "".join("\t".join(cell.translate(ESCAPES) for cell in line) + "\n" for line in lines)
    write_atomically(directory / file, content)
