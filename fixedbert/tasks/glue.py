"""Fine-tune, evaluate and predict on texts or pairs of texts: the tasks of GLUE, or one's own files."""

from functools import partial

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

from ..data import glue
from ..data.token_report import report_tokens, tokenized_features
from ..metrics.glue import MEASURES, METRICS, glue_scores
from ..training.arguments import ModelArguments
from ..training.fine_tuning import FineTuningArguments, FineTuningTrainer, first_rows, longest_first, print_overlap
from ..training.glue_data import GlueDataArguments, load_texts
from ..training.pictures import draw_glue
from ..training.results import record_metrics
from ..training.sweep import sweep
from .fine_tuning import FineTuningTask, fine_tune, parse_fine_tuning


def main(argv: list[str] | None = None, prog: str | None = None):
    """
    Fine-tune on one task or more, with one seed or more.

    Args:
        argv: flags, perhaps after a recipe; by default sys.argv's.
        prog: what the help calls the program.
    """
    model_args, data_args, training_args, command = parse_fine_tuning(argv, GlueDataArguments, prog)
    tasks = data_args.tasks(training_args.do_predict)
    sweep(partial(fine_tune, TextClassification), tasks, model_args, data_args, training_args, command)


class TextClassification(FineTuningTask):
    """A task of GLUE, or other texts with classes or scores."""

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
        data, self.new_head = glue.with_labels_of_model(data, config, training_args.do_train)
        assert data.labels is not None  # they are those of the model, where the data has none
        data.splits = {
            split: first_rows(rows, data_args.max_samples(split.split("_")[0])) for split, rows in data.splits.items()
        }
        for split, rows in data.of_kind("validation").items():
            print_overlap(split, data.splits.get("train"), rows, ("sentence1", "sentence2"))
        self.name, self.data, self.labels, self.fingerprinted = name, data, data.labels, (data.labels,)
        self.features = {
            split: glue.text_features(
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
                glue.write_predictions(folder, self.name, split, rows, self.labels, predictions)

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
    for name, task in glue.TASKS.items():
        if any(split.startswith("validation") for split in task.files) and not METRICS.get(name):
            raise ValueError(f"the task {name} has no metrics: add them to METRICS in fixedbert/metrics/glue.py.")
    for name, metrics in METRICS.items():
        if absent := [metric for metric in metrics if metric not in MEASURES]:
            raise ValueError(f"the metric {absent[0]} of {name}: add it to MEASURES in fixedbert/metrics/glue.py.")


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
        if self.task in glue.TASKS and self.labels:  # a model can number the task's labels in another way
            names = [glue.plain(name) for name in glue.TASKS[self.task].labels]
            labels = [glue.plain(label) for label in self.assumed or self.labels]
            number = np.array([names.index(label) if label in names else -1 for label in labels])
            right, predicted = number[right], number[predicted]
        metrics = glue_scores(self.task, predicted, right)
        if self.task in glue.TASKS and len(metrics) > 1:
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
            f"the accuracy is {found:.3f}{below}; in the order {glue.listed(order)} the model would have {best:.3f}: "
            "if that is its order, write it into id2label of its config.json"
        )
