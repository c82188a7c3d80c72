"""The benchmark of lighter models compares quality, predictions and speed with the original model."""

import json

import pytest
import torch
from helpers.tiny_models import model_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from helpers.tiny_checkpoints import SHAPE, TEXTS, save  # noqa: E402

from benchmarks import lighter  # noqa: E402

LABELS = ["contradiction", "entailment", "neutral"]  # not in the order of the data set


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Pairs of MNLI: five of each dev set, 67 to train on."""
    folder = tmp_path / "data/glue/MNLI"
    folder.mkdir(parents=True)
    for name, count in (("train", 67), ("dev_matched", 5), ("dev_mismatched", 5)):
        rows = [f"{TEXTS[number % 4]}\t{TEXTS[number % 3]}\t{LABELS[number % 3]}" for number in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    monkeypatch.setenv("FIXEDBERT_DATA", str(tmp_path / "data"))


def test_a_lighter_model_beside_the_original(data, tmp_path, capsys):
    """Guards: each has its own accuracy, share of the original's answers and ratios to it."""
    for name, always, layers in (("original", 1, 2), ("lighter", 0, 1)):
        shape = SHAPE | {"num_hidden_layers": layers}
        model = model_of("ForSequenceClassification", id2label=dict(enumerate(LABELS)), **shape)
        with torch.no_grad():
            model.classifier.weight.zero_()
            model.classifier.bias.copy_(torch.eye(3)[always])  # entailment is right for 2 of 5, contradiction too
        save(model, tmp_path / name)
    models, file = [str(tmp_path / name) for name in ("original", "lighter")], tmp_path / "found.json"
    lighter.main(["measure", "mnli", *models, "--int8", *models, "--rounds", "1", "--output", str(file)])
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["original", "lighter", "original int8", "lighter int8"]
    for name, row in rows.items():
        assert row["scores"]["validation_matched"] == {"accuracy": 0.4}
        assert row["same"] == (1.0 if "original" in name else 0.0)
    assert rows["original"]["speed"]["one thread"] == [1.0, 1.0, 1.0]
    assert rows["lighter"]["flops"] < rows["original"]["flops"]
    assert "| 40.00 / 40.00 |" in capsys.readouterr().out
    for wrong, sentence in (
        ([*models, models[0]], "the same name"),
        ([models[0], "--int8", models[1]], "some of the"),
    ):
        with pytest.raises(SystemExit):
            lighter.main(["measure", "mnli", *wrong, "--output", str(file)])
        assert sentence in capsys.readouterr().err
