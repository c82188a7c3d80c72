"""Fidelity of predictions to those of an original model, in the measure of each task."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import model_of
from torch.nn.functional import normalize

from fixedbert.tasks.fidelity import NEARLY_SAME, SAME, criterion, fidelity, measure_fidelity
from fixedbert.tasks.predictions import Predictions

torch.manual_seed(0)


def compared(kind, one, other, **options):
    pair = tuple([Predictions(torch.as_tensor(values, dtype=torch.float32), kind)] for values in (one, other))
    return fidelity([pair], len(one), "row", **options)


@pytest.mark.parametrize(
    "head, unit",
    [
        ("ForSequenceClassification", "row"),
        ("ForQuestionAnswering", "position"),
        ("ForTokenClassification", "token"),
        ("Model", "state"),
    ],
)
def test_model_and_its_copy(head, unit):
    """A copy of a model with any task head has no divergence, and all units stay."""
    model = model_of(head).eval()
    mask = torch.tensor([[1] * 7, [1, 1, 0, 0, 0, 0, 0]])
    batches = [{"input_ids": torch.randint(5, 30, (2, 7)), "attention_mask": mask} for _ in range(2)]
    same = measure_fidelity(model, model, batches)
    assert same.divergence == pytest.approx(0, abs=1e-6) and same.unit == unit and same.rows == 4
    assert same.agreement == (None if unit == "state" else 1)
    assert ("hidden states" in str(same)) == (unit == "state")


def test_hidden_states():
    """The divergence of a model without pooling is 1 - cosine similarity of the tokens."""
    model, other = (model_of("Model", initializer_range=scale).eval() for scale in (0.3, 0.5))
    batch = {"input_ids": torch.randint(5, 30, (3, 7)), "attention_mask": torch.ones(3, 7).long()}
    with torch.no_grad():
        states = [one(**batch).last_hidden_state for one in (model, other)]
    expected = 1 - torch.cosine_similarity(*states, dim=-1)
    assert measure_fidelity(model, other, [batch]).divergence == pytest.approx(float(expected.mean()), rel=1e-4)


def test_labels():
    """A row stays if its set of labels does. The report contains a warning if all sets are the same."""
    one, other = torch.randn(53, 3), torch.randn(53, 3)
    result, changed = compared("labels", one, other)
    same = ((one > 0) == (other > 0)).all(dim=1)
    assert result.unit == "row" and result.agreement == pytest.approx(float(same.float().mean()))
    assert changed == (~same).nonzero()[:, 0].tolist() and "same label" not in str(result)
    assert "but the original predicts the same label for all rows" in str(compared("labels", one[:1], other[:1])[0])


def test_scores():
    """Scores without queries are judged by their largest difference in standard deviations of the original's."""
    one = torch.arange(13.0)[:, None]
    for difference, limits in ((0.03, {SAME, NEARLY_SAME}), (0.3, {NEARLY_SAME}), (0.4, set())):
        other = one.clone()
        other[7] -= difference
        result, changed = compared("numbers", one, other)
        assert {limit for limit in (SAME, NEARLY_SAME) if result.is_within(limit)} == limits
        assert result.measures["largest difference"] == pytest.approx(difference, rel=1e-4) and not changed
        assert result.measures["mean difference"] == pytest.approx(difference / 13, rel=1e-4)
        assert result.measures["standard deviation"] == pytest.approx(14**0.5) and "%" not in str(result)
    assert criterion("score", NEARLY_SAME) == "no score differs by more than 10% of the standard deviation"


def test_first_results_of_queries():
    """A query stays if its first result does, or if the original scores the new one equally high."""
    queries = np.array([2, 0, 0, 2, 1, 1, 1])
    one = [[3.0], [1.0], [0.5], [2.0], [5.0], [5.0], [0.0]]
    other = [[3.0], [1.0], [1.5], [2.5], [4.0], [5.0], [0.0]]  # query 0 changes; two rows of query 1 are the same
    result, changed = compared("numbers", one, other, groups=queries)
    assert (result.unit, result.agreement, changed) == ("query", pytest.approx(2 / 3), [0])
    assert str(result).startswith("66.7% of the queries have the same first result, largest difference 1, mean")
    constant, _ = compared("numbers", [[1.0]] * 7, other, groups=queries)
    assert constant.agreement == 1 and str(constant).endswith("but the original gives all rows the same score")


def test_nearest_neighbours(monkeypatch):
    """A text stays if its nearest neighbour does. Copies of a text do not count as its neighbours."""
    monkeypatch.setattr("fixedbert.tasks.similarity.CHUNK", 5)
    one = normalize(torch.randn(13, 4), dim=-1)
    one[11:] = one[:2]  # copies
    other = normalize(one + 0.3 * torch.randn(13, 4), dim=-1)
    expected = []
    for index in range(13):
        others = [k for k in range(13) if float(one[index] @ one[k]) < 1 - 1e-6]
        nearest, found = (max(others, key=lambda k: float(x[index] @ x[k])) for x in (one, other))
        expected.append(float(one[index] @ one[found]) >= float(one[index] @ one[nearest]) - 1e-4)
    result, changed = compared("embeddings", one, other)
    assert result.agreement == pytest.approx(np.mean(expected)) and 0 < sum(expected) < 13
    assert changed == [index for index, same in enumerate(expected) if not same]
    cosines = (one * other).sum(-1)
    assert result.measures["lowest cosine"] == pytest.approx(float(cosines.min()), abs=1e-6)
    assert result.divergence == pytest.approx(1 - result.measures["mean cosine"], abs=1e-6)
    noise = compared("embeddings", one, normalize(one + 1e-6 * torch.randn(13, 4), dim=-1))[0]
    assert noise.agreement == 1 and noise.is_within(SAME)
    alike, _ = compared("embeddings", one[:1].repeat(3, 1), other[:3])
    assert (
        alike.agreement is None
        and not alike.is_within(NEARLY_SAME)
        and str(alike).endswith("no two texts with different embeddings")
    )


def test_entities():
    """Entities that only one model finds, or with other words or another type, count as changed."""
    tags, sentences = ["O", "B-X", "I-X", "B-Y"], np.array([0] * 9 + [1] * 4)
    one, other = np.eye(4)[[1, 2, 0, 1, 0, 3, 0, 0, 0, 1, 0, 1, 2]], np.eye(4)[[1, 2, 0, 0, 0, 1, 0, 0, 0, 1, 2, 1, 2]]
    result, changed = compared("classes", one, other, groups=sentences, tags=tags)
    assert (result.unit, result.agreement) == ("entity", 2 / 7)  # two of five and four
    assert changed == [(3, 4), (5, 6), (9, 10), (9, 11)]
    words, _ = compared("classes", one, other, groups=sentences, tags=["X", "Y", "Z", "N"])
    assert words.unit == "row" and words.agreement == pytest.approx(10 / 13)
    empty, _ = compared("classes", np.eye(4)[[0]], np.eye(4)[[0]], groups=sentences[:1], tags=tags)
    assert empty.agreement == 1 and "no model finds an entity" in str(empty)
    almost, _ = compared("classes", np.eye(2)[[0] * 2000 + [1]], np.eye(2)[[0] * 2001])
    assert almost.summary == "99.9% of the rows"
