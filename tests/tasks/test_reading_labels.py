"""Tests for the interpretation of label columns: labels, sets of labels, and scores."""

import datasets
import pytest
from transformers import BertConfig

from fixedbert.support.errors import InputError
from fixedbert.tasks.labels import MULTI, REGRESSION, SINGLE, Labels
from fixedbert.tasks.reading import RowSource, dataset_rows
from fixedbert.tasks.texts import read_splits

FINE_TUNED = {"architectures": ["BertForSequenceClassification"]}


def infer(labels, columns=("label",), do_regression=None):
    return Labels.infer([row_of(values, columns) for values in labels], columns, do_regression, "a.csv")


def row_of(values, columns):
    return dict(zip(columns, values, strict=True))


@pytest.mark.parametrize(
    "rows, do_regression, problem_type, names, parsed",
    [
        ([(["b", "a"],), ([],), (["a"],)], None, MULTI, ["a", "b"], [["b", "a"], [], ["a"]]),
        ([(1, 0), (True, 0.0)], None, MULTI, ["c0", "c1"], [["c0"], ["c0"]]),
        ([("1.0",), ("2.5",)], None, REGRESSION, [], [1.0, 2.5]),  # as in run_glue.py, where pandas parses floats
        ([(float(n),) for n in range(21)], None, REGRESSION, [], [float(n) for n in range(21)]),
        ([("10",), ("9",)], None, SINGLE, ["9", "10"], ["10", "9"]),
        ([("3.10",), ("3.1",)], False, SINGLE, ["3.1", "3.10"], ["3.10", "3.1"]),
    ],
)
def test_formats(rows, do_regression, problem_type, names, parsed):
    """Lists, and several columns of 0 and 1, are sets of labels; floats are scores; anything else is a label."""
    labels = infer(rows, tuple(f"c{n}" for n in range(len(rows[0]))), do_regression)
    assert (labels.problem_type, [*labels.names]) == (problem_type, names)
    assert [labels.parse(row_of(row, labels.columns)) for row in rows] == parsed


@pytest.mark.parametrize(
    "rows, columns, do_regression, sentence",
    [
        ([("1", "0"), ("0", "1")], ("a", "b"), True, "train one model for each score"),
        ([([1, 2],)], ("label",), True, "the labels are lists of scores"),
        ([("2",), ("3",), ("N/A",)], ("label",), None, "the label 'N/A' is not a finite number"),
        ([(1.0,), (0.0,), (None,)], ("label",), None, "the labels 0.0, 1.0 can be scores or classes; set `do_regr"),
    ],
)
def test_ambiguous_labels_are_refused(rows, columns, do_regression, sentence):
    """Values that are unlikely class names are refused instead of becoming classes."""
    with pytest.raises(InputError, match=sentence):
        infer(rows, columns, do_regression)


@pytest.mark.parametrize(
    "row, labels, sentence",
    [
        ((-100,), infer([(0,), (1,), (-100,)]), "the label -100 stands for a missing label"),
        (([-100],), infer([([0, 1],), ([-100],), ([-1],)]), "the label -100 stands for a missing label"),
        (("-1.0", "1.0"), infer([("0.0", "1.0"), ("-1.0", "1.0"), ("", "0.0")], ("a", "b")), "are not all 0 or 1"),
        ((float("nan"),), infer([(0,), (1,)]), "the label is missing"),
        (([1, 0, 0],), infer([([1, 0, 0],)]), "the list contains duplicate labels"),
        (("c",), infer([("a",), ("b",)]), "unknown label 'c'; available labels: a, b"),
    ],
)
def test_invalid_labels(row, labels, sentence):
    """Missing, unknown and malformed labels raise an error that says what is wrong."""
    with pytest.raises(ValueError, match=sentence):
        labels.parse(row_of(row, labels.columns))


def test_other_spellings_of_a_label():
    """Labels in another file than the first may differ in case, spaces and hyphens."""
    assert infer([("A",), ("a",)]).parse({"label": "a "}) == "a"
    assert infer([("no way",)]).parse({"label": "No_way"}) == "no way"


def test_lists_need_two_labels():
    """For training, lists are refused if all are empty or if all labels are the same. Invalid items are no classes."""
    assert infer([(["a", {"x": 1}, "b\0"],), (["b"],)]).classes == ["a", "b"]
    for lists in ([([],), ([],)], [(["a"],), ([],)]):
        labels = infer(lists)
        with pytest.raises(InputError, match="a.csv: training needs at least two different labels"):
            labels.report("a.csv", [labels.parse({"label": values}) for (values,) in lists], "train")


def test_label_ids_in_lists_on_the_hub():
    """Lists of label ids in a dataset become lists of label names."""
    kind = datasets.List(datasets.ClassLabel(names=["joy", "fear", "anger"]))
    features = datasets.Features({"text": datasets.Value("string"), "label": kind})
    rows = datasets.Dataset.from_dict({"text": ["x", "y", "z"], "label": [[2, 0], [], [1]]}, features=features)
    data = read_splits({"train": RowSource("me/mine, train", dataset_rows(rows))})
    assert (data.labels.classes, data.labels.problem_type) == (["anger", "fear", "joy"], MULTI)
    assert data.splits["train"]["label"][:] == [["anger", "joy"], [], ["fear"]]


def test_labels_follow_the_outputs_of_the_model():
    """Flags are in the order of the model's outputs, even if the data are in a different order."""
    config = BertConfig(id2label={0: "b", 1: "c", 2: "a"}, label2id={"b": 0, "c": 1, "a": 2}, **FINE_TUNED)
    config.problem_type = MULTI
    labels = Labels(MULTI, {"a": "a", "b": "b"})
    assert not labels.align(config) and config.problem_type == MULTI
    assert labels.encode([["a"], ["b", "a"], []]).tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    config.problem_type = REGRESSION
    with pytest.raises(InputError, match="predicts 3 scores per text"):
        Labels.of(config)
    with pytest.raises(InputError, match="predicts scores .b, c, a., but the data contain scores"):
        Labels(REGRESSION).align(config)
    config = BertConfig(id2label={0: "a", 1: "b"}, label2id={"a": 1, "b": 0}, **FINE_TUNED)
    with pytest.raises(InputError, match="id2label and label2id .* assign different ids to a, b"):
        Labels(SINGLE, {"a": "a", "b": "b"}).align(config, train=True)
