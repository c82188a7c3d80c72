"""Functions that read and validate questions in the format of SQuAD 1.1 and 2.0, and split them into windows."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.readers import REDOWNLOAD, DataFile, json_object, text_problem
from ..data.tokenizers import encode
from ..support.errors import InputError
from ..support.files import reading
from .examples import make_features, report_bad_rows

TEXT = datasets.Value("string")
FEATURES = datasets.Features(
    {
        "id": TEXT,
        "context": TEXT,
        "question": TEXT,
        "answers": {"text": datasets.List(TEXT), "answer_start": datasets.List(datasets.Value("int32"))},
    }
)


def load_squad(file: str, max_samples: int | None = None, **options) -> datasets.Dataset:
    """
    Loads the first `max_samples` questions from a .json, .jsonl or .parquet file.

    A .json file can be in SQuAD's official format. Otherwise, the rows have the columns id, context, question and
    answers, and a .json file contains them under "data". `options` are passed to `question_rows`.
    """
    with reading(file, REDOWNLOAD, "not in SQuAD's format"):
        return question_rows(islice(questions_in(Path(file)), max_samples), file, **options)


def question_rows(
    questions: Iterable[dict],
    name: str,
    version_2_with_negative: bool = False,
    answered: bool = True,
    skip_bad_rows: bool = False,
) -> datasets.Dataset:
    """
    Validates questions, and returns them as a dataset with the columns in FEATURES.

    Args:
        name: the file or dataset, for messages.
        version_2_with_negative: accept questions without an answer, as in SQuAD 2.0.
        answered: False for test data, where answers are optional.
        skip_bad_rows: skip and print invalid questions instead of raising InputError.
    """
    rows: dict[str, dict] = {}
    bad_rows: dict[str, str] = {}
    for question in questions:
        row = {column: question[column] for column in ("context", "question")}
        row |= {"id": str(question["id"]), "answers": answers_of(question)}
        problem = problem_in_question(row, version_2_with_negative or not answered)
        if answered and "answers" not in question and question.get("is_impossible") is not True:
            problem = "it has no answers"
        if row["id"] in rows:
            problem = "its id occurs more than once"
        if problem:
            bad_rows[f"question {row['id']}"] = problem
        else:
            rows[row["id"]] = row
    report_bad_rows(name, bad_rows, skip_bad_rows)
    if not rows:
        raise InputError(f"{name} contains no valid questions.")
    return datasets.Dataset.from_list([*rows.values()], features=FEATURES)


def questions_in(path: Path) -> Iterator[dict]:
    """Yields the questions in a file as dictionaries with context, question, id and answers."""
    if path.suffix != ".json":
        yield from (row.values for row in DataFile(path).rows())
        return
    for article in json_object("".join(DataFile(path).lines()), str(path))["data"]:
        if "paragraphs" not in article:
            yield article
            continue
        for paragraph in article["paragraphs"]:
            yield from ({"context": paragraph["context"], **question} for question in paragraph["qas"])


def answers_of(question: dict) -> dict[str, list]:
    """Returns the lists `text` and `answer_start`. In SQuAD's files, answers are a list of dictionaries instead."""
    answers = question.get("answers")
    if not answers or question.get("is_impossible") is True:
        return {"text": [], "answer_start": []}
    if isinstance(answers, list):
        return {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
    return {name: [*answers[name]] for name in ("text", "answer_start")}


def problem_in_question(row: dict, answer_is_optional: bool) -> str | None:
    """Returns a description of the problem if a question is invalid, or None."""
    for name in ("question", "context"):
        if problem := text_problem(row[name], f"its {name}"):
            return problem
        if not (row[name] or "").strip():
            return f"its {name} is empty"
    texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
    if not texts and not answer_is_optional:
        return "it has no answer; set `version_2_with_negative` for SQuAD 2.0"
    for text, start in zip(texts, starts, strict=True):
        if not text or start < 0 or row["context"][start : start + len(text)] != text:
            return f"the answer {text!r} is not at character {start} of its context"
    return None


def questions_that_fit(
    rows: datasets.Dataset,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    skip_bad_rows: bool = False,
) -> datasets.Dataset:
    """Returns the questions that leave room for more than `doc_stride` context tokens. Longer ones are invalid."""
    encoded = encode(tokenizer, rows["question"][:], add_special_tokens=False, return_attention_mask=False)
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True) - doc_stride
    lengths = [len(ids) for ids in encoded["input_ids"]]
    sizes = f"`max_seq_length` {max_seq_length} and `doc_stride` {doc_stride}"
    problems = {
        f"question {question}": f"it has {length} tokens, but {sizes} leave room for at most {room - 1}"
        for question, length in zip(rows["id"], lengths, strict=True)
        if length >= room
    }
    report_bad_rows(name, problems, skip_bad_rows)
    if len(problems) == len(rows):
        raise InputError(f"{name} contains no valid questions.")
    return rows.select([index for index, length in enumerate(lengths) if length < room]) if problems else rows


def squad_windows(
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool = True,
    **options,
) -> datasets.Dataset:
    """
    Splits each context into overlapping windows: [CLS] question [SEP] part of the context [SEP].

    The columns `start_positions` and `end_positions` contain the indices of the first and last token of an answer.
    This is the first answer that lies entirely in the window. Without such an answer, both are 0, the index of [CLS].

    Windows for evaluation have two more columns. `question` is the index of the row. For each of the L tokens,
    `offsets` (2L) contains the first character and the end character, or -1 if the token is not in the context.

    `options` are passed to `make_features`. Raises InputError if the tokenizer pads on the left.
    """
    if tokenizer.padding_side != "right":
        raise InputError("the tokenizer pads on the left, but question answering requires padding on the right.")
    settings = {"tokenizer": tokenizer, "for_training": for_training}
    settings |= {"max_seq_length": max_seq_length, "doc_stride": doc_stride}
    windows = make_features(rows, make_windows, settings, **options)
    if for_training:
        columns = windows.with_format("numpy")
        labeled = {*columns["question"][:][columns["start_positions"][:] > 0].tolist()}
        answered = {index for index, answers in enumerate(rows["answers"]) if answers["text"]}
        if lost := len(answered - labeled):
            message = f"{lost:,} of {len(rows):,} training questions have no window that contains an answer"
            PartialState().print(f"{message}; training treats them as unanswerable")
        windows = windows.remove_columns("question")
    return windows


def make_windows(
    batch: dict[str, list],
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    for_training: bool,
) -> dict[str, list]:
    """Returns the columns of the windows for a batch of questions. Called by `make_features`."""
    windows = encode(
        tokenizer,
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        max_length=max_seq_length,
        truncation="only_second",
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    rows, window_offsets = windows.pop("overflow_to_sample_mapping"), []  # each (L, 2), -1 outside the context
    offsets_of: dict[int, list[np.ndarray]] = {}
    for window, (row, offset_mapping) in enumerate(zip(rows, windows.pop("offset_mapping"), strict=True)):
        offsets = np.array(offset_mapping, dtype=np.int32)
        offsets[[part != 1 for part in windows.sequence_ids(window)]] = -1
        window_offsets.append(offsets)
        offsets_of.setdefault(row, []).append(offsets)
    characters = {row: answer_characters(np.concatenate(o), batch["answers"][row]) for row, o in offsets_of.items()}
    spans = []
    for row, offsets in zip(rows, window_offsets, strict=True):
        candidates = (token_span(offsets, *answer) for answer in characters[row])
        spans.append(next((span for span in candidates if span is not None), (0, 0)))
    columns = {
        "start_positions": [start for start, _ in spans],
        "end_positions": [end for _, end in spans],
        "length": [len(offsets) for offsets in window_offsets],
        "question": [indices[row] for row in rows],
    }
    if not for_training:
        columns["offsets"] = [offsets.ravel() for offsets in window_offsets]
    return {**windows, **columns}


def answer_characters(offsets: np.ndarray, answers: dict[str, list]) -> list[tuple[int, int]]:
    """
    Returns the first and end character of each answer, expanded to complete tokens with `offsets` (tokens, 2).

    Answers without a token are omitted.
    """
    spans = []
    for start, text in zip(answers["answer_start"], answers["text"], strict=True):
        tokens = offsets[overlapping(offsets, start, start + len(text))]
        if len(tokens):
            spans.append((int(tokens[:, 0].min()), int(tokens[:, 1].max())))
    return spans


def overlapping(offsets: np.ndarray, start: int, end: int) -> np.ndarray:
    """Returns the indices of the tokens that overlap the characters [start, end). `offsets` are (tokens, 2)."""
    firsts, ends = offsets.T
    return np.flatnonzero((firsts < end) & (ends > start) & (ends > firsts))


def token_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and last token for the characters [start, end), or None if the window lacks some of them."""
    tokens = overlapping(offsets, start, end)
    if not len(tokens) or offsets[tokens[0], 0] != start or offsets[tokens[-1], 1] != end:
        return None
    return int(tokens[0]), int(tokens[-1])
