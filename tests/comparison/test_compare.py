"""`fixedbert compare`: scores, different predictions, and fidelity to the first model."""

import csv
import json
import random
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, TEXTS, save
from helpers.tiny_models import model_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fixedbert
from fixedbert.comparison import candidates, runtimes
from fixedbert.comparison.candidates import Candidate
from fixedbert.exporting.export import export
from fixedbert.support.errors import InputError
from fixedbert.tasks.predictions import Predictions
from fixedbert_cli import main

compare = partial(fixedbert.compare, runtime=["torch"])

NAMES = ["odd", "bad", "good"]  # not in alphabetical order
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: number for number, name in enumerate(NAMES)}}
PAIRS = [(f"{one} {number}", other) for number in range(5) for one, other in zip(TEXTS, TEXTS[::-1], strict=True)]


def inputs_of(directory, length=17):
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    return AutoTokenizer.from_pretrained(directory)(*map(list, zip(*PAIRS, strict=True)), **options)


def changed_rows(directory):
    with (directory / "changed.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """
    Returns a directory with a classifier, a copy with two classes swapped, and ONNX graphs of the classifier; also the
    predictions of the classifier and of its copy.
    """
    directory = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model = model_of("ForSequenceClassification", num_hidden_layers=1, value_head_size=9, **SHAPE, **LABELS).eval()
    save(model, directory / "one")
    with torch.no_grad():
        model.classifier.bias.sub_(model(**inputs_of(directory / "one")).logits.mean(0))
        save(model, directory / "one")
        classes = [model(**inputs_of(directory / "one")).logits.argmax(-1)]
        for part in (model.classifier.weight, model.classifier.bias):
            part.copy_(part[[1, 0, 2]])
        classes.append(model(**inputs_of(directory / "one")).logits.argmax(-1))
    save(model, directory / "two")
    pytest.importorskip("onnxruntime")
    export(directory / "one", directory / "graphs", int8=True)
    return directory, *classes


def test_labelled_rows(models, tmp_path, capsys):
    """With labels, the accuracies, lost and gained rows, agreement, and file of changed predictions are correct."""
    directory, one, two = models
    labels = torch.where(torch.arange(len(PAIRS)) % 3 == 0, two, one)  # every third row is right in the second model
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = [(*pair, NAMES[label]) for pair, label in zip(PAIRS, labels.tolist(), strict=True)]
        csv.writer(file).writerows([("premise", "hypothesis", "verdict"), *rows])
    sources = [str(directory / name) for name in ("one", "two", "graphs")]
    words = ["--label_column_name", "verdict", "--max_seq_length", "17", "--batch_size", "7"]
    words += ["--text_column_names", "premise,hypothesis", "--output_dir", str(tmp_path / "out")]
    words += ["--runtime", "torch"]
    main(["compare", *sources, "--validation_file", str(tmp_path / "rows.csv"), *words])
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    first, other, exact, int8 = written["models"]
    assert written["rows"] == len(PAIRS) and [exact["label"], int8["label"]] == [
        "graphs, onnxruntime",
        "graphs, onnxruntime-int8",
    ]
    assert 0 < (one != two).sum() < len(PAIRS)
    for model, classes in ((first, one), (other, two)):
        assert model["scores"]["accuracy"] == pytest.approx(float((classes == labels).float().mean()))
    assert other["lost"] == int(((one == labels) & (two != labels)).sum())
    assert other["gained"] == int(((one != labels) & (two == labels)).sum())
    assert other["fidelity"]["agreement"] == pytest.approx(float((one == two).float().mean()))
    assert other["fidelity"]["rows"] == len(PAIRS)
    assert exact["fidelity"]["agreement"] == 1
    assert exact["fidelity"]["divergence"] < 1e-6 < int8["fidelity"]["divergence"]
    assert first["speedup"] == {"random": 1, "single": 1} and first["fidelity"] is None
    assert min(int8["rows_per_second"].values()) > 0
    changed = changed_rows(tmp_path / "out")
    names = ["one", "two", "graphs, onnxruntime", "graphs, onnxruntime-int8"]
    assert [*changed[0]] == ["row", "premise", "hypothesis", "label", *names]
    table = {int(line["row"]): line for line in changed}
    assert [*table] == sorted(table)
    for row, (pair, label, mine, others) in enumerate(
        zip(PAIRS, labels.tolist(), one.tolist(), two.tolist(), strict=True)
    ):
        if mine != others:
            line = table.pop(row)
            assert (line["premise"], line["hypothesis"]) == pair and line["label"] == NAMES[label]
            assert (line["one"], line["two"]) == (NAMES[mine], NAMES[others])
    assert all(
        len({line[name] for name in names[:3]}) == 1 and line["one"] != line[names[3]] for line in table.values()
    )
    printed = capsys.readouterr().out
    assert f"{len(PAIRS)} rows from" in printed and "rows that changed: " in printed


def test_unlabelled_rows(models, tmp_path):
    """Without labels, the report contains no scores. With `max_eval_samples`, the rows are a random sample."""
    directory, *_ = models
    lines = [f"{first},{second}" for first, second in PAIRS]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence1,sentence2", *lines]) + "\n")
    sources = [directory / "one", directory / "two"]
    result = compare(sources, tmp_path / "rows.csv", max_eval_samples=13, output_dir=tmp_path / "out")
    assert result.rows == 13 and result.models[1].scores == {} and result.models[1].lost is None
    changed = changed_rows(tmp_path / "out")
    assert len(changed) == round(13 * (1 - result.models[1].fidelity.agreement))
    chosen = {PAIRS[index] for index in random.Random(0).sample(range(len(PAIRS)), 13)}
    assert {(line["sentence1"], line["sentence2"]) for line in changed} <= chosen
    assert all(line["label"] == "" for line in changed)
    twice = compare([directory / "one", directory / "one"], tmp_path / "rows.csv")
    assert twice.models[1].fidelity.agreement == 1
    assert [model.name for model in twice.models] == [str(directory / "one")] * 2  # full paths instead of names


def test_regression(tmp_path):
    """Regression models are also scored on integer labels, and the divergence is half the squared difference."""
    torch.manual_seed(0)
    model = model_of("ForSequenceClassification", **SHAPE, num_labels=1, problem_type="regression").eval()
    save(model, tmp_path / "one")
    with torch.no_grad():
        model.classifier.bias.add_(0.5)
    save(model, tmp_path / "two")
    rows = [f"{text},{number % 5 + 1}" for number, text in enumerate(TEXTS)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    result = compare([tmp_path / "one", tmp_path / "two"], tmp_path / "rows.csv")
    assert result.models[0].scores.keys() >= {"pearson", "spearmanr"} and result.models[0].lost is None
    assert result.models[1].fidelity.divergence == pytest.approx(0.5**2 / 2, rel=1e-4)
    assert "largest difference 0.5, mean difference 0.5, standard deviation" in str(result)


def test_unsuitable_models(models, tmp_path):
    """Models with different classes or tasks raise InputError."""
    directory, *_ = models
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    save(model_of("ForSequenceClassification", num_labels=3, **SHAPE), tmp_path / "other")
    multi_label = {"problem_type": "multi_label_classification"}
    save(model_of("ForSequenceClassification", **SHAPE, **LABELS, **multi_label), tmp_path / "labels")
    for name, message in (
        ("other", "other predicts classes LABEL_0, LABEL_1, LABEL_2, but .*one predicts classes odd, bad, good"),
        ("labels", "labels predicts labels odd, bad, good, but"),
    ):
        with pytest.raises(InputError, match=message):
            compare([directory / "one", tmp_path / name], tmp_path / "rows.txt", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@torch.no_grad()
def save_pair(directory, **config):
    """Saves a sequence classifier and a copy with a different head. Returns their paths and logits for TEXTS."""
    model, logits = model_of("ForSequenceClassification", **SHAPE, **config).eval(), []
    save(model, directory / "one")
    inputs = AutoTokenizer.from_pretrained(directory / "one")(TEXTS, padding=True, return_tensors="pt")
    model.classifier.bias.sub_(model(**inputs).logits.mean(0))
    for name in ("one", "two"):
        save(model, directory / name)
        logits.append(model(**inputs).logits.double().numpy())
        model.classifier.bias.add_(torch.tensor([1.5, -0.2, -1.3]))
    return [directory / "one", directory / "two"], *logits


def test_several_labels_per_text(tmp_path):
    """Scores, agreement and changes are based on sets of labels, from the threshold that each model stores."""
    sources, *logits = save_pair(tmp_path, **LABELS, problem_type="multi_label_classification")
    given, predictions = [1 / (1 + np.exp(-values)) for values in logits], []
    for source, values in zip(sources, given, strict=True):
        threshold = np.sort(values.ravel())[[8, 9]].mean()  # predicts 3 of 4 * 3 labels
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"label_threshold": threshold}))
        predictions.append(values >= threshold)
    labels = [["odd", "good"], [], ["bad"], ["odd", "bad", "good"]]
    lines = [{"text": text, "label": names} for text, names in zip(TEXTS, labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    flags = np.array([[name in names for name in NAMES] for names in labels])
    result = compare(sources, tmp_path / "rows.jsonl", output_dir=tmp_path / "out")
    sets = []
    for predicted, model in zip(predictions, result.models, strict=True):
        both = (predicted & flags).sum()
        assert model.scores["micro_f1"] == pytest.approx(2 * both / (predicted.sum() + flags.sum()))
        assert model.scores["exact_match"] == (predicted == flags).all(axis=1).mean()
        assert model.scores.keys() >= {"macro_f1", "average_precision"}
        sets.append([", ".join(name for name, flag in zip(NAMES, row, strict=True) if flag) for row in predicted])
    same = [one == two for one, two in zip(*sets, strict=True)]
    assert result.models[1].fidelity.agreement == np.mean(same) and not all(same)
    changed = iter(changed_rows(tmp_path / "out"))
    for row in range(4):
        if not same[row]:
            line = next(changed)
            assert (line["row"], line["text"]) == (str(row), TEXTS[row])
            assert (line["label"], line["one"]) == (", ".join(labels[row]), sets[0][row])
    assert not [*changed]


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_classes_in_another_order(tmp_path, kind):
    """The outputs of a model with the same classes in another order are compared by name, also if they are numbers."""
    names = ["2", "0", "1"]
    sources, *_ = save_pair(tmp_path, num_labels=3, problem_type=kind)  # LABEL_0, LABEL_1, LABEL_2
    model = AutoModelForSequenceClassification.from_pretrained(sources[0])
    with torch.no_grad():
        for part in (model.classifier.weight, model.classifier.bias):
            part.copy_(part[[2, 0, 1]])
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    save(model, tmp_path / "permuted")
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    for pair in ([sources[0], tmp_path / "permuted"], [tmp_path / "permuted", sources[0]]):
        result = compare(pair, tmp_path / "rows.txt")
        assert result.models[1].fidelity.agreement == 1 and result.models[1].fidelity.divergence < 1e-6


def test_speed_of_a_copy(models, tmp_path, monkeypatch):
    """A copy is as fast as the original even if the first run of each shape takes longer, and the load varies."""
    directory, *_ = models
    timed, seen, calls = Candidate.timed, set(), iter(range(10_000))

    def slow_at_first(candidate, rows):
        predictions, _ = timed(candidate, rows)
        key = (sum(len(candidate.features[row][0]["input_ids"]) for row in rows), len(rows))
        first = key not in seen  # shapes that were prepared for any model, as in oneDNN's cache
        seen.add(key)
        return predictions, 9.0 if first or next(calls) % 11 == 0 else 1.0 + len(rows)

    monkeypatch.setattr(Candidate, "timed", slow_at_first)
    (tmp_path / "rows.csv").write_text("\n".join(["sentence1,sentence2", *(",".join(pair) for pair in PAIRS)]))
    result = compare([directory / "one", directory / "one"], tmp_path / "rows.csv", batch_size=3)
    assert all(speedup == pytest.approx(1, abs=0.25) for speedup in result.models[1].speedup.values())
    one, two = (np.array([*model.rows_per_second.values()]) for model in result.models)
    assert [*result.models[1].speedup.values()] == pytest.approx((two / one).tolist())


@pytest.mark.parametrize("noise, rounds", [(0.0, 3), (0.02, 3), (0.2, 6)])
def test_rounds_are_added_while_speedups_differ(noise, rounds):
    """A race has more rounds if the speedups in even and odd rounds differ by more than 3%, but only up to a limit."""
    draw, calls = random.Random(0), [0, 0]

    def timed(candidate, rows):
        calls[candidate] += 1
        number = (calls[candidate] - 1) // 40  # round
        disturbed = candidate == 1 and number % 2  # only odd rounds, so that more rounds do not help
        return [Predictions(torch.tensor([[float(candidate)]]), "numbers")], (
            9.0 if number == 0 else (2 - candidate) * (1 + draw.random() / 1e3 + noise * disturbed)
        )

    racers = [Mock(timed=partial(timed, candidate)) for candidate in (0, 1)]
    result = candidates.race(racers, [[row] for row in range(40)], "")
    assert calls == [40 * rounds] * 2 and (result.spread > 0.03) == (rounds > 3)
    assert result.seconds.tolist() == pytest.approx([80, 40], rel=1e-2)
    assert [len(own) for own in result.predictions] == [40, 40] and float(result.predictions[1][7][0].values) == 1


def test_labels_of_a_model_without_names(tmp_path):
    """If the models have no label names, numeric labels in the file are taken as label ids."""
    sources, *logits = save_pair(tmp_path, num_labels=3)
    lines = [f"{text},{number}" for number, text in zip((2, 0, 1, 2), TEXTS, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    one, two = (values.argmax(axis=1) for values in logits)
    result = compare(sources, tmp_path / "rows.csv", output_dir=tmp_path / "out")
    assert result.models[1].fidelity.agreement == (one == two).mean() < 1
    assert [model.scores["accuracy"] for model in result.models] == [(x == [2, 0, 1, 2]).mean() for x in (one, two)]
    changed = [(line["one"], line["two"]) for line in changed_rows(tmp_path / "out")]
    assert changed == [(f"LABEL_{x}", f"LABEL_{y}") for x, y in zip(one, two, strict=True) if x != y]


def test_text_columns_of_the_model(tmp_path):
    """The text columns on which the model was trained are used, in the same order."""
    sources, *_ = save_pair(tmp_path, **LABELS, text_column_names=["question", "answer"])
    lines = [f"{text},{other}" for text, other in zip(TEXTS, TEXTS[::-1], strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["answer,question", *lines]) + "\n")
    compare(sources, tmp_path / "rows.csv", output_dir=tmp_path / "out")
    changed = changed_rows(tmp_path / "out")
    assert [*changed[0]][:4] == ["row", "question", "answer", "label"]
    assert all(TEXTS[int(line["row"])] == line["answer"] for line in changed)


def test_lines_and_truncated_rows(tmp_path):
    """Lines of a text file keep their position, and rows with more tokens than the maximum are counted."""
    sources, *logits = save_pair(tmp_path, **LABELS)
    (tmp_path / "rows.txt").write_text("\n\n".join(TEXTS) + "\n")
    tokenizer = AutoTokenizer.from_pretrained(sources[0])
    lengths = [len(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    for length in (max(lengths), sorted(lengths)[-2], 3):
        output = tmp_path / f"out-{length}"
        result = compare(sources, tmp_path / "rows.txt", max_seq_length=length, output_dir=output)
        count = sum(size > length for size in lengths)
        assert [model.truncated for model in result.models] == [count] * 2
        assert (f"truncated: rows with more than {length} tokens" in str(result)) == (count > 0)
    changed = [row for row, pair in enumerate(zip(*logits, strict=True)) if pair[0].argmax() != pair[1].argmax()]
    assert [int(line["row"]) for line in changed_rows(tmp_path / f"out-{max(lengths)}")] == [
        2 * row for row in changed
    ]


@pytest.mark.slow
def test_all_runtimes(models, tmp_path, monkeypatch):
    """A single model is compared in all runtimes, and those in float32 have the same predictions."""
    for package in ("openvino", "nncf"):
        pytest.importorskip(package)
    directory, *_ = models
    monkeypatch.setattr(runtimes, "has_bf16", lambda **_: True)
    rows = [(*pair, NAMES[0]) for pair in PAIRS * 2]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("sentence1", "sentence2", "label"), *rows])
    result = fixedbert.compare([directory / "one"], tmp_path / "rows.csv", max_seq_length=17, batch_size=13)
    assert [model.runtime for model in result.models] == [*runtimes.RUNTIMES]
    note = "openvino-int8: calibrated on 40 of these rows, so it may agree less on new rows"
    assert note in result.notes
    assert all(model.scores["accuracy"] > 0 and model.megabytes > 0 for model in result.models)
    float32 = [model for model in result.models if model.runtime in ("torch-unpadded", "onnxruntime", "openvino")]
    assert len(float32) == 3 and all(model.fidelity.divergence < 1e-6 for model in float32)
    bf16 = next(model for model in result.models if model.runtime == "torch-bf16")
    assert 1e-9 < bf16.fidelity.divergence < 1e-2 and bf16.megabytes == result.models[0].megabytes / 2
    assert "Fastest, if all rows have the same prediction: " in result.advice


def test_several_models_run_as_they_are_stored(models, tmp_path, monkeypatch):
    """Each of several models runs with the padding and dtype of its directory. The first is also the reference."""
    directory, one, two = models
    monkeypatch.setattr(runtimes, "has_bf16", lambda **_: True)
    fixedbert.convert(str(directory / "two"), output_dir=str(tmp_path / "fast"), unpad_inputs=True, dtype="bfloat16")
    lines = [f"{first},{second}" for first, second in PAIRS * 2]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence1,sentence2", *lines]) + "\n")
    result = fixedbert.compare([tmp_path / "fast", directory / "one"], tmp_path / "rows.csv")
    assert [model.label for model in result.models] == ["fast", "fast, torch-unpadded-bf16", "one"]
    assert result.models[2].fidelity.agreement == pytest.approx(float((one == two).float().mean()))
    assert str(result).endswith("Compare a model alone to find its fastest runtime.")


def test_advice(models, tmp_path, monkeypatch):
    """The advice names the fastest runtime that keeps the predictions."""
    directory, *_ = models
    timed = Candidate.timed

    def scaled(candidate, rows):
        predictions, _ = timed(candidate, rows)
        if candidate.runtime == "torch-bf16":
            predictions = [replace(each, values=each.values.roll(1, -1)) for each in predictions]
        return predictions, {"torch": 3.0, "torch-unpadded": 2.0, "torch-bf16": 1.0}[candidate.runtime]

    monkeypatch.setattr(runtimes, "has_bf16", lambda **_: True)
    monkeypatch.setattr(Candidate, "timed", scaled)
    lines = [f"{first},{second}" for first, second in PAIRS * 2]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence1,sentence2", *lines]) + "\n")
    names = ["torch", "torch-unpadded", "torch-bf16"]
    result = fixedbert.compare([directory / "one"], tmp_path / "rows.csv", runtime=names)
    assert [model.runtime for model in result.models] == names
    assert [model.speedup["single"] for model in result.models] == [1, 1.5, 3]
    assert result.advice.startswith("Fastest, if all rows have the same prediction: torch-unpadded (1.50 times")


def test_runtimes_that_cannot_run(models, tmp_path, monkeypatch):
    """Runtimes that are slow or failing are skipped with a note. Without any other, the command is refused."""
    directory, *_ = models
    (tmp_path / "rows.txt").write_text("one text\nand two\n" * 20)
    monkeypatch.setattr(runtimes, "has_bf16", lambda **_: False)
    failing = Mock(side_effect=ValueError("no such operator\n..."))
    monkeypatch.setattr(candidates, "write_onnx", failing)
    result = fixedbert.compare([directory / "one"], tmp_path / "rows.txt")
    assert [model.runtime for model in result.models] == ["torch", "torch-unpadded"]
    assert "onnxruntime, onnxruntime-int8, openvino, openvino-int8: skipped (no such operator)" in result.notes
    assert failing.call_count == 1  # tracing takes as long as the comparison
    assert "torch-bf16, torch-unpadded-bf16, openvino-bf16: skipped (bfloat16 is slow on this processor)" in str(
        result
    )
    with pytest.raises(InputError, match="one: no runtime works: torch-bf16: skipped"):
        fixedbert.compare([directory / "one"], tmp_path / "rows.txt", runtime=["torch-bf16"])
