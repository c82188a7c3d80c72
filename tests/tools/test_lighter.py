"""The benchmark of lighter models: quality, answers and speed beside the original's; and plainer ways to cut."""

import json

import pytest
import torch
from helpers.tiny_models import model_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from helpers.tiny_checkpoints import SHAPE, TEXTS, save  # noqa: E402

from benchmarks import lighter, pruning  # noqa: E402
from fixedbert.conversion.checkpoints import load_bert  # noqa: E402
from fixedbert.counts import forward_flops  # noqa: E402
from fixedbert.shrinking.layers import layers_of, shapes_of  # noqa: E402

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


def test_plainer_ways_to_cut(data, tmp_path):
    """Guards: within the budget stays what is worth most, as it was; with all of it the function; a refit is one."""
    shape = SHAPE | {
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "attention_head_size": 6,
        "intermediate_size": 37,
    }
    model = model_of("ForSequenceClassification", id2label=dict(enumerate(LABELS)), **shape).eval()
    smaller = model_of("ForSequenceClassification", **shape | {"num_attention_heads": 3, "intermediate_size": 19})
    layer = layers_of(model)[1]
    with torch.no_grad():
        layer.output.dense.weight[:, 11:] = 0  # neurons that do nothing, with large weights before them
        layer.intermediate.dense.weight[11:] *= 50
    save(model, tmp_path / "original")
    save(smaller, tmp_path / "smaller")

    def cut(by, like, *flags):
        folder = tmp_path / "-".join([by, like, *flags])
        arguments = ["mnli", str(tmp_path / "original"), "--by", by, "--like", str(tmp_path / like), *flags]
        pruning.main([*arguments, "--output_dir", str(folder)])
        return load_bert(folder).eval()

    ids = torch.arange(5, 18)[None]
    assert torch.equal(cut("fisher", "original")(input_ids=ids).logits, model(input_ids=ids).logits)
    found = {by: cut(by, "smaller") for by in ("fisher", "magnitude")}
    assert all(forward_flops(x.config, 13) <= forward_flops(smaller.config, 13) for x in found.values())
    assert shapes_of(found["fisher"])[1].neurons <= 11
    halves, neurons = zip(*((x.heads.number, x.neurons) for x in shapes_of(found["magnitude"])), strict=True)
    assert halves == (2, 2) and neurons[0] == neurons[1] > 19
    kept = layers_of(found["magnitude"])[1].intermediate.dense.weight
    assert (kept.norm(dim=1) > 50).sum() == 26
    again = layers_of(cut("magnitude", "smaller", "--refit"))[1]
    assert torch.equal(again.intermediate.dense.weight, kept)
    assert not torch.equal(again.output.dense.weight, layers_of(found["magnitude"])[1].output.dense.weight)


def test_half_of_the_layers(data, tmp_path, capsys):
    """Guards: the layer stays that the answers need, unchanged; flags that do not fit are refused."""
    model = model_of(
        "ForSequenceClassification", num_hidden_layers=2, id2label=dict(enumerate(LABELS)), **SHAPE
    ).eval()
    idle, needed = layers_of(model)
    with torch.no_grad():
        for dense in (idle.attention.output.dense, idle.output.dense):
            dense.weight.zero_()
            dense.bias.zero_()
    save(model, tmp_path / "original")
    command = ["mnli", str(tmp_path / "original"), "--by", "layers", "--output_dir", str(tmp_path / "half")]
    pruning.main(command)
    (left,) = layers_of(load_bert(tmp_path / "half"))
    assert all(torch.equal(a, b) for a, b in zip(left.parameters(), needed.parameters(), strict=True))
    with pytest.raises(SystemExit):
        pruning.main([*command, "--refit"])
    assert "layers take neither" in capsys.readouterr().err
