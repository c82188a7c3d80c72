"""Evaluation of pretraining: loss and accuracy of both tasks on held-out documents."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction

# What is summed over an example: enough to get every mean right whatever the batch size.
SUMS = ("mlm_loss", "mlm_correct", "mlm_tokens", "nsp_loss", "nsp_correct")


def sums_by_example(logits: tuple[torch.Tensor, torch.Tensor], labels: tuple[torch.Tensor, torch.Tensor]):
    """
    For Trainer's `preprocess_logits_for_metrics`: the SUMS of every example, float64 (B, 5).

    Takes prediction logits, (B, L, V) or of labelled tokens only, (labelled, V), next-sentence logits (B, 2) and the
    labels of both, (B, L) and (B).
    """
    prediction_logits, next_sentence_logits = logits[:2]
    mlm_labels, next_sentence_label = labels
    rows, columns = mlm_labels.ne(-100).nonzero(as_tuple=True)
    if prediction_logits.dim() == 3:
        prediction_logits = prediction_logits[rows, columns]  # (labelled, V)
    targets = mlm_labels[rows, columns]
    sums = torch.zeros(len(mlm_labels), len(SUMS), dtype=torch.float64, device=mlm_labels.device)
    by_token = (
        cross_entropy(prediction_logits.float(), targets, reduction="none"),
        prediction_logits.argmax(-1) == targets,
        torch.ones_like(targets),
    )
    for column, value in enumerate(by_token):
        sums[:, column].index_add_(0, rows, value.double())
    sums[:, 3] = cross_entropy(next_sentence_logits.float(), next_sentence_label, reduction="none").double()
    sums[:, 4] = (next_sentence_logits.argmax(-1) == next_sentence_label).double()
    return sums


def pretraining_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """For Trainer's `compute_metrics`: means over masked tokens and over pairs, and the masked-LM perplexity."""
    total = dict(zip(SUMS, prediction.predictions.sum(axis=0), strict=True))
    pairs = len(prediction.predictions)
    mlm_loss = total["mlm_loss"] / total["mlm_tokens"]
    return {
        "mlm_loss": mlm_loss,
        "mlm_accuracy": total["mlm_correct"] / total["mlm_tokens"],
        "perplexity": float(np.exp(mlm_loss)),
        "nsp_loss": total["nsp_loss"] / pairs,
        "nsp_accuracy": total["nsp_correct"] / pairs,
    }
