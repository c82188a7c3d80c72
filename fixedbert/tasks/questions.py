"""Reads and validates questions in the format of SQuAD 1.1 and 2.0."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import datasets
from transformers import PreTrainedTokenizerBase

from ..data.file_formats import REDOWNLOAD, DataFile, check_columns, parse_json, text_problem
from ..support.errors import InputError
from ..support.files import reading
from .examples import report_bad_rows

TEXT = datasets.Value("string")
FEATURES = datasets.Features(
    {
        "id": TEXT,
        "context": TEXT,
        "question": TEXT,
        "answers": {"text": datasets.List(TEXT), "answer_start": datasets.List(datasets.Value("int32"))},
    }
)


def load_squad(file: str, **options) -> datasets.Dataset:
    """
    Loads the questions from a .json file in SQuAD's official format, or from rows with the columns `id`, `context`,
    `question` and `answers`. The rows are in a .jsonl or .parquet file, or under "data" in a .json file.
    """
    return question_rows(questions_in(Path(file)), file, **options)


def question_rows(
    questions: Iterable[dict],
    name: str,
    version_2_with_negative: bool = False,
    answered: bool = True,
    skip_bad_rows: bool = False,
) -> datasets.Dataset:
    """
    Validates the questions in the file or dataset `name` and returns a dataset with the columns in FEATURES.

    Questions without an answer are valid if `version_2_with_negative` is True, as in SQuAD 2.0, or if `answered` is
    False, as in test data. Invalid questions raise InputError, or are printed and skipped with `skip_bad_rows`.
    """
    if isinstance(questions, datasets.Dataset):
        check_columns(dict.fromkeys(("id", "context", "question"), "dataset_name"), questions.column_names, name)
    rows: dict[str, dict] = {}
    bad_rows: dict[str, str] = {}
    with reading(name, REDOWNLOAD, "not in SQuAD's format"):
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
    for article in parse_json("".join(DataFile(path).lines()), str(path))["data"]:
        if "paragraphs" not in article:
            yield article
            continue
        for paragraph in article["paragraphs"]:
            yield from ({"context": paragraph["context"], **question} for question in paragraph["qas"])


def answers_of(question: dict) -> dict[str, list]:
    """Returns a question's answers as lists `text` and `answer_start`. SQuAD's files have a list of dictionaries."""
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
    if len(texts) != len(starts):
        return f"it has {len(texts)} answers, but {len(starts)} values of answer_start"
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
    """
    Returns the questions that leave room for more than `doc_stride` context tokens in a window of `max_seq_length`
    tokens. Longer questions raise InputError, or are printed and skipped with `skip_bad_rows`.
    """
    encoded = tokenizer(rows["question"][:], add_special_tokens=False, return_attention_mask=False)
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
