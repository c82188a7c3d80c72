"""Conversion of the logits for SQuAD windows into answers."""

from typing import NamedTuple

import datasets
import numpy as np
from transformers import EvalPrediction

from ..options import AnswerOptions
from .squad_metrics import SquadMetric


class Candidate(NamedTuple):
    """A possible answer."""

    text: str  # empty for no answer
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class SquadEvaluation:
    """
    Converts the logits for all windows into answers, as run_qa.py does, and computes the metrics.

    Instances can be passed to Trainer as `compute_metrics`. The score of a span is the sum of its two logits. Unlike
    in run_qa.py, a span in several windows is a single answer with its highest score. The score of [CLS] is the
    minimum over all windows of a question. `rows` are questions from `question_rows`. `windows`
    are their windows from `squad_windows`, in the order of the logits. The dictionaries `predictions`, `n_best` and
    `null_odds` map question ids to the results of the last evaluation.
    """

    def __init__(self, rows: datasets.Dataset, windows: datasets.Dataset, arguments: AnswerOptions):
        self.contexts = dict(zip(rows["id"], rows["context"], strict=True))
        self.references = rows.select_columns(["id", "answers"]).to_list()
        self.answers = {row["id"]: row["answers"]["text"] for row in self.references}
        table = windows.with_format("arrow")[:]
        self.questions = table["question"].to_numpy()
        offsets = table["offsets"].combine_chunks()
        self.offsets, self.ends = offsets.values.to_numpy(), offsets.offsets.to_numpy()
        self.lengths = table["length"].to_numpy()
        self.arguments, self.version_2_with_negative = arguments, arguments.version_2_with_negative
        self.threshold = arguments.null_score_diff_threshold
        self.predictions: dict[str, str] = {}
        self.n_best: dict[str, list[dict]] = {}  # the best spans with their probabilities and logits
        self.null_odds: dict[str, float] = {}  # the score of [CLS] minus the score of the best span

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        texts = self.predict(*prediction.predictions[:2])
        if not self.version_2_with_negative:
            return self.scores(texts)
        return self.scores(texts, self.null_odds) | {"null_score_diff_threshold": self.threshold}

    def scores(self, texts: dict[str, str], null_odds: dict[str, float] | None = None) -> dict[str, float]:
        """Returns the metrics for a text for each question. `null_odds` above the threshold mean "no answer"."""
        predictions: list[dict] = [{"id": name, "prediction_text": text} for name, text in texts.items()]
        if not self.version_2_with_negative:
            return SquadMetric("squad").compute(predictions=predictions, references=self.references)
        odds = null_odds or dict.fromkeys(texts, self.threshold)
        predictions = [row | {"no_answer_probability": odds[row["id"]]} for row in predictions]
        return SquadMetric("squad_v2").compute(
            predictions=predictions, references=self.references, no_answer_threshold=self.threshold
        )

    def predict(self, start_logits: np.ndarray, end_logits: np.ndarray) -> dict[str, str]:
        """Updates the attributes from logits (windows, tokens). Returns the best nonempty text for each question."""
        windows_of = np.split(np.argsort(self.questions, kind="stable"), np.cumsum(np.bincount(self.questions))[:-1])
        texts = {}
        self.n_best, self.null_odds = {}, {}
        for (name, context), windows in zip(self.contexts.items(), windows_of, strict=True):
            spans = np.concatenate(
                [self.spans(window, start_logits[window], end_logits[window]) for window in windows]
            )
            spans = spans[np.argsort(-(spans["start_logit"] + spans["end_logit"]), kind="stable")]
            _, first = np.unique(np.stack([spans["start"], spans["end"]]), axis=1, return_index=True)
            candidates = [
                Candidate(context[span["start"] : span["end"]], span["start_logit"], span["end_logit"])
                for span in spans[np.sort(first)[: self.arguments.n_best_size]]
            ]
            with_text = [candidate for candidate in candidates if candidate.text or not self.version_2_with_negative]
            answer = with_text[0] if with_text else Candidate("", 0.0, 0.0)
            texts[name] = answer.text
            if self.version_2_with_negative:
                null = min(windows, key=lambda window: start_logits[window, 0] + end_logits[window, 0])
                no_answer = Candidate("", start_logits[null, 0], end_logits[null, 0])
                self.null_odds[name] = float(no_answer.score - answer.score)
                candidates = sorted([*candidates, no_answer], key=lambda candidate: -candidate.score)
                candidates = candidates[: self.arguments.n_best_size]
                if no_answer not in candidates:
                    candidates.append(no_answer)
            self.n_best[name] = with_probabilities(candidates)
        empty = {name for name, odds in self.null_odds.items() if odds > self.threshold}
        self.predictions = {name: "" if name in empty else text for name, text in texts.items()}
        return texts

    def spans(self, window: int, start_logits: np.ndarray, end_logits: np.ndarray) -> np.ndarray:
        """Returns the best spans of a window: a structured array with their characters and logits."""
        size = self.lengths[window]
        offsets = self.offsets[self.ends[window] : self.ends[window + 1]].reshape(size, 2)
        starts, ends = (
            np.argsort(logits[:size])[: -self.arguments.n_best_size - 1 : -1] for logits in (start_logits, end_logits)
        )
        length = ends[None, :] - starts[:, None] + 1  # (starts, ends)
        inside = (offsets[starts, 0] >= 0)[:, None] & (offsets[ends, 0] >= 0)[None, :]
        start, end = np.nonzero(inside & (length >= 1) & (length <= self.arguments.max_answer_length))
        start, end = starts[start], ends[end]
        columns = (offsets[start, 0], offsets[end, 1], start_logits[start], end_logits[end])
        return np.rec.fromarrays(columns, names="start,end,start_logit,end_logit")  # type: ignore[call-overload]


def with_probabilities(candidates: list[Candidate]) -> list[dict]:
    """Converts candidates to the format of run_qa.py, which includes probabilities."""
    scores = np.array([candidate.score for candidate in candidates])
    weights = np.exp(scores - scores.max()) if candidates else scores
    return [
        {
            "text": candidate.text,
            "probability": float(weight),
            "start_logit": float(candidate.start_logit),
            "end_logit": float(candidate.end_logit),
        }
        for candidate, weight in zip(candidates, weights / weights.sum(), strict=True)
    ]
