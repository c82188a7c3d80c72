"""Questions in the format of SQuAD 1.1 and 2.0, with or without answers: loads, tokenizes and scores them."""

from collections.abc import Iterator
from itertools import chain, count
from math import nan

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from ..data.file_formats import REDOWNLOAD, FileRow, text_problem
from ..options import AnswerOptions, CompareOptions
from ..support.errors import InputError
from ..support.files import reading
from .answers import SquadEvaluation
from .examples import SAMPLE_SEED, drawn
from .fidelity import Fidelity
from .labels import shorten
from .reading import RowSource, valid_rows
from .rows import Features, Model, RowPredictions, Rows, file_of
from .squad_metrics import best_score, exact_match, note_on_spaces
from .windows import squad_windows

DOC_STRIDE = 128  # overlap of consecutive windows of a context, in tokens, for comparing and calibrating models
TEXT = datasets.Value("string")
FEATURES = datasets.Features(
    {
        "row": datasets.Value("int64"),  # 0-based index among the questions of the file
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
    return question_rows(RowSource.from_file(file), **options)


def question_rows(
    source: RowSource,
    version_2_with_negative: bool = False,
    answered: bool = True,
    skip_bad_rows: bool = False,
    max_samples: int | None = None,
    seed: int = SAMPLE_SEED,
) -> datasets.Dataset:
    """
    Validates the questions in a file or dataset and returns a dataset with the columns in FEATURES. Draws
    `max_samples` of them at random before, or reads all if it is None.

    Questions without an answer are valid if `version_2_with_negative` is True, as in SQuAD 2.0, or if `answered` is
    False, as in test data. Invalid questions raise InputError, or are printed and skipped with `skip_bad_rows`.
    """
    seen = set()

    def parse(numbered: FileRow) -> dict:
        question = numbered.values
        if numbered.problem:
            raise ValueError(numbered.problem)
        row = {"row": question["row"], "id": str(question["id"]), "answers": answers_of(question)}
        row |= {"context": question.get("context"), "question": question.get("question")}
        if row["id"] in seen:
            raise ValueError(f"its id {row['id']!r} occurs more than once; each question needs its own id, or none")
        if answered and "answers" not in question and question.get("is_impossible") is not True:
            raise ValueError("it has no answers")
        check_question(row, version_2_with_negative or not answered)
        seen.add(row["id"])
        return row

    if not {"data", "paragraphs", "context", "question"} & {*source.columns}:
        raise InputError(f"{source.name}: not in SQuAD's format; it has the columns {shorten(source.columns)}.")
    with reading(source.name, REDOWNLOAD, "not in SQuAD's format"):
        questions = drawn(questions_in(source), max_samples, seed)
        rows, _ = valid_rows(source.name, questions, parse, skip_bad_rows, "questions")
    return datasets.Dataset.from_list(rows, features=FEATURES)


def questions_in(source: RowSource) -> Iterator[tuple[str, FileRow]]:
    """
    Yields the place of each question, and its number `row`, context, question, id and answers. The default of the id
    is the number.

    A row contains a question, an article with paragraphs, or, as in SQuAD's files, a list of these in "data".
    """
    total = count()
    for row in source.rows:
        data = row.values.get("data")
        for article in data if isinstance(data, list) else [row.values]:
            questions, place = [article], f"{source.unit} {row.number}"
            if "paragraphs" in article:
                parts = article["paragraphs"]
                questions = [
                    {"context": part.get("context"), **question} for part in parts for question in part["qas"]
                ]
            for question in questions:
                number = next(total)
                name = number if question.get("id") is None else question["id"]
                question = {**question, "id": name, "row": number}
                in_row = article is row.values and "paragraphs" not in article
                yield place if in_row else f"question {question['id']}", row._replace(values=question)


def answers_of(question: dict) -> dict[str, list]:
    """Returns a question's answers as lists `text` and `answer_start`. SQuAD's files have a list of dictionaries."""
    answers = question.get("answers")
    if not answers or question.get("is_impossible") is True:
        return {"text": [], "answer_start": []}
    try:
        if isinstance(answers, list):
            answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
        return {name: [*answers[name]] for name in ("text", "answer_start")}
    except (TypeError, KeyError) as error:
        raise ValueError('its answers are not two lists, "text" and "answer_start"') from error


def check_question(row: dict, answer_is_optional: bool):
    """Raises ValueError if a question is invalid."""
    for name in ("question", "context"):
        if problem := text_problem(row[name], f"its {name}"):
            raise ValueError(problem)
        if not (row[name] or "").strip():
            raise ValueError(f"its {name} is empty")
    texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
    if not texts and not answer_is_optional:
        raise ValueError("it has no answer; set `version_2_with_negative` for SQuAD 2.0")
    if len(texts) != len(starts):
        raise ValueError(f"it has {len(texts)} answers, but {len(starts)} values of answer_start")
    for text, start in zip(texts, starts, strict=True):
        is_valid = isinstance(text, str) and isinstance(start, int) and text and start >= 0
        if not is_valid or row["context"][start : start + len(text)] != text:
            raise ValueError(f"the answer {text!r} is not at character {start!r} of its context")


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
    sizes = f"`max_seq_length` {max_seq_length} and `doc_stride` {doc_stride}"

    def check(question: tuple[int, list[int]]) -> int:
        index, ids = question
        if len(ids) >= room:
            raise ValueError(f"it has {len(ids)} tokens, but {sizes} leave room for at most {room - 1}")
        return index

    places = zip((f"question {question}" for question in rows["id"]), enumerate(encoded["input_ids"]), strict=True)
    fitting, skipped = valid_rows(name, places, check, skip_bad_rows, "questions")
    return rows.select(fitting) if skipped else rows


def warn_of_long_answers(name: str, rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, longest: int):
    """Prints how many questions have only answers with more tokens than a prediction can have."""
    answers = [answers["text"] for answers in rows["answers"] if answers["text"]]
    texts = [*dict.fromkeys(chain(*answers))]
    encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"] if texts else []
    lengths = dict(zip(texts, map(len, encoded), strict=True))
    if too_long := sum(min(map(lengths.__getitem__, each)) > longest for each in answers):
        PartialState().print(
            f"{name}: {too_long:,} of {len(answers):,} answers have more than {longest} tokens and cannot be "
            "predicted; increase `max_answer_length`"
        )


class QuestionRows(Rows):
    """
    Questions about contexts, with or without labels. If some of the labeled questions are unanswerable, as in SQuAD
    2.0, the models can predict that a question has no answer.
    """

    item = "question"

    def __init__(self, rows: datasets.Dataset):
        super().__init__(rows)
        answered = [bool(answers["text"]) for answers in rows["answers"]]
        self.labeled, self.version_2 = any(answered), any(answered) and not all(answered)

    @classmethod
    def load(cls, options: CompareOptions, head: str, models: list[Model], length: int) -> "QuestionRows":
        file = file_of(options)
        if options.text_column_names or options.label_column_name:
            raise InputError(f"{file}: files in SQuAD format have fixed column names; do not specify any.")
        rows = unlabeled_questions(file, [tokenizer for _, tokenizer in models], length, options.skip_bad_rows)
        note_on_spaces(answers["text"] for answers in rows["answers"])
        return cls(rows)

    def texts(self):
        return [(context,) for context in self.data["context"]]

    def features(self, tokenizer, settings, length):
        features: list[Features] = [[] for _ in self.data]
        windows = squad_windows(self.data, tokenizer, length, stride_for(length), for_training=False)
        windows = windows.with_format("numpy", columns=["offsets"], output_all_columns=True)  # small in memory
        for window in windows:
            features[window["question"]].append(window)
        return features, 0

    def interpret(self, outputs, features, all_features):
        windows = [window for row in features for window in row]
        options = AnswerOptions(version_2_with_negative=self.version_2)
        evaluation = SquadEvaluation(self.data, datasets.Dataset.from_list(windows), options)
        evaluation.predict(*(output.values.numpy() for output in outputs))
        texts, references = evaluation.predictions, evaluation.answers
        first = [window["input_ids"] for row in all_features[0] for window in row]
        if [window["input_ids"] for window in windows] != first:  # predictions for different tokens cannot be compared
            outputs = []
        scores, correct = {}, None
        if self.labeled:
            scores = evaluation.scores(texts)
            scores = {"exact_match": scores.get("exact", scores.get("exact_match", 0.0)), "f1": scores["f1"]}
            correct = np.array(
                [best_score(exact_match, texts, name, answers or [""]) == 1.0 for name, answers in references.items()]
            )
        return RowPredictions(outputs, scores, [*texts.values()], correct)

    def fidelity(self, expected, answers):
        divergence = super().fidelity(expected, answers)[0].divergence if answers.outputs else nan
        kept = np.array(expected.texts) == np.array(answers.texts)
        warning = "the original gives the same answer to all questions" if len({*expected.texts}) == 1 else ""
        result = Fidelity(divergence, len(self.data), self.item, float(kept.mean()), warning=warning)
        return result, np.flatnonzero(~kept).tolist()

    def cells(self, units, all_features):
        rows = self.data.select(units)
        answers = [" | ".join(dict.fromkeys(answers["text"])) for answers in rows["answers"]]
        return [*((name, rows[name][:]) for name in ("row", "id", "question")), ("answers", answers)]


def unlabeled_questions(
    file: str, tokenizers: list[PreTrainedTokenizerBase], length: int, skip_bad_rows: bool, **options
) -> datasets.Dataset:
    """
    Loads questions, with or without answers, that fit into windows of `length` tokens for all tokenizers. `options`
    are `max_samples` and `seed` of `question_rows`.
    """
    rows = load_squad(file, version_2_with_negative=True, answered=False, skip_bad_rows=skip_bad_rows, **options)
    for tokenizer in tokenizers:
        rows = questions_that_fit(rows, file, tokenizer, length, stride_for(length), skip_bad_rows)
    return rows


def stride_for(length: int) -> int:
    """Returns the number of tokens that consecutive windows of at most `length` tokens share."""
    return min(DOC_STRIDE, length // 2)
