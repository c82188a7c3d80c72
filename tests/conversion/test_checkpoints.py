"""Checkpoints of more than plain BERTs: pruned ones, other families, and heads of their own."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_models import bert_of, differences, inputs_of
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from fixedbert import FixedHeadBertForSequenceClassification, convert
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.support.errors import InputError
from fixedbert_cli import main

PRUNED_HEADS = {0: [1, 2], 2: [0, 1, 2, 3]}  # of 4 of size 8: all of layer 2


def configure(folder: Path, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def write(folder: Path, tensors: dict[str, torch.Tensor], pickled: bool = False):
    (folder / "model.safetensors").unlink(missing_ok=True)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def prune(bert: PreTrainedModel, folder: Path, neurons: dict[int, int], pickled: bool) -> PreTrainedModel:
    """Write `bert` without PRUNED_HEADS and with the first `neurons` of a layer alone; returns it with them masked."""
    tensors = dict(bert.state_dict())
    for number, layer in enumerate(bert.base_model.encoder.layer):
        gone = PRUNED_HEADS.get(number, [])
        kept = torch.tensor([i for i in range(32) if i // 8 not in gone], dtype=torch.long)
        count = neurons.get(number, 37)
        for part, rows in {"attention.self.query": kept, "attention.self.key": kept, "attention.self.value": kept,
                           "intermediate.dense": torch.arange(count)}.items():  # fmt: skip
            for kind in ("weight", "bias"):
                name = f"bert.encoder.layer.{number}.{part}.{kind}"
                tensors[name] = tensors[name][rows].clone()
        for part, columns in {"attention.output": kept, "output": torch.arange(count)}.items():
            name = f"bert.encoder.layer.{number}.{part}.dense.weight"
            tensors[name] = tensors[name][:, columns].clone()
        with torch.no_grad():
            layer.attention.output.dense.weight.view(32, 4, 8)[:, gone] = 0
            layer.output.dense.weight[:, count:] = 0
    bert.save_pretrained(folder)
    configure(folder, pruned_heads=PRUNED_HEADS)
    write(folder, tensors, pickled)
    return bert


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("neurons", [{}, {0: 5, 1: 0, 2: 36}])
def test_pruned_bert_is_the_masked_one(tmp_path, neurons, pickled, capsys):
    """Guards: a BERT saved without heads and neurons, some layers without any, computes what the masked one does."""
    labels = {0: "no", 1: "yes", 2: "maybe"}
    bert = bert_of("ForSequenceClassification", id2label=labels, initializer_range=0.1)
    masked = prune(bert, tmp_path / "pruned", neurons, pickled)
    counts = [neurons.get(layer, 37) for layer in range(3)]
    pruned = load_bert(tmp_path / "pruned")
    assert f"pruned, by its weights to 2, 4, 0 heads and {', '.join(map(str, counts)) if neurons else 37} neurons" in (
        capsys.readouterr().out
    )
    assert (pruned.config.head_counts, pruned.config.neuron_counts) == ([2, 4, 0], counts)
    assert type(pruned) is FixedHeadBertForSequenceClassification and pruned.config.id2label == labels
    assert differences(pruned, masked, inputs_of("ForSequenceClassification")) <= 1e-6
    main(["convert", str(tmp_path / "pruned"), "--output_dir", str(tmp_path / "fixed")])
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "fixed")
    assert differences(opened, masked, inputs_of("ForSequenceClassification")) <= 1e-6
    larger = convert(pruned, num_attention_heads=4, intermediate_size=37)
    assert differences(larger, masked, inputs_of("ForSequenceClassification")) <= 1e-5


def test_pruned_heads_belong_to_the_weights(tmp_path):
    """Guards: weights decide where config.json is silent; where it contradicts them, or they are no heads, it ends."""
    masked = prune(bert_of("ForSequenceClassification", initializer_range=0.1), tmp_path, {}, pickled=False)
    configure(tmp_path, pruned_heads={})
    assert differences(load_bert(tmp_path), masked, inputs_of("ForSequenceClassification")) <= 1e-6
    for heads, layer, count in (
        ({0: [1], 2: [0, 1, 2, 3]}, 0, 3),
        ({0: [1, 2]}, 2, 0),
        ({0: [1, 4], 2: [0, 1, 2, 3]}, 0, 3),
        (PRUNED_HEADS | {3: [1]}, 3, 1),
    ):
        configure(tmp_path, pruned_heads=heads)
        sentence = f"{tmp_path}: pruned_heads .* contradicts the weights: layer {layer} would have had {count} heads"
        with pytest.raises(InputError, match=sentence):
            load_bert(tmp_path)
    bert = bert_of("ForSequenceClassification")
    bert.save_pretrained(tmp_path)
    configure(tmp_path, pruned_heads={1: [3]})
    with pytest.raises(InputError, match="layer 1 would have had 5 heads, not 4; give"):
        load_bert(tmp_path)
    query = "bert.encoder.layer.1.attention.self.query.weight"
    configure(tmp_path, pruned_heads={})
    write(tmp_path, dict(bert.state_dict()) | {query: torch.ones(13, 32)})
    with pytest.raises(InputError, match=r"1.attention.self.query.weight has the shape \(13, 32\)"):
        load_bert(tmp_path)
