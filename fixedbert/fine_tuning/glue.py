"""Fine-tuning, evaluation and prediction for text classification and regression, on GLUE or the user's own data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from accelerate import PartialState
from sklearn.metrics import classification_report
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.tokenizers import check_features
from ..options import GlueDataOptions, ModelOptions
from ..support.errors import InputError
from ..support.files import write_atomically
from ..tasks.examples import longest_first, warn_of_overlap
from ..tasks.glue_metrics import GlueEvaluation
from ..tasks.labels import MULTI, REGRESSION, Labels, known_names, problem_type_of
from ..tasks.predictions import DEFAULT_THRESHOLD, threshold_of
from ..tasks.texts import check_text_columns, load_texts, text_features, text_names
from ..training.arguments import with_recipe
from ..training.output import Trained, record_metrics
from ..training.plots import draw_fine_tuning
from .fine_tune import FineTuningTask
from .prediction_files import prediction_columns, write_predictions, write_submission
from .sweep import sweep
from .trainer import FineTuningArguments, FineTuningTrainer

REPORT = "classification_report.txt"


def fine_tune_glue(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tunes a model for text classification or regression, evaluates it, and writes predictions.

    If the call is interrupted, for example with Ctrl-C, the same call resumes from the last checkpoint.

    Args:
        recipe: Path to a YAML file with arguments. Keyword arguments take precedence.
        given: The flags listed by `fixedbert glue --help`, as keyword arguments. The most important ones are
            `model_name_or_path`, `task_name` or `train_file` and `validation_file`, `do_train=True`, `do_eval=True`,
            `output_dir`, `num_train_epochs`, `learning_rate`, `per_device_train_batch_size` and `seeds`.

    Returns:
        The output directory and the metrics.
    """
    return sweep(TextClassification, **with_recipe(recipe, given, *TextClassification.arguments))


class TextClassification(FineTuningTask):
    """Text classification or regression, on a GLUE task or the user's own texts."""

    arguments = (ModelOptions, GlueDataOptions, FineTuningArguments)
    auto_class = AutoModelForSequenceClassification

    def __init__(self, name: str | None, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, arguments: Any):
        model_args, data_args, training_args = arguments
        trained_on = tuple(getattr(config, "text_column_names", None) or ())
        hub_options = model_args.download_options()
        if not training_args.do_train and data_args.do_regression is None and known_names(config) is not None:
            data_args = replace(data_args, do_regression=problem_type_of(config) == REGRESSION)
        self.name, self.data_args = name, data_args
        self.data = load_texts(
            name, data_args, training_args.kinds, training_args.sample_seed, trained_on, **hub_options
        )
        if not training_args.do_train:
            check_text_columns(self.data.text_columns, trained_on)
        self.labels = self.data.labels or Labels.of(config)
        self.new_head = self.labels.align(config, training_args.do_train)
        train = self.data.splits.get("train")
        if train is not None:
            config.text_column_names = [*self.data.text_columns]
            if data_args.class_weights:
                label_ids = self.labels.encode(train["label"])
                self.class_weights = self.labels.class_weights(data_args.class_weights, label_ids)
        self.evaluation = GlueEvaluation(name, self.labels, self.threshold(config))
        self.compute_metrics, self.metric_names = self.evaluation, self.evaluation.metric_names
        self.features = self.tokenize(tokenizer)
        for split, rows in self.data.of_kind("validation").items():
            if train is not None:
                warn_of_overlap(split, train, rows, text_names(rows.column_names))
        self.evaluated = {split: longest_first(self.features[split]) for split in self.data.of_kind("validation")}

    def threshold(self, config: PreTrainedConfig) -> float:
        """Returns the probability from which labels are predicted, and writes it to the `config`."""
        threshold = self.data_args.threshold
        if self.labels.problem_type != MULTI:
            if threshold is not None:
                raise InputError("requires data with several labels per text.", "threshold")
            return DEFAULT_THRESHOLD
        config.label_threshold = threshold or (DEFAULT_THRESHOLD if self.new_head else threshold_of(config))
        return config.label_threshold

    def tokenize(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, datasets.Dataset]:
        """Returns the features of each split. Prints how many rows are truncated, or split into windows."""
        length, stride = self.data_args.max_seq_length, self.data_args.stride
        room = length - tokenizer.num_special_tokens_to_add()
        if stride is not None and len(self.data.text_columns) > 1:
            raise InputError("is not supported for pairs of texts.", "stride")
        if stride is not None and not 0 <= stride < room:
            raise InputError(f"{stride}: must be at least 0 and below {room}.", "stride")
        result = {}
        for split, rows in self.data.splits.items():
            labels = self.labels.encode(rows["label"]) if "label" in rows.column_names else None
            features = text_features(rows, tokenizer, length, labels, stride=stride)
            check_features(split, features, tokenizer)
            if truncated := sum(features["truncated"][:]):
                PartialState().print(f"{split}: {truncated:,} of {len(rows):,} rows are truncated to {length} tokens")
            if len(features) > len(rows):
                PartialState().print(f"{split}: {len(rows):,} rows are split into {len(features):,} windows")
            result[split] = features
        return result

    def evaluate(self, trainer: FineTuningTrainer):
        metrics: dict[str, Any] = {}
        for split, rows in self.evaluated.items():
            # The metrics for the mismatched validation set of MNLI are named eval_accuracy_mm, as in run_glue.py.
            prefix, suffix = ("eval_mm", "_mm") if split == "validation_mismatched" else ("eval", "")
            results = trainer.evaluate(rows, metric_key_prefix=prefix)
            results[f"{prefix}_samples"] = len(self.data.splits[split])
            metrics |= {f"{name.replace('eval_mm_', 'eval_')}{suffix}": value for name, value in results.items()}
        record_metrics(trainer, "eval", metrics)
        if not trainer.is_world_process_zero():
            return
        names, directory = self.labels.outputs, trainer.args.directory
        if self.name is None and self.labels.problem_type != REGRESSION:
            labels, predictions = self.evaluation.label_ids, self.evaluation.predictions
            options: dict[str, Any] = {"labels": [*range(len(names))], "target_names": names, "zero_division": 0.0}
            report = classification_report(labels, predictions, **options)
            print(report)
            write_atomically(directory / REPORT, report + "\n")
        draw_fine_tuning(trainer.state.log_history, self.name or "validation file", directory / "glue.png")

    def predict(self, trainer: FineTuningTrainer):
        for split, rows in self.data.of_kind("test").items():
            output = trainer.predict(longest_first(self.features[split]), metric_key_prefix="predict")
            predictions, probabilities = self.evaluation.predict(output.predictions)
            directory = trainer.args.directory
            if not trainer.is_world_process_zero():
                continue
            if self.name:
                write_submission(directory, self.name, split, rows, self.labels, predictions)
                continue
            columns = prediction_columns(self.labels, predictions, probabilities)
            write_predictions(directory, rows, self.data.skipped.get(split, []), columns)
