"""Fine-tuning: batches of similar lengths, and evaluation in large batches, sorted by length."""

import math
from dataclasses import dataclass, field
from inspect import signature
from typing import ClassVar

import datasets
import numpy as np
import torch
from accelerate import PartialState
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, EarlyStoppingCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..support.errors import InputError
from ..training.arguments import CommonArguments, check_seeds
from ..training.precision import has_bf16
from ..training.trainer import CommonTrainer
from .distillation import Teacher

NOT_METRICS = ("loss", "runtime", "samples", "per_second", "epoch", "total", "thresh")
LOGGING = 0.02  # of the steps: short runs have a curve too


@dataclass
class FineTuningArguments(CommonArguments):
    """transformers' TrainingArguments, with defaults for speed (docs/fine_tuning.md), seeds and a grid."""

    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "Rows evaluated at once; the results do not depend on it."}
    )
    logging_steps: float = field(
        default=LOGGING, metadata={"help": "Steps between two points of the loss; a fraction is one of all steps."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "group_by_length: batches of like lengths; random: the order of transformers' scripts."},
    )
    bf16: bool | None = field(  # type: ignore[assignment]  # None until __post_init__ looks at the hardware
        default=None, metadata={"help": "bf16 mixed precision; default: where the hardware has it."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after so many evaluations without a better --metric_for_best_model."},
    )
    seeds: list[int] | None = field(
        default=None, metadata={"help": "Run once with each, and report median and spread."}
    )
    grid: str | None = field(
        default=None,
        metadata={
            "help": "bert: every combination of batch 16 and 32, learning rate 5e-5, 3e-5 and 2e-5, epochs 2 to 4."
        },
    )
    teacher_model: str | None = field(
        default=None,
        metadata={"help": "Directory or Hub id of a model fine-tuned on the task, whose logits are targets too."},
    )
    distillation_temperature: float = field(
        default=2.0, metadata={"help": "What the logits are divided by; the scores of a regression have none."}
    )
    distillation_weight: float = field(
        default=0.5, metadata={"help": "Weight of the teacher's targets in the loss; the labels have 1 - weight."}
    )

    refused: ClassVar[dict[str, tuple[object, str]]] = CommonArguments.refused | {
        "remove_unused_columns": (True, "the models take no other columns"),
    }

    def __post_init__(self):
        if self.bf16 is None:
            self.bf16 = not self.fp16 and has_bf16(self.use_cpu)
        if self.eval_strategy == "steps" and self.eval_steps is None and self.logging_steps == LOGGING:
            self.eval_steps = 500  # it follows `logging_steps`, which transformers sets to this
        super().__post_init__()
        check_seeds(self.seeds or [])
        self.dataloader_pin_memory &= self.device.type != "cpu"
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True
            if not self.load_best_model_at_end:
                raise InputError(
                    "needs `load_best_model_at_end`, which keeps the best checkpoint.", "early_stopping_patience"
                )
        if not 0 < self.distillation_temperature < math.inf:
            raise InputError(f"{self.distillation_temperature}: give a number above 0.", "distillation_temperature")
        if not 0 <= self.distillation_weight <= 1:
            raise InputError(f"{self.distillation_weight}: give a number from 0 to 1.", "distillation_weight")
        for name in ("distillation_temperature", "distillation_weight"):
            if self.teacher_model is None and getattr(self, name) != getattr(type(self), name):
                raise InputError("needs `teacher_model`, the model to learn from.", name)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the run needs of "train", "validation" and "test"."""
        wanted = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return tuple(kind for kind, is_wanted in wanted.items() if is_wanted)


@dataclass
class FineTuningDataArguments:
    """Where examples are, how many of them are used, and how they become tokens."""

    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the Hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "Examples to train on."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict."})
    skip_bad_rows: bool = field(default=False, metadata={"help": "Leave out rows that cannot be used, and name them."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example; longer ones are cut."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to that length, not to a batch's longest."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many evaluation examples only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict so many examples only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again what is in the cache."})

    def __post_init__(self):
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{count}: give at least 1, or leave it out for all.", name)

    def tasks(self, predict: bool) -> list[str | None]:
        """The names of the tasks, in the order of their runs; None for data without a name."""
        return [None]

    def max_samples(self, kind: str) -> int | None:
        """The most examples of "train", "validation" or "test"; None for all."""
        return {
            "train": self.max_train_samples,
            "validation": self.max_eval_samples,
            "test": self.max_predict_samples,
        }[kind]


class LengthGroupedSampler(Sampler):
    """
    Steps of rows of similar lengths, over all processes, in an order that follows from seed and epoch. The first step
    has the longest row.

    transformers' sampler groups the batches of one process, sorts every 50 of them by length, and uses the global
    random generator, whose state dropout makes different on each process.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int):
        self.lengths = lengths
        self.step_size = step_size  # examples of a step on all processes
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self):
        seed = int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        grouped = torch.tensor(get_length_grouped_indices(self.lengths, self.step_size, generator=generator))
        first, *others = grouped.split(self.step_size)
        last = [others.pop()] if others and len(others[-1]) < self.step_size else []  # an incomplete step comes last
        order = torch.randperm(len(others), generator=generator).tolist()
        return iter(torch.cat([first, *(others[number] for number in order), *last]).tolist())


class FineTuningTrainer(CommonTrainer):
    """
    Trainer over features with a column `length`; evaluation keeps their order.

    With a `teacher` the loss of training is (1 - weight) * that of the labels + weight * the teacher's; evaluation is
    by the labels alone.
    """

    args: FineTuningArguments

    def __init__(self, *args, pad_to: int | None = None, teacher: Teacher | None = None, **kwargs):
        tokenizer, training_args = kwargs["processing_class"], kwargs["args"]
        padding, multiple = "max_length" if pad_to else True, 8 if training_args.fp16 else None
        collator = DataCollatorWithPadding(tokenizer, padding, pad_to, multiple)
        super().__init__(*args, data_collator=collator, **kwargs)
        # Every loss is a mean over a batch's rows; stock models claim to divide by the rows of a whole step.
        self.model_accepts_loss_kwargs = False
        self.teacher = teacher
        self.columns = {*signature(self.model.forward).parameters, "label"}  # what batches are made of
        if teacher is not None:
            if absent := set(teacher.input_names) - self.columns:
                raise InputError(
                    f"`teacher_model`: it reads {', '.join(sorted(absent))}, which {type(self.model).__name__} does "
                    "not; give a teacher that needs no more inputs than the model to train."
                )
            module: torch.nn.Module = teacher.model
            module.to(self.args.device)
        smoothed = self.label_names == ["labels"] and (self.model.config.num_labels or 0) > 1
        if training_args.label_smoothing_factor and not smoothed:
            raise InputError("is for classes: leave it out for numbers and for answers.", "label_smoothing_factor")
        if training_args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(training_args.early_stopping_patience))

    def get_train_dataloader(self):
        args, rows = self.args, self.train_dataset
        if args.train_sampling_strategy != "group_by_length":
            return super().get_train_dataloader()
        step_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seed = args.seed if args.data_seed is None else args.data_seed
        assert isinstance(rows, datasets.Dataset)
        sampler = LengthGroupedSampler(rows["length"][:], step_size, seed)
        return self.loader(self.inputs_of(rows), args.train_batch_size, sampler)

    def get_eval_dataloader(self, eval_dataset=None):
        """Rows in their order: with grouped training Trainer would shuffle them, for evaluation and predictions."""
        rows = self.inputs_of(self.eval_dataset if eval_dataset is None else eval_dataset)
        return self.loader(rows, self.args.eval_batch_size, SequentialSampler(rows), persistent_workers=False)

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader(test_dataset)

    def inputs_of(self, rows: datasets.Dataset) -> datasets.Dataset:
        """The columns that the model takes."""
        return rows.select_columns([name for name in rows.column_names if name in self.columns])

    def get_batch_samples(self, *args, **kwargs):
        """The batches of a step, and their rows on this process: as many as on each other one."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        return batches, sum(len(batch["input_ids"]) for batch in batches)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows = len(inputs["input_ids"])
        loss, outputs = super().compute_loss(model, inputs, True)  # a mean over the rows of the batch
        if self.teacher is not None and model.training:
            weight, temperature = self.args.distillation_weight, self.args.distillation_temperature
            loss = (1 - weight) * loss + weight * self.teacher.loss(inputs, outputs, temperature)
        if num_items_in_batch is not None:  # Trainer takes the mean over batches, of which the last can be smaller
            loss = loss * (rows * self.current_gradient_accumulation_steps / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if output.predictions is not None and output.label_ids is not None:
            assert output.metrics is not None  # of every evaluation
            # Trainer's own is inexact on several processes, whose last batch is filled up.
            output.metrics[f"{metric_key_prefix}_loss"] = mean_loss(output.predictions, output.label_ids)
        return output


def longest_first(features: datasets.Dataset) -> tuple[datasets.Dataset, np.ndarray]:
    """The features, longest rows first, and the row number that each had before."""
    order = np.argsort(-np.array(features["length"][:]), kind="stable")
    return features.select(order), order


def mean_loss(predictions: np.ndarray | tuple, labels: np.ndarray | tuple) -> float:
    """
    The mean loss of all examples, in float64: the squared error of scores (examples, 1), or the cross-entropy (nats)
    of logits (examples, classes); of several outputs, such as starts and ends, the mean.
    """
    predictions, labels = (x if isinstance(x, tuple) else (x,) for x in (predictions, labels))
    losses = []
    for output, target in zip(predictions, labels, strict=False):  # models can return more outputs
        output, target = torch.from_numpy(output).double(), torch.from_numpy(target)
        if target.is_floating_point():
            losses.append(mse_loss(output.squeeze(-1), target.double()))
        else:
            losses.append(cross_entropy(output, target))
    return torch.stack(losses).mean().item()


def is_metric(name: str) -> bool:
    """Whether a name in Trainer's log is of a metric, not of a loss, a count, a time or a threshold."""
    return name.startswith("eval_") and not any(part in name for part in NOT_METRICS)


def print_overlap(name: str, train: datasets.Dataset | None, rows: datasets.Dataset, columns: tuple[str, ...]):
    """Print how many of the rows of `name` have the texts of a training row, whatever their labels and blanks are."""
    if train is None:
        return

    def texts(data: datasets.Dataset) -> list[tuple[str, ...]]:
        there = [name for name in columns if name in data.column_names]
        return [
            tuple(" ".join(text.split()) for text in row) for row in zip(*(data[name] for name in there), strict=True)
        ]

    known = set(texts(train))
    if same := sum(row in known for row in texts(rows)):
        PartialState().print(
            f"{name}: {same:,} of {len(rows):,} rows have the texts of training rows, and measure what was learned by "
            "heart; leave them out of one of the two"
        )


def first_rows(rows: datasets.Dataset, count: int | None) -> datasets.Dataset:
    """The first `count` rows, or all."""
    return rows if count is None else rows.select(range(min(count, len(rows))))
