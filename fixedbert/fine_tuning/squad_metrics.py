"""SQuAD's metrics by the official rules: exact match and F1, with several answers, and with none (SQuAD 2.0)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import datasets
import evaluate
import numpy as np

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """SQuAD's rule for comparing answers: no case, no ASCII punctuation, no a/an/the, single spaces."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split())


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


def squad_v2_scores(
    predictions: Mapping[str, str],
    answers: Mapping[str, Iterable[str]],
    null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """
    SQuAD 2.0's exact match and F1 in per cent (Rajpurkar et al., 2018), of all questions, of those with an answer
    (`HasAns_`) and of those without (`NoAns_`).

    The prediction is "no answer" where the text is empty, or the question's score in `null_scores` is above
    `threshold`. With these scores the results also have `best_exact` and `best_f1`, with the best thresholds
    (`..._thresh`). A question without a prediction scores 0; the official script leaves it out.
    """
    questions = list(answers)
    golds = {question: [text for text in answers[question] if normalize_answer(text)] for question in questions}
    has_answer = np.array([bool(golds[question]) for question in questions])
    scores: dict[str, Callable[[str, str], float]] = {"exact": exact_match, "f1": f1_or_none}
    null = np.array([(null_scores or {}).get(question, 0.0) for question in questions], dtype=np.float64)
    results: dict[str, float] = {}
    best: dict[str, float] = {}
    for name, score in scores.items():
        raw = np.array(
            [
                max(score(predictions[question], gold) for gold in golds[question] or [""])
                if question in predictions
                else 0.0
                for question in questions
            ]
        )
        thresholded = np.where(null > threshold, ~has_answer, raw)
        for part, where in (("", slice(None)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
            if len(thresholded[where]):
                results[f"{part}{name}"] = 100 * float(thresholded[where].mean())
                results[f"{part}total"] = len(thresholded[where])
        if null_scores is not None:
            empty = np.array([not predictions.get(question) for question in questions])
            best[f"best_{name}"], best[f"best_{name}_thresh"] = best_threshold(raw, null, has_answer, empty)
    return results | best


def f1_or_none(prediction: str, answer: str) -> float:
    """F1, but 1 where both are empty, which is SQuAD 2.0's rule."""
    return float(not normalize_answer(prediction)) if not normalize_answer(answer) else f1(prediction, answer)


def best_threshold(
    scores: np.ndarray, null_scores: np.ndarray, has_answer: np.ndarray, empty: np.ndarray
) -> tuple[float, float]:
    """
    The best mean score in per cent, and its threshold: above this null score the prediction is "no answer".

    The official script's search (find_best_thresh): it begins with "no answer" for all questions, and adds the
    predicted texts in the order of their null scores.

    Args:
        scores: of the predicted texts; all arrays are (questions,).
        null_scores: scores for no answer.
        has_answer: whether the question has an answer.
        empty: whether the predicted text is empty.
    """
    order = np.argsort(null_scores, kind="stable")
    gain = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))[order]
    totals = (~has_answer).sum() + np.concatenate([[0.0], np.cumsum(gain)])  # with the first 0, 1, ... texts
    taken = int(totals.argmax())
    if taken:
        threshold = null_scores[order[taken - 1]]
    else:  # "no answer" is best for all
        threshold = 0.0 if null_scores.min() > 0 else null_scores.min() - 1
    return 100 * float(totals[taken]) / len(scores), float(threshold)


class Squad(evaluate.Metric):
    """
    `squad_scores` or, with the configuration squad_v2, `squad_v2_scores` as an `evaluate` module, with the inputs of
    the modules of these names on the Hub: predictions with id, prediction_text and, for squad_v2,
    no_answer_probability; references with id and answers.
    """

    config_name: str

    def _info(self):
        if self.config_name == "default":
            self.config_name = "squad"
        if self.config_name not in ("squad", "squad_v2"):
            raise ValueError(f"{self.config_name}: no such version; there are squad and squad_v2")
        text = datasets.Value("string")
        prediction = {"id": text, "prediction_text": text}
        if self.config_name == "squad_v2":
            prediction["no_answer_probability"] = datasets.Value("float32")
        answers = {"text": datasets.List(text), "answer_start": datasets.List(datasets.Value("int32"))}
        return evaluate.MetricInfo(
            description="Exact match and F1 of SQuAD 1.1 or 2.0.",
            citation="Rajpurkar et al., 2016, arXiv:1606.05250; Rajpurkar et al., 2018, arXiv:1806.03822",
            inputs_description=(squad_v2_scores if self.config_name == "squad_v2" else squad_scores).__doc__,
            features=datasets.Features({"predictions": prediction, "references": {"id": text, "answers": answers}}),
        )

    def _compute(self, predictions, references, no_answer_threshold: float = 1.0):
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        answers = {reference["id"]: reference["answers"]["text"] for reference in references}
        if self.config_name == "squad":
            return squad_scores(texts, answers)
        null_scores = {prediction["id"]: prediction["no_answer_probability"] for prediction in predictions}
        return squad_v2_scores(texts, answers, null_scores, no_answer_threshold)
