"""Trainer for pretraining, and its evaluation: loss and accuracy of both tasks on held-out documents."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, Trainer

from ..data.pretraining import EpochSampler

# What is summed over an example: enough to get every mean right whatever the batch size.
SUMS = ("mlm_loss", "mlm_correct", "mlm_tokens", "nsp_loss", "nsp_correct")


class PretrainingTrainer(Trainer):
    """
    Trainer whose epochs draw new pairs, on any number of processes and after a continuation.

    The loss of a step is the mean over all its masked tokens and the mean over all its pairs, however these are spread
    over accumulated batches and processes. A mean of the batches' means would count tokens of batches with few more.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # to be told how many tokens a step has; `compute_loss` divides by it

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss
        if num_items_in_batch is not None and model.training:
            pairs = cross_entropy(outputs.seq_relationship_logits.float(), inputs["next_sentence_label"])
            tokens = inputs["labels"].ne(-100).sum()
            # Gradients of processes are averaged; the count is of all of them, or of this one alone.
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            loss = (loss - pairs) * tokens * processes / num_items_in_batch
            loss = loss + pairs / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, train_dataset=None):
        return EpochSampler(self.train_dataset if train_dataset is None else train_dataset)


def sums_by_example(logits: tuple[torch.Tensor, torch.Tensor], labels: tuple[torch.Tensor, torch.Tensor]):
    """
    For Trainer's `preprocess_logits_for_metrics`: the SUMS of every example, float32 (B, 5).

    Takes prediction logits, (B, L, V) or of labelled tokens only, (labelled, V), next-sentence logits (B, 2) and the
    labels of both, (B, L) and (B).
    """
    prediction_logits, next_sentence_logits = logits[:2]
    mlm_labels, next_sentence_label = labels
    rows, columns = mlm_labels.ne(-100).nonzero(as_tuple=True)
    if prediction_logits.dim() == 3:
        prediction_logits = prediction_logits[rows, columns]  # (labelled, V)
    targets = mlm_labels[rows, columns]
    sums = torch.zeros(len(mlm_labels), len(SUMS), device=mlm_labels.device)
    by_token = (
        cross_entropy(prediction_logits.float(), targets, reduction="none"),
        prediction_logits.argmax(-1) == targets,
        torch.ones_like(targets),
    )
    for column, value in enumerate(by_token):
        sums[:, column].index_add_(0, rows, value.float())
    sums[:, 3] = cross_entropy(next_sentence_logits.float(), next_sentence_label, reduction="none")
    sums[:, 4] = (next_sentence_logits.argmax(-1) == next_sentence_label).float()
    return sums


def pretraining_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """For Trainer's `compute_metrics`: means over masked tokens and over pairs, and the masked-LM perplexity."""
    total = dict(zip(SUMS, prediction.predictions.sum(axis=0, dtype=np.float64), strict=True))
    pairs = len(prediction.predictions)
    mlm_loss = total["mlm_loss"] / total["mlm_tokens"]
    return {
        "mlm_loss": mlm_loss,
        "mlm_accuracy": total["mlm_correct"] / total["mlm_tokens"],
        "perplexity": float(np.exp(mlm_loss)),
        "nsp_loss": total["nsp_loss"] / pairs,
        "nsp_accuracy": total["nsp_correct"] / pairs,
    }
