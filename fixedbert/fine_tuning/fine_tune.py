"""A single fine-tuning run, and the base class for its tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase, set_seed
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from ..data.tokenizers import load_tokenizer
from ..loading.families import check_length
from ..options import FineTuningDataOptions, ModelOptions
from ..support.checksums import stable_hash
from ..support.errors import InputError
from ..tasks.labels import SINGLE
from ..training.interruption import train
from ..training.models import load_config, load_model, reinitialize_head, tokenizer_source
from ..training.output import check_same_data, output_directory
from ..training.speed import enable_unpadding, keep_freed_memory
from .trainer import FineTuningArguments, FineTuningTrainer


class FineTuningTask(ABC):
    """Base class for tasks. A task loads the data for a run, evaluates the model, and writes predictions."""

    arguments: tuple[type[ModelOptions], type[FineTuningDataOptions], type[FineTuningArguments]]
    auto_class: type[_BaseAutoModelClass]
    features: dict[str, Dataset]  # tokenized examples for each split
    evaluated: dict[str, Dataset]  # validation splits, sorted by decreasing length; training evaluates the first one
    compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None
    metric_names: list[str]  # of the metrics that an evaluation returns
    class_weights: dict[str, float] | None = None  # in the training loss
    new_head = False  # True if the model's task head is for different labels and must be replaced

    @abstractmethod
    def __init__(self, name: str | None, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, arguments: Any):
        """Loads and tokenizes the examples. Also writes their label names to `config`."""

    @abstractmethod
    def evaluate(self, trainer: FineTuningTrainer):
        """Evaluates the model on the validation splits and writes the metrics and a plot to the output directory."""

    @abstractmethod
    def predict(self, trainer: FineTuningTrainer):
        """Writes the predictions for the test splits to the output directory."""


def fine_tune(
    task_class: type[FineTuningTask],
    name: str | None,
    arguments: tuple[ModelOptions, FineTuningDataOptions, FineTuningArguments],
    given: dict[str, Any],
):
    """
    Trains a model, evaluates it and writes predictions, depending on `do_train`, `do_eval` and `do_predict`.

    `name` is a GLUE task, or None for other data. `arguments` were created from the fields in `given`.
    """
    model_args, data_args, training_args = arguments
    keep_freed_memory(training_args.device)
    set_seed(training_args.seed)
    with output_directory(training_args, given) as checkpoint:
        with training_args.main_process_first(desc="tokenization"):
            config = load_config(model_args)
            check_length(data_args.max_seq_length, config)
            tokenizer = load_tokenizer(tokenizer_source(model_args), **model_args.hub_options())
            task = task_class(name, config, tokenizer, arguments)
        check_metric(training_args, task.metric_names)
        if training_args.label_smoothing_factor and getattr(config, "problem_type", None) != SINGLE:
            raise InputError("requires data with one label per text.", "label_smoothing_factor")
        # The metric for the best model influences when training stops, and which model is saved.
        used = ("train", "validation") if training_args.metric_for_best_model else ("train",)
        fingerprints = {split: rows._fingerprint for split, rows in task.features.items() if split.startswith(used)}
        check_same_data(training_args.directory, stable_hash(fingerprints))
        if task.new_head:
            model_args = replace(model_args, ignore_mismatched_sizes=True)
        model = load_model(task.auto_class, model_args, config, tokenizer, training_args.do_train)
        enable_unpadding(model)
        tokenizer.model_max_length = data_args.max_seq_length  # for all users of the saved model
        trainer = FineTuningTrainer(
            model=reinitialize_head(model) if task.new_head else model,
            args=training_args,
            train_dataset=task.features.get("train"),
            eval_dataset=next(iter(task.evaluated.values()), None),
            processing_class=tokenizer,
            compute_metrics=task.compute_metrics,
            class_weights=task.class_weights,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            task.evaluate(trainer)
        if training_args.do_predict:
            task.predict(trainer)
        if training_args.do_train:
            trainer.create_model_card()


def check_metric(training_args: FineTuningArguments, available: list[str]):
    """Raises InputError if `metric_for_best_model` is not a metric of the task."""
    metric = training_args.metric_for_best_model
    if training_args.do_train and metric is not None and metric.removeprefix("eval_") not in available:
        raise InputError(
            f"{metric!r}: unknown metric; available metrics: {', '.join(available)}.", "metric_for_best_model"
        )
