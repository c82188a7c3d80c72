"""Exact match and F1 as in SQuAD's official scripts, and the conversion of logits into answers."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import datasets
import numpy as np
from transformers import EvalPrediction

from ..data.store import as_arrays
from ..training.arguments import option

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
    Normalizes both texts with the same rules. Those for languages without spaces apply if the answer, or a prediction
    that is a single word, is in such a language.
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
    Returns exact match and F1 for SQuAD 1.1, in percent (Rajpurkar et al., 2016, section 6.1).

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
    Returns exact match and F1 for SQuAD 2.0, in percent (Rajpurkar et al., 2018).

    There are separate scores for questions with an answer (`HasAns_`) and without one (`NoAns_`). A question without a
    prediction scores 0, whereas the official script ignores it. An empty prediction means "no answer".

    `null_scores` are the scores of "no answer". Where they exceed `threshold`, the prediction is "no answer". The
    results then also contain the best scores that any threshold achieves, and these thresholds (`best_..._thresh`).
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
    Returns the best average score that a threshold for null scores achieves, in percent, and this threshold.

    Like find_best_thresh in the official script, this starts with "no answer" for all questions, and switches to
    the predicted texts in the order of their null scores. All arrays are (questions,). `scores` are the scores of the
    predicted texts, and `empty` is True for empty predicted texts.
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


@dataclass
class AnswerArguments:
    """Arguments for the selection of answers."""

    version_2_with_negative: bool = option(False, "Accept questions without an answer, as in SQuAD 2.0.")
    null_score_diff_threshold: str = option(
        "0.0",
        "Predict no answer if the score of [CLS] exceeds the score of the best answer by more than this. best: choose "
        "the threshold that maximizes F1.",
    )
    n_best_size: int = option(20, "Number of starts and ends per window, and of answers kept per question.")
    max_answer_length: int = option(30, "Maximum answer length in tokens.")


class SquadEvaluation:
    """
    Converts the logits for all windows into answers, as run_qa.py does, and computes the metrics.

    Instances can be passed to Trainer as `compute_metrics`. The score of a span is the sum of its two logits. The
    score of [CLS] is its minimum over all windows. `rows` come from `question_rows`, and `windows`, in any order, from
    `squad_windows`. The attributes contain the results of the last evaluation, for each question id.
    """

    def __init__(self, rows: datasets.Dataset, windows: datasets.Dataset, arguments: AnswerArguments):
        self.contexts = dict(zip(rows["id"], rows["context"], strict=True))
        self.answers = {row["id"]: row["answers"]["text"] for row in rows}
        table = windows.with_format("arrow")[:]
        self.questions = table["question"].to_numpy()
        self.offsets, self.ends = as_arrays(table["offsets"].combine_chunks())
        self.lengths = table["length"].to_numpy()
        self.n_best_size, self.max_answer_length = arguments.n_best_size, arguments.max_answer_length
        self.version_2_with_negative = arguments.version_2_with_negative
        chosen = arguments.null_score_diff_threshold
        self.fixed_threshold = None if chosen == "best" else float(chosen)  # None to choose it in each evaluation
        self.threshold = 0.0  # in the last evaluation
        self.predictions: dict[str, str] = {}
        self.n_best: dict[str, list[dict]] = {}  # the best spans with their probabilities and logits
        self.null_odds: dict[str, float] = {}  # the score of [CLS] minus the score of the best span

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        texts = self.predict(*prediction.predictions[:2])
        if not self.version_2_with_negative:
            return squad_scores(self.predictions, self.answers)
        scores = squad_v2_scores(texts, self.answers, self.null_odds, self.threshold)
        return scores | {"null_score_diff_threshold": self.threshold}

    def predict(self, start_logits: np.ndarray, end_logits: np.ndarray) -> dict[str, str]:
        """Updates the attributes from logits (windows, L). Returns the best nonempty text for each question id."""
        windows_of = np.split(np.argsort(self.questions, kind="stable"), np.cumsum(np.bincount(self.questions))[:-1])
        texts = {}
        self.n_best, self.null_odds = {}, {}
        for (name, context), windows in zip(self.contexts.items(), windows_of, strict=True):
            spans = [self.spans(window, start_logits[window], end_logits[window]) for window in windows]
            first, last, start, end = (np.concatenate(parts) for parts in zip(*spans, strict=True))
            best = np.argsort(-(start + end), kind="stable")[: self.n_best_size]
            candidates = [(context[first[i] : last[i]], start[i], end[i]) for i in best]
            spans_with_text = [span for span in candidates if span[0] or not self.version_2_with_negative]
            best_span = spans_with_text[0] if spans_with_text else ("", 0.0, 0.0)
            texts[name] = best_span[0]
            if self.version_2_with_negative:
                null = min(windows, key=lambda window: start_logits[window, 0] + end_logits[window, 0])
                no_answer = ("", start_logits[null, 0], end_logits[null, 0])
                self.null_odds[name] = float(sum(no_answer[1:]) - sum(best_span[1:]))
                candidates = sorted([*candidates, no_answer], key=lambda candidate: -sum(candidate[1:]))
                candidates = candidates[: self.n_best_size]
                if no_answer not in candidates:
                    candidates.append(no_answer)
            self.n_best[name] = with_probabilities(candidates)
        self.threshold = self.fixed_threshold or 0.0
        if self.fixed_threshold is None:
            self.threshold = squad_v2_scores(texts, self.answers, self.null_odds)["best_f1_thresh"]
        empty = {name for name, odds in self.null_odds.items() if odds > self.threshold}
        self.predictions = {name: "" if name in empty else text for name, text in texts.items()}
        return texts

    def spans(self, window: int, start_logits: np.ndarray, end_logits: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the start and end characters and logits of the best spans in a window, (spans,) each."""
        size = self.lengths[window]
        offsets = self.offsets[self.ends[window] : self.ends[window + 1]].reshape(size, 2)
        starts, ends = (
            np.argsort(logits[:size])[: -self.n_best_size - 1 : -1] for logits in (start_logits, end_logits)
        )
        length = ends[None, :] - starts[:, None] + 1  # (starts, ends)
        inside = (offsets[starts, 0] >= 0)[:, None] & (offsets[ends, 0] >= 0)[None, :]
        start, end = np.nonzero(inside & (length >= 1) & (length <= self.max_answer_length))
        start, end = starts[start], ends[end]
        return offsets[start, 0], offsets[end, 1], start_logits[start], end_logits[end]


def with_probabilities(candidates: list[tuple]) -> list[dict]:
    """Converts candidates (text, start logit, end logit) to the format of run_qa.py, which includes probabilities."""
    scores = np.array([start + end for _, start, end in candidates])
    weights = np.exp(scores - scores.max()) if candidates else scores
    return [
        {"text": text, "probability": float(weight), "start_logit": float(start), "end_logit": float(end)}
        for (text, start, end), weight in zip(candidates, weights / weights.sum(), strict=True)
    ]
