"""Question answering: windows point at the answer, logits come back as text, bad files are named."""

import json

import numpy as np
import pytest
from transformers import BertTokenizer, EvalPrediction

from fixedbert.data.squad import SquadEvaluation, load_squad, squad_windows
from fixedbert.errors import InputError

CONTEXT = "The function read takes a string . The function write returns two six lists . One two three four five ."


def squad_file(path, context=CONTEXT, text="two six lists", start=None, question="what returns the list ?"):
    answer = {"text": text, "answer_start": context.index(text) if start is None else start}
    paragraph = {"context": context, "qas": [{"id": "q1", "question": question, "answers": [answer]}]}
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return str(path)


@pytest.fixture
def tokenizer(vocabulary):
    return BertTokenizer(vocab=vocabulary)


@pytest.fixture
def windows_of(tmp_path, tokenizer):
    def make(max_seq_length=19, doc_stride=4, **answer):
        rows = load_squad(squad_file(tmp_path / "squad.json", **answer))
        return rows, squad_windows(rows, tokenizer, max_seq_length, doc_stride)

    return make


def test_windows_cover_the_context_and_mark_the_answer(windows_of, tokenizer):
    """Guards: overlapping windows hold all of the context; the span marks the answer where it is inside."""
    _, windows = windows_of()
    assert len(windows) > 2
    seen, marked = set(), 0
    for window in windows:
        assert len(window["input_ids"]) <= 19
        offsets = np.array(window["offsets"])
        types = np.array(window["token_type_ids"])
        assert (offsets[types == 0] == -1).all() and (offsets[-1] == -1).all()
        seen.update(position for first, last in offsets[offsets[:, 0] >= 0] for position in range(first, last))
        start, end = window["start_positions"], window["end_positions"]
        if start:
            assert CONTEXT[offsets[start, 0] : offsets[end, 1]] == "two six lists"
            marked += 1
        else:
            assert end == 0
    assert marked >= 1
    assert seen == {index for index, character in enumerate(CONTEXT) if character != " "}


def test_logits_come_back_as_the_text_of_the_best_valid_span(windows_of):
    """Guards: the answer is the best span over all windows: in the context, forwards, not too long."""
    rows, windows = windows_of()
    evaluation = SquadEvaluation(rows, windows, max_answer_length=4)  # "lists" is two tokens
    longest = max(map(len, windows["input_ids"]))
    start, end = (np.full((len(windows), longest), -5.0) for _ in range(2))
    right = next(number for number, first in enumerate(windows["start_positions"]) if first)
    first, last = windows["start_positions"][right], windows["end_positions"][right]
    start[right, first], end[right, last] = 4.0, 4.0
    start[0, 0] = end[0, 0] = 50.0  # [CLS] is not in the context
    end[right, first - 1] = 9.0  # ends before it starts
    end[right, first + 4] = 9.0  # too long an answer
    for window, offsets in enumerate(windows["offsets"]):
        start[window, len(offsets) :] = end[window, len(offsets) :] = 70.0  # what Trainer pads shorter windows with
    scores = evaluation(EvalPrediction(predictions=(start, end), label_ids=None))
    assert evaluation.predictions == {"q1": "two six lists"}
    assert scores == {"exact_match": 100.0, "f1": 100.0}


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"start": 3}, r"squad\.json, question q1: the answer 'two six lists' does not stand .* at character 3"),
        ({"text": "absent", "start": 0}, "question q1: the answer 'absent' does not stand in its context"),
    ],
)
def test_answers_that_are_not_in_their_context(tmp_path, change, sentence):
    """Guards: a wrong offset is an error that names file and question, not a wrong training label."""
    with pytest.raises(InputError, match=sentence):
        load_squad(squad_file(tmp_path / "squad.json", **change))


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("{", "not a JSON file"),
        ('{"rows": []}', "not a JSON file in SQuAD's layout"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "after 0 questions 'qas' is missing"),
        ('{"data": ["x"]}', "after 0 questions: string indices"),
        ('{"data": []}', "no questions"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "7", "question": "y", "answers": []}]}]}]}',
            "question 7: no answer",
        ),
    ],
)
def test_files_that_are_not_squad(tmp_path, content, sentence):
    """Guards: whatever is wrong with the file, one sentence names it."""
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(InputError, match=rf"bad\.json.*{sentence}"):
        load_squad(str(tmp_path / "bad.json"))


def test_question_that_fills_the_window(windows_of):
    """Guards: a question too long for the window is said, instead of the tokenizer's traceback."""
    with pytest.raises(InputError, match="question q1 has 12 tokens and leaves no room.*--max_seq_length 19"):
        windows_of(question="what " * 12)


def test_real_squad(real_data):
    """Guards: the official dev file is read whole, and all its answers stand where they should."""
    assert len(load_squad(str(real_data / "squad/dev-v1.1.json"))) == 10570
