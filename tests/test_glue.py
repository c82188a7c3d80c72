"""Sentence pairs: GLUE's layout and people's own files, with errors that name the line."""

import pytest

from fixedbert.data.glue import load_files, load_task
from fixedbert.errors import InputError

MNLI_HEADER = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"


def test_mnli_folder_in_the_layout_of_the_download(tmp_path):
    """Guards: MNLI's columns, label numbers as on the Hub, both dev sets in order, quotes left alone."""
    (tmp_path / "MNLI").mkdir()
    rows = '0\tan "odd quote\t{}\tn/a\tcontradiction\n1\tb\tc\tn/a\tentailment\n2\tb\tc\tn/a\tneutral\n'
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / "MNLI" / f"{name}.tsv").write_text(MNLI_HEADER + rows.format(name))
    for folder in (tmp_path, tmp_path / "MNLI"):
        pairs = load_task("mnli", str(folder))
        assert pairs.labels == ["entailment", "neutral", "contradiction"]
        assert pairs.train["sentence1"][0] == 'an "odd quote' and pairs.train["label"][:] == [2, 0, 1]
        assert {split: data["sentence2"][0] for split, data in pairs.validation.items()} == {
            "validation_matched": "dev_matched",
            "validation_mismatched": "dev_mismatched",
        }
        assert list(pairs.validation) == ["validation_matched", "validation_mismatched"]


def test_real_mnli(real_data):
    """Guards: every row of the real files is read, unpaired quotes and all."""
    pairs = load_task("mnli", str(real_data / "glue"))
    assert [len(pairs.train), *map(len, pairs.validation.values())] == [8010, 5000, 2490]


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
    ],
)
def test_own_files(tmp_path, name, content):
    """Guards: csv, tsv and jsonl give the same pairs; labels are sorted; other column names are taken in order."""
    (tmp_path / name).write_text(content)
    pairs = load_files(str(tmp_path / name), str(tmp_path / name))
    assert pairs.labels == ["no", "yes"]
    assert pairs.train[:] == {"sentence1": ["one, two", "four"], "sentence2": ["three", "five"], "label": [1, 0]}
    assert pairs.validation["validation"][:] == pairs.train[:]


def test_labels_can_follow_a_model(tmp_path):
    """Guards: pairs take the label numbers of a model that knows their labels, whatever order the files suggest."""
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\tno\n")
    pairs = load_files(str(tmp_path / "a.tsv"), str(tmp_path / "a.tsv")).numbered_as(["yes", "perhaps", "no"])
    assert pairs.labels == ["yes", "perhaps", "no"]
    assert pairs.train["label"][:] == pairs.validation["validation"]["label"][:] == [0, 2]


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.tsv", "sentence1\tlabel\nx\tyes\n", r"a\.tsv, line 2: no second text"),
        ("a.tsv", "sentence1\tsentence2\nx\ty\n", r"a\.tsv, line 2: no 'label' in a row with .* sentence1, sentence2"),
        ("a.tsv", "sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\n", r"a\.tsv, line 3: no 'label'"),
        ("a.jsonl", '{"sentence1": "x", "sentence2": "y", "label": 1}\n{"sentence1"\n', r"a\.jsonl, line 2: not JSON"),
        ("a.tsv", "sentence1\tsentence2\tlabel\nx\ty\tz\tyes\n", r"a\.tsv, line 2: more fields than the header"),
        ("a.jsonl", "[1]\n", r"a\.jsonl, line 1: not a JSON object"),
        ("a.tsv", "sentence1\tsentence2\tlabel\n", r"a\.tsv: no rows"),
        ("a.xlsx", "x", r"a\.xlsx: not one of the formats"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path, name, content, sentence):
    """Guards: a missing column, a short row, broken JSON or no rows at all is one sentence with file and line."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        load_files(str(tmp_path / name), None)


def test_unknown_labels_and_missing_files_are_named(tmp_path):
    """Guards: a label that training does not know is found by file and line, and so is a file that is not there."""
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tlabel\nx\ty\tyes\nx\ty\tno\n")
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tlabel\nx\ty\tno\nx\ty\tmaybe\n")
    with pytest.raises(InputError, match=r"dev\.tsv, line 3: unknown label 'maybe'; there are no, yes"):
        load_files(str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv"))
    with pytest.raises(InputError, match=r"absent\.tsv: .*No such file"):
        load_files(str(tmp_path / "absent.tsv"), None)
    with pytest.raises(InputError, match="no such task; there are mnli"):
        load_task("mnly")
