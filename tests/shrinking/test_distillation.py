"""Tests for the distillation loss."""

import math

import pytest
import torch
from helpers.tiny_models import bert_of, inputs_of, model_of

from fixedbert.shrinking.distillation import distillation_loss
from fixedbert.tasks.predictions import Predictions, span_predictions
from fixedbert.training.speed import enable_unpadding


def naive_divergence(student, teacher, temperature, mask=None):
    """Returns T² KL(teacher / T || student / T) for logits, computed with loops over rows and classes."""
    total = 0.0
    for row, (ours, theirs) in enumerate(zip(student.tolist(), teacher.tolist(), strict=True)):
        kept = [n for n in range(len(ours)) if mask is None or mask[row, n]]
        q, p = ([math.exp(logits[n] / temperature) for n in kept] for logits in (ours, theirs))
        q, p = ([x / math.fsum(values) for x in values] for values in (q, p))
        total += math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_loss_for_classes(temperature):
    """The distillation loss for classes equals its definition."""
    student, teacher = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    pair = ([Predictions(teacher, "classes")], [Predictions(student, "classes")])
    expected = naive_divergence(student.double(), teacher.double(), temperature)
    assert distillation_loss(*pair, temperature).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_loss_for_question_answering(temperature):
    """The distillation loss for question answering ignores padding, at which the models' logits differ."""
    student, teacher = model_of("ForQuestionAnswering", initializer_range=0.3), bert_of("ForQuestionAnswering")
    enable_unpadding(student)
    inputs = inputs_of("ForQuestionAnswering")
    outputs, targets = student.eval()(**inputs), teacher.eval()(**inputs)
    theirs, ours = (span_predictions(x, inputs["attention_mask"]) for x in (targets, outputs))
    loss = distillation_loss(theirs, ours, temperature)
    expected = [
        naive_divergence(outputs[name].double(), targets[name].double(), temperature, inputs["attention_mask"])
        for name in ("start_logits", "end_logits")
    ]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-5)
    loss.backward()
    gradients = [weight.grad for weight in student.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients) and any(gradient.any() for gradient in gradients)
