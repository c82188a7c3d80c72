"""Trainer and arguments for fine-tuning, with batches of examples of similar length and exact losses."""

from dataclasses import dataclass
from inspect import signature

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, EvalPrediction
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..options import FineTuningTrainerOptions
from ..support.errors import InputError
from ..tasks.examples import SAMPLE_SEED
from ..tasks.glue_metrics import lower_is_better
from ..tasks.labels import MULTI
from ..training.arguments import CommonArguments
from ..training.speed import is_bf16_faster
from ..training.trainer import CommonTrainer


@dataclass
class FineTuningArguments(FineTuningTrainerOptions, CommonArguments):  # type: ignore[misc]  # bf16 can be None
    """Arguments for Trainer and sweeps. Some defaults differ from Trainer's (docs/fine_tuning.md)."""

    def __post_init__(self):
        if self.bf16 is None:
            self.bf16 = not self.fp16 and is_bf16_faster(self.use_cpu)
        if metric := self.metric_for_best_model:  # Trainer would choose True for metrics such as mse
            if self.greater_is_better == lower_is_better(metric):
                raise InputError(f"cannot be {str(self.greater_is_better).lower()} for {metric}.", "greater_is_better")
            self.greater_is_better = not lower_is_better(metric)
        super().__post_init__()
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True
            if self.eval_strategy == "no" or self.metric_for_best_model is None:
                raise InputError("requires `eval_strategy` and `metric_for_best_model`.", "early_stopping_patience")

    @property
    def sample_seed(self) -> int:
        """Returns the seed for drawing examples. It is the same in all runs of a sweep."""
        return SAMPLE_SEED if self.data_seed is None else self.data_seed

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of splits that the run needs: "train", "validation" and "test"."""
        needed = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return tuple(kind for kind, is_needed in needed.items() if is_needed)


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
        class_weights: Maps each class to its weight in the training loss. Not used in evaluation.
    """

    args: FineTuningArguments

    def __init__(self, *args, class_weights: dict[str, float] | None = None, **kwargs):
        tokenizer, training_args = kwargs["processing_class"], kwargs["args"]
        collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
        super().__init__(*args, data_collator=collator, **kwargs)
        # compute_loss scales the averages over batches itself, so the model must not use the number of rows in a step.
        self.model_accepts_loss_kwargs = False
        self.class_weights = class_weights
        self.columns = {*signature(self.model.forward).parameters, "label"}  # used in batches
        if training_args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(training_args.early_stopping_patience))

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
        rows, labels = len(inputs["input_ids"]), inputs.get("labels")
        loss, outputs = super().compute_loss(model, inputs, True)
        if self.class_weights is not None and model.training:
            weights, smoothing = [*self.class_weights.values()], self.args.label_smoothing_factor
            loss = weighted_cross_entropy(outputs["logits"], labels, weights, smoothing)
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
            predictions = pool_windows(logits, examples)
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


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: list[float], smoothing: float = 0.0) -> Tensor:
    """
    Returns the cross-entropy for logits (rows, classes) and label ids (rows,), with a weight for each class.

    The sum is divided by the number of rows, so that a step has the same gradient however it is divided into batches.
    PyTorch divides by the sum of the weights, which differs between batches.
    """
    weight = logits.new_tensor(weights, dtype=torch.float32)
    losses = cross_entropy(logits.float(), labels, weight, reduction="sum", label_smoothing=smoothing)
    return losses / len(labels)


def pool_windows(outputs: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """
    Returns an array (N, ...) with the average over the windows of each of N texts.

    `outputs` (windows, ...) are logits or labels, and `examples` (windows,) contains the index of each window's text.
    """
    order = np.argsort(examples, kind="stable")
    starts = np.flatnonzero(np.diff(examples[order], prepend=-1))
    sums = np.add.reduceat(outputs[order].astype(np.float64), starts)
    counts = np.diff(starts, append=len(order)).reshape(-1, *[1] * (outputs.ndim - 1))
    return (sums / counts).astype(outputs.dtype)
