"""Exact match and F1 as in SQuAD's official scripts."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

PUNCTUATION = str.maketrans("", "", string.punctuation)
# Thai, Lao, Burmese, Khmer, Japanese and Chinese characters. These languages do not put spaces between words.
LETTERS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WITHOUT_SPACES = re.compile(rf"[{LETTERS}\u3000-\u303f\uff00-\uff65]")  # also full-width punctuation


def normalize_answer(text: str, without_spaces: bool = False) -> str:
    """
    Lowercases text and removes ASCII punctuation, articles and repeated whitespace, as SQuAD's official scripts do.

    For languages `without_spaces` between words, removes all Unicode punctuation, keeps articles, and makes each
    character a word, as the official script of MLQA does for Chinese (Lewis et al., 2020).
    """
    text = text.lower().translate(PUNCTUATION)
    if without_spaces:
        return " ".join(re.sub(f"[{LETTERS}]", r" \g<0> ", without_punctuation(text)).split())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def without_punctuation(text: str) -> str:
    """Returns the text without Unicode punctuation."""
    return "".join(character for character in text if not unicodedata.category(character).startswith("P"))


def normalize_both(prediction: str, answer: str) -> tuple[str, str]:
    """
    Normalizes both texts with the same rules. The rules for languages without spaces apply if the answer, or a
    prediction that is a single word, is in such a language.
    """
    text = answer if " " in prediction else prediction + answer
    without_spaces = WITHOUT_SPACES.search(text) is not None
    return normalize_answer(prediction, without_spaces), normalize_answer(answer, without_spaces)


def exact_match(prediction: str, answer: str) -> float:
    """Returns 1 if the normalized texts are equal, otherwise 0."""
    predicted, expected = normalize_both(prediction, answer)
    return float(predicted == expected)


def f1(prediction: str, answer: str) -> float:
    """Returns the harmonic mean of precision and recall for the words in the normalized texts."""
    predicted, expected = (text.split() for text in normalize_both(prediction, answer))
    common = (Counter(predicted) & Counter(expected)).total()
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


def f1_or_empty(prediction: str, answer: str) -> float:
    """Returns F1 as defined for SQuAD 2.0, where two empty texts score 1."""
    return float(not normalize_answer(prediction)) if not normalize_answer(answer) else f1(prediction, answer)


def best_score(
    score: Callable[[str, str], float], predictions: Mapping[str, str], question: str, references: Iterable[str]
) -> float:
    """Returns a question's highest score over all reference answers, or 0 if it has no prediction."""
    if question not in predictions:
        return 0.0
    return max(score(predictions[question], reference) for reference in references)


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """
    Returns exact match and F1 for SQuAD 1.1 as percentages (Rajpurkar et al., 2016, section 6.1).

    `predictions` and `answers` map question ids to the predicted answer and to the reference answers.
    """
    return {
        name: 100 * sum(best_score(score, predictions, *item) for item in answers.items()) / len(answers)
        for name, score in (("exact_match", exact_match), ("f1", f1))
    }


def f1_gain_without_punctuation(predictions: Mapping[str, str], answers: Mapping[str, list[str]]) -> float:
    """Returns by how many percentage points the F1 for SQuAD 1.1 increases if all Unicode punctuation is removed."""
    answers = {name: texts for name, texts in answers.items() if texts}
    if not answers:
        return 0.0
    stripped = {name: without_punctuation(text) for name, text in predictions.items()}
    references = {name: [*map(without_punctuation, texts)] for name, texts in answers.items()}
    return squad_scores(stripped, references)["f1"] - squad_scores(predictions, answers)["f1"]


def squad_v2_scores(
    predictions: Mapping[str, str],
    answers: Mapping[str, Iterable[str]],
    null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """
    Returns exact match and F1 for SQuAD 2.0 as percentages (Rajpurkar et al., 2018).

    Keys that begin with HasAns_ or NoAns_ contain the scores for questions with or without an answer. A question
    without a prediction scores 0, whereas the official script ignores it. An empty prediction means "no answer".

    `null_scores` maps question ids to scores of "no answer", which is predicted if its score exceeds `threshold`. If
    given, the results also contain the scores for the best thresholds, and these thresholds (`best_..._thresh`).
    """
    golds = {name: [text for text in texts if normalize_answer(text)] or [""] for name, texts in answers.items()}
    has_answer = np.array([texts != [""] for texts in golds.values()])
    nulls = np.array([(null_scores or {}).get(name, 0.0) for name in golds], dtype=np.float64)
    results: dict[str, float] = {}
    best: dict[str, float] = {}
    for name, score in (("exact", exact_match), ("f1", f1_or_empty)):
        raw = np.array([best_score(score, predictions, *item) for item in golds.items()])
        thresholded = np.where(nulls > threshold, ~has_answer, raw)
        for part, where in (("", slice(None)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
            if len(thresholded[where]):
                results[f"{part}{name}"] = 100 * float(thresholded[where].mean())
                results[f"{part}total"] = len(thresholded[where])
        if null_scores is not None:
            empty = np.array([not predictions.get(question) for question in golds])
            best[f"best_{name}"], best[f"best_{name}_thresh"] = best_threshold(raw, nulls, has_answer, empty)
    return results | best


def best_threshold(
    scores: np.ndarray, null_scores: np.ndarray, has_answer: np.ndarray, empty: np.ndarray
) -> tuple[float, float]:
    """
    Returns the highest average score over all thresholds for null scores, as a percentage, and the best threshold.

    Like find_best_thresh in the official script, this starts with "no answer" for all questions, and switches to
    the predicted texts in increasing order of null scores. All arrays have shape (questions,). `scores` are the scores
    of the predicted texts, and `empty` is True for empty predicted texts.
    """
    order = np.argsort(null_scores, kind="stable")
    gain = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))[order]
    totals = (~has_answer).sum() + np.concatenate([[0.0], np.cumsum(gain)])  # with 0, 1, ... predicted texts
    texts = int(totals.argmax())
    if texts:
        threshold = null_scores[order[texts - 1]]
    else:  # "no answer" is best for all questions
        threshold = 0.0 if null_scores.min() > 0 else null_scores.min() - 1
    return 100 * float(totals[texts]) / len(scores), float(threshold)
