"""Trainer and arguments for fine-tuning: batches with similar lengths, exact losses, distillation."""

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

LOGGING = 0.02  # fraction of all steps, so that short runs have a training curve, too


@dataclass
class FineTuningArguments(CommonArguments):
    """transformers' TrainingArguments with faster defaults (docs/fine_tuning.md), several seeds and a grid."""

    per_device_eval_batch_size: int = field(default=64, metadata={"help": "The results do not depend on it."})
    logging_steps: float = field(
        default=LOGGING, metadata={"help": "Number of steps between log entries; below 1, a fraction of all steps."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "group_by_length: batches of similar lengths; random: the order of transformers' scripts."},
    )
    bf16: bool | None = field(  # type: ignore[assignment]  # None until __post_init__ looks at the hardware
        default=None, metadata={"help": "bf16 mixed precision; by default, where the hardware supports it."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better --metric_for_best_model."}
    )
    seeds: list[int] | None = field(default=None, metadata={"help": "Run with each seed and summarize the results."})
    grid: str | None = field(
        default=None, metadata={"help": "bert: batch 16 and 32, learning rate 5e-5, 3e-5 and 2e-5, epochs 2 to 4."}
    )
    teacher_model: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a model fine-tuned on the task, to distill from."}
    )
    distillation_temperature: float = field(default=2.0, metadata={"help": "Not used for a regression."})
    distillation_weight: float = field(
        default=0.5, metadata={"help": "Weight of the distillation loss; the label loss gets 1 - weight."}
    )

    def __post_init__(self):
        if self.bf16 is None:
            self.bf16 = not self.fp16 and has_bf16(self.use_cpu)
        if self.eval_strategy == "steps" and self.eval_steps is None and self.logging_steps == LOGGING:
            self.eval_steps = 500  # Trainer would evaluate as often as we log
        super().__post_init__()
        self.dataloader_pin_memory &= self.device.type != "cpu"
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns those of "train", "validation" and "test" that the run needs."""
        needed = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return tuple(kind for kind, is_needed in needed.items() if is_needed)


@dataclass
class FineTuningDataArguments:
    """The source and number of the examples, and their tokenization."""

    dataset_name: str | None = field(default=None, metadata={"help": "A dataset on the Hub, such as rajpurkar/squad."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of the dataset."})
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv, .json, .jsonl or .parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "A file to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "A file to predict, with or without labels."})
    skip_bad_rows: bool = field(default=False, metadata={"help": "Skip rows that cannot be used, and print which."})
    max_seq_length: int = field(default=128, metadata={"help": "Truncate examples to this many tokens."})
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to `max_seq_length` instead of the longest example."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only the first validation examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict only the first test examples."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenization."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again instead of using the cache."})

    def map_options(self) -> dict:
        """Returns the options for `make_features`."""
        return {"num_proc": self.preprocessing_num_workers, "overwrite_cache": self.overwrite_cache}

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the names of the tasks in the order of their runs; None for the user's own data."""
        return [None]

    def max_samples(self, kind: str) -> int | None:
        """Returns the maximum number of "train", "validation" or "test" examples; None for all."""
        names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
        return getattr(self, names[kind])


class LengthGroupedSampler(Sampler):
    """
    Groups examples with similar lengths into steps across all processes, in an order that depends only on seed and
    epoch. The first step contains the longest example. transformers' sampler groups the batches of a single process,
    and uses the global random generator, whose state differs between processes because of dropout.
    """

    def __init__(self, lengths: list[int], step_size: int, seed: int):
        self.lengths, self.seed, self.epoch = lengths, seed, 0
        self.step_size = step_size  # examples per step on all processes

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
    Trainer for features with a `length` column, whose order evaluation keeps.

    With a teacher, the training loss is (1 - weight) * label loss + weight * distillation loss. Evaluation uses the
    label loss.
    """

    args: FineTuningArguments

    def __init__(self, *args, pad_to: int | None = None, teacher: Teacher | None = None, **kwargs):
        tokenizer, training_args = kwargs["processing_class"], kwargs["args"]
        padding, multiple = "max_length" if pad_to else True, 8 if training_args.fp16 else None
        collator = DataCollatorWithPadding(tokenizer, padding, pad_to, multiple)
        super().__init__(*args, data_collator=collator, **kwargs)
        # Losses are averaged over the rows of a batch, although stock models accept the number of rows in a step.
        self.model_accepts_loss_kwargs = False
        self.teacher = teacher
        self.columns = {*signature(self.model.forward).parameters, "label"}  # of the batches
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
        """Keeps the order of the rows. Trainer shuffles them in evaluation too if training groups them by length."""
        rows = self.inputs_of(self.eval_dataset if eval_dataset is None else eval_dataset)
        return self.loader(rows, self.args.eval_batch_size, SequentialSampler(rows), persistent_workers=False)

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader(test_dataset)

    def inputs_of(self, rows: datasets.Dataset) -> datasets.Dataset:
        """Returns the columns that the model accepts."""
        return rows.select_columns([name for name in rows.column_names if name in self.columns])

    def get_batch_samples(self, *args, **kwargs):
        """Returns the batches of a step and their number of rows on this process."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        return batches, sum(len(batch["input_ids"]) for batch in batches)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows = len(inputs["input_ids"])
        loss, outputs = super().compute_loss(model, inputs, True)  # averaged over the batch
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
            # Trainer's own loss is inexact on several processes, because it repeats rows to fill the last batch.
            output.metrics[f"{metric_key_prefix}_loss"] = mean_loss(output.predictions, output.label_ids)
        return output


def mean_loss(predictions: np.ndarray | tuple, labels: np.ndarray | tuple) -> float:
    """
    Returns the loss averaged over examples and outputs (such as starts and ends), in float64: the squared error for
    scores (examples, 1), the cross-entropy in nats for logits (examples, classes).
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
