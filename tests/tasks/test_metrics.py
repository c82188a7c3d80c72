"""Tests that compare metrics with published scores, hand-computed values and definitions."""

import json
import random
import re
import string
from collections import Counter

import numpy as np
import pytest

import fixedbert
from fixedbert.tasks.glue_metrics import METRICS, GlueEvaluation, GlueMetric
from fixedbert.tasks.labels import MULTI, REGRESSION, SINGLE, Labels
from fixedbert.tasks.questions import load_squad
from fixedbert.tasks.squad_metrics import (
    SquadMetric,
    best_threshold,
    exact_match,
    f1,
    note_on_spaces,
    squad_scores,
    squad_v2_scores,
)


def official_words(text):
    """Normalizes text like the official scripts of SQuAD."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def official_f1(predicted, expected):
    same = sum((Counter(predicted) & Counter(expected)).values())
    if not same:
        return 0
    precision, recall = 1.0 * same / len(predicted), 1.0 * same / len(expected)
    return (2 * precision * recall) / (precision + recall)


def test_random_texts_as_in_the_official_script():
    """Scores equal those of SQuAD's official scripts to the last digit, also for texts in several languages."""
    parts = ["a", "The", "an", "cat", "dog", "x.y", "'s", *string.printable, *"京元，。“”ßİéที่は\u3000\u00a0\u200b"]
    draw, references, predictions = random.Random(0), {}, {}
    for question in range(3000):
        texts = ["".join(draw.choice(parts) + draw.choice([" ", ""]) for _ in range(5)) for _ in range(3)]
        predictions[str(question)], *references[str(question)] = texts
    exact = total = 0
    for question, text in predictions.items():
        pairs = [(official_words(text), official_words(answer)) for answer in references[question]]
        exact += max(one == other for one, other in pairs)
        total += max(official_f1(one, other) for one, other in pairs)
    assert squad_scores(predictions, references) == {"exact_match": 100.0 * exact / 3000, "f1": 100.0 * total / 3000}
    questions = [{"id": name, "prediction_text": text} for name, text in predictions.items()]
    answers = [{"id": name, "answers": {"text": texts, "answer_start": [0, 0]}} for name, texts in references.items()]
    scores = SquadMetric("squad").compute(predictions=questions, references=answers[::-1])
    assert scores["f1"] == pytest.approx(100.0 * total / 3000, rel=1e-12) and total > 100  # another order of the sum


@pytest.mark.parametrize(
    "prediction, answer, exact, score",
    [
        ("the Yuan dynasty (元朝)", "Yuan dynasty (元朝)", 1, 1),
        ("北京大学", "北京", 0, 0),
        ("“Paris”", "Paris", 0, 0),
        ("서울 특별시", "서울", 0, 2 * 1 / (2 + 1)),
    ],
)
def test_answers_in_other_languages(prediction, answer, exact, score):
    """Answers in any language are scored as in the official script, which splits them at spaces."""
    assert (exact_match(prediction, answer), f1(prediction, answer)) == (exact, pytest.approx(score))


def test_note_on_spaces(capsys):
    """A single note says that F1 is not meaningful for Chinese, Japanese or Thai answers."""
    note_on_spaces([["Paris", "서울 특별시"], []])
    assert not capsys.readouterr().out
    note_on_spaces([["Paris"], ["元朝"], ["กรุงเทพ"], ["タワー"]])
    assert capsys.readouterr().out.count("contain Chinese, Japanese or Thai") == 1


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
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(100 * (2 / 3 + 1) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }
    nulls = {"1": 0.1, "2": 0.2, "3": 0.3, "4": 0.9, "5": 0.0}
    assert squad_v2_scores(predictions, answers, nulls, threshold=0.5)["NoAns_exact"] == 100.0
    assert squad_v2_scores(predictions, answers, nulls, threshold=0.05)["HasAns_f1"] == 0.0
    predictions["5"] = "cat"
    questions = [
        {"id": name, "prediction_text": text, "no_answer_probability": nulls[name]}
        for name, text in predictions.items()
    ]
    references = [{"id": name, "answers": {"text": texts, "answer_start": []}} for name, texts in answers.items()]
    found = SquadMetric("squad_v2").compute(predictions=questions, references=references, no_answer_threshold=0.5)
    assert found == squad_v2_scores(predictions, answers, nulls, 0.5)


def test_metrics_work_without_a_cache(monkeypatch, tmp_path):
    """The metrics describe themselves, and write nothing to disk."""
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", tmp_path / "cache")
    metric = fixedbert.GlueMetric("mrpc")
    found = metric.compute(predictions=[0, 1, 1, 1, 0], references=[0, 1, 1, 0, 1])
    assert found == {"accuracy": 0.6, "f1": 2 / 3, "combined_score": pytest.approx((0.6 + 2 / 3) / 2)}
    assert "f1" in metric.description and "2018" in metric.citation and not [*tmp_path.iterdir()]
    assert fixedbert.GlueMetric("stsb").compute(predictions=[0.1, 0.2, 0.3], references=[1, 3, 2])["spearmanr"] == 0.5


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
    assert GlueMetric(task).compute(predictions=predictions, references=labels) == {
        name: pytest.approx(expected[name], rel=1e-12) for name in names
    }


@pytest.mark.parametrize(
    "task, predictions, sentence",
    [
        ("mrpc", [0.7, 0.2], "mix of binary and continuous"),
        (MULTI, [[0, 1], [0.5, 1]], "continuous-multioutput"),
    ],
)
def test_probabilities_are_no_label_ids(task, predictions, sentence):
    """Numbers that are not whole are refused instead of truncated, also one by one. Whole floats are label ids."""
    references = np.round(np.nan_to_num(predictions)).astype(int)
    with pytest.raises(ValueError, match=sentence):
        GlueMetric(task).compute(predictions=predictions, references=references)
    with pytest.raises(ValueError, match=sentence.split()[-1]):
        GlueMetric(task).compute(predictions=references, references=predictions)
    metric = GlueMetric(task)
    for one, other in zip(references.astype(float), references, strict=True):
        metric.add(prediction=one, reference=other)
    assert 1.0 in metric.compute().values()


def test_average_precision():
    """Average precision uses the probabilities, and excludes labels that do not occur."""
    flags = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])  # the last label does not occur
    probabilities = np.array([[0.9, 0.2, 0.5], [0.8, 0.6, 0.1], [0.7, 0.9, 0.4]])
    evaluation = GlueEvaluation(None, Labels(MULTI, {"a": "a", "b": "b", "c": "c"}))
    scores = evaluation.scores((probabilities >= 0.5).astype(int), flags, probabilities)
    assert {"loss", *scores} == {*evaluation.metric_names}
    assert scores["average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1.0) / 2)


def test_constant_predictions_have_no_correlation():
    """Correlations with constant predictions are 0 instead of NaN, which JSON cannot represent."""
    stsb, cola = GlueEvaluation("stsb", Labels(REGRESSION)), GlueEvaluation("cola", Labels(SINGLE))
    assert set(stsb.scores(np.ones(5), np.arange(5)).values()) == {0.0}
    assert cola.scores(np.ones(5, int), np.array([0, 1, 1, 0, 1])) == {"matthews_correlation": 0.0}
