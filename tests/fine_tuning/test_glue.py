"""Texts to classify: every task of GLUE, people's own files, features, submissions, errors that name the line."""

import json
import re
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow
import pytest
from helpers.tiny_tasks import QUICK
from pyarrow import parquet
from transformers import BertConfig, BertTokenizer, EvalPrediction

from fixedbert import FixedHeadBertConfig
from fixedbert.conversion.families import fixed_head_config
from fixedbert.data.glue import TASKS, GlueTask
from fixedbert.fine_tuning.glue import GlueDataArguments, GlueEvaluation, check_metrics, load_texts, write_predictions
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.glue_metrics import MEASURES, METRICS
from fixedbert.fine_tuning.labels import labels_of_model, numbers_among
from fixedbert.fine_tuning.squad import write_answers
from fixedbert.fine_tuning.texts import (
    TextData,
    load_dataset,
    load_files,
    load_task,
    text_features,
    with_labels_of_model,
)
from fixedbert.support.errors import InputError

# Of each task two labelled rows and a test row as they stand in the files of the download, and what they mean:
# texts, and label numbers as on the Hub.
ROWS = {
    "cola": ("gj04\t1\t\tOne two.\nbc01\t0\t*\tTwo six.\n", "index\tsentence\n7\tThree.\n", [1, 0]),
    "sst2": ("sentence\tlabel\nOne two.\t1\nTwo six.\t0\n", "index\tsentence\n7\tThree.\n", [1, 0]),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t8\t9\tOne two.\tFour.\n0\t8\t9\tTwo six.\tFive.\n",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n7\t8\t9\tThree.\tSix.\n",
        [1, 0],
    ),
    "stsb": (
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tOne two.\tFour.\t5.000\n1\tx\tTwo six.\tFive.\t0.25\n",
        "index\tgenre\tsentence1\tsentence2\n7\tx\tThree.\tSix.\n",
        [5.0, 0.25],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "0\t1\t2\tOne two.\tFour.\t1\n3\t1\t2\tTwo six.\tFive.\t0\n",
        "index\tquestion1\tquestion2\n7\tThree.\tSix.\n",
        [1, 0],
    ),
    "mnli": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tOne two.\tFour.\tn/a\tcontradiction\n"
        "1\tTwo six.\tFive.\tn/a\tentailment\n",
        "index\tsentence1\tsentence2\n7\tThree.\tSix.\n",
        [2, 0],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tOne two.\tFour.\tnot_entailment\n1\tTwo six.\tFive.\tentailment\n",
        "index\tquestion\tsentence\n7\tThree.\tSix.\n",
        [1, 0],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tOne two.\tFour.\tnot_entailment\n1\tTwo six.\tFive.\tentailment\n",
        "index\tsentence1\tsentence2\n7\tThree.\tSix.\n",
        [1, 0],
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tOne two.\tFour.\t1\n1\tTwo six.\tFive.\t0\n",
        "index\tsentence1\tsentence2\n7\tThree.\tSix.\n",
        [1, 0],
    ),
    "ax": (None, "index\tsentence1\tsentence2\n7\tThree.\tSix.\n", None),
}
SINGLE = ("cola", "sst2")
# GLUE's submission format: names of files, and what stands for label 1 (for STS-B: a score beyond 5).
SUBMISSIONS = {
    "cola": ("CoLA.tsv", "1"),
    "sst2": ("SST-2.tsv", "1"),
    "mrpc": ("MRPC.tsv", "1"),
    "stsb": ("STS-B.tsv", "5.000"),
    "qqp": ("QQP.tsv", "1"),
    "mnli": ("MNLI-mm.tsv", "neutral"),
    "qnli": ("QNLI.tsv", "not_entailment"),
    "rte": ("RTE.tsv", "not_entailment"),
    "wnli": ("WNLI.tsv", "1"),
    "ax": ("AX.tsv", "neutral"),
}


@pytest.fixture
def download(tmp_path):
    """A folder in the layout of the GLUE download, with ROWS in it."""

    def write(task):
        folder = tmp_path / "glue" / TASKS[task].folder
        folder.mkdir(parents=True, exist_ok=True)
        labelled, test, _ = ROWS[task]
        for split, file in TASKS[task].files.items():
            (folder / file).write_text(test if split.startswith("test") else labelled, encoding="utf-8")
        return str(tmp_path / "glue")

    return write


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_read_and_written(download, task, tmp_path):
    """Guards: columns, label numbers and splits of each task's files, and the file of its submission."""
    labels = ROWS[task][2]
    for folder in (download(task), f"{download(task)}/{TASKS[task].folder}"):
        data = load_task(task, folder, ("test",) if task == "ax" else ("train", "validation", "test"))
        assert list(data.splits) == list(TASKS[task].files)
        assert data.labels == list(TASKS[task].labels)
        for split, rows in data.splits.items():
            first, second = (["Three."], ["Six."]) if split.startswith("test") else (["One two.", "Two six."], None)
            assert rows["sentence1"][:] == first
            assert ("sentence2" in rows.column_names) == (task not in SINGLE)
            if "sentence2" in rows.column_names:
                assert rows["sentence2"][:] == (second or ["Four.", "Five."])
            if split.startswith("test"):
                assert rows["index"][:] == ["7"] and "label" not in rows.column_names
            else:
                assert rows["label"][:] == labels
    split, rows = list(data.splits.items())[-1]
    name, written = SUBMISSIONS[task]
    write_predictions(
        str(tmp_path), task, split, rows, data.labels, pyarrow.array([5.7 if task == "stsb" else 1]).to_numpy()
    )
    assert (tmp_path / name).read_text() == f"index\tprediction\n7\t{written}\n"


def test_predictions_that_cannot_be_written_leave_the_old(tmp_path):
    """Guards: predict_results.txt and the JSON of answers are never there in part, nor half overwritten."""
    rows = datasets.Dataset.from_dict({"index": ["0"]})
    for name in ("predict_results.txt", "eval_predictions.json"):
        (tmp_path / name).write_text("old")
    half = "\ud83d"  # of a surrogate pair, which is no UTF-8
    with pytest.raises(UnicodeEncodeError):
        write_predictions(str(tmp_path), None, "test", rows, [half], np.zeros(1))
    with pytest.raises(UnicodeEncodeError):
        write_answers(
            tmp_path, "eval", SimpleNamespace(predictions={"q1": half}, n_best={}, version_2_with_negative=False)
        )
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "predict_results.txt": "old",
        "eval_predictions.json": "old",
    }


def test_hub_copies_are_the_same(monkeypatch):
    """Guards: from the Hub's columns and class labels come the same rows, and -1 in a test set is no label."""
    names = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"), "label": names}
    ) | {"idx": datasets.Value("int32")}

    def split(labels):
        size = range(len(labels))
        columns = {"premise": [f"p{n}" for n in size], "hypothesis": [f"h{n}" for n in size], "label": labels}
        return datasets.Dataset.from_dict({**columns, "idx": list(size)}, features=datasets.Features(features))

    asked = []
    splits = {name: split([2, 0, 1]) for name in ("train", "validation_matched", "validation_mismatched")}
    splits |= {name: split([-1, -1]) for name in ("test_matched", "test_mismatched")}
    monkeypatch.setattr("fixedbert.fine_tuning.texts.load_from_hub", lambda *name, **_: asked.append(name) or splits)
    data = load_task("mnli", None, ("train", "validation", "test"))
    assert asked == [("nyu-mll/glue", "mnli")]  # ids without a namespace do not work any more
    assert data.splits["train"][:] == {
        "sentence1": ["p0", "p1", "p2"],
        "sentence2": ["h0", "h1", "h2"],
        "label": [2, 0, 1],
    }
    assert data.splits["test_mismatched"][:] == {
        "sentence1": ["p0", "p1"],
        "sentence2": ["h0", "h1"],
        "index": ["0", "1"],
    }
    splits["train"] = split([2, -1])
    with pytest.raises(InputError, match="nyu-mll/glue, mnli, train, row 1: no label"):
        load_task("mnli", None, ("train",))


def test_other_data_sets_of_the_hub(monkeypatch):
    """Guards: --dataset_name reads texts and labels like a file; a split that is not there is named."""
    rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]})
    monkeypatch.setattr("fixedbert.fine_tuning.texts.load_from_hub", lambda *_, **__: {"train": rows})
    data = load_dataset("me/mine", None, ("train",))
    assert data.labels == ["0", "1"] and data.splits["train"][:] == {"sentence1": ["x", "y"], "label": [1, 0]}
    with pytest.raises(InputError, match="me/mine: it has no split validation; there are train"):
        load_dataset("me/mine", None, ("train", "validation"))


REAL_SIZES = {
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "qqp": (20000, 3496),
    "mnli": (8010, 5000, 2490),
    "qnli": (4000, 1463, 5463),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
    "ax": (1104,),
}


@pytest.mark.parametrize("task", TASKS)
def test_real_rows_are_all_read(real_data, task):
    """Guards: every row of the real files is read, unpaired quotes, BOM and all."""
    there = [kind for kind in ("train", "validation", "test") if not (task in ("mnli", "qqp") and kind == "test")]
    kinds = ("test",) if task == "ax" else tuple(there)
    data = load_task(task, str(real_data / "glue"), kinds)
    assert tuple(map(len, data.splits.values())) == REAL_SIZES[task]


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", 'sentence1,sentence2,label\n"one, two",three,yes\nfour,five,no\n'),
        ("a.tsv", "sentence1\tsentence2\tlabel\none, two\tthree\tyes\nfour\tfive\tno\n"),
        ("a.tsv", "id\tquestion\tanswer\tlabel\n7\tone, two\tthree\tyes\n8\tfour\tfive\tno\n"),
        (
            "a.jsonl",
            '{"label": "yes", "sentence1": "one, two", "sentence2": "three"}\n\n'
            '{"sentence1": "four", "sentence2": "five", "label": "no"}\n',
        ),
        ("a.parquet", {"label": ["yes", "no"], "a": ["one, two", "four"], "b": ["three", "five"]}),
        (
            "a.json",
            '[{"sentence1": "one, two", "sentence2": "three", "label": "yes"}, '
            '{"sentence1": "four", "sentence2": "five", "label": "no"}]',
        ),
        ("a.csv", ',text,other,label\n0,"one, two",three,yes\n1,four,five,no\n'),  # with pandas' numbers
    ],
)
def test_own_files(tmp_path, name, content):
    """Guards: all formats give the same pairs; labels are sorted; other column names are taken in order."""
    if isinstance(content, dict):
        parquet.write_table(pyarrow.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    data = load_files({"train": str(tmp_path / name), "validation": str(tmp_path / name)})
    assert data.labels == ["no", "yes"]
    expected = {"sentence1": ["one, two", "four"], "sentence2": ["three", "five"], "label": [1, 0]}
    assert data.splits["train"][:] == data.splits["validation"][:] == expected


@pytest.mark.parametrize(
    "content",
    [
        'text;label\n"one, two";yes\nfour;no\n',
        '"text";"label"\n"one, two";yes\nfour;no\n',
        "sep=;\ntext;label\none, two;yes\nfour;no\n",
        "\ufeffsep=;\r\ntext;label\r\none, two;yes\r\nfour;no\r\n",
        '"sep=\t"\ntext\tlabel\none, two\tyes\nfour\tno\n',
        "text\tlabel\none, two\tyes\nfour\tno\n",
        "text|label\none, two|yes\nfour|no\n",
        '"text",label\r"one, two",yes\rfour,no\r',  # the ends of lines of old Macs
        "text;label\rone, two;yes\rfour;no\r",
        '"a;text",label\n"one, two",yes\nfour,no\n',
    ],
)
def test_csv_of_spreadsheets(tmp_path, content):
    """Guards: semicolons, tabs and bars separate fields, Excel's sep= line says which, and \\r alone ends a line."""
    (tmp_path / "a.csv").write_bytes(content.encode())
    rows = load_files({"train": str(tmp_path / "a.csv")}).splits["train"]
    assert rows[:] == {"sentence1": ["one, two", "four"], "label": [1, 0]}
    (tmp_path / "a.csv").write_bytes((content + "five").encode())
    with pytest.raises(InputError, match=f"line {4 + ('sep=' in content)}: fewer fields"):
        load_files({"train": str(tmp_path / "a.csv")})


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(tmp_path, encoding):
    """Guards: a table in UTF-16, with or without its mark, is refused with the command that converts it."""
    (tmp_path / "a.csv").write_bytes("text,label\none,yes\ntwo,no\n".encode(encoding))
    with pytest.raises(InputError, match="a.csv: UTF-16 or UTF-32, not UTF-8; convert the"):
        load_files({"train": str(tmp_path / "a.csv")})


def test_predictions_have_one_line_for_a_row(tmp_path, capsys):
    """Guards: tabs and ends of lines in labels and indices are escaped in predict_results.txt, and that is said."""
    rows = datasets.Dataset.from_dict({"index": ["7", "a\tb"]})
    write_predictions(str(tmp_path), None, "test", rows, ["x\ny", "z\r\tu"], np.array([0, 1]))
    assert (tmp_path / "predict_results.txt").read_bytes() == b"index\tprediction\n7\tx\\ny\na\\tb\tz\\r\\tu\n"
    assert "predict_results.txt: tabs and ends of lines in labels or indices are written as" in capsys.readouterr().out
    write_predictions(str(tmp_path), None, "test", rows.select([0]), ["x y"], np.array([0]))
    assert capsys.readouterr().out == ""


def own_file(tmp_path, content, name="a.tsv"):
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def test_single_texts_regressions_and_numbered_classes(tmp_path):
    """Guards: one text column is enough; fractions make a regression, whole numbers classes in the order of value."""
    single = load_files({"train": own_file(tmp_path, "text\tlabel\nx\t10\ny\t9\n")})
    assert single.labels == ["9", "10"]  # as transformers sorts them
    assert single.splits["train"][:] == {"sentence1": ["x", "y"], "label": [1, 0]}
    scores = own_file(tmp_path, "text\tlabel\nx\t1.5\ny\t2\n")
    assert load_files({"train": scores}).labels == []
    assert load_files({"train": scores}).splits["train"]["label"][:] == [1.5, 2.0]
    assert load_files({"train": scores}, do_regression=False).labels == ["1.5", "2"]
    whole = own_file(tmp_path, "text\tlabel\nx\t1\ny\t2\n")
    assert load_files({"train": whole}, do_regression=True).splits["train"]["label"][:] == [1.0, 2.0]


def labelled(tmp_path, labels, **options):
    rows = [{"text": f"text {'abcdefghijklmnopqrstuvwxyz'[n % 26]}", "label": one} for n, one in enumerate(labels)]
    return load_files({"train": own_file(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")}, **options)


@pytest.mark.parametrize(
    "labels, sentence",
    [
        (["no", "yes", "no"], "2 classes in {}: 'no' 2, 'yes' 1\n"),
        ([True, False, True], "2 classes in {}: 'False' 1, 'True' 2\n"),
        ([0.5, 2, 1.25], "3 numbers in {}, from 0.5 to 2\n"),
        ([f"class {n % 25:02}" for n in range(50)], "'class 19' 2, and 5 more\n"),
    ],
)
def test_classes_are_printed_with_their_rows(tmp_path, capsys, labels, sentence):
    """Guards: what a run takes for classes or scores is one line, at most twenty of them."""
    labelled(tmp_path, labels)
    assert sentence.format(tmp_path / "a.jsonl") in capsys.readouterr().out


def test_whole_numbers_with_a_point_are_classes(tmp_path, capsys):
    """Guards: 0.0, 1.0 and 2.0 of pandas are the classes 0, 1 and 2, in every file, and that is said."""
    assert labelled(tmp_path, [0.0, 2.0, 1.0]).labels == ["0", "1", "2"]
    told = capsys.readouterr().out
    assert "whole numbers, so they are classes: 0.0 is 0; with `do_regression` true they are numbers" in told
    train = own_file(tmp_path, "text\tlabel\nx\t1\ny\t-1\n")
    dev = own_file(tmp_path, "text\tlabel\nx\t-1.0\ny\t1.0\n", "dev.tsv")
    data = load_files({"train": train, "validation": dev})
    assert data.labels == ["-1", "1"] and data.splits["validation"]["label"][:] == [0, 1]
    data = load_files({"train": dev, "validation": train}, do_regression=True)
    assert data.labels == [] and data.splits["train"]["label"][:] == [-1.0, 1.0]
    with pytest.raises(InputError, match="'good' is a word, but others are numbers"):
        labelled(tmp_path, ["1.0", "good", "2.0"])


@pytest.mark.parametrize(
    "labels, sentence",
    [
        (["yes", " yes", "no"], "' yes' and 'yes' differ only in blanks, case, width or form: write them in one way"),
        (["Yes", "yes"], "'Yes' and 'yes' differ only in"),
        (["\uff59es", "yes"], "'yes' and '\uff59es' differ only in"),
        (["caf\u00e9", "cafe\u0301", "tea"], "differ only in"),
        (["not  ok", "not\u00a0ok"], "differ only in"),
        (["yes\u200b", "yes"], "differ only in"),
        (["01", "1", "x"], "'01' and '1' differ only in"),
        (["2,0", "2,1", "2,0"], "the label '2,0' has a comma: write numbers with a point, and one label in a row"),
        (["1.234,5", "7"], "'1.234,5' has a comma"),
        (["90 %", "85 %"], "the label '90 %' is a percentage: write the number alone"),
        (["4,5%", "5%"], "the label '4,5%' is a percentage"),
        (["a;b", "a", "b"], "the label 'a;b' is several labels, and a row has one: make a column of yes and no"),
        (["a|b", "b | a", "c"], "the label 'a|b' is several labels"),
        (["a, b", "b, c", "c, a"], "the label 'a, b' is several labels"),
        (["a/b", "a", "b"], "the label 'a/b' is several labels"),
        ([True, 1, 0], "'1' and 'True' differ only in"),
        (["{'a', 'b'}", "c"], "the label is a list"),
        ([f"u{n}" for n in range(5)], "5 rows have 5 different labels, such as 'u0': name the column of the labels"),
        ([*range(100, 120), 100], "21 rows have 20 different labels, such as '100'"),
    ],
)
def test_labels_that_are_not_classes(tmp_path, labels, sentence):
    """Guards: forms of one label, percentages, decimal commas, several labels and ids are refused by name."""
    with pytest.raises(InputError, match=re.escape(sentence)):
        labelled(tmp_path, labels)


def test_labels_that_look_like_others_can_be_classes(tmp_path):
    """Guards: commas and signs in names are no several labels, and --do_regression false takes all as they stand."""
    assert labelled(tmp_path, ["Food, drinks", "Food, other", "A+", "A"]).labels[2:] == ["Food, drinks", "Food, other"]
    for labels in (["90 %", "85 %"], ["a;b", "a", "b"], [f"u{n}" for n in range(5)]):
        assert labelled(tmp_path, labels, do_regression=False).labels == sorted(labels)
    assert len(labelled(tmp_path, list(range(30)), do_regression=True).splits["train"]) == 30
    file = own_file(tmp_path, "text\tlabel\n" + "".join(f"a\tu{n}\n" for n in range(7)))
    assert len(load_files({"validation": file}).labels) == 7  # few rows of many classes to evaluate on


@pytest.mark.parametrize(
    "content, column",
    [
        ("text\tlabel\tlabel_text\na b\t0\tneg\nb c\t1\tpos\nc d\t1\tpos\n", "label_text"),
        ("sentiment\ttext\tlabel\nneg\ta b\t0\npos\tb c\t1\npos\tc d\t1\n", "sentiment"),
        # Five shops, of which each has one label.
        ("text\tshop\tlabel\n" + "".join(f"text {n}\tshop {n % 5}\t{n % 5 // 2}\n" for n in range(20)), "shop"),
        ("sentence1\tgold\tlabel\na b\tja\tyes\nb c\tnein\tno\nc d\tnein\tno\n", "gold"),
    ],
)
def test_columns_that_give_the_label_away(tmp_path, content, column):
    """Guards: a column nobody named, whose values each go with one label, is not taken for a text."""
    file = own_file(tmp_path, content)
    with pytest.raises(InputError, match=f"the column '{column}' gives the label away, .*`text_column_names`"):
        load_files({"train": file})
    assert load_files({"train": file}, text_columns=(column,)).splits["train"]["sentence1"][:]


def test_texts_that_come_again_are_texts(tmp_path):
    """Guards: rows that are there twice, and questions with several answers, give no label away."""
    twice = "a\tb\tlabel\n" + 2 * "a b\tc d\tyes\nb c\td e\tno\nc d\te f\tno\n"
    question = "q\ta\tlabel\n" + "".join(f"what\tword {n}\t{n % 2}\n" for n in range(8))
    for content in (twice, question):
        assert "sentence2" in load_files({"train": own_file(tmp_path, content)}).splits["train"].column_names


def test_several_columns_of_labels(tmp_path):
    """Guards: columns of 0 and 1 are called several labels of a row, of which one has to be named."""
    file = own_file(tmp_path, "text\ttoxic\tinsult\na b\t0\t1.0\nb c\t1\t1.0\n")
    sentence = (
        "the columns toxic, insult are several labels of a row, of which to train on one; name .*`label_column_name`"
    )
    with pytest.raises(InputError, match=f"no column 'label'; there are text, toxic, insult; {sentence}"):
        load_files({"train": file})
    assert load_files({"train": file}, text_columns=("text",), label_column="toxic").labels == ["0", "1"]


def test_long_texts(tmp_path):
    """Guards: a text can be longer than csv's own limit of 131,072 characters."""
    rows = load_files({"train": own_file(tmp_path, f"text\tlabel\n{'x' * 200_000}\tyes\ny\tno\n")}).splits["train"]
    assert len(rows["sentence1"][0]) == 200_000


def test_one_label_is_enough_to_evaluate(tmp_path):
    """Guards: a file of one class alone can be evaluated, though there is nothing to learn from it."""
    assert load_files({"validation": own_file(tmp_path, "text\tlabel\nx\tyes\ny\tyes\n")}).labels == ["yes"]


def test_test_files_need_no_labels(tmp_path):
    """Guards: a test file may lack the label column; rows are named by `index`, or else by number."""
    data = load_files({"test": own_file(tmp_path, "text\nx\ny\n")})
    assert data.labels is None and data.splits["test"]["index"][:] == ["0", "1"]
    data = load_files({"test": own_file(tmp_path, "index\ttext\tlabel\n8\tx\tyes\n5\ty\t\n")})
    assert data.splits["test"]["index"][:] == ["8", "5"]


def model_labels(*names, **changes):
    return BertConfig(id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}, **changes)


def test_labels_follow_a_model_that_knows_them(tmp_path):
    """Guards: rows take the label numbers of a model that knows their labels, in capitals or not; its head stays."""
    file = own_file(tmp_path, "sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\tno\n")
    config = model_labels("YES", "perhaps", "NO")
    data, new_head = with_labels_of_model(load_files({"train": file}), config, train=True)
    assert not new_head and data.labels == ["YES", "perhaps", "NO"] and data.splits["train"]["label"][:] == [0, 2]
    assert config.num_labels == 3 and config.problem_type == "single_label_classification"
    data, _ = with_labels_of_model(TextData(None, {}), model_labels("yes", "no"), train=False)
    assert data.labels == ["yes", "no"]
    assert numbers_among(["a", "A"], ["A", "a"]) == [1, 0]  # other labels, though alike


def test_other_labels_need_a_new_head(tmp_path, capsys):
    """Guards: from MNLI to RTE or STS-B and back the head is new, and that is said; without training it is refused."""
    file = own_file(tmp_path, "sentence1\tsentence2\tlabel\nx\ty\tentailment\nx\ty\tnot_entailment\n")
    mnli = ("entailment", "neutral", "contradiction")
    config = model_labels(*mnli)
    data, new_head = with_labels_of_model(load_files({"train": file}), config, train=True)
    assert new_head and config.num_labels == 2 and config.id2label == {0: "entailment", 1: "not_entailment"}
    assert (
        "head, for entailment, neutral, contradiction, is replaced by a new one, for entailment, not_entailment"
        in (capsys.readouterr().out)
    )
    scores = TextData([], {})
    _, new_head = with_labels_of_model(scores, config, train=True)
    assert new_head and config.num_labels == 1 and config.problem_type == "regression"
    _, new_head = with_labels_of_model(scores, config, train=True)
    assert not new_head
    with pytest.raises(InputError, match="the model's labels are a number, and those of the data entailment, not_en"):
        with_labels_of_model(data, config, train=False)
    _, new_head = with_labels_of_model(scores, BertConfig(), train=True)  # no head at all so far
    assert not new_head
    with pytest.raises(InputError, match="the labels are unknown"):
        with_labels_of_model(TextData(None, {}), BertConfig(), train=False)


UNNAMED = {"architectures": ["BertForSequenceClassification"]}


@pytest.mark.parametrize(
    "names, labels, numbers, assumed",
    [
        (("LABEL_0", "LABEL_1"), ["yes", "no"], [0, 1, 0], ["yes", "no"]),
        (("label 0", "label 1", "label 2"), ["no", "yes"], [0, 1, 0], ["no", "yes", "label 2"]),  # one is absent
        (("LABEL_0", "LABEL_1", "LABEL_2"), ["0", "2"], [0, 2, 0], ["0", "LABEL_1", "2"]),  # a number is its class
        (("LABEL_0", "LABEL_1", "LABEL_2"), ["1", "3"], [0, 1, 0], ["1", "3", "LABEL_2"]),
        (("LABEL_0", "LABEL_1", "LABEL_2"), ["label-2", "label-0"], [2, 0, 2], []),  # by name
        (("LABEL_0", "LABEL_1", "LABEL_2"), ["LABEL_0", "LABEL_2"], [0, 2, 0], []),
    ],
)
def test_labels_without_names_are_not_guessed(capsys, names, labels, numbers, assumed):
    """Guards: the order of LABEL_n is called unknown, absent classes shift nothing, and names are never invented."""
    rows = datasets.Dataset.from_dict({"sentence1": ["x", "y", "z"], "label": [0, 1, 0]})
    config = model_labels(*names, **UNNAMED)
    data, new_head = with_labels_of_model(TextData(labels, {"validation": rows}), config, train=False)
    assert not new_head and data.labels == list(names) and data.assumed == assumed
    assert data.splits["validation"]["label"][:] == numbers
    assert config.id2label == dict(enumerate(names))
    assert ("their order is unknown" in capsys.readouterr().out) == bool(assumed)


def test_labels_without_names_are_predicted_by_number(capsys, tmp_path):
    """Guards: LABEL_n is written as it is, also for a task; more labels than classes, and scores, are refused."""
    data, _ = with_labels_of_model(TextData(None, {}), model_labels("LABEL_0", "LABEL_1", **UNNAMED), train=False)
    assert data.labels == ["LABEL_0", "LABEL_1"]
    assert "labels have no names but LABEL_0, LABEL_1, which are written as predictions" in capsys.readouterr().out
    rows = datasets.Dataset.from_dict({"index": ["7"]})
    write_predictions(str(tmp_path), "cola", "test", rows, data.labels, np.ones(1))
    assert (tmp_path / "CoLA.tsv").read_text() == "index\tprediction\n7\tLABEL_1\n"
    for labels, said in ((["a", "b", "c"], "a, b, c"), ([], "a number")):
        with pytest.raises(InputError, match=f"labels are LABEL_0, LABEL_1, and those of the data {said}; give data"):
            with_labels_of_model(TextData(labels, {}), model_labels("LABEL_0", "LABEL_1", **UNNAMED), train=False)
    data, _ = with_labels_of_model(TextData(None, {}), model_labels("LABEL_0", **UNNAMED), train=False)
    assert data.labels == []  # one output is a score


@pytest.mark.parametrize(
    "right, predicted, accuracy, order",
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], "0.000, below the 0.500 expected by chance;", {"L0 = 'b'", "L1 = 'a'"}),
        # Two of three are swapped, and most rows are of the other: far above chance.
        ([0, 0, 0, 1, 2], [0, 0, 0, 2, 1], "0.600; in", {"L0 = 'a'", "L1 = 'c'", "L2 = 'b'"}),
        ([1, 1, 1], [0, 0, 0], "0.000; in", {"L0 = 'b'"}),  # a file of one class
        ([0, 0, 1, 1], [0, 0, 0, 1], "", set()),
    ],
)
def test_the_order_that_would_fit(right, predicted, accuracy, order):
    """Guards: where another order of a model's unnamed labels gives more right answers it is said, and only there."""
    logits = np.eye(3)[predicted]
    evaluation = GlueEvaluation(None, ["L0", "L1", "L2"], ["a", "b", "c"])
    evaluation(EvalPrediction(logits, np.array(right)))
    found = evaluation.order_that_fits()
    assert set(re.findall(r"L\d = '\w'", found)) == order
    assert not order or f"the accuracy is {accuracy}" in found and "the model would have 1.000: if that" in found
    known = GlueEvaluation(None, ["a", "b", "c"])
    known(EvalPrediction(logits, np.array(right)))
    assert known.order_that_fits() == ""


def test_names_of_labels_written_in_another_way(capsys, tmp_path):
    """Guards: case, hyphens, blanks and width of names do not matter, and that labels went by name is printed."""
    rows = datasets.Dataset.from_dict({"sentence1": ["x", "y"], "label": [0, 1]})
    data = TextData(["entailment", "not_entailment"], {"validation": rows})
    for names in (
        ("Not-Entailment", "ENTAILMENT"),
        ("not entailment", "entailment"),
        ("not_\uff45ntailment", "Entailment"),
    ):
        found, new_head = with_labels_of_model(data, model_labels(*names), train=True)
        assert not new_head and found.splits["validation"]["label"][:] == [1, 0]
        assert f"by name: 'entailment' is its 1, {names[1]!r}, 'not_entailment' is its 0" in capsys.readouterr().out
        write_predictions(
            str(tmp_path), "rte", "test", datasets.Dataset.from_dict({"index": ["7"]}), names, np.zeros(1)
        )
        assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n7\tnot_entailment\n"
        evaluation = GlueEvaluation("rte", list(names))
        assert evaluation(EvalPrediction(np.eye(2), np.array([0, 1])))["accuracy"] == 1
    mnli = TextData(list(TASKS["mnli"].labels), {"validation": rows})  # RoBERTa's head has them in another order
    found, _ = with_labels_of_model(mnli, model_labels("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), train=False)
    assert found.splits["validation"]["label"][:] == [2, 1]
    assert "'entailment' is its 2, 'ENTAILMENT'" in capsys.readouterr().out
    minus = TextData(["-1", "1"], {"validation": rows})  # a sign is no hyphen between words
    assert with_labels_of_model(minus, model_labels("1", "-1"), train=False)[0].splits["validation"]["label"][:] == [
        1,
        0,
    ]


def test_two_tables_of_labels():
    """Guards: names that only label2id has are those of the model; two tables that contradict are refused."""
    unnamed = {0: "LABEL_0", 1: "LABEL_1"}
    assert labels_of_model(BertConfig(id2label=unnamed, label2id={"pos": "1", "neg": "0"})) == ["neg", "pos"]
    for stale in ({"LABEL_0": 0, "LABEL_1": 1}, {"a": 0, "b": 1, "c": 2}, {"neg": 0, "pos": 1}):
        assert labels_of_model(BertConfig(id2label={0: "neg", 1: "pos"}, label2id=stale)) == ["neg", "pos"]
    assert labels_of_model(BertConfig(id2label=unnamed, label2id={"a": 0, "b": 1, "c": 2})) is None  # of another head
    with pytest.raises(
        InputError, match="numbers the labels neg, pos in one way in id2label and in another way in la"
    ):
        labels_of_model(BertConfig(id2label={0: "neg", 1: "pos"}, label2id={"neg": 1, "pos": 0}))


def test_labels_that_are_called_label_0_are_names_after_training(tmp_path):
    """Guards: a model trained here on labels called LABEL_n is known as such, saved, loaded and converted."""
    file = own_file(tmp_path, "text\tlabel\nx\tLABEL_0\ny\tLABEL_1\nz\tLABEL_2\n")
    for config in (BertConfig(), FixedHeadBertConfig()):
        with_labels_of_model(load_files({"train": file}), config, train=True)
        config.architectures = UNNAMED["architectures"]
        config.save_pretrained(tmp_path)
        config = type(config).from_pretrained(tmp_path)
        config = fixed_head_config(config)
        part = own_file(tmp_path, "text\tlabel\nx\tLABEL_2\ny\tLABEL_0\n", "part.tsv")
        data, _ = with_labels_of_model(load_files({"validation": part}), config, train=False)
        assert data.labels == ["LABEL_0", "LABEL_1", "LABEL_2"] and not data.assumed
        assert data.splits["validation"]["label"][:] == [2, 0]
        data, _ = with_labels_of_model(TextData(None, {}), config, train=False)
        assert data.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
        with pytest.raises(InputError, match="labels are LABEL_0, LABEL_1, LABEL_2, and those of the data no, yes"):
            with_labels_of_model(TextData(["no", "yes"], {}), config, train=False)
        data, new_head = with_labels_of_model(load_files({"train": part}), config, train=True)
        assert data.labels == ["LABEL_0", "LABEL_1", "LABEL_2"] and not new_head
        _, new_head = with_labels_of_model(TextData(["no", "yes"], {}), config, train=True)
        assert new_head and not hasattr(config, "labels_are_names")


def test_names_of_the_user_are_kept(capsys, caplog):
    """Guards: `label_0` of the training file stays so in the model, which warns of nothing, and is not LABEL_0."""
    config = BertConfig()
    data, new_head = with_labels_of_model(TextData(["label_0", "label_1"], {}), config, train=True)
    assert data.labels == ["label_0", "label_1"] and not new_head
    assert config.id2label == {0: "label_0", 1: "label_1"} and capsys.readouterr().out == ""
    with caplog.at_level("WARNING", logger="fixedbert"):
        assert labels_of_model(fixed_head_config(config)) == ["label_0", "label_1"]
    assert not caplog.records


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.tsv", "sentence1\tsentence2\nx\ty\n", r"a\.tsv: no column 'label'; there are sentence1, sentence2"),
        ("a.tsv", "label\nyes\n", r"a\.tsv: no text in the columns label"),
        ("a.tsv", "text\ttext\tlabel\nx\ty\tyes\n", r"a\.tsv, line 1: two columns have the same name"),
        (
            "a.tsv",
            "sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\nx\ty\tno\n",
            r"a\.tsv, line 3: fewer fields than the head",
        ),
        (
            "a.tsv",
            "sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\t \nx\n\nx\ty\tno\n",
            r"line 3: no label; 1 more rows cannot be used",
        ),
        ("a.tsv", "sentence1\tsentence2\tlabel\nx\ty\tyes\nx\t\tno\n", r"a\.tsv, line 3: 'sentence2' is empty"),
        ("a.jsonl", '{"text": "x", "label": "a"}\n{"label": "b"}\n', r"a\.jsonl, line 2: no 'text'"),
        ("a.jsonl", '{"sentence1": "x", "sentence2": "y", "label": 1}\n{"sentence1"\n', r"a\.jsonl, line 2: not JSON"),
        (
            "a.tsv",
            "sentence1\tsentence2\tlabel\nx\ty\tz\tyes\nx\ty\tno\n",
            r"a\.tsv, line 2: more fields than the head",
        ),
        (
            "a.csv",
            'text,label\nx,yes\n"y,no\nz,yes\n',
            r"a\.csv, line 3: .*a field that begins with a quote ends",
        ),
        ("a.csv", 'text,label\nx,yes\n"y"z,no\n', r"a\.csv, line 3: .*a field that begins with a quote ends"),
        ("a.tsv", "text\tlabel\nx\t0.5\ny\tnan\n", r"a\.tsv, line 3: the label 'nan' is not a finite number"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t1\n", r"a\.tsv: all labels are '1'"),
        ("a.jsonl", "[1]\n", r"a\.jsonl, line 1: not a JSON object"),
        ("a.json", "[1]\n", r"a\.json, row 0: not a JSON object"),
        ("a.json", "[", r"a\.json: not JSON"),
        ("a.jsonl", '{"text": ["x"], "label": "a"}\n', r"a\.jsonl, line 1: 'text' is a list, not text"),
        ("a.tsv", "sentence1\tsentence2\tlabel\n", r"a\.tsv: no rows"),
        ("a.tsv", "", r"a\.tsv: no rows"),
        ("a.parquet", "x", r"a\.parquet: "),
        ("a.xlsx", "x", r"a\.xlsx: a format that cannot be read; give .csv"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path, name, content, sentence):
    """Guards: whatever is wrong with a file is one sentence with its name and, where there is one, the line."""
    with pytest.raises(InputError, match=sentence):
        load_files({"train": own_file(tmp_path, content, name)})


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.tsv", "text\tstars\tlabel\nx y\t1\n", r"line 2: fewer fields than the header has columns"),
        ("a.jsonl", '{"text": 7.5, "label": "a"}\n{"text": "x", "label": "b"}\n', "line 1: 'text' is a number"),
        ("a.jsonl", '{"text": "x", "label": ["a", "b"]}\n', "line 1: the label is a list; a row has one label"),
        ("a.jsonl", '{"text": "x", "label": NaN}\n', "line 1: no label"),
        ("a.jsonl", '{"text": "x", "label": "\\ud83d"}\n', "character 1 of the label is half of a surrogate pair"),
        ("a.jsonl", '{"text": "\\ud83d", "label": "a"}\n', "character 1 of 'text' is half of a surrogate pair"),
        ("a.jsonl", '{"text": "x", "label": "a", "label": "b"}\n', "line 1: not JSON .*a field twice"),
        ("a.jsonl", '{"text": ' + "[" * 100_000, "line 1: not JSON .*recursion"),
        ("a.parquet", {"text": [["x"]], "label": ["a"]}, "row 0: 'text' is a list, not text"),
    ],
)
def test_values_that_are_no_text_and_no_label(tmp_path, name, content, sentence):
    """Guards: lists, numbers and halves of characters are not taken for texts, nor several labels for one."""
    if isinstance(content, dict):
        parquet.write_table(pyarrow.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        load_files({"train": str(tmp_path / name)}, text_columns=("text",))


def test_numbers_are_labels(tmp_path):
    """Guards: whole numbers in JSON are classes, and those with fractions a regression."""
    rows = [{"text": "x", "label": 1}, {"text": "y", "label": 0}]
    assert load_files({"train": own_file(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")}).labels == ["0", "1"]
    rows[0]["label"] = 0.5
    data = load_files({"train": own_file(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")})
    assert data.labels == [] and data.splits["train"]["label"][:] == [0.5, 0.0]


def test_a_word_among_fractions_is_refused(tmp_path):
    """Guards: one word does not turn a regression into as many classes as there are numbers."""
    file = own_file(tmp_path, "text\tlabel\nx\t0.5\ny\tgood\nz\t1.5\n")
    for skip in (False, True):
        with pytest.raises(InputError, match=r"a\.tsv: the label 'good' is a word, .*`do_regression` true or false"):
            load_files({"train": file}, skip_bad_rows=skip)
    assert load_files({"train": file}, do_regression=False).labels == ["0.5", "1.5", "good"]
    assert load_files({"train": file}, do_regression=True, skip_bad_rows=True).splits["train"]["label"][:] == [
        0.5,
        1.5,
    ]


def test_columns_are_named_where_a_guess_looks_like_an_id(tmp_path):
    """Guards: SICK's pair_ID, row numbers and keys are not trained on as texts; the columns can be named."""
    sick = "pair_ID\tsentence_A\tsentence_B\tjudgment\n1\tA cat.\tA dog.\tno\n2\tOne.\tTwo.\tyes\n"
    file = own_file(tmp_path, sick)
    with pytest.raises(InputError, match="no column 'label'; there are pair_ID, .*`label_column_name`"):
        load_files({"train": file})
    with pytest.raises(InputError, match="'pair_ID' holds numbers or ids, not texts; .*`text_column_names`"):
        load_files({"train": file}, label_column="judgment")
    named = {"text_column_names": "sentence_A,sentence_B", "label_column_name": "judgment"}
    arguments = GlueDataArguments(train_file=file, **named)
    rows = load_texts(None, arguments, ("train",)).splits["train"]
    assert rows[:] == {"sentence1": ["A cat.", "One."], "sentence2": ["A dog.", "Two."], "label": [0, 1]}
    with pytest.raises(InputError, match="'key' holds numbers or ids"):
        load_files({"train": own_file(tmp_path, "key\ttext\tlabel\nx-1\ta b\tyes\nx-2\tc d\tno\n")})
    with pytest.raises(InputError, match="no column 'texts'; .*`text_column_names`"):
        load_files({"train": file}, label_column="judgment", text_columns=("texts",))


def test_messages_are_short(tmp_path):
    """Guards: a label of 200 KB is not echoed whole, neither in an error nor where rows are left out."""
    file = own_file(tmp_path, "text\tlabel\nx\t0.5\ny\t" + "long" * 50_000 + "\nz\t1\n")
    for do_regression in (None, True):
        with pytest.raises(InputError) as said:
            load_files({"train": file}, do_regression)
        assert len(str(said.value)) < 1100
        assert ("skip_bad_rows" if do_regression else "do_regression") in str(said.value)


def test_bad_rows_can_be_left_out_and_are_named(tmp_path, capsys):
    """Guards: --skip_bad_rows uses all other rows, and says how many went and which."""
    content = "text\tlabel\nx\tyes\n\tno\ny\n" + "z\tno\n"
    data = load_files({"train": own_file(tmp_path, content)}, skip_bad_rows=True)
    assert data.splits["train"][:] == {"sentence1": ["x", "z"], "label": [1, 0]}
    told = capsys.readouterr().out
    assert (
        "a.tsv: 2 of 4 rows left out (line 3: 'text' is empty; line 4: fewer fields than the header has columns)"
        in told
    )
    assert "a.tsv: the texts are in 'text'" in told
    blank = "text\tlabel\nx\t0.5\ny\t\nz\t1.5\n"  # what is left out does not decide what the labels are
    assert load_files({"train": own_file(tmp_path, blank)}, skip_bad_rows=True).labels == []
    shifted = "text\tlabel\nx\tyes\ny\tno\na\tb\tc\n"
    assert load_files({"train": own_file(tmp_path, shifted)}, skip_bad_rows=True).labels == ["no", "yes"]


def test_short_and_empty_rows_of_a_download(download, capsys, tmp_path):
    """Guards: as in the Hub's copy, QQP's broken rows are left out and named; empty texts are kept, and counted."""
    folder = download("qqp")
    with open(tmp_path / "glue/QQP/train.tsv", "a") as file:
        file.write("9\t1\t2\n10\t1\t2\t\tSix.\t1\n")
    data = load_task("qqp", folder, ("train",))
    assert data.splits["train"]["label"][:] == [1, 0, 1] and data.splits["train"]["sentence1"][2] == ""
    told = capsys.readouterr().out
    assert "train.tsv: 1 of 4 rows left out (line 4: too short)" in told and "1 texts are empty" in told
    with open(tmp_path / "glue/QQP/train.tsv", "a") as file:
        file.write("11\t1\t2\tOne.\tSix.\t1\t0\n")
    with pytest.raises(InputError, match="train.tsv, line 6: more fields than the header"):  # though others are gone
        load_task("qqp", folder, ("train",))


@pytest.mark.parametrize(
    "task, row, sentence",
    [
        ("sst2", "Three.\t2\n", r"train\.tsv, line 4: the label '2' is unknown; there are 0, 1"),
        ("sst2", "Three.\t0.5\n", r"train\.tsv, line 4: the label '0.5' is a fraction, not a class; there are 0, 1"),
        ("rte", "2\tThree.\tSix.\tneutral\n", "line 4: the label 'neutral' is unknown; there are entailment, not_en"),
        ("stsb", "2\tx\tThree.\tSix.\tNaN\n", "line 4: the label 'NaN' is not a finite number"),
        ("stsb", "2\tx\tThree.\tSix.\t\n", "line 4: no label"),
    ],
)
def test_bad_labels_of_tasks(download, tmp_path, task, row, sentence):
    """Guards: a label that a task does not have is found by file and line."""
    folder = download(task)
    with open(tmp_path / "glue" / TASKS[task].folder / "train.tsv", "a") as file:
        file.write(row)
    with pytest.raises(InputError, match=sentence):
        load_task(task, folder, ("train",))


def test_unknown_labels_tasks_and_missing_files_are_named(tmp_path, download):
    """Guards: a label that training does not know, a file that is not there, a task or split that does not exist."""
    train = own_file(tmp_path, "text\tlabel\nx\tyes\nx\tno\n", "train.tsv")
    dev = own_file(tmp_path, "text\tlabel\nx\tno\nx\tmaybe\n", "dev.tsv")
    with pytest.raises(InputError, match=r"dev\.tsv, line 3: the label 'maybe' is unknown; there are no, yes"):
        load_files({"train": train, "validation": dev})
    with pytest.raises(InputError, match=r"absent\.tsv: .*No such file"):
        load_files({"train": str(tmp_path / "absent.tsv")})
    with pytest.raises(InputError, match="no such task; there are cola, sst2"):
        load_task("mnly")
    with pytest.raises(InputError, match="ax has no rows for train: it is to be predicted"):
        load_task("ax", download("ax"), ("train", "test"))


@pytest.fixture
def tokenizer(vocabulary):
    return BertTokenizer(vocab=vocabulary)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "ax"])
def test_features_of_every_task_are_those_of_transformers(download, tokenizer, task):
    """Guards: padded, the features are what transformers' script makes: ids, types, labels, cut at the same place."""
    rows = load_task(task, download(task), ("train",)).splits["train"]
    for length in (6, 13):
        features = text_features(rows, tokenizer, length)
        texts = [rows[name][:] for name in ("sentence1", "sentence2") if name in rows.column_names]
        expected = tokenizer(*texts, padding="max_length", max_length=length, truncation=True)
        ours = {name: features[name][:] for name in ("input_ids", "token_type_ids")}
        padded = tokenizer.pad(ours, padding="max_length", max_length=length)
        assert {name: list(values) for name, values in padded.items()} == dict(expected)
        assert features["label"][:] == rows["label"][:]
        assert features["length"][:] == [sum(mask) for mask in expected["attention_mask"]]


ADDED = {"folder": "Added", "texts": ("text",), "labels": ("no", "yes"), "file_texts": ("text",)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "missing 1 required positional argument: 'labels'"),
        ({"file_texts": ("a", "b")}, "Added: texts and file_texts: name one or two columns, as many in both"),
        ({"texts": (), "file_texts": ()}, "Added: texts and file_texts: name one or two columns"),
        ({"labels": ("yes",)}, "Added: labels: name two or more, or none for a regression"),
        ({"submissions": {"test_matched": "A.tsv"}}, "Added: submissions: name the file for test"),
    ],
)
def test_incomplete_tasks_name_what_is_missing(change, message):
    """Guards: a task in TASKS without a part that it needs fails as it is defined, in a sentence that names it."""
    fields = {name: value for name, value in {**ADDED, **change}.items() if value is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        GlueTask(**fields)


def test_tasks_without_metrics_are_refused(monkeypatch):
    """Guards: a task without its metric, or with one that nothing computes, fails before anything is trained."""
    monkeypatch.setitem(TASKS, "added", GlueTask(**ADDED))
    with pytest.raises(ValueError, match="the task added has no metrics: add them to METRICS in glue_metrics"):
        check_metrics()
    monkeypatch.setitem(METRICS, "added", ("recall",))
    with pytest.raises(ValueError, match="the metric recall of added: add it to MEASURES in glue_metrics"):
        check_metrics()
    monkeypatch.setitem(METRICS, "added", ("f1",))
    check_metrics()


def test_a_task_is_added_in_two_places(model, tmp_path, monkeypatch):
    """Guards: an entry in TASKS and one in METRICS are a task: its columns, its Hub data set, its metric, a sweep."""
    monkeypatch.setitem(TASKS, "added", GlueTask(**ADDED, dataset_name="me/added", dataset_config_name="plain"))
    monkeypatch.setitem(METRICS, "added", ("recall",))
    monkeypatch.setitem(MEASURES, "recall", lambda predictions, labels: float((predictions[labels == 1] == 1).mean()))
    rows = datasets.Dataset.from_dict({"text": ["one two", "three", "four five", "six"], "label": [0, 1, 0, 1]})
    rows = rows.cast_column("label", datasets.ClassLabel(names=list(ADDED["labels"])))
    asked = []
    monkeypatch.setattr(
        "fixedbert.fine_tuning.texts.load_from_hub",
        lambda *names, **options: asked.append(names) or {"train": rows, "validation": rows},
    )
    words = ["--model_name_or_path", model, "--task_name", "added", "--do_train", "--do_eval", "--max_steps", "1"]
    run_glue([*words, *QUICK, "--seeds", "1", "--output_dir", str(tmp_path / "out")])
    assert asked == [("me/added", "plain")]
    assert json.loads((tmp_path / "out/results.json").read_text())["best"]["added"].keys() == {"recall"}
    card = (tmp_path / "out/added/seed-1/README.md").read_text()
    assert "me/added" in card and "nyu-mll/glue" not in card
