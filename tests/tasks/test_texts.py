"""Tests for loading GLUE, datasets on the Hub and the user's own files, for invalid rows, and for tokenization."""

import json
import random
from collections import Counter

import datasets
import numpy as np
import pytest
from transformers import BertConfig, BertTokenizer

from fixedbert.fine_tuning.prediction_files import write_submission
from fixedbert.options import GlueDataOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.glue import TASKS
from fixedbert.tasks.texts import load_files, load_task, load_texts, text_features

# For each task, two labeled rows and a test row in the format of the original download, and the label ids on the Hub.
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
# GLUE's submission format for each task: the file, and the label for class 1 (for STS-B, a score above 5).
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
    """Returns a function that writes a task's ROWS in the format of the GLUE download and returns the directory."""

    def write(task):
        directory = tmp_path / "glue" / TASKS[task].folder
        directory.mkdir(parents=True, exist_ok=True)
        labelled, test, _ = ROWS[task]
        for split, file in TASKS[task].files.items():
            (directory / file).write_text(test if split.startswith("test") else labelled, encoding="utf-8")
        return str(tmp_path / "glue")

    return write


def own_file(tmp_path, content, name="a.tsv"):
    """Writes a text, or rows as .jsonl, to a file and returns its path."""
    text = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def columns(rows, *names):
    return {name: rows[name][:] for name in names or rows.column_names if name not in ("row", "index")}


@pytest.mark.parametrize("task", TASKS)
def test_loading_and_submitting_every_task(download, task, tmp_path):
    """Each task has the correct columns, labels, splits and submission file."""
    labels = ROWS[task][2]
    for directory in (download(task), f"{download(task)}/{TASKS[task].folder}"):
        data = load_task(task, directory, ("test",) if task == "ax" else ("train", "validation", "test"))
        assert list(data.splits) == list(TASKS[task].files)
        assert data.labels.classes == list(TASKS[task].labels)
        data.labels.align(BertConfig(), train=True)
        for split, rows in data.splits.items():
            first, second = (["Three."], ["Six."]) if split.startswith("test") else (["One two.", "Two six."], None)
            assert rows["sentence1"][:] == first
            assert ("sentence2" in rows.column_names) == (task not in SINGLE)
            if "sentence2" in rows.column_names:
                assert rows["sentence2"][:] == (second or ["Four.", "Five."])
            if split.startswith("test"):
                assert rows["index"][:] == ["7"] and "label" not in rows.column_names
            else:
                assert data.labels.encode(rows["label"]).tolist() == labels
    split, rows = list(data.splits.items())[-1]
    name, written = SUBMISSIONS[task]
    predictions = np.array([5.7 if task == "stsb" else 1])
    write_submission(tmp_path, task, split, rows, data.labels, predictions)
    assert (tmp_path / name).read_text() == f"index\tprediction\n7\t{written}\n"


def test_glue_on_the_hub(monkeypatch):
    """GLUE on the Hub gives the same rows as the original download. The label -1 stands for a missing label."""

    def split(labels):
        numbers = [*range(len(labels))]
        texts = {name: [f"{name[0]}{number}" for number in numbers] for name in ("premise", "hypothesis")}
        rows = datasets.Dataset.from_dict({**texts, "label": labels, "idx": numbers})
        return rows.cast_column("label", datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]))

    asked = []
    splits = {name: split([2, 0, 1]) for name in ("train", "validation_matched", "validation_mismatched")}
    splits |= {name: split([-1, -1]) for name in ("test_matched", "test_mismatched")}
    monkeypatch.setattr("fixedbert.tasks.texts.load_from_hub", lambda *name, **_: asked.append(name) or splits)
    data = load_task("mnli", None, ("train", "validation", "test"), max_samples={"test": 1})
    assert asked == [("nyu-mll/glue", "mnli")]
    texts = {"sentence1": ["p0", "p1", "p2"], "sentence2": ["h0", "h1", "h2"]}
    labels = {"row": [0, 1, 2], "label": ["contradiction", "entailment", "neutral"], "index": ["0", "1", "2"]}
    assert data.splits["train"][:] == texts | labels
    assert data.splits["test_mismatched"][:] == {"sentence1": ["p0"], "sentence2": ["h0"], "row": [0], "index": ["0"]}
    splits["train"] = split([2, -1])
    with pytest.raises(InputError, match="nyu-mll/glue, mnli, train, row 1: the label is missing"):
        load_task("mnli", None, ("train",))


def test_other_datasets_on_the_hub(monkeypatch):
    """--dataset_name loads texts and labels from the Hub."""
    rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]})
    monkeypatch.setattr("fixedbert.tasks.reading.load_from_hub", lambda *_, **__: {"train": rows})
    data = load_texts(None, GlueDataOptions(dataset_name="me/mine"), ("train",))
    assert data.labels.classes == ["0", "1"]
    assert columns(data.splits["train"]) == {"sentence1": ["x", "y"], "label": ["1", "0"]}


def test_column_names(tmp_path):
    """Columns can have any names, which are listed if one is unknown or ambiguous."""
    rows = "pair_ID\tsentence_A\tsentence_B\tjudgment\n1\tA cat.\tA dog.\tno\n2\tOne.\tTwo.\tyes\n"
    file = own_file(tmp_path, rows)
    available = "available columns: pair_ID, sentence_A, sentence_B, judgment"
    with pytest.raises(InputError, match=f"`text_column_names` must be set for .*; {available}"):
        load_files({"train": file})
    named = {"text_column_names": "sentence_A,sentence_B", "label_column_name": "judgment"}
    data = load_texts(None, GlueDataOptions(train_file=file, **named), ("train",))
    expected = {"sentence1": ["A cat.", "One."], "sentence2": ["A dog.", "Two."], "label": ["no", "yes"]}
    assert columns(data.splits["train"]) == expected
    with pytest.raises(InputError, match=f"has no column 'other' .`label_column_name`.; {available}"):
        load_files({"train": file}, text_columns=("sentence_A",), label_columns=("other",))
    with pytest.raises(InputError, match="judgment contains the labels"):
        load_files({"train": file}, text_columns=("judgment",), label_columns=("judgment",))
    ambiguous = own_file(tmp_path, "text\tsentence1\tsentence2\tlabel\nx\ty\tz\tno\n", "b.tsv")
    with pytest.raises(InputError, match="`text_column_names` must be set"):
        load_files({"train": ambiguous})
    assert load_files({"test": ambiguous}, expected_columns=("text",)).text_columns == ("text",)  # as in training
    pairs = own_file(tmp_path, "sentence1\tsentence2\nx\ty\n", "c.tsv")
    assert load_files({"test": pairs}, expected_columns=("text",)).text_columns == ("sentence1", "sentence2")


def test_samples_are_drawn_at_random(tmp_path, capsys):
    """`max_samples` draws rows from the entire file, and only the labels of these rows are counted and checked."""
    file = own_file(tmp_path, "text\tlabel\n" + "x\tno\n" * 50 + "y\tyes\n" * 50 + "z\n")
    options = {"max_samples": {"train": 20}, "label_columns": ("label",)}
    rows = load_files({"train": file}, seed=3, **options).splits["train"]
    assert rows["row"][:] == sorted(random.Random(3).sample(range(101), 20))
    no, yes = rows["label"][:].count("no"), rows["label"][:].count("yes")
    assert no + yes == 20 and min(no, yes) > 4
    assert f"{file}: labels 'no' ({no}), 'yes' ({yes})" in capsys.readouterr().out
    assert load_files({"train": file}, seed=4, **options).splits["train"]["row"][:] != rows["row"][:]
    sorted_file = own_file(tmp_path, "text\tlabel\n" + "x\tno\n" * 99 + "y\tyes\n", "b.tsv")
    with pytest.raises(InputError, match="at least two different labels; the rows contain only 'no'"):
        load_files({"train": sorted_file}, max_samples={"train": 5})
    load_files({"validation": sorted_file}, max_samples={"validation": 5})
    assert "all rows have the same label" in capsys.readouterr().out


def test_validation_split_is_stratified(tmp_path):
    """`validation_percentage` holds out the same fraction of each label's rows, and the split is reproducible."""
    labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 10 + ["rare"]
    file = own_file(tmp_path, [{"text": f"t{n}", "label": label} for n, label in enumerate(labels)], "a.jsonl")
    options = {"validation_percentage": 20, "max_samples": {"train": None, "validation": None}}
    splits = load_files({"train": file}, **options).splits
    assert sorted(splits["train"]["row"][:] + splits["validation"]["row"][:]) == [*range(101)]
    assert Counter(splits["validation"]["label"][:]) == {"a": 12, "b": 6, "c": 2}
    only = load_files({"train": file}, **options | {"max_samples": {"validation": None}}).splits
    assert [*only] == ["validation"] and only["validation"][:] == splits["validation"][:]
    assert load_files({"train": file}, seed=1, **options).splits["validation"][:] != splits["validation"][:]
    arguments = GlueDataOptions(train_file=file, validation_split_percentage=20)
    assert load_texts(None, arguments, ("train",)).splits["train"][:] == splits["train"][:]  # also without evaluation
    with pytest.raises(InputError, match="1: splitting 101 rows leaves one split too small"):
        load_files({"train": file}, **options | {"validation_percentage": 1})


def test_groups_stay_together(tmp_path, capsys):
    """Texts in common on both sides of a split are counted, and `group_column_name` keeps their rows together."""
    rows = [{"q": f"q {' ' * (n % 3)}{n % 25}", "s": f"s{n}", "label": "ab"[n < 50], "g": n % 25} for n in range(100)]
    rows += [{"q": f"r{n}", "s": f"t{n}", "label": "c", "g": "last"} for n in range(3)]
    file = own_file(tmp_path, rows, "a.jsonl")
    options = {"validation_percentage": 20, "max_samples": {"train": None, "validation": 13}, "text_columns": "qs"}

    def texts_of(**more):
        splits = load_files({"train": file}, **options | more).splits
        return [[" ".join(text.split()) for text in splits[name]["sentence1"]] for name in options["max_samples"]]

    train, validation = texts_of()
    shared = sum(text in train for text in validation)
    assert (
        shared > 5
        and f"'q' of the validation split: {shared} of 13 rows also occur in the training data"
        in capsys.readouterr().out
    )
    for seed in range(5):
        train, validation = texts_of(group_column="g", seed=seed, max_samples={"train": None, "validation": None})
        assert not {*train} & {*validation} and len(validation) in (23, 24)  # 6 of 26 groups with 4 or 3 rows
    assert "also occur" not in capsys.readouterr().out
    with pytest.raises(InputError, match="99: splitting 103 rows leaves one split too small"):
        texts_of(group_column="g", validation_percentage=99)
    file = own_file(tmp_path, [*rows[:2], rows[2] | {"g": " "}], "b.jsonl")
    with pytest.raises(InputError, match="line 3: 'g' is empty"):
        texts_of(group_column="g")


def test_invalid_rows_can_be_skipped(tmp_path, capsys):
    """--skip_bad_rows skips and prints invalid rows, also a repeated header. A valid row must remain."""
    content = "text\tlabel\nx\tyes\n\tno\ny\nz\tno\n"
    load_files({"train": own_file(tmp_path, content)}, skip_bad_rows=True)
    assert "a.tsv: skipped 2 rows (line 3: 'text' is empty; line 4: fewer fields" in capsys.readouterr().out
    shifted = own_file(tmp_path, "text,label\none,x\ntwo,y\nthree, four,x\ntext,label\n", "shifted.csv")
    assert load_files({"train": shifted}, skip_bad_rows=True).labels.classes == ["x", "y"]
    bad = own_file(tmp_path, "text\tlabel\n" + 21 * "\tyes\n")
    with pytest.raises(InputError, match="no valid rows"):
        load_files({"train": bad}, skip_bad_rows=True)


def test_invalid_rows_in_the_glue_download(download, tmp_path):
    """As on the Hub, QQP's rows with too few fields are skipped, and empty texts are kept."""
    directory = download("qqp")
    with open(tmp_path / "glue/QQP/train.tsv", "a") as file:
        file.write("9\t1\t2\n10\t1\t2\t\tSix.\t1\n")
    rows = load_task("qqp", directory, ("train",)).splits["train"]
    assert rows["sentence1"][:] == ["One two.", "Two six.", ""]
    with open(tmp_path / "glue/QQP/train.tsv", "a") as file:
        file.write("11\t1\t2\tOne.\tSix.\t1\t0\n")
    with pytest.raises(InputError, match="train.tsv, line 6: more fields than the header"):
        load_task("qqp", directory, ("train",))


def test_unknown_labels_tasks_and_files(tmp_path, download):
    """Unknown labels, tasks and splits are refused."""
    train = own_file(tmp_path, "text\tlabel\nx\tyes\nx\tno\n", "train.tsv")
    dev = own_file(tmp_path, "text\tlabel\nx\tno\nx\tmaybe\n", "dev.tsv")
    with pytest.raises(InputError, match=r"dev\.tsv, line 3: unknown label 'maybe'; available labels: no, yes"):
        load_files({"train": train, "validation": dev})
    with pytest.raises(InputError, match="unknown `task_name` 'mnly'; available tasks: cola, sst2"):
        load_task("mnly")
    with pytest.raises(InputError, match="ax has no train split"):
        load_task("ax", download("ax"), ("train", "test"))


@pytest.mark.parametrize("task", [task for task in TASKS if task != "ax"])
def test_features_equal_those_of_transformers(download, tokenizer, task):
    """After padding, features for each task equal those of transformers' run_glue.py, with and without truncation."""
    data = load_task(task, download(task), ("train",))
    rows = data.splits["train"]
    data.labels.align(BertConfig(), train=True)
    labels = data.labels.encode(rows["label"])
    for length in (6, 13):
        features = text_features(rows, tokenizer, length, labels)
        texts = [rows[name][:] for name in ("sentence1", "sentence2") if name in rows.column_names]
        expected = tokenizer(*texts, padding="max_length", max_length=length, truncation=True)
        ours = {name: features[name][:] for name in ("input_ids", "token_type_ids")}
        padded = tokenizer.pad(ours, padding="max_length", max_length=length)
        assert {name: list(values) for name, values in padded.items()} == dict(expected)
        assert features["label"][:] == ROWS[task][2]
        assert features["length"][:] == [sum(mask) for mask in expected["attention_mask"]]


def test_fingerprints_of_features(tokenizer, vocabulary):
    """The fingerprint, by which resumed runs recognize their data, depends on the rows and the settings alone."""
    texts = {"sentence1": ["One two.", "Two six."], "sentence2": ["Four.", "Five."], "label": ["b", "a"]}
    rows = datasets.Dataset.from_dict(texts)
    first = text_features(rows, tokenizer, 9)
    again = text_features(datasets.Dataset.from_dict(texts), BertTokenizer(vocab=vocabulary), 9)
    assert again[:] == first[:] and again._fingerprint == first._fingerprint
    assert text_features(rows, tokenizer, 9, np.array([0, 1]))["label"][:] == [0, 1]
    shorter = text_features(rows, tokenizer, 6)
    assert shorter["length"][:] == [6, 6] and shorter._fingerprint != first._fingerprint
    tokenizer.truncation_side = "left"
    left = text_features(rows, tokenizer, 6)
    assert left["input_ids"][:] != shorter["input_ids"][:] and left._fingerprint != shorter._fingerprint
    without_types = BertTokenizer(vocab=vocabulary, model_input_names=["input_ids", "attention_mask"])
    assert "token_type_ids" not in text_features(rows, without_types, 9).column_names
