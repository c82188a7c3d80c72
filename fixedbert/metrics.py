"""Metrics of the fine-tuning tasks; all of them work without a network."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries of two integer arrays (examples,)."""
    return float((np.asarray(predictions) == np.asarray(labels)).mean())


def normalize_answer(text: str) -> str:
    """SQuAD's rule for comparing answers: no case, no ASCII punctuation, no a/an/the, single spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, answer: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall over the words of normalised texts."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = (Counter(predicted) & Counter(expected)).total()
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """
    SQuAD 1.1's exact match and F1 in per cent (Rajpurkar et al., 2016, section 6.1).

    Takes predicted texts and all reference answers by question id. Of several answers the best one counts; a question
    without a prediction scores 0.
    """

    def mean(score: Callable[[str, str], float]) -> float:
        best = (
            max(score(predictions[question], answer) for answer in references) if question in predictions else 0.0
            for question, references in answers.items()
        )
        return 100 * sum(best) / len(answers)

    return {"exact_match": mean(exact_match), "f1": mean(f1)}
