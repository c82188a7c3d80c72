"""Predictions of each task head, and their Fisher information."""

import pytest
import torch
from helpers.tiny_models import model_of
from torch.distributions import Bernoulli, Categorical, kl_divergence

from fixedbert.tasks.predictions import PREDICTED_POSITIONS, Predictions, predict, sampled_nll

torch.manual_seed(0)
KINDS = {"classes": lambda x: Categorical(logits=x), "labels": lambda x: Bernoulli(logits=x)}


@pytest.mark.parametrize("kind", KINDS)
def test_kl_divergence_matches_torch(kind):
    """The KL divergence of classes and of sets of labels, in nats and summed over predictions, matches torch."""
    one, other = torch.randn(13, 3), torch.randn(13, 3)
    expected = kl_divergence(KINDS[kind](one), KINDS[kind](other)).sum()
    assert torch.allclose(Predictions(one, kind).kl_divergence(Predictions(other, kind)), expected, rtol=1e-5)
    assert Predictions(one, kind).kl_divergence(Predictions(one, kind)).abs() < 1e-6


@pytest.mark.parametrize("kind", ["classes", "labels", "numbers"])
def test_fisher_information_is_the_hessian_of_the_divergence(kind):
    """The second moment of the gradients of `sampled_nll` is the Hessian of the KL divergence."""
    values = torch.randn(1, 3)
    hessian = torch.autograd.functional.hessian(
        lambda change: Predictions(values, kind).kl_divergence(Predictions(values + change, kind)), torch.zeros(1, 3)
    )[0, :, 0]
    many = values.repeat(20_000, 1).requires_grad_()
    sampled_nll(Predictions(many, kind)).backward()
    fisher = many.grad.T @ many.grad / len(many)
    assert torch.allclose(fisher, hessian, atol=0.02)


@pytest.mark.parametrize(
    "head, kind, count",
    [
        ("ForSequenceClassification", "classes", 2),
        ("ForQuestionAnswering", "classes", 2),
        ("ForTokenClassification", "classes", 3),
        ("ForPreTraining", "classes", 3),
        ("Model", "states", 9),
    ],
)
def test_predictions_do_not_depend_on_padding(head, kind, count):
    """Each task head makes predictions of the expected kind, which do not depend on padding."""
    model = model_of(head).eval()
    ids = torch.randint(5, 30, (2, 7))
    mask = torch.tensor([[1] * 7, [1, 1, 0, 0, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": mask, PREDICTED_POSITIONS: torch.zeros(2, 7).bool()}
    batch[PREDICTED_POSITIONS][0, [1, 3]] = batch[PREDICTED_POSITIONS][1, 1] = True
    result = predict(model, batch)
    assert {predictions.kind for predictions in result} == {kind} and len(result[0].values) == count
    other = {**batch, "input_ids": torch.where(mask.bool(), ids, 4)}
    for one, again in zip(result, predict(model, other), strict=True):
        assert torch.allclose(one.values, again.values, atol=1e-5)
