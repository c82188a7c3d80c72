"""Predictions of each task head, their Fisher information, and their fidelity to an original model."""

import pytest
import torch
from helpers.tiny_models import model_of
from torch.distributions import Bernoulli, Categorical, kl_divergence

from fixedbert.tasks.predictions import PREDICTED_POSITIONS, Predictions, fidelity, measure_fidelity, predict, sampled_nll

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
    same = measure_fidelity(model, model, [batch])
    assert same.divergence == pytest.approx(0, abs=1e-6) and same.agreement == (None if kind == "states" else 1)
    assert same.kind == kind and ("hidden states" in str(same)) == (kind == "states")


def test_fidelity_of_hidden_states_is_their_cosine_similarity():
    """The divergence of a model without pooling is 1 - cosine similarity of the tokens."""
    model, other = (model_of("Model", initializer_range=scale).eval() for scale in (0.3, 0.5))
    batch = {"input_ids": torch.randint(5, 30, (3, 7)), "attention_mask": torch.ones(3, 7).long()}
    expected = 1 - torch.cosine_similarity(*(one(**batch).last_hidden_state for one in (model, other)), dim=-1)
    assert measure_fidelity(model, other, [batch]).divergence == pytest.approx(float(expected.mean()), rel=1e-4)


def test_fidelity_of_several_labels():
    """Predictions agree if the sets of labels are equal. The report contains a warning if all sets are the same."""
    one, other = torch.randn(53, 3), torch.randn(53, 3)
    result = fidelity([([Predictions(one, "labels")], [Predictions(other, "labels")])], 53)
    same = ((one > 0) == (other > 0)).all(dim=1)
    assert result.kind == "labels" and result.agreement == pytest.approx(float(same.float().mean()))
    assert result.distinct == len({tuple(row) for row in (one > 0).tolist()}) and "same label" not in str(result)
    constant = [Predictions(one[:1], "labels")]
    assert "the original predicts the same label for all rows" in str(fidelity([(constant, constant)], 1))
