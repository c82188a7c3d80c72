"""Tests that compare metrics with published scores, hand-computed values and definitions."""

import json
import random
import re
import string
import unicodedata

import numpy as np
import pytest
from transformers import BertConfig

from fixedbert.fine_tuning.glue_metrics import METRICS, GlueEvaluation
from fixedbert.fine_tuning.labels import MULTI, REGRESSION
from fixedbert.fine_tuning.squad_metrics import (
    best_threshold,
    exact_match,
    f1,
    f1_gain_without_punctuation,
    squad_scores,
    squad_v2_scores,
)
from fixedbert.fine_tuning.squad_questions import load_squad


def official_words(text):
    """Normalizes text like the official script of SQuAD 1.1."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def mlqa_words(text):
    """Normalizes text like the official script of MLQA does for Chinese."""
    kept = [c for c in text.lower() if not unicodedata.category(c).startswith("P") and c not in string.punctuation]
    return "".join(f" {c} " if "\u4e00" <= c <= "\u9fa5" else c for c in kept).split()


def f1_of(predicted, expected):
    same = sum(min(predicted.count(word), expected.count(word)) for word in {*predicted})
    precision, recall = (same / max(1, len(words)) for words in (predicted, expected))
    return 2 * precision * recall / (precision + recall) if same else 0.0


@pytest.mark.parametrize(
    "words, parts",
    [
        (official_words, ["a", "The", "an", "cat", "dog", "x.y", "'s", "\t", *string.printable]),
        (mlqa_words, ["北", "京", "大", "，", "。", "“", "”", "the", "Beatles", "2008", ".", " "]),
    ],
)
def test_random_texts_as_in_the_official_scripts(words, parts):
    """Scores equal those of SQuAD's official script for ASCII texts, and of MLQA's for Chinese."""
    draw, expected = random.Random(0), (lambda one, other: f1_of(words(one), words(other)))
    for _ in range(3000):
        first, second = ("".join(draw.choice(parts) + draw.choice([" ", ""]) for _ in range(5)) for _ in range(2))
        second += "京" if words is mlqa_words else ""
        assert f1(first, second) == pytest.approx(expected(first, second), rel=1e-12)
        assert exact_match(first, second) == (words(first) == words(second))


@pytest.mark.parametrize(
    "prediction, answer, score",
    [
        ("北京大学", "北京", 2 * 2 / (4 + 2)),
        ("東京タワー", "東京", 2 * 2 / (5 + 2)),
        ("กรุงเทพ", "กรุง", 2 * 4 / (7 + 4)),
        ("2008年", "2008", 2 * 1 / (2 + 1)),
        ("Paris，", "Paris", 1.0),
        ("《红楼梦》。", "红楼梦", 1.0),
        ("서울 특별시", "서울", 2 * 1 / (2 + 1)),  # Korean has blanks
        ('Chinese: 大元, "the Great Yuan"', "Great Yuan", 2 * 2 / (4 + 2)),  # English
        ("“Paris”", "Paris", 0.0),  # as in the official script of SQuAD, whose texts contain such quotation marks
    ],
)
def test_languages_without_blanks(prediction, answer, score):
    """In languages without blanks, each character is a word. Other languages are scored as in SQuAD's script."""
    assert f1(prediction, answer) == pytest.approx(score)
    assert exact_match(prediction, answer) == (score == 1.0)


def test_gain_without_punctuation():
    """The gain in F1 from removing Unicode punctuation is averaged over the questions that have answers."""
    predictions = {"1": "« Paris »", "2": "", "3": "Rome", "4": "das „Haus“"}
    answers = {"1": ["Paris"], "2": [], "3": ["Rome"], "4": ["“das Haus”"]}
    assert f1_gain_without_punctuation(predictions, answers) == pytest.approx(100 * (3 - (0.5 + 1 + 0)) / 3)
    assert f1_gain_without_punctuation({"2": ""}, {"2": []}) == 0.0


def test_hand_computed_scores():
    """SQuAD scores equal hand-computed ones, for several answers, missing predictions, and with null scores."""
    scores = squad_scores({"1": "black cat"}, {"1": ["dog", "cat"], "2": ["dog"]})
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2)}
    answers = {"1": ["black cat"], "2": [], "3": ["the"], "4": [], "5": ["dog"]}  # "the" is empty after normalization
    predictions = {"1": "cat", "2": "", "3": "", "4": "dog"}  # no prediction for question 5
    scores = squad_v2_scores(predictions, answers)
    assert scores == {
        "exact": 100 * 2 / 5,
        "f1": pytest.approx(100 * (2 / 3 + 2) / 5),
        "total": 5,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(100 * (2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": pytest.approx(200 / 3),
        "NoAns_f1": pytest.approx(200 / 3),
        "NoAns_total": 3,
    }
    nulls = {"1": 0.1, "2": 0.2, "3": 0.3, "4": 0.9, "5": 0.0}
    assert squad_v2_scores(predictions, answers, nulls, threshold=0.5)["NoAns_exact"] == 100.0
    assert squad_v2_scores(predictions, answers, nulls, threshold=0.05)["HasAns_f1"] == 0.0


def test_best_threshold_by_brute_force():
    """The best threshold achieves the returned score, and no other threshold achieves a better one."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = 13
        has_answer = rng.random(size) < 0.5
        empty = rng.random(size) < 0.2
        scores = np.where(has_answer, rng.random(size), empty)
        nulls = rng.normal(size=size)

        def score_at(threshold, scores=scores, nulls=nulls, has_answer=has_answer):
            return 100 * np.where(nulls > threshold, ~has_answer, scores).mean()

        best, threshold = best_threshold(scores, nulls, has_answer, empty)
        assert best == pytest.approx(score_at(threshold))
        assert best == pytest.approx(max(score_at(candidate) for candidate in [*nulls, nulls.min() - 1]))


def test_published_squad_scores(real_data):
    """Published predictions get their published scores to the last digit. All questions in the files are loaded."""

    def read(system, version):
        predictions = json.loads(next((real_data / "squad/predictions").glob(f"{version}-{system}*")).read_text())
        file = str(real_data / f"squad/dev-{version}.json")
        rows = load_squad(file, version_2_with_negative=version == "v2.0")
        return predictions, {row["id"]: row["answers"]["text"] for row in rows}

    predictions, answers = read("logistic-regression", "v1.1")  # has no prediction for 13 questions
    scores = squad_scores(predictions, answers)
    assert (round(scores["exact_match"], 3), round(scores["f1"], 3), len(answers)) == (40.142, 50.982, 10570)
    scores = squad_v2_scores(*read("bert-single", "v2.0"))
    assert (round(scores["exact"], 3), round(scores["f1"], 3)) == (78.742, 81.775)
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (5928, 5945)


@pytest.mark.parametrize("task", METRICS)
def test_glue_metrics_against_their_formulas(task):
    """The metrics for each GLUE task equal their definitions."""
    predictions, labels = np.array([0, 1, 1, 1, 0, 1, 1]), np.array([0, 1, 0, 1, 1, 1, 0])
    tp, fp, fn, tn = 3, 2, 1, 1
    expected = {
        "accuracy": 4 / 7,
        "f1": 2 * tp / (2 * tp + fp + fn),
        "matthews_correlation": (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5,
    }
    if "pearson" in METRICS[task]:
        predictions, labels = np.array([1.0, 2.5, 0.0, 4.0]), np.array([0.5, 3.0, 1.0, 9.0])
        x, y = predictions - predictions.mean(), labels - labels.mean()
        expected = {
            "mse": (0.5**2 + 0.5**2 + 1 + 25) / 4,
            "pearson": (x @ y) / (x @ x * (y @ y)) ** 0.5,
            "spearmanr": 1 - 6 * (1 + 1) / (4 * 15),  # ranks 2 3 1 4 and 1 3 2 4
        }
        expected["mae"] = (0.5 + 0.5 + 1 + 5) / 4
    elif task == MULTI:
        predictions, labels = np.array([[1, 0, 1], [1, 1, 0]]), np.array([[1, 0, 0], [1, 0, 0]])
        expected |= {"micro_f1": 2 * 2 / (2 * 2 + 2), "macro_f1": 1 / 3, "exact_match": 0.0}
    else:
        expected |= {"balanced_accuracy": (3 / 4 + 1 / 3) / 2, "macro_f1": (6 / 9 + 2 / 5) / 2}
    expected["combined_score"] = np.mean([expected[name] for name in METRICS[task] if name in expected])
    names = [name for name in METRICS[task] if name != "average_precision"]  # which needs probabilities
    evaluation = GlueEvaluation(*((None, BertConfig(problem_type=task)) if "_" in task else (task, BertConfig())))
    assert evaluation.measure(predictions, labels) == {
        name: pytest.approx(expected[name], rel=1e-12) for name in names
    }


def test_metrics_for_several_outputs():
    """Several targets have averaged errors but separate correlations. Average precision uses probabilities."""
    labels = np.array([[1.0, 5.0], [2.0, 3.0], [3.0, 4.0]])
    predictions = np.array([[2.0, 5.0], [4.0, 3.0], [6.0, 4.0]])
    evaluation = GlueEvaluation(None, BertConfig(id2label={0: "price", 1: "size"}, problem_type=REGRESSION))
    scores = evaluation.scores(predictions, labels)
    assert {"loss", *scores} == {*evaluation.metric_names}
    assert scores["mse"] == pytest.approx((1 + 4 + 9) / 6) and scores["mae"] == pytest.approx(1.0)
    assert (scores["pearson_price"], scores["pearson_size"]) == pytest.approx((1.0, 1.0))
    flags = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])  # the last label does not occur
    probabilities = np.array([[0.9, 0.2, 0.5], [0.8, 0.6, 0.1], [0.7, 0.9, 0.4]])
    evaluation = GlueEvaluation(None, BertConfig(num_labels=3, problem_type=MULTI))
    scores = evaluation.scores((probabilities >= 0.5).astype(int), flags, probabilities)
    assert {"loss", *scores} == {*evaluation.metric_names}
    assert scores["average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1.0) / 2)


def test_constant_predictions_have_no_correlation():
    """Correlations with constant predictions are 0 instead of NaN, which JSON cannot represent."""
    stsb, cola = (GlueEvaluation(task, BertConfig(num_labels=n)) for task, n in (("stsb", 1), ("cola", 2)))
    assert set(stsb.scores(np.ones(5), np.arange(5)).values()) == {0.0}
    assert cola.scores(np.ones(5, int), np.array([0, 1, 1, 0, 1])) == {"matthews_correlation": 0.0}
