"""Fine-tune, evaluate and predict on texts or pairs of texts: the tasks of GLUE, or one's own files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState
from scipy.optimize import linear_sum_assignment
from transformers import (
    AutoModelForSequenceClassification,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ..data.glue import TASKS
from ..data.token_report import report_tokens, tokenized_features
from ..support.errors import InputError
from ..support.files import write_whole
from ..training.arguments import ModelArguments, beside_recipe, read_arguments
from ..training.results import Trained, record_metrics
from .fine_tune import FineTuningTask
from .glue_metrics import MEASURES, METRICS, glue_scores
from .labels import enumerated, names_of_task, plain
from .pictures import draw_glue
from .sweep import sweep
from .texts import TextData, load_dataset, load_files, load_task, text_features, with_labels_of_model
from .trainer import (
    FineTuningArguments,
    FineTuningDataArguments,
    FineTuningTrainer,
    first_rows,
    longest_first,
    print_overlap,
)


@dataclass
class GlueDataArguments(FineTuningDataArguments):
    """Which texts, and how they become tokens."""

    task_name: list[str] | None = field(
        default=None, metadata={"help": f"Tasks of GLUE, of {', '.join(TASKS)}; or all."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with the tasks in the layout of the GLUE download; default: the Hub."}
    )
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv, .jsonl or .parquet file."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict, with or without labels."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "The column with the text, or the two of a pair, with a comma between them."}
    )
    label_column_name: str = field(default="label", metadata={"help": "The column with the label."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Whether labels are numbers to predict; default: if some have fractions."}
    )

    def columns(self) -> dict:
        """The columns of one's own files, for `load_files`."""
        texts = tuple(self.text_column_names.split(",")) if self.text_column_names else None
        if texts and (len(texts) > 2 or self.label_column_name in texts):
            raise InputError(f"{self.text_column_names}: one or two columns, not the label's.", "text_column_names")
        return {"text_columns": texts, "label_column": self.label_column_name}

    def tasks(self, predict: bool) -> list[str | None]:
        """The tasks in the order of their runs: the diagnostics after MNLI, by whose model they are predicted."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in TASKS if name != "ax" or predict]
        for name in names:
            if name not in TASKS:
                raise InputError(f"{name}: no such task; there are {', '.join(TASKS)}, and all.", "task_name")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")


def load_texts(task: str | None, arguments: GlueDataArguments, kinds: tuple[str, ...], **hub_options) -> TextData:
    """The splits of `kinds`: of the task, or else of the data set, or else of the files."""
    skip = arguments.skip_bad_rows
    named = [name for name in ("task_name", "dataset_name", "train_file") if getattr(arguments, name)]
    if len(named) > 1:
        raise InputError(f"and `{named[1]}`: give one of the two.", named[0])
    columns = arguments.columns()
    if task:
        if arguments.text_column_names or arguments.label_column_name != "label":
            raise InputError(
                f"{task}: its columns are known; leave `text_column_names` and `label_column_name` out.", "task_name"
            )
        return load_task(task, arguments.data_dir, kinds, skip, **hub_options)
    if arguments.dataset_name:
        name, config = arguments.dataset_name, arguments.dataset_config_name
        return load_dataset(name, config, kinds, arguments.do_regression, skip, **columns, **hub_options)
    files = {kind: getattr(arguments, f"{kind}_file") for kind in kinds}
    if not any(files.values()):
        raise InputError("no data: give `task_name`, `dataset_name`, or `train_file` and `validation_file`.")
    for kind, file in files.items():
        if file is None:
            raise InputError(f"no rows for {kind}: give `{kind}_file`.")
    return load_files(files, arguments.do_regression, skip, **columns)


def main(argv: list[str] | None = None, prog: str | None = None):
    """Fine-tune on one task or more, with one seed or more. `argv` are flags, as in `read_arguments`."""
    PartialState().print(fine_tune_glue(**read_arguments(argv, *TextClassification.arguments, prog=prog)))


def fine_tune_glue(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tune, evaluate and predict on tasks of GLUE, or on texts of one's own.

    Args:
        recipe: a YAML file of arguments; those of the call win.
        given: the flags of run_glue.py. `fixedbert glue --help` lists them all; the usual ones are
            `model_name_or_path`, `task_name` or `train_file` and `validation_file`, `do_train=True`, `do_eval=True`,
            `output_dir`, `num_train_epochs`, `learning_rate`, `per_device_train_batch_size`, `seeds`.

    Returns:
        The output directory, with the metrics.

    Raises:
        InputError: arguments that contradict each other, or input that cannot be used.
        KeyboardInterrupt: Ctrl-C, after a checkpoint; the message says from where the same call goes on.
    """
    return sweep(TextClassification, **beside_recipe(recipe, given))


class TextClassification(FineTuningTask):
    """A task of GLUE, or other texts with classes or scores."""

    arguments = (ModelArguments, GlueDataArguments, FineTuningArguments)
    auto_class = AutoModelForSequenceClassification

    def __init__(
        self,
        name: str | None,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        model_args: ModelArguments,
        data_args: GlueDataArguments,
        training_args: FineTuningArguments,
    ):
        hub_options = {"cache_dir": model_args.cache_dir, "token": model_args.token}
        data = load_texts(name, data_args, training_args.kinds, **hub_options)
        data, self.new_head = with_labels_of_model(data, config, training_args.do_train)
        assert data.labels is not None  # they are those of the model, where the data has none
        data.splits = {
            split: first_rows(rows, data_args.max_samples(split.split("_")[0])) for split, rows in data.splits.items()
        }
        for split, rows in data.of_kind("validation").items():
            print_overlap(split, data.splits.get("train"), rows, ("sentence1", "sentence2"))
        self.name, self.data, self.labels, self.fingerprinted = name, data, data.labels, (data.labels,)
        self.features = {
            split: text_features(
                rows,
                tokenizer,
                data_args.max_seq_length,
                num_proc=data_args.preprocessing_num_workers,
                overwrite_cache=data_args.overwrite_cache,
            )
            for split, rows in data.splits.items()
        }
        for split, rows in data.splits.items():
            texts = (row[column] for row in rows for column in ("sentence1", "sentence2") if column in row)
            found = tokenized_features(self.features[split], texts, tokenizer, data_args.max_seq_length)
            report_tokens(split, found, tokenizer)
        self.evaluated = {split: longest_first(self.features[split])[0] for split in data.of_kind("validation")}
        self.compute_metrics = self.evaluation = GlueEvaluation(name, self.labels, data.assumed)

    def evaluate(self, trainer: FineTuningTrainer):
        metrics: dict[str, float] = {}
        shown = []
        for split, rows in self.evaluated.items():
            if split == "validation_mismatched":  # eval_accuracy_mm, as in transformers' run_glue.py
                found = trainer.evaluate(rows, metric_key_prefix="eval_mm") | {"eval_mm_samples": len(rows)}
                found = {f"{name.replace('eval_mm_', 'eval_')}_mm": value for name, value in found.items()}
            else:
                found = trainer.evaluate(rows) | {"eval_samples": len(rows)}
            metrics |= found
            if fitting := self.evaluation.order_that_fits():
                PartialState().print(f"{split}: {fitting}")
            shown.append((split, self.evaluation.right, self.evaluation.predicted))
        record_metrics(trainer, "eval", metrics)
        if trainer.is_world_process_zero():
            draw_glue(trainer, self.name or "validation file", shown, self.evaluation.labels)

    def predict(self, trainer: FineTuningTrainer):
        for split, rows in self.data.of_kind("test").items():
            predictions = self.predictions(trainer, self.features[split])
            if trainer.is_world_process_zero():
                folder = str(trainer.args.folder)
                write_predictions(folder, self.name, split, rows, self.labels, predictions)

    def predictions(self, trainer: FineTuningTrainer, features: datasets.Dataset) -> np.ndarray:
        """The class or the score of each row, in their order, (rows,)."""
        ordered, order = longest_first(features)
        predictions = np.empty(len(order))
        output = trainer.predict(ordered, metric_key_prefix="predict").predictions
        predictions[order] = self.evaluation.predict(output)
        return predictions


def check_metrics():
    """
    Raises:
        ValueError: a task with validation splits has no metrics, or one that nothing computes.
    """
    for name, task in TASKS.items():
        if any(split.startswith("validation") for split in task.files) and not METRICS.get(name):
            raise ValueError(f"the task {name} has no metrics: add them to METRICS in glue_metrics.py.")
    for name, metrics in METRICS.items():
        if absent := [metric for metric in metrics if metric not in MEASURES]:
            raise ValueError(f"the metric {absent[0]} of {name}: add it to MEASURES in glue_metrics.py.")


check_metrics()  # before a model is trained


class GlueEvaluation:
    """
    For Trainer's `compute_metrics`: metrics by task; keeps what was predicted last, for the picture.

    Args:
        labels: of the model; none for a regression.
        assumed: what they are taken to mean, where the model has no names for them.
    """

    def __init__(self, task: str | None, labels: list[str], assumed: list[str] | None = None):
        self.task = task or ("classification" if labels else "regression")
        self.labels = labels
        self.assumed = assumed or []
        self.right = self.predicted = np.array([])  # (examples,)

    def predict(self, output: np.ndarray | tuple) -> np.ndarray:
        """Classes or scores, (examples,), from logits, (examples, labels); some models return more than these."""
        logits = output[0] if isinstance(output, tuple) else output
        return logits.argmax(axis=1) if self.labels else logits[:, 0]

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.right, self.predicted = np.asarray(prediction.label_ids), self.predict(prediction.predictions)
        right, predicted = self.right, self.predicted
        if self.task in TASKS and self.labels:  # a model can number the task's labels in another way
            names = [plain(name) for name in TASKS[self.task].labels]
            labels = [plain(label) for label in self.assumed or self.labels]
            number = np.array([names.index(label) if label in names else -1 for label in labels])
            right, predicted = number[right], number[predicted]
        metrics = glue_scores(self.task, predicted, right)
        if self.task in TASKS and len(metrics) > 1:
            metrics["combined_score"] = float(np.mean(list(metrics.values())))
        return metrics

    def order_that_fits(self) -> str:
        """
        For a model without names of its labels: the order of names with the most right answers to what was predicted
        last, and its accuracy; "" if that is the assumed order.
        """
        if not self.assumed:
            return ""
        size, total = len(self.labels), len(self.right)
        counts = np.zeros((size, size))  # of the examples, by class and by true label
        np.add.at(counts, (self.predicted, self.right), 1)
        classes, names = linear_sum_assignment(counts, maximize=True)
        found, best = np.trace(counts) / total, counts[classes, names].sum() / total
        if best <= found:
            return ""
        chance = (counts.sum(0) @ counts.sum(1)) / total**2
        below = f", below the {chance:.3f} expected by chance" if found < chance else ""
        there = set(self.right.tolist())
        order = [
            f"{self.labels[n]} = {self.assumed[name]!r}"
            for n, name in zip(classes, names, strict=True)
            if name in there
        ]
        return (
            f"the accuracy is {found:.3f}{below}; in the order {enumerated(order)} the model would have {best:.3f}: "
            "if that is its order, write it into id2label of its config.json"
        )


def write_predictions(
    folder: str, task: str | None, split: str, rows: datasets.Dataset, labels: list[str], predictions: np.ndarray
):
    """
    Write a file with the columns index and prediction: a GLUE submission's, or predict_results.txt.

    Args:
        labels: of the model; empty for a regression.
        predictions: numbers of labels, or scores, (rows,).
    """
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    names = names_of_task(task, labels) if task else labels
    written = [names[int(number)] for number in predictions] if labels else [f"{score:.3f}" for score in predictions]
    file = TASKS[task].submission(split) if task else "predict_results.txt"
    rows_of_file = [(one_field(index), one_field(name)) for index, name in zip(rows["index"], written, strict=True)]
    if rows_of_file != list(zip(rows["index"], written, strict=True)):
        PartialState().print(f"{file}: tabs and ends of lines in labels or indices are written as \\t, \\n and \\r")
    lines = [f"{index}\t{prediction}\n" for index, prediction in rows_of_file]
    write_whole(Path(folder, file), "index\tprediction\n" + "".join(lines))


def one_field(text: str) -> str:
    """A text as one field of a file with tabs."""
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
