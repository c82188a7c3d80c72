"""What GLUE and SQuAD share: the arguments, and the run from a model to weights, results and pictures."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from datasets import Dataset
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase, set_seed
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from ..data.features import data_fingerprint
from ..data.tokenizers import load_tokenizer
from ..errors import InputError
from ..training.arguments import ModelArguments, parse, with_recipe
from ..training.fine_tuning import FineTuningArguments, FineTuningTrainer
from ..training.glue_data import GlueDataArguments
from ..training.interruption import train
from ..training.loading import check_length, load_config, load_model, with_new_head
from ..training.output import check_same_data, output_directory
from ..training.results import publish
from ..training.speed import keep_freed_memory, skip_padding
from ..training.squad_data import SquadDataArguments

DataArguments = GlueDataArguments | SquadDataArguments


class FineTuningTask(ABC):
    """
    The examples of one task as features, and what becomes of a model's outputs on them.

    Attributes:
        auto_class: that opens the model with the head of the task.
        features: by split, of the splits that the run needs.
        evaluated: the validation splits in the order of their evaluation, the main one first.
        compute_metrics: Trainer's.
        fingerprinted: what belongs to the data beside the features, as the names of labels.
        new_head: whether the head of the model is for something else, and to be drawn anew.
    """

    auto_class: type[_BaseAutoModelClass]
    features: dict[str, Dataset]
    evaluated: dict[str, Dataset]
    compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None
    fingerprinted: tuple[object, ...] = ()
    new_head = False

    @abstractmethod
    def __init__(
        self,
        name: str | None,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        model_args: ModelArguments,
        data_args: DataArguments,
        training_args: FineTuningArguments,
    ):
        """Read the examples and tokenize them; `config` gets the labels."""

    @abstractmethod
    def evaluate(self, trainer: FineTuningTrainer):
        """Write metrics of the validation splits, and a picture, into the output directory."""

    @abstractmethod
    def predict(self, trainer: FineTuningTrainer):
        """Write predictions of the test splits into the output directory."""


def parse_fine_tuning(argv: list[str] | None, data_arguments: type[DataArguments], prog: str | None) -> tuple:
    """
    (model arguments, data arguments, training arguments, all flags) of a command.

    Raises:
        InputError: something is wrong with an argument, or nothing is to be done.
    """
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(
        command, ModelArguments, data_arguments, FineTuningArguments, prog=prog
    )
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict.")
    for kind, count in limits(data_args).items():
        if count is not None and count < 1:
            name = {"train": "train", "validation": "eval", "test": "predict"}[kind]
            raise InputError(f"--max_{name}_samples {count}: give at least 1, or leave it out for all.")
    keep_freed_memory(training_args.device)
    return model_args, data_args, training_args, command


def limits(data_args: DataArguments) -> dict[str, int | None]:
    """The greatest number of examples of each kind of split, None for all."""
    return {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }


def kinds(training_args: FineTuningArguments) -> tuple[str, ...]:
    """The kinds of splits that a run needs."""
    asked = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    return tuple(kind for kind, wanted in asked.items() if wanted)


def fine_tune(
    kind: type[FineTuningTask],
    name: str | None,
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: FineTuningArguments,
    command: list[str],
):
    """One run, of the task `name`, in its output directory."""
    set_seed(training_args.seed)
    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the examples"):
            config = load_config(model_args)
            check_length(data_args.max_seq_length, config)
            tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
            task = kind(name, config, tokenizer, model_args, data_args, training_args)
        check_same_data(training_args.folder, data_fingerprint(task.features, *task.fingerprinted))
        if task.new_head:
            model_args = replace(model_args, ignore_mismatched_sizes=True)
        model = load_model(task.auto_class, model_args, config, tokenizer, training_args.do_train)
        skip_padding(model)
        trainer = FineTuningTrainer(
            model=with_new_head(model) if task.new_head else model,
            args=training_args,
            train_dataset=task.features.get("train"),
            eval_dataset=next(iter(task.evaluated.values()), None),
            processing_class=tokenizer,
            compute_metrics=task.compute_metrics,
            pad_to=data_args.max_seq_length if data_args.pad_to_max_length else None,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            task.evaluate(trainer)
        if training_args.do_predict:
            task.predict(trainer)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)
