"""Tests for question answering: windows and their labels, answers from logits, and invalid questions."""

import json

import datasets
import numpy as np
import pytest
from transformers import BertTokenizer, EvalPrediction

from fixedbert.options import AnswerOptions, SquadDataOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.answers import SquadEvaluation
from fixedbert.tasks.questions import load_squad, question_rows, questions_that_fit, warn_of_long_answers
from fixedbert.tasks.reading import data_sources
from fixedbert.tasks.windows import squad_windows

CONTEXT = "The function read takes a string . The function write returns two six lists . One two three four five ."


def answer_options(version_2_with_negative, threshold, n_best_size, max_answer_length) -> AnswerOptions:
    return AnswerOptions(
        version_2_with_negative=version_2_with_negative,
        null_score_diff_threshold=threshold,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
    )


def row_of(context, *texts, **changes):
    """Returns a question whose answers are `texts`."""
    answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
    return {"id": "1", "context": context, "question": "what returns the list ?", "answers": answers, **changes}


def loaded(tmp_path, *rows, **options):
    """Writes questions to a.jsonl and loads them."""
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load_squad(str(tmp_path / "a.jsonl"), **options)


def test_windows_against_hand_computed_values(tmp_path, tokenizer):
    """The tokens, overlap and labels of windows equal hand-computed values."""
    # The question and special tokens leave room for 11 of 19 tokens. Windows overlap by 4 tokens, so that the next
    # window begins 7 tokens later. The answer "two six lists" is tokens 11 to 14 of the context: two six list ##s.
    windows = squad_windows(loaded(tmp_path, row_of(CONTEXT, "two six lists")), tokenizer, 19, 4)
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in windows["input_ids"]]
    question = ["[CLS]", "what", "returns", "the", "list", "?", "[SEP]"]
    context = CONTEXT.lower().replace("lists", "list ##s").split()
    assert tokens == [[*question, *context[begin : begin + 11], "[SEP]"] for begin in (0, 7, 14)]
    assert windows["start_positions"][:] == [0, 7 + 11 - 7, 0]
    assert windows["end_positions"][:] == [0, 7 + 14 - 7, 0]
    assert windows["length"][:] == [19, 19, 7 + 8 + 1]
    assert windows.column_names == ["input_ids", "token_type_ids", "start_positions", "end_positions", "length"]


def positions_of_run_qa(offsets, parts, answer, cls):
    """Returns the labels from transformers' run_qa.py, or None if its search continues beyond the context."""
    context = [token for token, part in enumerate(parts) if part == 1]
    start, end = answer["answer_start"][0], answer["answer_start"][0] + len(answer["text"][0])
    if offsets[context[0]][0] > start or offsets[context[-1]][1] < end:
        return cls, cls
    if offsets[context[-1]][0] <= start:
        return None  # it continues with [SEP] and padding, whose offsets are 0
    first = max(token for token in context if offsets[token][0] <= start)
    last = min(token for token in context if offsets[token][1] >= end)
    return first, last


@pytest.mark.parametrize("length, stride", [(19, 4), (384, 128)])
def test_windows_equal_those_of_transformers(real_data, tokenizer, length, stride):
    """Windows for real questions have the same tokens, order and labels as in transformers' run_qa.py."""
    vocabulary = str(real_data / "vocab/bert-base-uncased-vocab.txt")
    tokenizer = BertTokenizer(vocab=vocabulary)
    rows = load_squad(str(real_data / "squad/dev-v1.1.json"))
    rows = rows.select(range(0, len(rows), 97))
    first = [{name: values[:1] for name, values in answers.items()} for answers in rows["answers"]]
    rows = rows.remove_columns("answers").add_column("answers", first, feature=rows.features["answers"])
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


def questions_for_post_processing(tmp_path, version_2_with_negative):
    """Returns three questions with several windows. In the format of SQuAD 2.0, the second has no answer."""
    rows = []
    for number, context in enumerate([CONTEXT, "One two three four .", f"{CONTEXT} {CONTEXT}"]):
        texts = [] if number == 1 and version_2_with_negative else ["two"]
        rows.append(row_of(context, *texts, id=f"q{number}", question="what returns ?"))
    return loaded(tmp_path, *rows, version_2_with_negative=version_2_with_negative)


def answers_by_loops(rows, windows, start, end, n_best_size, max_answer_length, with_null):
    """Returns n-best spans and null odds for each question, with loops as in run_qa.py, but each span once."""
    found = {}
    for question, row in enumerate(rows):
        found_spans, null = {}, None
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
                    place = offsets[first][0], offsets[last][1]
                    score = start[number, first] + end[number, last]
                    if place not in found_spans or score > found_spans[place][0]:
                        text = row["context"][slice(*place)]
                        found_spans[place] = (score, text, start[number, first], end[number, last])
        spans = sorted(found_spans.values(), key=lambda span: -span[0])[:n_best_size]
        best_score = next(span[0] for span in spans if span[1])
        if with_null:  # "no answer" is always kept
            spans = sorted([*spans, null], key=lambda span: -span[0])[:n_best_size]
            spans += [] if null in spans else [null]
        found[row["id"]] = (spans, null[0] - best_score)
    return found


@pytest.mark.parametrize("version_2_with_negative", [False, True])
def test_post_processing_against_plain_loops(tmp_path, tokenizer, version_2_with_negative):
    """N-best answers, null odds and predictions equal those of a reference, for any order of the windows."""
    rows = questions_for_post_processing(tmp_path, version_2_with_negative)
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, len(windows), 19))
    start[:, 0] += 2
    expected = answers_by_loops(rows, windows, start, end, 99, 3, version_2_with_negative)
    for order in (np.arange(len(windows)), rng.permutation(len(windows))):
        evaluation = SquadEvaluation(rows, windows.select(order), answer_options(version_2_with_negative, 0.7, 99, 3))
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


def test_null_threshold(tmp_path, tokenizer):
    """Null odds above the threshold mean "no answer". The scores name the threshold with the best F1."""
    rows = questions_for_post_processing(tmp_path, True)
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    start, end = np.zeros((2, len(windows), 19))
    start[:, 0] = np.where(np.array(windows["question"]) == 1, 6.0, 5.0)  # [CLS] has the highest score
    evaluation = SquadEvaluation(rows, windows, answer_options(True, 3.0, 20, 1))
    for number, window in enumerate(windows):
        if window["question"] != 1 and window["start_positions"]:
            start[number, window["start_positions"]] = end[number, window["end_positions"]] = 1.0
    scores = evaluation(EvalPrediction((start, end), None))
    assert evaluation.predictions == {"q0": "two", "q1": "", "q2": "two"}
    assert scores["exact"] == scores["f1"] == scores["best_f1"] == 100.0
    assert scores["null_score_diff_threshold"] == scores["best_f1_thresh"] == 3.0
    fixed = SquadEvaluation(rows, windows, answer_options(True, 0.0, 20, 1))(EvalPrediction((start, end), None))
    assert (fixed["exact"], fixed["HasAns_exact"], fixed["NoAns_exact"]) == (pytest.approx(100 / 3), 0.0, 100.0)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"answers": {"text": ["two"], "answer_start": []}}, "it has 1 answers, but 0 values of answer_start"),
        ({"answers": "two"}, "its answers are not two lists"),
        ({"answers": {"text": [], "answer_start": []}}, "it has no answer; set `version_2_with_negative`"),
    ],
)
def test_invalid_questions(tmp_path, change, sentence):
    """The message for an invalid question contains the file and the line."""
    with pytest.raises(InputError, match=rf"a\.jsonl, line 1: {sentence}"):
        loaded(tmp_path, row_of("no two", "two", id=7) | change)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 10**5, b'{"data": 7}', b'{"a": 7}', b'{"data": [{"paragraphs": 7}]}', b'{"data": []}'],
)
def test_corrupted_files(tmp_path, content):
    """The message for a corrupted or empty file, or a file with a different format, contains its name."""
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match="a.json"):
        load_squad(str(tmp_path / "a.json"))


def test_long_questions(tmp_path, tokenizer, capsys):
    """Questions that are too long to leave room for the context are refused or skipped."""
    lengths = {"q0": 11, "q1": 12}  # 19 - 3 special tokens - 4 for the stride = 12
    rows = [row_of(CONTEXT, "two", id=name, question="what " * length) for name, length in lengths.items()]
    rows = loaded(tmp_path, *rows)
    size = ("a.jsonl", tokenizer, 19, 4)
    with pytest.raises(InputError, match="a.jsonl, question q1: it has 12 tokens, but .* room for at most 11"):
        questions_that_fit(rows, *size)
    fitting = questions_that_fit(rows, *size, skip_bad_rows=True)
    assert fitting["id"][:] == ["q0"] and "skipped 1 rows (question q1" in capsys.readouterr().out
    assert len(squad_windows(fitting, tokenizer, 19, 4)) > 2
    with pytest.raises(InputError, match="no valid questions"):
        questions_that_fit(rows.select([1]), *size, skip_bad_rows=True)


def test_context_without_a_token(tmp_path, tokenizer):
    """A context without tokens is valid, and has no answer."""
    rows = loaded(tmp_path, row_of("\u200b", "\u200b"))
    windows = squad_windows(rows, tokenizer, 19, 4, for_training=False)
    assert windows["start_positions"][:] == [0] and set(windows["offsets"][0]) == {-1}
    evaluation = SquadEvaluation(rows, windows, AnswerOptions())
    evaluation.predict(np.zeros((1, 19)), np.zeros((1, 19)))
    assert evaluation.predictions == {"1": ""}


@pytest.mark.parametrize(
    "context, answer, label",
    [
        ("one cafe\u0301 two", "cafe\u0301", "cafe"),
        ("one two three", "two ", "two"),
        ("one \u200btwo three", "\u200btwo", "two"),
        ("\u200e one", "\u200e one", "one"),  # at the beginning of the context
        ("one two", "wo", "two"),
        ("one \u200b\u00ad two", "\u200b\u00ad", None),
    ],
)
def test_labels_are_the_tokens_of_the_answer(tmp_path, tokenizer, capsys, context, answer, label):
    """Characters that the tokenizer drops do not shift the labels. A warning counts questions without a label."""
    (window,) = squad_windows(loaded(tmp_path, row_of(context, answer)), tokenizer, 19, 4)
    start, end = window["start_positions"], window["end_positions"]
    tokens = tokenizer.decode(window["input_ids"][start : end + 1]).replace(" ", "") if start else None
    assert tokens == label
    assert ("1 of 1 training questions have no window" in capsys.readouterr().out) == (label is None)


def test_first_answer_in_the_window_is_the_label(tmp_path, tokenizer):
    """The label is the first answer that has tokens and lies entirely in the window."""
    texts = ["\u200b", "five", "two six lists", "two six"]
    windows = squad_windows(loaded(tmp_path, row_of(f"\u200b{CONTEXT}", *texts)), tokenizer, 19, 4)
    spans = zip(windows["input_ids"], windows["start_positions"], windows["end_positions"], strict=True)
    assert [tokenizer.decode(ids[start : end + 1]) for ids, start, end in spans] == ["[CLS]", "two six lists", "five"]


def test_sources_of_questions(tmp_path, monkeypatch):
    """--dataset_name loads a dataset from the Hub. Missing splits and columns, and two sources, are refused."""
    answers = {"text": ["two"], "answer_start": [3]}
    row = {"id": "1", "title": "t", "context": "no two", "question": "x ?", "answers": answers}
    hub = {"train": datasets.Dataset.from_list([row, {**row, "id": "2"}])}
    monkeypatch.setattr("fixedbert.tasks.reading.load_from_hub", lambda *_, **__: hub)
    arguments = SquadDataOptions(dataset_name="me/mine")
    ((kind, source),) = data_sources(arguments, {"train": "train"}).items()
    assert (kind, source.name) == ("train", "me/mine, train")
    expected = {name: value for name, value in row.items() if name != "title"}
    assert question_rows(source).to_list() == [expected | {"id": str(n + 1), "row": n} for n in range(2)]
    hub["train"] = hub["train"].select_columns(["id", "question"])
    with pytest.raises(InputError, match="me/mine, train, row 0: its context is empty"):
        question_rows(data_sources(arguments, {"train": "train"})["train"], answered=False)
    with pytest.raises(InputError, match="me/mine has no split 'validation'; available splits: train"):
        data_sources(arguments, {"validation": "validation"})


def test_tokenizers_that_pad_on_the_left_are_refused(tokenizer):
    """Tokenizers that pad on the left, which would shift the labels, are refused."""
    tokenizer.padding_side = "left"
    rows = datasets.Dataset.from_list([{"id": "1"}])
    with pytest.raises(InputError, match="pads on the left"):
        squad_windows(rows, tokenizer, 19, 4)


def test_answers_that_are_too_long(tokenizer, capsys):
    """Questions whose answers all have more tokens than a prediction can have are counted."""
    texts = (["one two three"], ["one two three", "two"], ["six"], [])
    rows = datasets.Dataset.from_dict({"answers": [{"text": each, "answer_start": [0] * len(each)} for each in texts]})
    warn_of_long_answers("a.json", rows, tokenizer, 2)
    assert "a.json: 1 of 3 answers have more than 2 tokens and cannot be predicted" in capsys.readouterr().out
    warn_of_long_answers("a.json", rows, tokenizer, 3)
    assert not capsys.readouterr().out
