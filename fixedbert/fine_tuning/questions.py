"""Questions whose answer is a span of a text, or none: SQuAD 1.1 and 2.0 as rows, as windows of tokens, evaluated."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..data.documents import as_arrays
from ..data.encoding import encode
from ..data.readers import DAMAGED, KINDS, DataFile, json_object, why_no_text
from ..support.errors import InputError
from ..support.files import reading
from .features import prepare_features
from .rows import check_usable
from .squad_metrics import squad_scores, squad_v2_scores

TEXT = datasets.Value("string")
FEATURES = datasets.Features(
    {
        "id": TEXT,
        "title": TEXT,
        "context": TEXT,
        "question": TEXT,
        "answers": {"text": datasets.List(TEXT), "answer_start": datasets.List(datasets.Value("int32"))},
    }
)
LAYOUTS = (".json", ".jsonl", ".parquet")
LABEL = ("label_start", "label_end")  # of a training window: the characters of its label, or one of the next two
NOT_HERE, NO_TOKEN = -1, -2  # the answer is in another window; the tokenizer drops all its characters
NO_LABEL = {
    NOT_HERE: "are whole in no window, and count as no answer",
    NO_TOKEN: "have no token, and count as no answer",
}
LONGEST = 100  # characters of an answer in a message
NO_ANSWER: dict[str, list] = {"text": [], "answer_start": []}
Found = tuple[dict, dict, dict]  # what has the question, the context and the title of a row


def load_squad(
    file: str, version_2_with_negative: bool = False, answered: bool = True, skip_bad_rows: bool = False
) -> datasets.Dataset:
    """
    Questions with the Hub's columns: id, title, context, question, answers.

    Args:
        file: SQuAD's JSON layout, or rows with these columns in .jsonl, .parquet, or under "data" in .json.
        version_2_with_negative: whether questions may have no answer, as in SQuAD 2.0.
        answered: whether answers are needed; a test file may have none.
        skip_bad_rows: leave out rows that cannot be used, and print which.

    Raises:
        InputError: the file cannot be read, or a row cannot be used.
    """
    if Path(file).suffix not in LAYOUTS:
        raise InputError(f"{file}: a format that cannot be read; give {', '.join(LAYOUTS)}.")
    with reading(file, DAMAGED):
        return question_rows(questions_in(Path(file)), file, version_2_with_negative, answered, skip_bad_rows)


def question_rows(
    found: Iterable[Found],
    name: str,
    version_2_with_negative: bool = False,
    answered: bool = True,
    skip_bad_rows: bool = False,
) -> datasets.Dataset:
    """
    The questions among what was found in `name`.

    Raises:
        InputError: as for `load_squad`.
    """
    rows: list[dict] = []
    problems: dict[int, str] = {}
    seen = set()
    try:
        for question, paragraph, article in found:
            row = {
                "id": str(question["id"]),
                "title": str(article.get("title") or ""),
                "context": paragraph["context"],
                "question": question["question"],
                "answers": by_column(question.get("answers")),
            }
            if question.get("is_impossible"):
                row["answers"] = NO_ANSWER
            problem = problem_of_question(question, answered) or problem_of(row, version_2_with_negative, answered)
            if row["id"] in seen:
                problem = "another question has the same id"
            seen.add(row["id"])
            if problem is not None:
                problems[len(rows)] = f"question {row['id']}: {problem}"
            rows.append(row)
    except KeyError as error:
        raise InputError(f"{name}: not in SQuAD's layout, after {len(rows)} questions {error} is missing.") from error
    except (TypeError, AttributeError) as error:
        raise InputError(f"{name}: not in SQuAD's layout, after {len(rows)} questions: {error}.") from error
    check_usable(name, problems, len(rows), skip_bad_rows)
    rows = [row for number, row in enumerate(rows) if number not in problems]
    if not rows:
        raise InputError(f"{name}: no questions.")
    return datasets.Dataset.from_list(rows, features=FEATURES)


def questions_in(path: Path) -> Iterator[Found]:
    """What has the question, the context and the title of each row of a file."""
    file = DataFile(path)
    if path.suffix != ".json":
        yield from ((row.values, row.values, row.values) for row in file.rows())
        return
    content = json_object("".join(file.lines()), str(path))
    if "data" not in content:
        raise InputError(f"{path}: not in SQuAD's layout, 'data' is missing.")
    for article in content["data"]:
        if "paragraphs" not in article:
            yield article, article, article
            continue
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield question, paragraph, article


def by_column(answers: object) -> object:
    """Answers as on the Hub; SQuAD's files have an object for each."""
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        return {name: [answer[name] for answer in answers] for name in NO_ANSWER}
    return answers or NO_ANSWER


def problem_of_question(question: dict, answered: bool) -> str | None:
    """What is wrong with what a file says beside the texts; None if nothing is."""
    impossible = question.get("is_impossible")
    if not isinstance(impossible, bool | None):
        return f"is_impossible is {impossible!r}, neither true nor false"
    if answered and not impossible and "answers" not in question:
        return "it has no answers, and is_impossible does not say so"
    return None if isinstance(question["id"], str | int) else "its id is neither a text nor a number"


def problem_of(row: dict, version_2_with_negative: bool, answered: bool) -> str | None:
    """What is wrong with a row; None if nothing is."""
    for name in ("id", "title", "question", "context"):
        problem = why_no_text(row[name], f"its {name}")
        if problem:
            return problem
        if name in ("question", "context") and not (row[name] or "").strip():
            return f"its {name} is empty"
    if not isinstance(row["answers"], dict):
        return "its answers are not texts with places (text, answer_start)"
    texts, starts = (row["answers"].get(name) for name in NO_ANSWER)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return "its answers are not as many texts (text) as places (answer_start)"
    if not texts and answered and not version_2_with_negative:
        return "it has no answer; SQuAD 2.0's questions need `version_2_with_negative`"
    return next(
        filter(None, (problem_of_answer(*one, row["context"]) for one in zip(texts, starts, strict=True))), None
    )


def problem_of_answer(text: Any, start: Any, context: str) -> str | None:
    """What is wrong with an answer that begins at the character `start`; None if nothing is."""
    problem = why_no_text(text, "an answer")
    if problem:
        return problem
    if not text:
        return "an answer is empty"
    if type(start) is not int:
        kind = KINDS.get(type(start), "a text" if isinstance(start, str) else type(start).__name__)
        return (
            f"the answer {text!r} is not in its context at character {start}: its answer_start is {start!r}, "
            f"{kind}, and has to be a whole number"
        )
    if start < 0 or context[start : start + len(text)] != text:
        return f"the answer {text!r} is not in its context at character {start}"
    return None


def questions_that_fit(
    rows: datasets.Dataset,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    skip_bad_rows: bool = False,
) -> datasets.Dataset:
    """
    The questions that leave room for more than `doc_stride` tokens of context in a window.

    Raises:
        InputError: a question does not, without `skip_bad_rows`.
    """
    encoded = encode(tokenizer, rows["question"][:], add_special_tokens=False, return_attention_mask=False)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True) - doc_stride
    problems = {
        number: f"question {rows[number]['id']}: with {len(ids)} tokens it leaves no room for `doc_stride` "
        f"{doc_stride} tokens of context in `max_seq_length` {max_seq_length}; raise the length or lower the stride"
        for number, ids in enumerate(encoded["input_ids"])
        if len(ids) >= room
    }
    check_usable(name, problems, len(rows), skip_bad_rows)
    if len(problems) == len(rows):
        raise InputError(f"{name}: no questions.")
    return rows.select([n for n in range(len(rows)) if n not in problems]) if problems else rows


def squad_windows(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool = True,
    **options,
) -> datasets.Dataset:
    """
    Overlapping windows over question and context, as in BERT: [CLS] question [SEP] part of the context [SEP].

    Columns beside the tokens: `start_positions` and `end_positions`, the first and last token of the first answer that
    is whole in the window, or the position of [CLS] if none is; `length`. For evaluation also `question`, the row of
    the window, and `offsets`, (2L): for each token of the context its first character and the one after its last, and
    -1 for all other tokens. For training, labels that are not the text of an answer are counted and printed.
    """
    if tokenizer.padding_side != "right":
        raise InputError("the tokenizer pads on the left, before the question; give a model that pads on the right.")
    settings = {
        "tokenizer": tokenizer,
        "max_seq_length": max_seq_length,
        "doc_stride": doc_stride,
        "for_training": for_training,
    }
    numbered = rows.add_column("number", np.arange(len(rows)))
    windows = prepare_features(numbered, make_windows, settings, desc="Tokenizing questions and contexts", **options)
    if for_training:
        print_labels(rows, windows)
        windows = windows.remove_columns(["question", "label_start", "label_end"])
    return windows


def make_windows(
    batch: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool,
) -> dict[str, list]:
    questions = [question.lstrip() for question in batch["question"]]
    windows = encode(
        tokenizer,
        questions,
        batch["context"],
        max_length=max_seq_length,
        truncation="only_second",
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    rows, offset_mapping = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
    contexts = []  # of each window the place of its first token of the context, and the offsets of all, (tokens, 2)
    offsets_of: dict[int, list[np.ndarray]] = {}
    for window, row in enumerate(rows):
        parts = np.array([part == 1 for part in windows.sequence_ids(window)])  # (L,)
        offsets = np.array(offset_mapping[window], dtype=np.int64)[parts]
        contexts.append((int(parts.argmax()), offsets, len(parts)))
        offsets_of.setdefault(row, []).append(offsets)
    answers_of = {
        row: characters_of(np.concatenate(offsets), batch["answers"][row]) for row, offsets in offsets_of.items()
    }
    names = ("start_positions", "end_positions", "length", "question")
    columns: dict[str, list] = {name: [] for name in (*names, *(LABEL if for_training else ("offsets",)))}
    for window, (row, (first, offsets, size)) in enumerate(zip(rows, contexts, strict=True)):
        cls = windows["input_ids"][window].index(tokenizer.cls_token_id)
        spans = (token_span(offsets, *answer) for answer in answers_of[row])
        span = next((span for span in spans if span is not None), None)
        columns["start_positions"].append(cls if span is None else first + span[0])
        columns["end_positions"].append(cls if span is None else first + span[1])
        columns["length"].append(size)
        columns["question"].append(batch["number"][row])
        if for_training:
            absent = NOT_HERE if answers_of[row] or not batch["answers"][row]["text"] else NO_TOKEN
            label = (absent, absent) if span is None else (offsets[span[0], 0], offsets[span[1], 1])
            for name, character in zip(LABEL, label, strict=True):
                columns[name].append(int(character))
        else:
            everywhere = np.full((size, 2), -1, dtype=np.int32)
            everywhere[first : first + len(offsets)] = offsets
            columns["offsets"].append(everywhere.ravel())
    return {**windows, **columns}


def characters_of(offsets: np.ndarray, answers: dict[str, list]) -> list[tuple[int, int]]:
    """The first character of the tokens of each answer, and the one after the last; nothing for one without tokens."""
    found = []
    for start, text in zip(answers["answer_start"], answers["text"], strict=True):
        tokens = offsets[overlapping(offsets, start, start + len(text))]
        if len(tokens):
            found.append((int(tokens[:, 0].min()), int(tokens[:, 1].max())))
    return found


def overlapping(offsets: np.ndarray, start: int, end: int) -> np.ndarray:
    """The numbers of the tokens, of `offsets` (tokens, 2), that have a character from `start` to before `end`."""
    firsts, ends = offsets.T
    return np.flatnonzero((firsts < end) & (ends > start) & (ends > firsts))


def token_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """
    The first and last token from one character to before another, at which tokens begin and end (`characters_of`);
    None if not all are in the window.
    """
    tokens = overlapping(offsets, start, end)
    if not len(tokens) or offsets[tokens[0], 0] != start or offsets[tokens[-1], 1] != end:
        return None
    return int(tokens[0]), int(tokens[-1])


def print_labels(rows: datasets.Dataset, windows: datasets.Dataset):
    """Print how many training questions have labels that are not the text of an answer, and why, with examples."""
    table = windows.with_format("arrow")[:]
    labels: dict[int, tuple[int, int]] = {}  # of each question the label of a window that has one
    for question, start, end in zip(*(table[name].to_pylist() for name in ("question", *LABEL)), strict=True):
        labels[question] = max(labels.get(question, (start, end)), (start, end))
    examples: dict[str, list[str]] = {"are not the text of the answer": [], **{what: [] for what in NO_LABEL.values()}}
    for number, (name, context, answers) in enumerate(zip(rows["id"], rows["context"], rows["answers"], strict=True)):
        (start, end), texts = labels[number], [text.strip() for text in answers["text"]]
        if start < 0 and texts:
            examples[NO_LABEL[start]].append(name)
        elif start >= 0 and context[start:end].strip() not in texts:
            text = context[start:end]
            examples["are not the text of the answer"].append(f"{name}: {text[:LONGEST]!r} for {texts[0][:LONGEST]!r}")
    found = [
        f"{len(some):,} {what} ({', '.join(some[:3])}{', ...' if len(some) > 3 else ''})"
        for what, some in examples.items()
        if some
    ]
    if found:
        PartialState().print(f"labels of {len(rows):,} training questions: {'; '.join(found)}")


class SquadEvaluation:
    """
    For Trainer's `compute_metrics`: answers, exact match and F1 from the logits of all windows, in order.

    As in BERT and in transformers' run_qa.py, candidates are all pairs of a window's `n_best_size` best starts and
    ends that are a span of at most `max_answer_length` tokens of the context, and of all windows of a question the
    best `n_best_size` are kept. With `version_2_with_negative` the answer is empty if the logits of [CLS], in the
    window where they are lowest, are more than `null_score_diff_threshold` above the best span's. "best"
    chooses the threshold with the best F1.

    After a call, by question id: `predictions`, the texts; `n_best`, each with probability and logits; `null_odds`,
    the logits of [CLS] minus the best span's.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        windows: datasets.Dataset,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        version_2_with_negative: bool = False,
        null_score_diff_threshold: float | str = 0.0,
    ):
        self.contexts, self.ids = rows["context"][:], rows["id"][:]
        self.answers = {row["id"]: row["answers"]["text"] for row in rows}
        table = windows.with_format("arrow")[:]
        self.questions = table["question"].to_numpy()
        self.offsets, self.ends = as_arrays(table["offsets"].combine_chunks())
        self.lengths = table["length"].to_numpy()
        self.n_best_size = n_best_size
        self.max_answer_length = max_answer_length
        self.version_2_with_negative = version_2_with_negative
        self.asked_threshold = null_score_diff_threshold
        self.threshold = 0.0  # of the last call
        self.predictions: dict[str, str] = {}
        self.n_best: dict[str, list[dict]] = {}
        self.null_odds: dict[str, float] = {}

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        texts = self.predict(*prediction.predictions[:2])
        if not self.version_2_with_negative:
            return squad_scores(self.predictions, self.answers)
        scores = squad_v2_scores(texts, self.answers, self.null_odds, self.threshold)
        return scores | {"null_score_diff_threshold": self.threshold}

    def predict(self, start_logits: np.ndarray, end_logits: np.ndarray) -> dict[str, str]:
        """Set `predictions`, `n_best` and `null_odds` from logits (windows, L). Returns the best spans as texts."""
        windows_of = np.split(np.argsort(self.questions, kind="stable"), np.cumsum(np.bincount(self.questions))[:-1])
        texts = {}
        self.n_best, self.null_odds = {}, {}
        for context, name, windows in zip(self.contexts, self.ids, windows_of, strict=True):
            found = [self.spans(window, start_logits[window], end_logits[window]) for window in windows]
            first, last, start, end = (np.concatenate(parts) for parts in zip(*found, strict=True))
            best = np.argsort(-(start + end), kind="stable")[: self.n_best_size]
            candidates = [(context[first[i] : last[i]], start[i], end[i]) for i in best]
            if self.version_2_with_negative:
                null = min(windows, key=lambda window: start_logits[window, 0] + end_logits[window, 0])
                no_answer = ("", start_logits[null, 0], end_logits[null, 0])
                span = next((candidate for candidate in candidates if candidate[0]), None)  # the best with a text
                texts[name] = span[0] if span else ""
                self.null_odds[name] = float(sum(no_answer[1:]) - (sum(span[1:]) if span else 0.0))
                candidates = sorted([*candidates, no_answer], key=lambda candidate: -sum(candidate[1:]))
                candidates = candidates[: self.n_best_size]
                if no_answer not in candidates:
                    candidates.append(no_answer)
            else:
                texts[name] = candidates[0][0] if candidates else ""
            weights = np.array([sum(candidate[1:]) for candidate in candidates])
            weights = np.exp(weights - weights.max()) if candidates else weights
            self.n_best[name] = [
                {"text": text, "probability": float(weight), "start_logit": float(start), "end_logit": float(end)}
                for (text, start, end), weight in zip(candidates, weights / weights.sum(), strict=True)
            ]
        asked = self.asked_threshold
        self.threshold = self.best_threshold(texts) if asked == "best" else float(asked)
        none = {name for name, odds in self.null_odds.items() if odds > self.threshold}
        self.predictions = {name: "" if name in none else text for name, text in texts.items()}
        return texts

    def spans(self, window: int, start_logits: np.ndarray, end_logits: np.ndarray) -> tuple[np.ndarray, ...]:
        """
        The best spans of a window: first character, the one after the last, logits of start and of end, each (spans,).
        """
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

    def best_threshold(self, texts: dict[str, str]) -> float:
        """The threshold with the best F1; 0 for questions without known answers."""
        if not any(self.answers.values()):
            return 0.0
        return squad_v2_scores(texts, self.answers, self.null_odds)["best_f1_thresh"]
