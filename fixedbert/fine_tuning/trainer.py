"""Trainer and arguments for fine-tuning, with batches of examples of similar length and exact losses."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, EvalPrediction
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..data.file_formats import load_from_hub
from ..support.errors import InputError
from ..training.arguments import CommonArguments, option
from ..training.speed import is_bf16_faster
from ..training.trainer import CommonTrainer
from .examples import SAMPLE_SEED
from .glue_metrics import lower_is_better
from .labels import MULTI


@dataclass
class FineTuningArguments(CommonArguments):
    """Arguments for Trainer and sweeps. Some defaults differ from Trainer's (docs/fine_tuning.md)."""

    per_device_eval_batch_size: int = option(64, "Batch size per device for evaluation. Does not affect the results.")
    train_sampling_strategy: str = option(
        "group_by_length", "group_by_length: batch examples of similar length; random: as in transformers' scripts."
    )
    bf16: bool | None = option(  # type: ignore[assignment]  # set by __post_init__
        None, "Use bf16 mixed precision. By default, True if this hardware is faster in bf16."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after this many evaluations without an improvement in metric_for_best_model."
    )
    seeds: list[int] | None = option(None, "Train with each seed and summarize the results.")
    grid: str | None = option(None, "bert: try batch sizes 16, 32; learning rates 5e-5, 3e-5, 2e-5; 2, 3, 4 epochs.")

    def __post_init__(self):
        if self.bf16 is None:
            self.bf16 = not self.fp16 and is_bf16_faster(self.use_cpu)
        if metric := self.metric_for_best_model:  # Trainer would choose True for metrics such as mse
            if self.greater_is_better == lower_is_better(metric):
                raise InputError(f"cannot be {str(self.greater_is_better).lower()} for {metric}.", "greater_is_better")
            self.greater_is_better = not lower_is_better(metric)
        super().__post_init__()
        self.dataloader_pin_memory &= self.device.type != "cpu"
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True

    @property
    def sample_seed(self) -> int:
        """Returns the seed for drawing examples. It is the same in all runs of a sweep."""
        return SAMPLE_SEED if self.data_seed is None else self.data_seed

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of splits that the run needs: "train", "validation" and "test"."""
        needed = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return tuple(kind for kind, is_needed in needed.items() if is_needed)


@dataclass
class FineTuningDataArguments:
    """Arguments for the source of the examples, their number, and their tokenization."""

    alternatives: ClassVar[tuple[str, ...]] = ("dataset_name",)  # arguments that replace the files
    dataset_name: str | None = option(None, "Hub id of a dataset, such as rajpurkar/squad.")
    dataset_config_name: str | None = option(None, "Configuration of the dataset.")
    train_file: str | None = option(None, "Training data in a .csv, .tsv, .json, .jsonl or .parquet file.")
    validation_file: str | None = option(None, "Validation data in the same format.")
    test_file: str | None = option(None, "Test data, with or without labels.")
    skip_bad_rows: bool = option(False, "Print and skip invalid rows.")
    max_seq_length: int = option(128, "Truncate examples to this many tokens.")
    pad_to_max_length: bool = option(False, "Pad to `max_seq_length` instead of the longest example in a batch.")
    max_train_samples: int | None = option(None, "Train on a random subset of this many examples.")
    max_eval_samples: int | None = option(None, "Evaluate on a random subset of this many examples.")
    max_predict_samples: int | None = option(None, "Predict a random subset of this many test examples.")
    preprocessing_num_workers: int | None = option(None, "Number of processes for tokenization.")
    overwrite_cache: bool = option(False, "Tokenize again instead of loading from datasets' cache.")

    def __post_init__(self):
        files = ("train_file", "validation_file", "test_file")
        given = [name for name in (*self.alternatives, *files) if getattr(self, name)]
        if len(given) > 1 and given[0] in self.alternatives:
            raise InputError(f"cannot be combined with `{given[1]}`.", given[0])

    def map_options(self) -> dict:
        """Returns `num_proc` and `overwrite_cache` for `make_features`."""
        return {"num_proc": self.preprocessing_num_workers, "overwrite_cache": self.overwrite_cache}

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the tasks in the order in which they run, or [None] for the user's own data."""
        return [None]

    def sources(self, splits: Mapping[str, str], **hub_options) -> dict[str, tuple[str, datasets.Dataset | None]]:
        """
        Returns the source of each split: the path to a file and None, or a name and the rows of a dataset on the Hub.

        `splits` maps "train", "validation" and "test" to the names of these splits on the Hub. Raises InputError if
        a split is missing.
        """
        if not self.dataset_name:
            files = {kind: getattr(self, f"{kind}_file") for kind in splits}
            if absent := [f"`{kind}_file`" for kind, file in files.items() if file is None]:
                options = " or ".join(f"`{name}`" for name in self.alternatives)
                raise InputError(f"no data specified; set {options}, or set {' and '.join(absent)}.")
            return {kind: (file, None) for kind, file in files.items()}
        hub = load_from_hub(self.dataset_name, self.dataset_config_name, **hub_options)
        if absent := [split for split in splits.values() if split not in hub]:
            raise InputError(f"{self.dataset_name} has no split {absent[0]!r}; available splits: {', '.join(hub)}.")
        return {kind: (f"{self.dataset_name}, {split}", hub[split]) for kind, split in splits.items()}

    def max_samples(self, kind: str) -> int | None:
        """Returns the maximum number of "train", "validation" or "test" examples, or None to use all of them."""
        names = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
        return getattr(self, names[kind])


class ExampleSampler(Sampler):
    """
    Sampler that draws examples in random order. If an example is split into windows, it draws one window per epoch.

    The order depends only on the seed and the epoch. With `group_by_length`, it groups windows with similar lengths
    into steps, and the first step contains the longest one. A step has `step_size` windows across all processes.
    Unlike transformers' sampler, it groups across all processes, and dropout does not influence the order.

    `lengths` and `examples` (windows,) contain each window's number of tokens and the index of its example.
    """

    def __init__(
        self, lengths: list[int], examples: np.ndarray, step_size: int, seed: int, group_by_length: bool = True
    ):
        self.lengths, self.examples, self.step_size = np.array(lengths), examples, step_size
        self.seed, self.epoch, self.group_by_length = seed, 0, group_by_length

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return len(np.unique(self.examples))

    def __iter__(self):
        seed = int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        windows = np.arange(len(self.examples))
        if len(self) < len(windows):  # for each example, the window that comes first in a random order
            shuffled = torch.randperm(len(windows), generator=generator).numpy()
            windows = shuffled[np.unique(self.examples[shuffled], return_index=True)[1]]
        if not self.group_by_length:
            return iter(windows[torch.randperm(len(windows), generator=generator).numpy()].tolist())
        lengths = self.lengths[windows].tolist()
        grouped = torch.tensor(get_length_grouped_indices(lengths, self.step_size, generator=generator))
        first, *others = grouped.split(self.step_size)
        last = [others.pop()] if others and len(others[-1]) < self.step_size else []  # the incomplete step
        order = torch.randperm(len(others), generator=generator).tolist()
        return iter(windows[torch.cat([first, *(others[number] for number in order), *last]).numpy()].tolist())


class FineTuningTrainer(CommonTrainer):
    """
    Trainer for features with a `length` column. If long examples are split into overlapping windows, the column
    `example` contains the index of the example that a window belongs to.

    Args:
        pad_to: Number of tokens to which examples are padded. Default: length of the longest example in the batch.
        class_weights: Maps each class to its weight in the training loss. Not used in evaluation.
        pool: How to combine the logits of the windows of an example: "mean" or "max".
    """

    args: FineTuningArguments

    def __init__(
        self,
        *args,
        pad_to: int | None = None,
        class_weights: dict[str, float] | None = None,
        pool: str = "mean",
        **kwargs,
    ):
        tokenizer, training_args = kwargs["processing_class"], kwargs["args"]
        padding, multiple = "max_length" if pad_to else True, 8 if training_args.fp16 else None
        collator = DataCollatorWithPadding(tokenizer, padding, pad_to, multiple)
        super().__init__(*args, data_collator=collator, **kwargs)
        # compute_loss scales the averages over batches itself, so the model must not use the number of rows in a step.
        self.model_accepts_loss_kwargs = False
        self.class_weights, self.pool = class_weights, pool
        self.notes = [f"Evaluated in {self.dtype_name}"] if self.args.do_eval else []
        if class_weights is not None:
            weights = ", ".join(f"{name} {weight:.4g}" for name, weight in class_weights.items())
            self.notes.append(f"Class weights in the training loss: {weights}")
        self.columns = {*signature(self.model.forward).parameters, "label"}  # used in batches
        if training_args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(training_args.early_stopping_patience))

    @property
    def dtype_name(self) -> str:
        """Returns the precision in which the model is evaluated, such as "float32" or "bfloat16 mixed precision"."""
        if self.args.bf16_full_eval or self.args.fp16_full_eval:
            return "bfloat16" if self.args.bf16_full_eval else "float16"
        mixed = {"bf16": "bfloat16 mixed precision", "fp16": "float16 mixed precision"}
        own = str(self.model.dtype).removeprefix("torch.")
        return mixed.get(self.accelerator.mixed_precision, own)  # `accelerate launch` can also set it

    def get_train_dataloader(self):
        args, rows = self.args, self.train_dataset
        assert isinstance(rows, datasets.Dataset)
        examples = np.array(rows["example"][:]) if "example" in rows.column_names else np.arange(len(rows))
        group_by_length = args.train_sampling_strategy == "group_by_length"
        if not group_by_length and len(np.unique(examples)) == len(rows):
            return super().get_train_dataloader()
        step_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = ExampleSampler(rows["length"][:], examples, step_size, seed, group_by_length)
        return self.loader(self.inputs_of(rows), args.train_batch_size, sampler)

    def get_eval_dataloader(self, eval_dataset=None):
        """Returns a data loader that keeps the order of the rows. Trainer's own would group them by length."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        assert isinstance(dataset, datasets.Dataset)
        self.evaluated_examples = np.array(dataset["example"][:]) if "example" in dataset.column_names else None
        rows = self.inputs_of(dataset)
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
        if self.class_weights is not None and model.training:
            loss = weighted_cross_entropy(outputs["logits"], inputs["labels"], [*self.class_weights.values()])
        if num_items_in_batch is not None:  # Trainer averages over batches, but the last one can be smaller
            loss = loss * (rows * self.current_gradient_accumulation_steps / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        """Evaluates the model. Combines the logits of an example's windows, and computes the exact loss in float64."""
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        try:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self.compute_metrics = compute_metrics
        if output.predictions is None:
            return output
        predictions, labels, examples = output.predictions, output.label_ids, self.evaluated_examples
        if examples is not None:
            logits = predictions[0] if isinstance(predictions, tuple) else predictions
            predictions = pool_windows(logits, examples, self.pool)
            labels = None if labels is None else pool_windows(labels, examples)
        metrics = dict(output.metrics or {})
        if labels is not None:
            # Trainer's own loss is inexact with several processes, because rows are repeated to fill the last batch.
            problem_type = getattr(self.model.config, "problem_type", None)
            metrics[f"{metric_key_prefix}_loss"] = mean_loss(predictions, labels, problem_type)
            scores = compute_metrics(EvalPrediction(predictions, labels)) if compute_metrics else {}
            metrics |= {f"{metric_key_prefix}_{name}": score for name, score in scores.items()}
        return output._replace(predictions=predictions, label_ids=labels, metrics=metrics)


def mean_loss(predictions: np.ndarray | tuple, labels: np.ndarray | tuple, problem_type: str | None = None) -> float:
    """
    Returns the average loss over all examples, in float64.

    The loss depends on the type of the labels:

    - label ids (examples,) and logits (examples, classes): the cross-entropy in nats
    - multi-hot labels and logits (examples, labels): the binary cross-entropy in nats
    - scores (examples,) and predicted scores (examples, 1): the mean squared error
    - tuples, such as start and end positions: the average of the losses of all elements
    """
    predictions, labels = (x if isinstance(x, tuple) else (x,) for x in (predictions, labels))
    losses = []
    for output, target in zip(predictions, labels, strict=False):  # models can return additional outputs
        output, target = torch.from_numpy(output).double(), torch.from_numpy(target)
        if problem_type == MULTI:
            losses.append(binary_cross_entropy_with_logits(output, target.double()))
        elif target.is_floating_point():
            losses.append(mse_loss(output.reshape(target.shape), target.double()))
        else:
            losses.append(cross_entropy(output, target))
    return torch.stack(losses).mean().item()


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: list[float]) -> Tensor:
    """
    Returns the cross-entropy for logits (rows, classes) and label ids (rows,), with a weight for each class.

    The sum is divided by the number of rows, so that a step has the same gradient however it is divided into batches.
    PyTorch divides by the sum of the weights, which differs between batches.
    """
    losses = cross_entropy(
        logits.float(), labels, weight=logits.new_tensor(weights, dtype=torch.float32), reduction="sum"
    )
    return losses / len(labels)


def pool_windows(outputs: np.ndarray, examples: np.ndarray, pool: str = "mean") -> np.ndarray:
    """
    Returns an array (N, ...) with the average ("mean") or maximum ("max") over the windows of each of N texts.

    `outputs` (windows, ...) are logits or labels, and `examples` (windows,) contains the index of each window's text.
    """
    order = np.argsort(examples, kind="stable")
    starts = np.flatnonzero(np.diff(examples[order], prepend=-1))
    if pool == "max":
        return np.maximum.reduceat(outputs[order], starts)
    sums = np.add.reduceat(outputs[order].astype(np.float64), starts)
    counts = np.diff(starts, append=len(order)).reshape(-1, *[1] * (outputs.ndim - 1))
    return (sums / counts).astype(outputs.dtype)
