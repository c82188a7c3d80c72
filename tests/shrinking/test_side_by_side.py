"""Models side by side: the answers are those of the models, counted against labels and against the first model."""

import csv
import json

import pytest
import torch
from small_models import UNEQUAL, model_of
from small_texts import SHAPE, TEXTS, save
from transformers import AutoTokenizer

import fixedbert
from fixedbert.publishing.export import export_onnx
from fixedbert.shrinking.side_by_side import compare
from fixedbert.support.errors import InputError
from fixedbert_cli import main

LABELS = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}
PAIRS = [(f"{one} {number}", other) for number in range(5) for one, other in zip(TEXTS, TEXTS[::-1], strict=True)]


def inputs_of(folder, length=17):
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    return AutoTokenizer.from_pretrained(folder)(*map(list, zip(*PAIRS, strict=True)), **options)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier, another with two classes swapped, graphs of the first, and the classes of both for the pairs."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model = model_of("ForSequenceClassification", **SHAPE, **UNEQUAL, **LABELS).eval()
    save(model, folder / "one")
    with torch.no_grad():
        model.classifier.bias.sub_(model(**inputs_of(folder / "one")).logits.mean(0))
        save(model, folder / "one")
        found = [model(**inputs_of(folder / "one")).logits.argmax(-1)]
        for part in (model.classifier.weight, model.classifier.bias):
            part.copy_(part[[1, 0, 2]])
        found.append(model(**inputs_of(folder / "one")).logits.argmax(-1))
    save(model, folder / "two")
    pytest.importorskip("onnxruntime")
    export_onnx(folder / "one", folder / "graphs", int8=True)
    return folder, *found


def test_right_lost_gained_and_changed(models, tmp_path, capsys):
    """Guards: accuracies, rows lost and gained, shares of the same answers and the table of changed rows are exact."""
    folder, one, two = models
    names = ["bad", "good", "odd"]
    labels = torch.where(torch.arange(len(PAIRS)) % 3 == 0, two, one)  # some rows that the second alone has right
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = [(*pair, names[label]) for pair, label in zip(PAIRS, labels.tolist(), strict=True)]
        csv.writer(file).writerows([("premise", "hypothesis", "verdict"), *rows])
    places = [str(folder / name) for name in ("one", "two", "graphs")]
    words = ["--label_column_name", "verdict", "--max_seq_length", "17", "--batch_size", "7"]
    words += ["--text_column_names", "premise,hypothesis", "--output_dir", str(tmp_path / "out")]
    main(["compare", *places, "--validation_file", str(tmp_path / "rows.csv"), *words])
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    first, other, exact, int8 = found["sides"]
    assert found["rows"] == len(PAIRS) and [exact["name"], int8["name"]] == ["graphs, float32", "graphs, int8"]
    assert 0 < (one != two).sum() < len(PAIRS)
    for side, classes in ((first, one), (other, two)):
        assert side["scores"] == {"accuracy": pytest.approx(float((classes == labels).float().mean()))}
    assert (other["lost"], other["gained"]) == (
        int(((one == labels) & (two != labels)).sum()),
        int(((one != labels) & (two == labels)).sum()),
    )
    assert other["answers"]["agreement"] == pytest.approx(float((one == two).float().mean()))
    assert other["answers"]["rows"] == len(PAIRS)
    assert exact["answers"]["agreement"] == 1 and exact["answers"]["divergence"] < 1e-6 < int8["answers"]["divergence"]
    assert first["times_as_fast"] == [1, 1] and min(int8["rows_per_second"]) > 0 and first["answers"] is None
    changed = [*csv.reader((tmp_path / "out" / "changed.tsv").open(newline=""), delimiter="\t")]
    assert changed[0] == ["text 1", "text 2", "label", "one", "two", "graphs, float32", "graphs, int8"]
    table = {tuple(line[:2]): line for line in changed[1:]}
    for pair, label, mine, others in zip(PAIRS, labels.tolist(), one.tolist(), two.tolist(), strict=True):
        if mine != others:
            assert table[pair][2:5] == [names[label], names[mine], names[others]]
    printed = capsys.readouterr().out
    assert f"{len(PAIRS)} rows of" in printed and "rows with another class are in" in printed


def test_without_labels_in_memory_order(models, tmp_path):
    """Guards: rows without labels give shares of answers alone; fewer rows than there are is a random part of them."""
    folder, *_ = models
    lines = [f"{first},{second}" for first, second in PAIRS]
    (tmp_path / "rows.csv").write_text("\n".join(["premise,hypothesis", *lines]) + "\n")
    found = compare([folder / "one", folder / "one"], tmp_path / "rows.csv", max_samples=13)
    assert found.rows == 13 and found.sides[1].scores == {} and found.sides[1].lost is None
    assert found.sides[1].answers.agreement == 1 and "accuracy" not in str(found)
    assert repr(found) == "SideBySide(['one', 'one'], rows=13)"


def test_what_cannot_be_compared(models, tmp_path):
    """Guards: models of other labels or another head, graphs in the first place, heads without one answer a row."""
    folder, *_ = models
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    save(model_of("ForSequenceClassification", num_labels=3, **SHAPE), tmp_path / "other")
    save(model_of("ForMaskedLM", **SHAPE), tmp_path / "words")
    for places, sentence in (
        (
            (folder / "one", tmp_path / "other"),
            "it answers with SequenceClassification, LABEL_0, LABEL_1, LABEL_2",
        ),
        ((folder / "one", tmp_path / "words"), "it answers with MaskedLM"),
        ((folder / "graphs", folder / "one"), "graphs of ONNX; the first of `models` is the one in torch"),
        ((tmp_path / "words",), "a FixedHeadBertForMaskedLM; classifiers, regressions and embedding models of"),
    ):
        with pytest.raises(InputError, match=sentence):
            fixedbert.compare([*places], tmp_path / "rows.txt", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()
