"""Models side by side: the answers are those of the models, counted against labels and against the first model."""

import csv
import json
import random
import shutil

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, TEXTS, save
from helpers.tiny_models import UNEQUAL, model_of
from transformers import AutoModel, AutoTokenizer

import fixedbert
from fixedbert.comparison.compare import compare
from fixedbert.publishing.export import export
from fixedbert.support.errors import InputError
from fixedbert_cli import main

NAMES = ["odd", "bad", "good"]  # in another order than the alphabet's
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: number for number, name in enumerate(NAMES)}}
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
    export(folder / "one", folder / "graphs", int8=True)
    return folder, *found


def test_right_lost_gained_and_changed(models, tmp_path, capsys):
    """Guards: accuracies, rows lost and gained, shares of the same answers and the table of changed rows are exact."""
    folder, one, two = models
    names = NAMES
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
            assert table.pop(pair)[2:5] == [names[label], names[mine], names[others]]
    assert all(line[3] == line[4] == line[5] != line[6] for line in table.values())  # of the rest int8 alone differs
    printed = capsys.readouterr().out
    assert f"{len(PAIRS)} rows of" in printed and "rows with another class are in" in printed


def test_rows_without_labels(models, tmp_path):
    """Guards: rows without labels give shares of answers alone; fewer than there are are a random part of them."""
    folder, *_ = models
    lines = [f"{first},{second}" for first, second in PAIRS]
    (tmp_path / "rows.csv").write_text("\n".join(["premise,hypothesis", *lines]) + "\n")
    found = compare([folder / "one", folder / "two"], tmp_path / "rows.csv", max_samples=13, output_dir=tmp_path / "o")
    assert found.rows == 13 and found.sides[1].scores == {} and found.sides[1].lost is None
    assert "accuracy" not in str(found) and repr(found) == "SideBySide(['one', 'two'], rows=13)"
    changed = [*csv.reader((tmp_path / "o" / "changed.tsv").open(newline=""), delimiter="\t")][1:]
    assert len(changed) == round(13 * (1 - found.sides[1].answers.agreement))
    chosen = {PAIRS[place] for place in random.Random(0).sample(range(len(PAIRS)), 13)}
    assert {tuple(line[:2]) for line in changed} <= chosen and all(line[2] == "" for line in changed)
    with pytest.raises(InputError, match="no column 'verdict'; there are premise, hypothesis"):
        compare([folder / "one"], tmp_path / "rows.csv", label_column_name="verdict")
    twice = compare([folder / "one", folder / "one"], tmp_path / "rows.csv")
    assert twice.sides[1].answers.agreement == 1
    assert [side.name for side in twice.sides] == [str(folder / "one")] * 2  # no two of one name


def save_embeddings(folder, mode):
    torch.manual_seed(0)
    save(model_of("Model", **SHAPE), folder)
    kind, modules = "sentence_transformers.models.", [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [{"idx": n, "path": path, "type": kind + name} for n, (name, path) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))


def test_each_embedding_model_pools_in_its_own_way(tmp_path):
    """Guards: embeddings are those that each model serves, graphs too; labels are no texts, and texts are rows."""
    for mode in ("mean", "cls"):
        save_embeddings(tmp_path / mode, mode)
    export(tmp_path / "mean", tmp_path / "graphs")
    lines = [f"{text},{other},odd" for text, other in zip(TEXTS, TEXTS[::-1], strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["premise,hypothesis,verdict", *lines]) + "\n")
    places = [tmp_path / name for name in ("mean", "cls", "graphs")]
    found = compare(places, tmp_path / "rows.csv", label_column_name="verdict", batch_size=64)
    assert found.rows == 2 * len(TEXTS)
    inputs = AutoTokenizer.from_pretrained(places[0])([*TEXTS, *TEXTS[::-1]], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(places[0])(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    cosine = torch.cosine_similarity(mean, states[:, 0]).mean()
    assert found.sides[1].answers.divergence == pytest.approx(1 - float(cosine), rel=1e-3)
    assert found.sides[2].answers.divergence < 1e-6


def test_whole_numbers_of_a_regression(tmp_path):
    """Guards: a model of numbers is scored on stars from 1 to 5, and one beside it is that far off."""
    torch.manual_seed(0)
    model = model_of("ForSequenceClassification", **SHAPE, num_labels=1, problem_type="regression").eval()
    save(model, tmp_path / "one")
    with torch.no_grad():
        model.classifier.bias.add_(0.5)
    save(model, tmp_path / "two")
    rows = [f"{text},{number % 5 + 1}" for number, text in enumerate(TEXTS)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    found = compare([tmp_path / "one", tmp_path / "two"], tmp_path / "rows.csv")
    assert found.sides[0].scores.keys() >= {"pearson", "spearmanr"} and found.sides[0].lost is None
    assert found.sides[1].answers.divergence == pytest.approx(0.5**2 / 2, rel=1e-4)


def test_what_cannot_be_compared(models, tmp_path):
    """Guards: models of other labels or another head, damaged graphs, heads without one answer a row."""
    folder, *_ = models
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    save(model_of("ForSequenceClassification", num_labels=3, **SHAPE), tmp_path / "other")
    save(model_of("ForMaskedLM", **SHAPE), tmp_path / "words")
    several = {"problem_type": "multi_label_classification"}
    save(model_of("ForSequenceClassification", **SHAPE, **LABELS, **several), tmp_path / "labels")
    shutil.copytree(folder / "graphs", tmp_path / "damaged")
    (tmp_path / "damaged" / "onnx" / "model.onnx").write_bytes(b"no graph")
    for places, sentence in (
        (
            (folder / "one", tmp_path / "other"),
            "answers with classes LABEL_0, LABEL_1, LABEL_2, and .* classes odd",
        ),
        ((folder / "one", tmp_path / "words"), "words: it gives no classes, numbers or embeddings"),
        ((tmp_path / "damaged", folder / "one"), "model.onnx: cannot be read"),
        ((folder / "one", tmp_path / "labels"), "it answers with labels odd, bad, good"),
    ):
        with pytest.raises(InputError, match=sentence):
            fixedbert.compare([*places], tmp_path / "rows.txt", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()
