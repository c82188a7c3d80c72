"""Question answering: windows point at the answer, logits come back as text, bad files are named."""

import json

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from transformers import BertTokenizer, EvalPrediction

from fixedbert.fine_tuning.questions import (
    SquadEvaluation,
    characters_of,
    load_squad,
    questions_that_fit,
    squad_windows,
    token_span,
)
from fixedbert.support.errors import InputError

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
    def make(max_seq_length=19, doc_stride=4, for_training=False, **answer):
        rows = load_squad(squad_file(tmp_path / "squad.json", **answer))
        return rows, squad_windows(rows, tokenizer, max_seq_length, doc_stride, for_training)

    return make


def test_windows_against_hand_computed_spans(windows_of, tokenizer):
    """Guards: tokens, overlap and labels of every window, as worked out by hand."""
    # [CLS] what returns the list ? [SEP] and the last [SEP] leave 11 of 19 tokens; of these a window shares 4 with the
    # next, which begins 7 later. "two six lists" is tokens 11 to 14 of the context: two six list ##s.
    _, windows = windows_of(for_training=True)
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in windows["input_ids"]]
    question = ["[CLS]", "what", "returns", "the", "list", "?", "[SEP]"]
    words = (
        "the function read takes a string . the function write returns two six list ##s . one two three four five ."
    )
    context = words.split()
    assert tokens == [[*question, *context[begin : begin + 11], "[SEP]"] for begin in (0, 7, 14)]
    assert windows["start_positions"][:] == [0, 7 + 11 - 7, 0]
    assert windows["end_positions"][:] == [0, 7 + 14 - 7, 0]
    assert windows["length"][:] == [19, 19, 7 + 8 + 1]
    assert windows.column_names == ["input_ids", "token_type_ids", "start_positions", "end_positions", "length"]


def test_windows_cover_the_context_and_mark_the_answer(windows_of, tokenizer):
    """Guards: overlapping windows hold all of the context; the span marks the answer where it is inside."""
    _, windows = windows_of()
    assert len(windows) > 2
    seen, marked = set(), 0
    for window in windows:
        assert len(window["input_ids"]) == window["length"] <= 19
        offsets = np.array(window["offsets"]).reshape(-1, 2)
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


def test_token_spans_at_the_edges():
    """Guards: answers inside of a token, at the ends of the window, over its edge, and with blanks around them."""
    context = np.array([[0, 4], [5, 8], [9, 12], [12, 15], [16, 20], [21, 25]])  # tokens, all but two in the window
    window = context[1:5]

    def span(start, length):
        (characters,) = characters_of(context, {"answer_start": [start], "text": ["x" * length]})
        return token_span(window, *characters)

    assert span(9, 6) == (1, 2)
    assert span(10, 1) == (1, 1)  # a part of a token: all of it
    assert span(5, 15) == (0, 3)
    assert span(17, 3) == (3, 3)  # in the last token
    assert span(8, 4) == (1, 1)  # begins with a blank
    assert span(4, 4) == (0, 0) and span(16, 5) == (3, 3)  # a blank beyond the window is no token
    assert span(3, 5) is None and span(17, 5) is None
    assert characters_of(context, {"answer_start": [4, 4], "text": [" ", "  x"]}) == [(5, 8)]


def positions_of_run_qa(offsets, parts, answer, cls):
    """Labels by the rule of transformers' run_qa.py, character by character; None where its search has no end."""
    context = [token for token, part in enumerate(parts) if part == 1]
    start, end = answer["answer_start"][0], answer["answer_start"][0] + len(answer["text"][0])
    if offsets[context[0]][0] > start or offsets[context[-1]][1] < end:
        return cls, cls
    if offsets[context[-1]][0] <= start:
        return None  # it runs on over [SEP] and padding, whose offsets are 0
    first = max(token for token in context if offsets[token][0] <= start)
    last = min(token for token in context if offsets[token][1] >= end)
    return first, last


@pytest.mark.parametrize("length, stride", [(19, 4), (64, 16), (384, 128)])
def test_real_windows_are_those_of_transformers(real_data, tokenizer, length, stride):
    """Guards: tokens, order and labels of windows on real questions of one answer are those of transformers."""
    vocabulary = str(real_data / "vocab/bert-base-uncased-vocab.txt")
    tokenizer = BertTokenizer(vocab=vocabulary)
    rows = load_squad(str(real_data / "squad/dev-v1.1.json"))
    rows = rows.select(range(0, len(rows), 97))
    first = [{name: values[:1] for name, values in answers.items()} for answers in rows["answers"]]
    rows = rows.remove_columns("answers").add_column("answers", first, feature=rows.features["answers"])  # as there
    if length == 19:
        rows = rows.filter(lambda row: len(tokenizer(row["question"])["input_ids"]) < 12)
    windows = squad_windows(rows, tokenizer, length, stride)
    expected = tokenizer(
        [question.lstrip() for question in rows["question"]],
        rows["context"][:],
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    assert len(windows) == len(expected["input_ids"]) > len(rows) // 2
    compared = 0
    for number, window in enumerate(windows):
        size = window["length"]
        assert window["input_ids"] == expected["input_ids"][number][:size]
        assert sum(expected["attention_mask"][number]) == size
        answer = rows[expected["overflow_to_sample_mapping"][number]]["answers"]
        parts = expected.sequence_ids(number)
        labels = positions_of_run_qa(expected["offset_mapping"][number], parts, answer, cls=0)
        if labels is not None:
            assert (window["start_positions"], window["end_positions"]) == labels
            compared += 1
    assert compared > 0.98 * len(windows)


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
    for window, size in enumerate(windows["length"]):
        start[window, size:] = end[window, size:] = 70.0  # what Trainer pads shorter windows with
    scores = evaluation(EvalPrediction(predictions=(start, end), label_ids=None))
    assert evaluation.predictions == {"q1": "two six lists"}
    assert scores == {"exact_match": 100.0, "f1": 100.0}


def questions_for_post_processing(tmp_path, version_2_with_negative):
    """Three questions with one to three windows each, one of them without an answer in SQuAD 2.0."""
    rows = []
    for number, context in enumerate([CONTEXT, "One two three four .", f"{CONTEXT} {CONTEXT}"]):
        answers = {"text": ["two"], "answer_start": [context.index("two")]}
        if number == 1 and version_2_with_negative:
            answers = {"text": [], "answer_start": []}
        rows.append({"id": f"q{number}", "context": context, "question": "what returns ?", "answers": answers})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load_squad(str(tmp_path / "rows.jsonl"), version_2_with_negative)


def answers_by_loops(rows, windows, start, end, n_best_size, max_answer_length, with_null):
    """Post-processing of transformers' run_qa.py in plain loops: n-best spans, and null odds, by question."""
    found = {}
    for question, row in enumerate(rows):
        spans, null = [], None
        for number, window in enumerate(windows):
            if window["question"] != question:
                continue
            size = window["length"]
            offsets = np.array(window["offsets"]).reshape(-1, 2).tolist()
            score = start[number, 0] + end[number, 0]
            if null is None or score < null[0]:
                null = (score, "", start[number, 0], end[number, 0])
            best = [
                sorted(range(size), key=lambda token, logits=logits: -logits[number, token])[:n_best_size]
                for logits in (start, end)
            ]
            for first in best[0]:
                for last in best[1]:
                    if min(offsets[first][0], offsets[last][0]) < 0 or not 0 <= last - first < max_answer_length:
                        continue
                    text = row["context"][offsets[first][0] : offsets[last][1]]
                    spans.append(
                        (start[number, first] + end[number, last], text, start[number, first], end[number, last])
                    )
        spans = sorted(spans, key=lambda span: -span[0])[:n_best_size]
        best_score = next(span[0] for span in spans if span[1])
        if with_null:  # it stays, however low
            spans = sorted([*spans, null], key=lambda span: -span[0])[:n_best_size]
            spans += [] if null in spans else [null]
        found[row["id"]] = (spans, null[0] - best_score)
    return found


@pytest.mark.parametrize("version_2_with_negative", [False, True])
def test_post_processing_against_plain_loops(tmp_path, tokenizer, version_2_with_negative):
    """Guards: n-best texts, logits, probabilities, null odds and answers, whatever the order of the windows."""
    rows = questions_for_post_processing(tmp_path, version_2_with_negative)
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, len(windows), 19))
    start[:, 0] += 2
    expected = answers_by_loops(rows, windows, start, end, 5, 3, version_2_with_negative)
    for order in (np.arange(len(windows)), rng.permutation(len(windows))):
        evaluation = SquadEvaluation(rows, windows.select(order), 5, 3, version_2_with_negative, 0.7)
        evaluation.predict(start[order], end[order])
        assert list(evaluation.predictions) == ["q0", "q1", "q2"]
        for name, (spans, odds) in expected.items():
            weights = np.exp([span[0] - spans[0][0] for span in spans])
            weights /= weights.sum()
            for got, (_, text, first, last), weight in zip(evaluation.n_best[name], spans, weights, strict=True):
                assert got["text"] == text
                assert [got["probability"], got["start_logit"], got["end_logit"]] == pytest.approx(
                    [weight, first, last]
                )
            best = next(text for _, text, _, _ in spans if text)
            if version_2_with_negative:
                assert evaluation.null_odds[name] == pytest.approx(odds)
                best = "" if odds > 0.7 else best
            assert evaluation.predictions[name] == best


def test_threshold_can_be_chosen(tmp_path, tokenizer):
    """Guards: "best" takes the threshold with the best F1, of the questions at hand, anew in each evaluation."""
    rows = questions_for_post_processing(tmp_path, True)
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    start, end = np.zeros((2, len(windows), 19))
    start[:, 0] = np.where(np.array(windows["question"]) == 1, 6.0, 5.0)  # all lean to no answer, q1 most of all
    evaluation = SquadEvaluation(rows, windows, 20, 1, True, "best")
    for number, window in enumerate(windows):
        if window["question"] != 1 and window["start_positions"]:
            start[number, window["start_positions"]] = end[number, window["end_positions"]] = 1.0
    scores = evaluation(EvalPrediction((start, end), None))
    assert evaluation.predictions == {"q0": "two", "q1": "", "q2": "two"}
    assert scores["exact"] == scores["f1"] == scores["best_f1"] == 100.0
    assert scores["null_score_diff_threshold"] == evaluation.threshold == 3.0
    scores = evaluation(EvalPrediction((start + 1, end), None))
    assert scores["exact"] == 100.0
    fixed = SquadEvaluation(rows, windows, 20, 1, True, 0.0)(EvalPrediction((start, end), None))
    assert (fixed["exact"], fixed["HasAns_exact"], fixed["NoAns_exact"]) == (pytest.approx(100 / 3), 0.0, 100.0)


def test_question_without_any_valid_span(tmp_path, tokenizer):
    """Guards: where no start goes with an end the answer is empty, and nothing fails."""
    rows = questions_for_post_processing(tmp_path, False)
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    start, end = np.zeros((2, len(windows), 19))
    start[:, 0] = end[:, 0] = 9.0
    evaluation = SquadEvaluation(rows, windows, n_best_size=1)
    assert evaluation(EvalPrediction((start, end), None)) == {"exact_match": 0.0, "f1": 0.0}
    assert set(evaluation.predictions.values()) == {""}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "official.json"])
def test_formats_give_the_same_rows(tmp_path, name):
    """Guards: the official layout, its version with rows under "data", lines and parquet are the same questions."""
    rows = [
        {
            "id": "1",
            "title": "t",
            "context": "a b",
            "question": "x ?",
            "answers": {"text": ["b"], "answer_start": [2]},
        },
        {"id": "2", "title": "t", "context": "a b", "question": "y ?", "answers": {"text": [], "answer_start": []}},
    ]
    path = tmp_path / name
    if name == "a.json":
        path.write_text(json.dumps({"data": rows}))
    elif name == "a.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "a.parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        possible = {
            "id": "1",
            "question": "x ?",
            "answers": [{"text": "b", "answer_start": 2}],
            "is_impossible": False,
        }
        not_possible = {"id": "2", "question": "y ?", "answers": [], "is_impossible": True, "plausible_answers": []}
        paragraph = {"context": "a b", "qas": [possible, not_possible]}
        path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    assert load_squad(str(path), version_2_with_negative=True).to_list() == rows


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"start": 3}, r"squad\.json, question q1: the answer 'two six lists' is not in its context at character 3"),
        ({"start": -1}, r"squad\.json, question q1: the answer 'two six lists' is not in its context at character -1"),
        ({"text": "absent", "start": 0}, "question q1: the answer 'absent' is not in its context"),
        ({"text": "", "start": 0}, "question q1: an answer is empty"),
        ({"question": " "}, "question q1: its question is empty"),
        ({"context": "", "text": "", "start": 0}, "question q1: its context is empty"),
    ],
)
def test_questions_that_cannot_be_used(tmp_path, change, sentence):
    """Guards: a wrong offset or an empty text is an error that names file and question, not a wrong label."""
    with pytest.raises(InputError, match=sentence):
        load_squad(squad_file(tmp_path / "squad.json", **change))


def test_duplicate_ids_and_bad_questions_can_be_left_out(tmp_path, capsys):
    """Guards: an id that is there twice is an error; --skip_bad_rows keeps the first, and names what it leaves out."""
    row = {"id": "1", "context": "a b", "question": "x ?", "answers": {"text": ["b"], "answer_start": [2]}}
    other = {**row, "id": "2", "answers": {"text": ["b"], "answer_start": [0]}}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [row, row, other])))
    with pytest.raises(
        InputError, match=r"a\.jsonl, question 1: another question has the same id; 1 more rows cannot be used"
    ):
        load_squad(str(tmp_path / "a.jsonl"))
    assert load_squad(str(tmp_path / "a.jsonl"), skip_bad_rows=True)["id"][:] == ["1"]
    assert "2 of 3 rows left out (question 1: another question has the same id; question 2: the answer" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("{", "not JSON"),
        ('{"rows": []}', "not in SQuAD's layout, 'data' is missing"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "after 0 questions 'qas' is missing"),
        ('{"data": ["x"]}', "after 0 questions"),
        ('{"data": []}', "no questions"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "7", "question": "y", "answers": []}]}]}]}',
            "question 7: it has no answer; SQuAD 2.0's questions need `version_2_with_negative`",
        ),
    ],
)
def test_files_that_are_not_squad(tmp_path, content, sentence):
    """Guards: whatever is wrong with the file, one sentence names it."""
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(InputError, match=rf"bad\.json.*{sentence}"):
        load_squad(str(tmp_path / "bad.json"))
    with pytest.raises(InputError, match=r"a\.csv: a format that cannot be read; give .json, .jsonl, .parquet"):
        load_squad("a.csv")


def test_questions_that_fill_the_window(tmp_path, tokenizer, capsys):
    """Guards: a question too long for the window is said or left out, instead of the tokenizer's traceback."""
    rows = []
    for number in range(2):
        question = "what " * (11 + number)  # 19 less 3 special tokens and a stride of 4 is 12: one has to be free
        row = {"id": f"q{number}", "context": CONTEXT, "question": question}
        rows.append(row | {"answers": {"text": ["two"], "answer_start": [CONTEXT.index("two")]}})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = load_squad(str(tmp_path / "a.jsonl"))
    size = ("a.jsonl", tokenizer, 19, 4)
    with pytest.raises(
        InputError, match="a.jsonl, question q1: with 12 tokens it leaves no room.*`max_seq_length` 19"
    ):
        questions_that_fit(rows, *size)
    fitting = questions_that_fit(rows, *size, skip_bad_rows=True)
    assert fitting["id"][:] == ["q0"] and "1 of 2 rows left out (question q1" in capsys.readouterr().out
    assert len(squad_windows(fitting, tokenizer, 19, 4)) > 2


def test_context_without_a_token(tmp_path, tokenizer):
    """Guards: a context of characters that the tokenizer drops is no traceback, and has no answer."""
    row = {"id": "1", "context": "\u200b", "question": "x ?", "answers": {"text": ["\u200b"], "answer_start": [0]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    rows = load_squad(str(tmp_path / "a.jsonl"))
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    assert windows["start_positions"][:] == [0] and set(windows["offsets"][0]) == {-1}
    evaluation = SquadEvaluation(rows, windows)
    evaluation.predict(np.zeros((1, 19)), np.zeros((1, 19)))
    assert evaluation.predictions == {"1": ""}


@pytest.mark.parametrize(
    "answers, sentence",
    [
        ("two", "answers are not texts with places"),
        ({"text": "two", "answer_start": 3}, r"not as many texts \(text\) as places"),
        ({"text": ["two"]}, r"not as many texts \(text\) as places"),
        ({"text": ["two"], "answer_start": ["3"]}, "'two' is not in its context at character 3"),
        ({"text": ["two"], "answer_start": ["3"]}, "its answer_start is '3', a text, and has to be a whole number"),
        ({"text": ["two"], "answer_start": [3.0]}, "'two' is not in its context at character 3.0"),
        ({"text": [2], "answer_start": [0]}, "an answer is a number, not text"),
    ],
)
def test_answers_of_other_types(tmp_path, answers, sentence):
    """Guards: answers that are not lists of texts and whole numbers are one sentence, not a traceback."""
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"id": 7, "context": "no two", "question": "x ?", "answers": answers})
    )
    with pytest.raises(InputError, match=f"question 7: .*{sentence}"):
        load_squad(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"is_impossible": "false"}, "question 7: is_impossible is 'false', neither true nor false"),
        ({"question": ["x"]}, "question 7: its question is a list, not text"),
        ({"context": "\ud83d"}, "question 7: character 1 of its context is half of a surrogate pair"),
        ({"id": [7]}, "its id is neither a text nor a number"),
        ({"answers": ...}, "question 7: it has no answers, and is_impossible does not say so"),
    ],
)
def test_fields_of_other_types(tmp_path, change, sentence):
    """Guards: a string is no truth value: "false" would take away the answer; and only text is text."""
    row = {"id": 7, "context": "no two", "question": "x ?", "answers": {"text": ["two"], "answer_start": [3]}}
    changed = {name: value for name, value in (row | change).items() if value is not ...}
    (tmp_path / "a.jsonl").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=sentence):
        load_squad(str(tmp_path / "a.jsonl"), version_2_with_negative=True)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[" * 100_000, b'{"data": 7}', b'{"data": [{"paragraphs": 7}]}', b""]
)
def test_damaged_files_are_one_sentence(tmp_path, name, content):
    """Guards: bytes that are no text, deep nesting, other layouts and empty files name the file."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        load_squad(str(tmp_path / name))


def test_rows_with_other_columns_and_odd_characters(tmp_path):
    """Guards: more columns, no title, numbers as ids, and separators that are no ends of lines, are all read."""
    row = {"id": 7, "context": "one\u2028two", "question": "x ?", "metadata": {"split": "train"}}
    row["answers"] = {"text": ["two"], "answer_start": [4]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    rows = load_squad(str(tmp_path / "a.jsonl"))
    assert rows["id"][:] == ["7"] and rows["context"][:] == ["one\u2028two"] and rows["title"][:] == [""]


@pytest.mark.parametrize(
    "context, answer, label, told",
    [
        ("one cafe\u0301 two", "cafe\u0301", "cafe", "1 are not the text of the answer (7: 'cafe' for 'cafe\u0301')"),
        ("one two three", "two ", "two", None),
        ("one two three", " two", "two", None),
        ("one\u00a0two\u00a0three", "two\u00a0", "two", None),
        ("one two\u200b three", "two\u200b", "two", "1 are not the text of the answer (7: 'two' for 'two\\u200b')"),
        ("one two\u00ad three", "two\u00ad", "two", "'two' for 'two\\xad'"),
        ("one \u200btwo three", "\u200btwo", "two", "'two' for '\\u200btwo'"),
        ("one two ", "two ", "two", None),  # at the end of the context
        ("one cafe\u0301", "cafe\u0301", "cafe", "'cafe' for"),
        ("\u200e one", "\u200e one", "one", "'one' for"),  # at its beginning
        ("one two", "wo", "two", "1 are not the text of the answer (7: 'two' for 'wo')"),
        ("one \u200b\u00ad two", "\u200b\u00ad", None, "1 have no token, and count as no answer (7)"),
        ("one  two", "  ", None, "1 have no token, and count as no answer (7)"),
    ],
)
def test_labels_are_the_tokens_of_the_answer(tmp_path, tokenizer, capsys, context, answer, label, told):
    """Guards: characters that the tokenizer drops move no label to a neighbour; labels of other texts are shown."""
    row = {"id": 7, "context": context, "question": "what ?", "answers": {"text": [answer]}}
    row["answers"]["answer_start"] = [context.index(answer)]
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    rows = load_squad(str(tmp_path / "a.jsonl"))
    for for_training in (True, False):
        (window,) = squad_windows(rows, tokenizer, 19, 4, for_training)
        start, end = window["start_positions"], window["end_positions"]
        found = tokenizer.decode(window["input_ids"][start : end + 1]).replace(" ", "") if start else None
        assert found == label
        printed = capsys.readouterr().out
        assert told in printed if told and for_training else printed == ""


def test_any_answer_in_a_window_is_a_label(tmp_path, tokenizer, capsys):
    """Guards: where the first answer is not whole in a window, or has no token, another one is its label."""
    texts = ["\u200b", "five", "two six lists", "two six"]
    context = f"\u200b{CONTEXT}"
    answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
    row = {"id": 7, "context": context, "question": "what returns the list ?", "answers": answers}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    windows = squad_windows(load_squad(str(tmp_path / "a.jsonl")), tokenizer, 19, 4)
    spans = zip(windows["input_ids"], windows["start_positions"], windows["end_positions"], strict=True)
    assert [tokenizer.decode(ids[start : end + 1]) for ids, start, end in spans] == ["[CLS]", "two six lists", "five"]
    assert capsys.readouterr().out == ""


def test_answers_that_fit_no_window_are_counted(tmp_path, tokenizer, capsys):
    """Guards: an answer that is longer than the windows share is said to be none, for three questions by name."""
    rows = []
    for number in range(5):
        answers = {"text": [CONTEXT[4:-2]], "answer_start": [4]}
        rows.append(
            {"id": f"q{number}", "context": CONTEXT, "question": "what returns the list ?", "answers": answers}
        )
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    windows = squad_windows(load_squad(str(tmp_path / "a.jsonl")), tokenizer, 19, 4)
    assert set(windows["start_positions"]) == {0}
    assert (
        "labels of 5 training questions: 5 are whole in no window, and count as no answer (q0, q1, q2, ...)"
        in capsys.readouterr().out
    )


def test_tokenizers_that_pad_on_the_left_are_refused(windows_of, tokenizer, tmp_path):
    """Guards: labels count from the left, so padding there would shift them silently."""
    tokenizer.padding_side = "left"
    rows = datasets.Dataset.from_list([{"id": "1"}])
    with pytest.raises(InputError, match="pads on the left"):
        squad_windows(rows, tokenizer, 19, 4)


def test_real_squad(real_data):
    """Guards: the official files are read whole, and all their answers stand where they should."""
    assert len(load_squad(str(real_data / "squad/dev-v1.1.json"))) == 10570
    two = load_squad(str(real_data / "squad/dev-v2.0.json"), version_2_with_negative=True)
    assert (len(two), sum(not answers["text"] for answers in two["answers"])) == (11873, 5945)
