"""Trainer and arguments for fine-tuning, with batches of similar lengths, exact losses and distillation."""

from dataclasses import dataclass, field
from inspect import signature

import datasets
import numpy as np
import torch
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, EarlyStoppingCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..training.arguments import CommonArguments
from ..training.speed import has_bf16
from ..training.trainer import CommonTrainer
from .distillation import Teacher

LOGGING = 0.02  # a fraction of all steps, so that short runs have a training curve, too


@dataclass
class FineTuningArguments(CommonArguments):
    """Arguments for Trainer, sweeps and distillation. Some defaults differ from Trainer's (docs/fine_tuning.md)."""

    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Does not affect the results."})
    logging_steps: float = field(
        default=LOGGING, metadata={"help": "Steps between log entries. A number below 1 is a fraction of all steps."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "group_by_length: batches of similar lengths; random: as in transformers' scripts."},
    )
    bf16: bool | None = field(  # type: ignore[assignment]  # set by __post_init__
        default=None, metadata={"help": "Use bf16 mixed precision. By default, True if the hardware supports it."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better metric_for_best_model."}
    )
    seeds: list[int] | None = field(default=None, metadata={"help": "Train with each seed and summarize the results."})
    grid: str | None = field(
        default=None, metadata={"help": "bert: batch sizes 16, 32; learning rates 5e-5, 3e-5, 2e-5; 2, 3, 4 epochs."}
    )
    teacher_model: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a model fine-tuned on the task, for distillation."}
    )
    distillation_temperature: float = field(
        default=2.0, metadata={"help": "Temperature of the distillation loss. Not used for regression."}
    )
    distillation_weight: float = field(
        default=0.5, metadata={"help": "Weight of the distillation loss. The label loss has weight 1 - this weight."}
    )

    def __post_init__(self):
        if self.bf16 is None:
            self.bf16 = not self.fp16 and has_bf16(self.use_cpu)
        if self.eval_strategy == "steps" and self.eval_steps is None and self.logging_steps == LOGGING:
            self.eval_steps = 500  # Trainer evaluates at each log entry by default
        super().__post_init__()
        self.dataloader_pin_memory &= self.device.type != "cpu"
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of splits that the run needs: "train", "validation" and "test"."""
        needed = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return tuple(kind for kind, is_needed in needed.items() if is_needed)


@dataclass
class FineTuningDataArguments:
    """Arguments for the source of the examples, their number, and their tokenization."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id of a dataset, such as rajpurkar/squad."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv, .json, .jsonl or .parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation data in the same format."})
    test_file: str | None = field(default=None, metadata={"help": "Test data, with or without labels."})
    skip_bad_rows: bool = field(default=False, metadata={"help": "Skip and print invalid rows."})
    max_seq_length: int = field(default=128, metadata={"help": "Truncate examples to this many tokens."})
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to `max_seq_length` instead of the longest example in a batch."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Maximum number of training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Maximum number of validation examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Maximum number of test examples."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenization."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again instead of using cached features."})

    def map_options(self) -> dict:
        """Returns the options for `make_features`."""
        return {"num_proc": self.preprocessing_num_workers, "overwrite_cache": self.overwrite_cache}

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the tasks in the order in which they run, or [None] for the user's own data."""
        return [None]

    def max_samples(self, kind: str) -> int | None:
        """Returns the maximum number of "train", "validation" or "test" examples, or None to use all of them."""
        names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
        return getattr(self, names[kind])


class LengthGroupedSampler(Sampler):
    """
    Sampler that groups examples with similar lengths into steps. The first step contains the longest example.

    A step has `step_size` examples in total on all processes. The order depends only on the seed and the epoch. In
    contrast, transformers' sampler groups the examples of a single process, and uses the global random generator,
    whose state differs between processes because of dropout.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int):
        self.lengths, self.step_size, self.seed, self.epoch = lengths, step_size, seed, 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self):
        seed = int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        grouped = torch.tensor(get_length_grouped_indices(self.lengths, self.step_size, generator=generator))
        first, *others = grouped.split(self.step_size)
        last = [others.pop()] if others and len(others[-1]) < self.step_size else []  # the incomplete step
        order = torch.randperm(len(others), generator=generator).tolist()
        return iter(torch.cat([first, *(others[number] for number in order), *last]).tolist())


class FineTuningTrainer(CommonTrainer):
    """
    Trainer for features with a `length` column.

    Args:
        pad_to: number of tokens to which examples are padded. By default, the length of the longest in each batch.
        teacher: if given, the training loss is (1 - weight) * label loss + weight * distillation loss. The evaluation
            loss is always the label loss.
    """

    args: FineTuningArguments

    def __init__(self, *args, pad_to: int | None = None, teacher: Teacher | None = None, **kwargs):
        tokenizer, training_args = kwargs["processing_class"], kwargs["args"]
        padding, multiple = "max_length" if pad_to else True, 8 if training_args.fp16 else None
        collator = DataCollatorWithPadding(tokenizer, padding, pad_to, multiple)
        super().__init__(*args, data_collator=collator, **kwargs)
        # compute_loss scales the averages over batches itself, so the model must not use the number of rows in a step.
        self.model_accepts_loss_kwargs = False
        self.teacher = teacher
        self.columns = {*signature(self.model.forward).parameters, "label"}  # used in batches
        if teacher is not None:
            module: torch.nn.Module = teacher.model
            module.to(self.args.device)
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
        """Returns a data loader that keeps the order of the rows. Trainer's own would group them by length."""
        rows = self.inputs_of(self.eval_dataset if eval_dataset is None else eval_dataset)
        return self.loader(rows, self.args.eval_batch_size, SequentialSampler(rows), persistent_workers=False)

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader(test_dataset)

    def inputs_of(self, rows: datasets.Dataset) -> datasets.Dataset:
        """Returns the rows with only the columns that the model accepts."""
        return rows.select_columns([name for name in rows.column_names if name in self.columns])

    def get_batch_samples(self, *args, **kwargs):
        """Returns the batches for a step, and the number of rows in them on this process."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        return batches, sum(len(batch["input_ids"]) for batch in batches)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows = len(inputs["input_ids"])
        loss, outputs = super().compute_loss(model, inputs, True)
        if self.teacher is not None and model.training:
            weight, temperature = self.args.distillation_weight, self.args.distillation_temperature
            loss = (1 - weight) * loss + weight * self.teacher.loss(inputs, outputs, temperature)
        if num_items_in_batch is not None:  # Trainer averages over batches, but the last one can be smaller
            loss = loss * (rows * self.current_gradient_accumulation_steps / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if output.predictions is not None and output.label_ids is not None:
            assert output.metrics is not None
            # Trainer's own loss is inexact with several processes, because rows are repeated to fill the last batch.
            output.metrics[f"{metric_key_prefix}_loss"] = mean_loss(output.predictions, output.label_ids)
        return output


def mean_loss(predictions: np.ndarray | tuple, labels: np.ndarray | tuple) -> float:
    """
    Returns the average loss over all examples, in float64.

    For float labels and predictions (examples, 1), this is the mean squared error. For label ids and logits (examples,
    classes), it is the cross-entropy in nats. For tuples, such as start and end logits, the losses are averaged.
    """
    predictions, labels = (x if isinstance(x, tuple) else (x,) for x in (predictions, labels))
    losses = []
    for output, target in zip(predictions, labels, strict=False):  # models can return additional outputs
        output, target = torch.from_numpy(output).double(), torch.from_numpy(target)
        if target.is_floating_point():
            losses.append(mse_loss(output.squeeze(-1), target.double()))
        else:
            losses.append(cross_entropy(output, target))
    return torch.stack(losses).mean().item()
