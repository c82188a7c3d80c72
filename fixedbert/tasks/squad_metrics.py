"""Exact match and F1 as in SQuAD's official scripts."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import evaluate
import numpy as np
from accelerate import PartialState
from datasets import Features, List, Value

from ..support.errors import InputError

PUNCTUATION = str.maketrans("", "", string.punctuation)
WITHOUT_SPACES = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese and Chinese
CITATION = (
    "Rajpurkar et al., 2016: SQuAD: 100,000+ Questions for Machine Comprehension of Text. EMNLP. "
    "Rajpurkar et al., 2018: Know What You Don't Know: Unanswerable Questions for SQuAD. ACL."
)


class SquadMetric(evaluate.Metric):
    """
    Exact match and F1 of answers to questions.

    Args:
        name: "squad" for SQuAD 1.1, or "squad_v2" for SQuAD 2.0, in which questions can have no answer.
    """

    def __init__(self, name: str = "squad"):
        if name not in ("squad", "squad_v2"):
            raise InputError(f"unknown metric {name!r}; available metrics: squad, squad_v2.")
        super().__init__(name, keep_in_memory=True)

    def _build_data_dir(self):
        return ""  # not used in memory; the default creates a directory

    def _info(self):
        prediction = {"id": Value("string"), "prediction_text": Value("string")}
        if self.config_name == "squad_v2":
            prediction["no_answer_probability"] = Value("float64")
        answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        return evaluate.MetricInfo(
            description="Exact match and F1 for the words of an answer, as in SQuAD's official scripts.",
            citation=CITATION,
            features=Features(predictions=prediction, references={"id": Value("string"), "answers": answers}),
        )

    def _compute(self, predictions, references, no_answer_threshold: float = 1.0) -> dict[str, float]:
        """
        Computes the metrics.

        Args:
            predictions: A dictionary for each question with its `id` and `prediction_text`, and for "squad_v2" also
                `no_answer_probability`, which can be any score. An empty text means "no answer".
            references: A dictionary for each question with its `id` and `answers`, as in the datasets of these names.
            no_answer_threshold: For "squad_v2": predict "no answer" if its score exceeds this value.

        Returns:
            "squad": `exact_match` and `f1` as percentages. "squad_v2": `exact` and `f1`, also for questions with an
            answer (HasAns) and without (NoAns), and the highest scores over all thresholds (`best_exact`, `best_f1`).
        """
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        answers = {reference["id"]: reference["answers"]["text"] for reference in references}
        if self.config_name == "squad":
            return squad_scores(texts, answers)
        nulls = {prediction["id"]: prediction["no_answer_probability"] for prediction in predictions}
        return squad_v2_scores(texts, answers, nulls, no_answer_threshold)


def normalize_answer(text: str) -> str:
    """Lowercases text and removes ASCII punctuation, articles and repeated whitespace."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Returns 1 if the normalized texts are equal, otherwise 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1(prediction: str, answer: str) -> float:
    """Returns the harmonic mean of precision and recall for the words in the normalized texts."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)  # rounded like the official script


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
    results = {}
    for name, score in (("exact_match", exact_match), ("f1", f1)):
        total = 0.0
        for item in answers.items():  # rounded like the official script; Python 3.12's sum is more exact
            total += best_score(score, predictions, *item)
        results[name] = 100.0 * total / len(answers)
    return results


def note_on_spaces(answers: Iterable[Iterable[str]]):
    """Prints a note if answers contain Chinese, Japanese or Thai."""
    if any(WITHOUT_SPACES.search(text) for texts in answers for text in texts):
        PartialState().print(
            "some answers contain Chinese, Japanese or Thai; the official SQuAD metric only splits texts at "
            "spaces, so F1 is hardly more than exact match in these languages"
        )


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
    has_answer = np.array([bool(texts) for texts in answers.values()])
    nulls = np.array([(null_scores or {}).get(name, 0.0) for name in golds], dtype=np.float64)
    results: dict[str, float] = {}
    best: dict[str, float] = {}
    for name, score in (("exact", exact_match), ("f1", f1_or_empty)):
        raw = np.array([best_score(score, predictions, *item) for item in golds.items()])
        thresholded = np.where(nulls > threshold, ~has_answer, raw)
        for part, where in (("", slice(None)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
            if total := len(thresholded[where]):
                results[f"{part}{name}"] = 100.0 * sum(thresholded[where].tolist()) / total  # as the official script
                results[f"{part}total"] = total
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
    totals = np.cumsum([(~has_answer).sum(), *gain])  # with 0, 1, ... predicted texts
    texts = int(totals.argmax())
    if texts:
        threshold = null_scores[order[texts - 1]]
    else:  # "no answer" is best for all questions
        threshold = 0.0 if null_scores.min() > 0 else null_scores.min() - 1
    return 100.0 * float(totals[texts]) / len(scores), float(threshold)
