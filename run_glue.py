"""
Fine-tune, evaluate and predict on texts or pairs of texts: GLUE tasks, or csv, tsv, jsonl and parquet files.

    python run_glue.py --model_name_or_path runs/mini --task_name mnli --data_dir glue/ --do_train --do_eval \
        --output_dir runs/mini-mnli
    python run_glue.py --model_name_or_path runs/mini --task_name all --seeds 1 2 3 --do_train --do_eval \
        --output_dir runs/mini-glue
    accelerate launch --num_processes 4 run_glue.py recipe.yaml

docs/fine_tuning.md lists the arguments beside those of transformers' run_glue.py.
"""

import sys
from dataclasses import dataclass, field

import fixedbert_start

if __name__ == "__main__":
    fixedbert_start.leave_quietly()

import datasets
import numpy as np
from transformers import AutoModelForSequenceClassification, EvalPrediction, set_seed

import fixedbert  # noqa: F401  registers the model
from fixedbert.data import glue
from fixedbert.data.features import data_fingerprint
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.metrics.glue import glue_scores
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.fine_tuning import (
    FineTuningArguments,
    FineTuningTrainer,
    at_most,
    check_counts,
    longest_first,
    with_new_head,
)
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import check_same_data, output_directory
from fixedbert.training.pictures import draw_glue
from fixedbert.training.reporting import publish, report, train
from fixedbert.training.sweep import sweep


@dataclass
class DataArguments:
    """Which texts, and how they become tokens."""

    task_name: list[str] | None = field(
        default=None, metadata={"help": f"Tasks of GLUE, of {', '.join(glue.TASKS)}; or all."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with the tasks in the layout of the GLUE download; default: the Hub."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Another data set of the Hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv, .jsonl or .parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict, with or without labels."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "The column with the text, or the two of a pair, with a comma between them."}
    )
    label_column_name: str = field(default="label", metadata={"help": "The column with the label."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Whether labels are numbers to predict; default: if some have fractions."}
    )
    skip_bad_rows: bool = field(default=False, metadata={"help": "Leave out rows that cannot be used, and name them."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example; longer ones are cut."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to that length, not to a batch's longest."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many evaluation examples only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict so many examples only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again what is in the cache."})

    def columns(self) -> dict:
        """The columns of one's own files, for `load_files`."""
        texts = tuple(self.text_column_names.split(",")) if self.text_column_names else None
        if texts and (len(texts) > 2 or self.label_column_name in texts):
            raise InputError(f"--text_column_names {self.text_column_names}: one or two columns, and not the label's.")
        return {"text_columns": texts, "label_column": self.label_column_name}

    def tasks(self, predict: bool) -> list[str | None]:
        """The tasks in the order of their runs: the diagnostics after MNLI, by whose model they are predicted."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in glue.TASKS if name != "ax" or predict]
        for name in names:
            if name not in glue.TASKS:
                raise InputError(f"--task_name {name}: no such task; there are {', '.join(glue.TASKS)}, and all.")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")


def load_texts(task: str | None, arguments: DataArguments, kinds: tuple[str, ...], **hub_options) -> glue.TextData:
    """The splits of `kinds`: of the task, or else of the data set, or else of the files."""
    skip = arguments.skip_bad_rows
    named = [name for name in ("task_name", "dataset_name", "train_file") if getattr(arguments, name)]
    if len(named) > 1:
        raise InputError(f"--{named[0]} and --{named[1]}: give one of the two.")
    columns = arguments.columns()
    if task:
        if arguments.text_column_names or arguments.label_column_name != "label":
            raise InputError(
                f"--task_name {task}: its columns are known; leave --text_column_names and --label_column_name out."
            )
        return glue.load_task(task, arguments.data_dir, kinds, skip, **hub_options)
    if arguments.dataset_name:
        name, config = arguments.dataset_name, arguments.dataset_config_name
        return glue.load_dataset(name, config, kinds, arguments.do_regression, skip, **columns, **hub_options)
    files = {kind: getattr(arguments, f"{kind}_file") for kind in kinds}
    if not any(files.values()):
        raise InputError("no data: give --task_name, --dataset_name, or --train_file and --validation_file.")
    for kind, file in files.items():
        if file is None:
            raise InputError(f"no rows for {kind}: give --{kind}_file.")
    return glue.load_files(files, arguments.do_regression, skip, **columns)


class Evaluation:
    """
    For Trainer's `compute_metrics`: metrics by task; keeps what was predicted last, for the picture.

    Args:
        labels: of the model; none for a regression.
    """

    def __init__(self, task: str | None, labels: list[str]):
        self.task = task or ("classification" if labels else "regression")
        self.labels = labels
        self.right = self.predicted = np.empty(0)

    def predict(self, output: np.ndarray | tuple) -> np.ndarray:
        logits = output[0] if isinstance(output, tuple) else output  # (examples, labels); some models return more
        return logits.argmax(axis=1) if self.labels else logits[:, 0]

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.right, self.predicted = prediction.label_ids, self.predict(prediction.predictions)
        right, predicted = self.right, self.predicted
        if self.task in glue.TASKS and self.labels:  # a model can number the task's labels in another way
            names = glue.TASKS[self.task].labels
            number = np.array([names.index(label.lower()) if label.lower() in names else -1 for label in self.labels])
            right, predicted = number[right], number[predicted]
        metrics = glue_scores(self.task, predicted, right)
        if self.task in glue.TASKS and len(metrics) > 1:
            metrics["combined_score"] = float(np.mean(list(metrics.values())))
        return metrics


def fine_tune(task: str | None, model_args, data_args, training_args, command: list[str]):
    """One task, from the model to results, weights and pictures in the output directory."""
    set_seed(training_args.seed)
    kinds = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    counts = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    counts["test"] = data_args.max_predict_samples
    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the texts"):
            config = load_config(model_args)
            check_length(data_args.max_seq_length, config)
            tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
            wanted = tuple(kind for kind, wanted in kinds.items() if wanted)
            data = load_texts(task, data_args, wanted, cache_dir=model_args.cache_dir, token=model_args.token)
            data, new_head = glue.with_labels_of_model(data, config, training_args.do_train)
            data.splits = {split: at_most(rows, counts[split.split("_")[0]]) for split, rows in data.splits.items()}
            features = {
                split: glue.text_features(
                    rows,
                    tokenizer,
                    data_args.max_seq_length,
                    num_proc=data_args.preprocessing_num_workers,
                    overwrite_cache=data_args.overwrite_cache,
                )
                for split, rows in data.splits.items()
            }
        check_same_data(training_args.output_dir, data_fingerprint(features, data.labels))
        model_args.ignore_mismatched_sizes |= new_head
        model = load_model(AutoModelForSequenceClassification, model_args, config, tokenizer, training_args.do_train)
        evaluated = {split: longest_first(features[split])[0] for split in data.of_kind("validation")}
        trainer = FineTuningTrainer(
            model=with_new_head(model) if new_head else model,
            args=training_args,
            train_dataset=features.get("train"),
            eval_dataset=next(iter(evaluated.values()), None),
            processing_class=tokenizer,
            compute_metrics=Evaluation(task, data.labels),
            pad_to=data_args.max_seq_length if data_args.pad_to_max_length else None,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            evaluate(trainer, evaluated, task or "validation file")
        for split, rows in data.of_kind("test").items():
            predictions = predict(trainer, features[split])
            if trainer.is_world_process_zero():
                glue.write_predictions(training_args.output_dir, task, split, rows, data.labels, predictions)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)


def evaluate(trainer: FineTuningTrainer, splits: dict, title: str):
    """Evaluate each split; results and the picture go into the output directory."""
    evaluation, metrics, shown = trainer.compute_metrics, {}, []
    for split, rows in splits.items():
        if split == "validation_mismatched":  # eval_accuracy_mm, as in transformers' run_glue.py
            found = trainer.evaluate(rows, metric_key_prefix="eval_mm") | {"eval_mm_samples": len(rows)}
            found = {f"{name.replace('eval_mm_', 'eval_')}_mm": value for name, value in found.items()}
        else:
            found = trainer.evaluate(rows) | {"eval_samples": len(rows)}
        metrics |= found
        shown.append((split, evaluation.right, evaluation.predicted))
    report(trainer, "eval", metrics)
    if trainer.is_world_process_zero():
        draw_glue(trainer, title, shown, evaluation.labels)


def predict(trainer: FineTuningTrainer, features: datasets.Dataset) -> np.ndarray:
    """What the model says of each row, in their order."""
    ordered, order = longest_first(features)
    predictions = np.empty(len(order))
    output = trainer.predict(ordered, metric_key_prefix="predict").predictions
    predictions[order] = trainer.compute_metrics.predict(output)
    return predictions


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, FineTuningArguments)
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict.")
    check_counts(data_args)
    keep_freed_memory(training_args.device)
    sweep(fine_tune, data_args.tasks(training_args.do_predict), model_args, data_args, training_args, command)


if __name__ == "__main__":
    exit_on_input_error(main)
