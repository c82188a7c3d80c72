"""Questions answered by a span of a text: SQuAD 1.1's files, windows of tokens, and from logits back to text."""

import json
from pathlib import Path

import datasets
import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..errors import InputError
from ..metrics import squad_scores


def load_squad(file: str) -> datasets.Dataset:
    """
    A file in SQuAD 1.1's JSON layout as rows with the Hub's columns: id, title, context, question, answers.

    Raises:
        InputError: not JSON, not SQuAD's layout, or an answer that does not stand in its context where it should.
    """
    try:
        articles = json.loads(Path(file).read_text(encoding="utf-8"))["data"]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a JSON file in SQuAD's layout ({error}).") from error
    rows = []
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    row = {
                        "id": question["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": question["question"],
                        "answers": {
                            "text": [answer["text"] for answer in question["answers"]],
                            "answer_start": [answer["answer_start"] for answer in question["answers"]],
                        },
                    }
                    check_answers(row, file)
                    rows.append(row)
    except KeyError as error:
        raise InputError(f"{file}: not in SQuAD's layout, after {len(rows)} questions {error} is missing.") from error
    except (TypeError, AttributeError) as error:
        raise InputError(f"{file}: not in SQuAD's layout, after {len(rows)} questions: {error}.") from error
    if not rows:
        raise InputError(f"{file}: no questions.")
    return datasets.Dataset.from_list(rows)


def check_answers(row: dict, file: str):
    answers = row["answers"]
    if not answers["text"]:
        raise InputError(f"{file}, question {row['id']}: no answer; SQuAD 2.0's questions without one are not read.")
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        if row["context"][start : start + len(text)] != text:
            raise InputError(
                f"{file}, question {row['id']}: the answer {text!r} does not stand in its context "
                f"at character {start}."
            )


def squad_windows(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    num_proc: int | None = None,
) -> datasets.Dataset:
    """
    Overlapping windows over question and context, as in BERT: [CLS] question [SEP] part of the context [SEP].

    Adds to the token columns: `start_positions` and `end_positions`, tokens of the first answer, or 0 ([CLS]) where
    the window does not hold it whole; `question`, the row the window comes from; `offsets`, (L, 2), where each token
    of the context stands in it, and (-1, -1) for all others.
    """
    return rows.map(
        make_windows,
        with_indices=True,
        batched=True,
        num_proc=num_proc,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": tokenizer, "max_seq_length": max_seq_length, "doc_stride": doc_stride},
        desc="Tokenizing questions and contexts",
    )


def make_windows(batch, numbers, tokenizer, max_seq_length, doc_stride):
    questions = [question.strip() for question in batch["question"]]
    lengths = [len(ids) for ids in tokenizer(questions, add_special_tokens=False)["input_ids"]]
    if max(lengths) + 3 + doc_stride >= max_seq_length:
        place = batch["id"][int(np.argmax(lengths))]
        raise InputError(
            f"question {place} has {max(lengths)} tokens and leaves no room for --doc_stride {doc_stride} tokens of "
            f"context in --max_seq_length {max_seq_length}: raise the length, or lower the stride."
        )
    windows = tokenizer(
        questions,
        batch["context"],
        max_length=max_seq_length,
        truncation="only_second",
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = windows.pop("overflow_to_sample_mapping")
    offset_mapping = windows.pop("offset_mapping")
    columns = {"start_positions": [], "end_positions": [], "question": [], "offsets": []}
    for window, row in enumerate(rows):
        in_context = np.array([part == 1 for part in windows.sequence_ids(window)])
        offsets = np.where(in_context[:, None], np.array(offset_mapping[window]), -1)
        answers = batch["answers"][row]
        first, last = answers["answer_start"][0], answers["answer_start"][0] + len(answers["text"][0])
        start, end = token_span(offsets, in_context, first, last)
        columns["start_positions"].append(start)
        columns["end_positions"].append(end)
        columns["question"].append(numbers[row])
        columns["offsets"].append(offsets)
    return {**windows, **columns}


def token_span(offsets: np.ndarray, in_context: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """The tokens that hold the characters first to last of the context, or (0, 0) if the window lacks some of them."""
    starts = np.flatnonzero(in_context & (offsets[:, 0] <= first) & (first < offsets[:, 1]))
    ends = np.flatnonzero(in_context & (offsets[:, 0] < last) & (last <= offsets[:, 1]))
    return (int(starts[0]), int(ends[0])) if len(starts) and len(ends) else (0, 0)


class SquadEvaluation:
    """
    For Trainer's `compute_metrics`: from the logits of all windows, in order, to answers, exact match and F1.

    Of a window's `n_best_size` best starts and ends, the pair with the largest sum of logits that is a span of at most
    `max_answer_length` tokens of the context; of a question's windows, the best one. `predictions` keeps the answers.
    """

    def __init__(self, rows, windows, n_best_size: int = 20, max_answer_length: int = 30):
        self.contexts, self.ids = rows["context"], rows["id"]
        self.answers = {row["id"]: row["answers"]["text"] for row in rows}
        self.questions, self.offsets = windows["question"], windows["offsets"]
        self.n_best_size = n_best_size
        self.max_answer_length = max_answer_length
        self.predictions: dict[str, str] = {}

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        start_logits, end_logits = prediction.predictions[:2]  # (windows, L) each
        best: dict[int, tuple[float, str]] = {}
        for window, (question, offsets) in enumerate(zip(self.questions, self.offsets, strict=True)):
            score, first, last = self.best_span(start_logits[window], end_logits[window], np.array(offsets))
            if question not in best or score > best[question][0]:
                best[question] = (score, self.contexts[question][first:last])
        self.predictions = {self.ids[question]: text for question, (_, text) in sorted(best.items())}
        return squad_scores(self.predictions, self.answers)

    def best_span(self, start_logits, end_logits, offsets) -> tuple[float, int, int]:
        context = np.flatnonzero(offsets[:, 0] >= 0)
        starts = context[np.argsort(-start_logits[context], kind="stable")[: self.n_best_size]]
        ends = context[np.argsort(-end_logits[context], kind="stable")[: self.n_best_size]]
        length = ends[None, :] - starts[:, None] + 1  # (starts, ends)
        score = start_logits[starts][:, None] + end_logits[ends][None, :]
        score = np.where((length >= 1) & (length <= self.max_answer_length), score, -np.inf)
        start, end = np.unravel_index(score.argmax(), score.shape)
        if score[start, end] == -np.inf:  # no pair is a span
            return -np.inf, 0, 0
        return float(score[start, end]), offsets[starts[start], 0], offsets[ends[end], 1]
