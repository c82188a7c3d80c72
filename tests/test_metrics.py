"""Metrics: SQuAD's published scores to the last printed digit, and hand-computed values."""

import json

import pytest

from fixedbert.metrics import accuracy, exact_match, f1, normalize_answer, squad_scores


def test_normalisation_is_squad_s():
    """Guards: case, ASCII punctuation, articles and spaces do not count; words that contain an article do."""
    assert normalize_answer("  The  Theatre, an A-Team's  ") == "theatre ateams"


def test_hand_computed_scores():
    """Guards: words are counted with multiplicity, the best of several answers counts, a missing prediction is 0."""
    assert exact_match("The cat!", "cat") == 1.0
    assert f1("a big black cat", "black black cat") == pytest.approx(2 * 2 / (3 + 3))
    assert f1("dog", "cat") == 0.0
    scores = squad_scores({"1": "black cat"}, {"1": ["dog", "cat"], "2": ["dog"]})
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2)}


def test_accuracy():
    """Guards: the share of equal entries."""
    assert accuracy([0, 1, 2, 2], [0, 1, 1, 2]) == 0.75


@pytest.mark.parametrize(
    "system, expected",
    [
        ("v1.1-bert-ensemble", (86.206, 92.196)),
        ("v1.1-r-net-plus", (82.469, 88.478)),
        ("v1.1-logistic-regression", (40.142, 50.982)),  # 13 questions have no prediction
    ],
)
def test_published_squad_scores(real_data, system, expected):
    """Guards: predictions of known systems on the SQuAD 1.1 dev set score what was published for them."""
    predictions = json.loads(next((real_data / "squad/predictions").glob(f"{system}*")).read_text())
    articles = json.loads((real_data / "squad/dev-v1.1.json").read_text())["data"]
    answers = {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    scores = squad_scores(predictions, answers)
    assert (round(scores["exact_match"], 3), round(scores["f1"], 3)) == expected
