"""The benchmarks of serving: which models they measure, and what a table says where an engine cannot."""

import re

import pytest
import torch
from helpers.tiny_models import model_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from helpers.tiny_checkpoints import SHAPE, TEXTS, save  # noqa: E402

from benchmarks import engines, serving  # noqa: E402

LABELS = ["contradiction", "entailment", "neutral"]  # not in the order of the data set


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Five pairs of MNLI."""
    folder = tmp_path / "data/glue/MNLI"
    folder.mkdir(parents=True)
    for name in ("dev_matched", "dev_mismatched"):
        rows = [f"{TEXTS[number % 4]}\t{TEXTS[number % 3]}\t{LABELS[number % 3]}" for number in range(5)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    monkeypatch.setenv("FIXEDBERT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_accuracy_of_a_classifier(data, tmp_path, capsys):
    """Guards: a classifier of MNLI gets its accuracy, by the order of its own labels, in torch and in both graphs."""
    model = model_of("ForSequenceClassification", id2label=dict(enumerate(LABELS)), num_hidden_layers=1, **SHAPE)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))  # entailment, right for 2 of 5
    save(model, tmp_path / "model")
    serving.main([str(tmp_path / "model"), "--rounds", "1", "--sentences", "4"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert table[0].endswith("| MNLI | same label |")
    assert [line.split(" | ")[-2:] for line in table[2:]] == [["40.00", "100.00 |"]] * 3


def test_models_that_are_not_measured(data, tmp_path):
    """Guards: another head, or labels of another task, are one sentence each and no traceback."""
    for head, changes, message in [
        ("ForQuestionAnswering", {}, "has the head ForQuestionAnswering; give an encoder, or a classifier"),
        ("ForSequenceClassification", {"id2label": {0: "bad", 1: "good"}}, "labels are bad, good, and those of the"),
    ]:
        save(model_of(head, num_hidden_layers=1, **SHAPE, **changes), tmp_path / head)
        with pytest.raises(SystemExit, match=f"error: .*{head}: .*{message}"):
            serving.main([str(tmp_path / head)])


def test_size_of_weights(tmp_path):
    """Guards: weights in several files, or not in safetensors, have a size too; other pickles do not count."""
    (tmp_path / "pytorch_model-1.bin").write_bytes(bytes(5))
    (tmp_path / "training_args.bin").write_bytes(bytes(7))
    assert serving.weights_of(tmp_path) == 5
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(11))
    assert serving.weights_of(tmp_path) == 22


def test_engines(monkeypatch, capsys):
    """Guards: an engine that agrees has its difference, a wrong one a large one, others what they say, once each."""

    def refuses(folder):
        raise ValueError("only heads of 64\nand more")

    def wrong(folder):
        embed = engines.of_a_model(folder)
        return lambda texts: embed(texts).roll(1, 0)

    def absent(folder):
        import a_package_that_is_not_there

        return a_package_that_is_not_there

    chosen = {name: engines.ENGINES[name] for name in (engines.TORCH, "torch, without padding")}
    monkeypatch.setattr(engines, "ENGINES", chosen | {"wrong": wrong, "refuses": refuses, "absent": absent})
    engines.main(["--rounds", "1", "--texts", "5", "--num_hidden_layers", "1"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split(" | ")[0].strip("| "): line.strip("|").split(" | ")[1:] for line in lines if "|" in line}
    assert len(rows["engine"]) == 5
    assert all(float(cell.split(",")[0]) < 1e-6 for cell in rows["torch, without padding"])
    assert all(float(cell.split(",")[0]) > 1e-2 for cell in rows["wrong"])
    assert [cell.strip() for cell in rows["refuses"]] == ["[1]"] * 5
    assert lines[-2:] == ["1. only heads of 64", "2. not installed: a_package_that_is_not_there"]
    assert all(re.fullmatch(r"[\d,]+/s", cell.strip()) for cell in rows[engines.TORCH])
