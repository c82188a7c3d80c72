"""Tests that parameters and FLOPs are counted exactly."""

import random

import pytest
import torch
from helpers.tiny_models import UNEQUAL, B, L, config_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForPreTraining, BertConfig

from fixedbert import FixedHeadBertForPreTraining, FixedHeadBertModel
from fixedbert.counts import Shape, layer_shapes, parameters, training_flops
from fixedbert.planning import KNOWN

STOCK = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=37)


EMPTY = {"layer_attention_heads": [0, 5, 3], "intermediate_size": [11, 37, 0], "head_embedding": "mul"}


@pytest.mark.parametrize("changes", [{}, EMPTY], ids=["unequal", "empty"])
def test_weights_of_unequal_layers(changes):
    """Weights and parameters are counted exactly if layers are unequal."""
    config = config_of("ForPreTraining", **UNEQUAL | changes)
    model = FixedHeadBertModel(config, add_pooling_layer=False)
    matrices = [p for name, p in model.encoder.named_parameters() if p.ndim == 2 and "embedding" not in name]
    assert sum(layer.weights for layer in layer_shapes(config)) == sum(p.numel() for p in matrices)
    total, layers = parameters(config)
    assert layers == sum(p.numel() for p in model.encoder.parameters())
    assert total == FixedHeadBertForPreTraining(config).num_parameters()


@pytest.mark.parametrize(
    "config",
    [config_of("ForPreTraining", **UNEQUAL), config_of("ForPreTraining", **UNEQUAL | EMPTY), STOCK],
    ids=["unequal", "empty", "stock"],
)
def test_training_flops(config):
    """Training FLOPs of the pretraining model equal those that torch counts, for FixedHeadBert and stock BERT."""
    model = AutoModelForPreTraining.from_config(config, attn_implementation="eager")
    embeddings = torch.randn(B, L, config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        outputs = model(inputs_embeds=embeddings)
        (outputs.prediction_logits.sum() + outputs.seq_relationship_logits.sum()).backward()
    assert counter.get_total_flops() == B * training_flops(config, L, L)


def random_shapes(count: int, maximum: int) -> list[Shape]:
    """Returns random shapes with a width and head size of at most `maximum`."""
    rng = random.Random(0)
    limits = {"d": (3, maximum), "L": (1, 5), "h": (1, 9), "p": (1, maximum), "F": (1, 3 * maximum)}
    limits |= {"vocabulary": (10, 99), "positions": (16, 40)}
    return [Shape(**{name: rng.randint(*limit) for name, limit in limits.items()}) for _ in range(count)]


@pytest.mark.parametrize("shape", [*KNOWN.values(), *random_shapes(20, 300)], ids=str)
def test_parameters_of_a_shape(shape):
    """Parameter counts equal those of the models, for all presets, BERT-base, BERT-large and random shapes."""
    with torch.device("meta"):
        model = FixedHeadBertForPreTraining(shape.config())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", random_shapes(10, 40), ids=str)
def test_flops_of_a_shape(shape, sparse):
    """FLOPs of a shape equal those that torch counts, with predictions for all tokens or only for labeled tokens."""
    model = FixedHeadBertForPreTraining(shape.config())
    model.set_attn_implementation("eager")
    model.sparse_prediction = sparse
    n, rows, generator = 11, 3, torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocabulary, (rows, n), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) > 0.3, -100)
    labels[0, 0] = ids[0, 0]
    predicted = int((labels != -100).sum()) / rows if sparse else n
    with FlopCounterMode(display=False) as counter:
        outputs = model(input_ids=ids, labels=labels, next_sentence_label=torch.zeros(rows, dtype=torch.long))
    assert counter.get_total_flops() == pytest.approx(rows * shape.forward_flops(n, predicted), rel=1e-12)
    with FlopCounterMode(display=False) as counter:
        outputs.loss.backward()
    backward = rows * (shape.training_flops(n, predicted) - shape.forward_flops(n, predicted))
    assert counter.get_total_flops() == pytest.approx(backward, rel=1e-12)
