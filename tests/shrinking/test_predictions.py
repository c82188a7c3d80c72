"""What models answer: distributions of every kind, their distance, and their Fisher information."""

import copy

import pytest
import torch
from helpers.tiny_models import model_of
from torch.distributions import Bernoulli, Categorical, kl_divergence

from fixedbert.shrinking.predictions import PLACES, Answers, answering, answers_text, compare

torch.manual_seed(0)
KINDS = {"classes": lambda x: Categorical(logits=x), "labels": lambda x: Bernoulli(logits=x)}


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_is_that_of_the_distributions(kind):
    """Guards: KL in nats of classes and of labels, summed over the answers."""
    one, other = torch.randn(13, 3), torch.randn(13, 3)
    expected = kl_divergence(KINDS[kind](one), KINDS[kind](other)).sum()
    assert torch.allclose(Answers(one, kind).divergence(Answers(other, kind)), expected, rtol=1e-5)
    assert Answers(one, kind).divergence(Answers(one, kind)).abs() < 1e-6


@pytest.mark.parametrize("kind", ["classes", "labels", "numbers"])
def test_gradients_of_surprise_make_up_the_curvature_of_divergence(kind):
    """Guards: the second moment of the gradients, with answers drawn from the model, is the Hessian of KL."""
    values = torch.randn(1, 3)
    hessian = torch.autograd.functional.hessian(
        lambda change: Answers(values, kind).divergence(Answers(values + change, kind)), torch.zeros(1, 3)
    )[0, :, 0]
    many = values.repeat(20_000, 1).requires_grad_()
    Answers(many, kind).surprise().backward()
    fisher = many.grad.T @ many.grad / len(many)
    assert torch.allclose(fisher, hessian, atol=0.02)


@pytest.mark.parametrize(
    "head, kind, count",
    [
        ("ForSequenceClassification", "classes", 2),
        ("ForQuestionAnswering", "classes", 2),
        ("ForTokenClassification", "classes", 9),
        ("ForMaskedLM", "classes", 3),
        ("ForPreTraining", "classes", 3),
        ("Model", "states", 9),
    ],
)
def test_answers_of_heads_do_not_depend_on_padding(head, kind, count):
    """Guards: each head is asked for what it is for, at real tokens or at masked places alone."""
    model = model_of(head).eval()
    ids = torch.randint(5, 30, (2, 7))
    mask = torch.tensor([[1] * 7, [1, 1, 0, 0, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": mask, PLACES: torch.zeros(2, 7).bool()}
    batch[PLACES][0, [1, 3]] = batch[PLACES][1, 1] = True
    ask = answering(model)
    found = ask(model, batch)
    assert {answers.kind for answers in found} == {kind} and len(found[0].values) == count
    other = {**batch, "input_ids": torch.where(mask.bool(), ids, 4)}
    for one, again in zip(found, ask(model, other), strict=True):
        assert torch.allclose(one.values, again.values, atol=1e-5)
    same = compare(model, model, [batch], ask)
    assert same.divergence == pytest.approx(0, abs=1e-6) and same.agreement == (None if kind == "states" else 1)
    assert same.kind == kind


def test_embeddings_are_compared_by_their_cosine():
    """Guards: of a model with pooling, the distance is one less the cosine."""
    model, other = (model_of("Model", initializer_range=scale).eval() for scale in (0.3, 0.5))
    pool = lambda states, mask: (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # noqa: E731
    batch = {"input_ids": torch.randint(5, 30, (3, 7)), "attention_mask": torch.ones(3, 7).long()}
    pooled = [pool(one(**batch).last_hidden_state, batch["attention_mask"]) for one in (model, other)]
    expected = 1 - torch.nn.functional.cosine_similarity(*pooled)
    found = compare(model, other, [batch], answering(model, pool))
    assert found.divergence == pytest.approx(float(expected.mean()), rel=1e-4)
    assert answers_text(found) == f"their mean cosine with the original's is {1 - float(expected.mean()):.3f}"


def test_numbers_are_reported_by_their_difference():
    """Guards: a model that predicts numbers is told how far they are off, in their own unit."""
    model = model_of("ForSequenceClassification", num_labels=1).eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.bias += 0.25
    batch = {"input_ids": torch.randint(5, 30, (3, 7)), "attention_mask": torch.ones(3, 7).long()}
    found = compare(model, other, [batch], answering(model))
    with torch.no_grad():
        spread = float(model(**batch).logits.std(correction=0))
    assert found.spread == pytest.approx(spread)
    said = f"they differ from the original's by 0.25, where the original's vary by {spread:.2g} (root mean squares)"
    assert answers_text(found) == said
