"""Parameters and operations are counted exactly."""

import random

import pytest
import torch
from helpers.tiny_models import UNEQUAL, B, L, config_of, inputs_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForPreTraining, BertConfig, BertModel

from fixedbert import PRESETS, FixedHeadBertForPreTraining, FixedHeadBertModel, preset_config
from fixedbert.counts import Shape, forward_flops, layer_shapes, parameters, training_flops
from fixedbert.planning import KNOWN

STOCK = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=37)


@pytest.mark.parametrize(
    "config, model_class",
    [
        (config_of("Model"), FixedHeadBertModel),
        (config_of("Model", head_embedding="add"), FixedHeadBertModel),
        (config_of("Model", attention_head_size=[3, 13, 6]), FixedHeadBertModel),
        (config_of("Model", value_head_size=[9, 4, 6], layer_attention_heads=[2, 5, 3]), FixedHeadBertModel),
        (config_of("Model", value_head_size=4, head_embedding="mul"), FixedHeadBertModel),
        (STOCK, BertModel),  # whose head size is that of its width
    ],
    ids=["fixed", "shared", "by layer", "values", "shared values", "stock"],
)
def test_operations_are_the_profiler_s(config, model_class):
    """Guards: the formula counts what torch's counter sees, with heads * head size in the place of the width."""
    model = model_class(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(inputs_of("Model")["input_ids"])
    assert counter.get_total_flops() == B * L * forward_flops(config, L)


def test_parameters_of_a_preset_by_hand():
    """Guards: with both heads of pretraining it is the paper's count; the layers alone are what a layer is made of."""
    everything, layers = parameters(preset_config("fixed-512-8x128"))
    assert everything == 167_690_044
    assert layers == 24 * (4 * 512 * 1024 + 3 * 1024 + 512 + 2 * 512 * 4096 + 4096 + 512 + 4 * 512)
    for name, preset in PRESETS.items():
        if preset.parameters:
            assert round(parameters(preset_config(name))[0] / 1e6) == preset.parameters


EMPTY = {"layer_attention_heads": [0, 5, 3], "intermediate_size": [11, 37, 0]}


@pytest.mark.parametrize(
    "changes",
    [{}, {"head_embedding": "mul"}, EMPTY, EMPTY | {"head_embedding": "mul"}],
    ids=["own", "shared", "empty", "empty and shared"],
)
def test_training_with_unequal_heads(changes):
    """Guards: where layers have other heads, weights are those of the model, and forward and backward of its layers
    together take three times the forward operations."""
    config = config_of("ForPreTraining", **UNEQUAL | changes, attn_implementation="eager")
    model = FixedHeadBertModel(config, add_pooling_layer=False)
    matrices = [p for name, p in model.encoder.named_parameters() if p.ndim == 2 and "embedding" not in name]
    assert sum(layer.weights for layer in layer_shapes(config)) == sum(p.numel() for p in matrices)
    everything, layers = parameters(config)
    assert layers == sum(p.numel() for p in model.encoder.parameters())
    assert everything == FixedHeadBertForPreTraining(config).num_parameters()
    embeddings = torch.randn(B, L, config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=embeddings).last_hidden_state.sum().backward()
    assert counter.get_total_flops() == 3 * B * L * forward_flops(config, L)


@pytest.mark.parametrize("config", [config_of("ForPreTraining", **UNEQUAL), STOCK], ids=["ours", "stock"])
def test_operations_of_pretraining_are_the_profiler_s(config):
    """Guards: forward and backward of layers, pooler and both heads, for FixedHeadBert as for stock BERT."""
    model = AutoModelForPreTraining.from_config(config, attn_implementation="eager")
    embeddings = torch.randn(B, L, config.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        outputs = model(inputs_embeds=embeddings)
        (outputs.prediction_logits.sum() + outputs.seq_relationship_logits.sum()).backward()
    assert counter.get_total_flops() == B * training_flops(config, L, L)


def random_shapes(count: int, largest: int) -> list[Shape]:
    rng = random.Random(0)
    return [
        Shape(
            d=rng.randint(3, largest),
            L=rng.randint(1, 5),
            h=rng.randint(1, 9),
            p=rng.randint(1, largest),
            F=rng.randint(1, 3 * largest),
            vocabulary=rng.randint(10, 99),
            positions=rng.randint(16, 40),
        )
        for _ in range(count)
    ]


def model_parameters(shape: Shape) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in FixedHeadBertForPreTraining(shape.config()).parameters())


@pytest.mark.parametrize("shape", [*KNOWN.values(), *random_shapes(50, 300)], ids=str)
def test_parameters_are_exact(shape):
    """Guards: the formula is sum(p.numel()) for every preset, BERT-base and -large, and 50 random shapes."""
    assert shape.parameters == model_parameters(shape)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", random_shapes(50, 40), ids=str)
def test_operations_are_exact(shape, sparse):
    """Guards: forward and training FLOPs are those that torch counts, with a dense and a sparse prediction head."""
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


def test_cost_of_the_paper_s_recipe():
    """Guards: hours are tokens times training FLOPs over the speed, at both lengths, by hand for BERT-large."""
    d, L, F, V = 1024, 24, 4096, 30522
    flops = 0.0
    for n, tokens in ((128, 58_982_400_000), (512, 26_214_400_000)):
        layers = 2 * L * (4 * d * d + 2 * n * d + 2 * d * F) * n
        heads = 2 * (0.15 * n * (d * d + d * V) + d * d + 2 * d)
        flops += tokens / n * 3 * (layers + heads)
    assert KNOWN["BERT-large"].paper_hours(1e15) == pytest.approx(flops / 1e15 / 3600)


def test_equivalent_width():
    """Guards: a standard layer is its own equivalent; 32 heads of 128 in width 512 weigh as much as width 1024."""

    def width_of(config):
        (layer,) = set(layer_shapes(config))
        return layer.equivalent_width

    assert width_of(preset_config("standard-1024-16x64")) == 1024
    shared = preset_config("standard-1024-16x64", head_embedding="add", attention_head_size=64)
    assert width_of(shared) == pytest.approx(((3 * 1024 * 64 + 1024**2 + 8 * 1024**2) / 12) ** 0.5)
    assert width_of(preset_config("fixed-512-32x128")) == pytest.approx(1024)
