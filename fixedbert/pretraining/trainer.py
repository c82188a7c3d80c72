"""The Trainer for pretraining, and its metrics."""

import time
import warnings
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..data.examples import EpochSampler, Examples
from ..model.unpadding_fixed_head_bert import find_label_indices
from ..training.trainer import CommonTrainer
from .arguments import PretrainingArguments

# Sums per example. `pretraining_metrics` turns them into averages that do not depend on the batch size.
SUMS = {
    "mlm+nsp": ("mlm_loss", "mlm_correct", "mlm_tokens", "nsp_loss", "nsp_correct"),
    "mlm": ("mlm_loss", "mlm_correct", "mlm_tokens"),
    "clm": ("clm_loss", "clm_correct", "clm_tokens"),
}


class PretrainingTrainer(CommonTrainer):
    """
    Trainer that generates new examples in every epoch.

    The loss of a step is the average over all labeled tokens plus the average over all segment pairs. It does not
    depend on how the examples are split into accumulated batches and processes. (An average of batch averages would
    give more weight to tokens in batches with few labels.) The log also contains the accuracy on labeled tokens in a
    sample of the batches, the throughput in non-padding tokens per second, and the fraction of non-padding tokens
    (`fill_ratio`).

    Args:
        objective: Objective of the pretraining: mlm+nsp, mlm or clm.
        first_step: Step of the learning-rate schedule at which the run starts.
        schedule_steps: Number of steps in the learning-rate schedule, if it spans several stages.
    """

    counts = 4  # labeled tokens, correct predictions for them, non-padding tokens, all tokens
    args: PretrainingArguments
    objective: str

    def __init__(
        self, *args, objective: str = "mlm+nsp", first_step: int = 0, schedule_steps: int | None = None, **kwargs
    ):
        kwargs["args"].label_names = ["labels", "next_sentence_label"] if objective == "mlm+nsp" else ["labels"]
        super().__init__(
            *args,
            compute_metrics=partial(pretraining_metrics, objective=objective),
            preprocess_logits_for_metrics=partial(sums_by_example, objective=objective),
            **kwargs,
        )
        self.objective = objective
        self.first_step, self.schedule_steps = first_step, schedule_steps
        self.model_accepts_loss_kwargs = True  # so that Trainer passes `num_items_in_batch` to `compute_loss`

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        scheduler = super().create_scheduler(self.schedule_steps or num_training_steps, optimizer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
            for _ in range(self.first_step - scheduler.last_epoch):
                scheduler.step()
        return scheduler

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss
        if num_items_in_batch is not None and model.training:
            # `num_items_in_batch` counts the labels of all processes or of one, and DDP averages the gradients.
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            token_loss, pair_loss = separate_losses(outputs, inputs)
            loss = token_loss * inputs["labels"].ne(-100).sum() * processes / num_items_in_batch
            if pair_loss is not None:
                loss = loss + pair_loss / self.current_gradient_accumulation_steps
            self.count_tokens(inputs, outputs)
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def count_tokens(self, inputs, outputs):
        """Adds a batch to the counts for the next log entry. Computes the accuracy for only some of the batches."""
        labels, mask = inputs["labels"], inputs.get("attention_mask")
        if mask is None:
            assert isinstance(self.processing_class, PreTrainedTokenizerBase)
            mask = inputs["input_ids"] != self.processing_class.pad_token_id
        real = mask.sum()
        labeled = correct = torch.zeros_like(real)
        batch = self.state.global_step * self.args.gradient_accumulation_steps + len(self.step_losses)
        if batch % max(1, self.state.logging_steps // 10) == 0:
            logits = outputs.prediction_logits if self.objective == "mlm+nsp" else outputs.logits
            logits, targets = logits_and_targets(logits, labels, self.objective)
            labeled, correct = targets.ne(-100).sum(), (logits.argmax(-1) == targets).sum()
        self.window[1:] += torch.stack([labeled, correct, real, torch.full_like(real, labels.numel())])
        self.step_tokens.append(real)

    def counted(self, counts):
        labeled, correct, real, total = counts
        if not (labeled and total):
            return {}
        return {
            f"{self.objective[:3]}_accuracy": correct / labeled,
            "tokens_per_second": real / (time.monotonic() - self.window_began),
            "fill_ratio": real / total,
        }

    def log(self, logs, *args, **kwargs):
        logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        start = time.monotonic()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # Replaces Trainer's average over batches, which depends on the batch size.
        losses = [f"{metric_key_prefix}_{name}" for name in SUMS[self.objective] if name.endswith("_loss")]
        output.metrics[f"{metric_key_prefix}_loss"] = sum(output.metrics[name] for name in losses)
        self.window_began += time.monotonic() - start
        return output

    def get_train_dataloader(self):
        args, examples = self.args, self.train_dataset
        step_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        assert isinstance(examples, Examples)
        return self.loader(examples, args.train_batch_size, EpochSampler(examples, step_size))


def separate_losses(outputs: ModelOutput, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the average losses over labeled tokens and over segment pairs (None if the pairs have no labels)."""
    if "next_sentence_label" not in inputs:
        return outputs["loss"], None
    if "masked_lm_loss" in outputs:
        return outputs["masked_lm_loss"], outputs["next_sentence_loss"]
    pair_loss = cross_entropy(outputs["seq_relationship_logits"].float(), inputs["next_sentence_label"])
    return outputs["loss"] - pair_loss, pair_loss  # transformers' BERT returns only the sum of both losses


def logits_and_targets(
    logits: torch.Tensor, labels: torch.Tensor, objective: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Returns the logits (N, V) and targets (N,) for the N labeled tokens. V is the vocabulary size.

    Args:
        logits: Logits (B, L, V) for B rows of L tokens, or (N, V) if the model computes them only for labeled tokens.
        labels: Labels (B, L), which are -100 for unlabeled tokens.
        objective: mlm+nsp, mlm or clm. With clm, labels are shifted so that each position predicts the next token.
    """
    if objective == "clm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    indices = find_label_indices(labels)
    return logits.flatten(0, 1)[indices] if logits.dim() == 3 else logits, labels.flatten()[indices]


def sums_by_example(logits, labels, objective: str = "mlm+nsp"):
    """
    Returns the SUMS for each example, as a float32 tensor (B, number of sums).

    Trainer calls this function as `preprocess_logits_for_metrics`.

    Args:
        logits: Logits (B, L, V) for B rows of L tokens and a vocabulary of size V, or (N, V) for the N labeled tokens.
            With next-sentence prediction, a tuple of these logits and the next-sentence logits (B, 2).
        labels: Labels (B, L). With next-sentence prediction, a tuple of these and the next-sentence labels (B,).
    """
    logits = logits if isinstance(logits, tuple) else (logits,)
    labels, *next_sentence_label = labels if isinstance(labels, tuple) else (labels,)
    is_labeled = labels[:, 1:].ne(-100) if objective == "clm" else labels.ne(-100)
    sums = torch.zeros(len(labels), len(SUMS[objective]), device=labels.device)
    counts = is_labeled.sum(-1).tolist()
    all_logits, all_targets = logits_and_targets(logits[0], labels, objective)
    parts = zip(all_logits.split(counts), all_targets.split(counts), strict=True)
    for row, (part, targets) in enumerate(parts):  # row by row, to avoid a float32 copy of all logits
        sums[row, 0] = cross_entropy(part.float(), targets, reduction="sum")
        sums[row, 1] = (part.argmax(-1) == targets).sum()
        sums[row, 2] = len(targets)
    if objective == "mlm+nsp":
        sums[:, 3] = cross_entropy(logits[1].float(), next_sentence_label[0], reduction="none")
        sums[:, 4] = (logits[1].argmax(-1) == next_sentence_label[0]).float()
    return sums


def pretraining_metrics(prediction: EvalPrediction, objective: str = "mlm+nsp") -> dict[str, float]:
    """
    Returns average losses and accuracies over labeled tokens and over segment pairs, and the perplexity per token.

    Trainer calls this function as `compute_metrics`.
    """
    sums = np.asarray(prediction.predictions).sum(axis=0, dtype=np.float64)  # (number of SUMS,)
    total = dict(zip(SUMS[objective], sums.tolist(), strict=True))
    task = objective[:3]
    loss = total[f"{task}_loss"] / total[f"{task}_tokens"]
    metrics = {
        f"{task}_loss": loss,
        f"{task}_accuracy": total[f"{task}_correct"] / total[f"{task}_tokens"],
        "perplexity": float(np.exp(loss)),
    }
    if objective == "mlm+nsp":
        pairs = len(prediction.predictions)
        metrics |= {"nsp_loss": total["nsp_loss"] / pairs, "nsp_accuracy": total["nsp_correct"] / pairs}
    return metrics
