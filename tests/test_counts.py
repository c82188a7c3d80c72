"""Tests that parameters and FLOPs are counted exactly."""

import pytest
import torch
from helpers.tiny_models import UNEQUAL, B, L, config_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForPreTraining, BertConfig

from fixedbert import FixedHeadBertForPreTraining, FixedHeadBertModel
from fixedbert.counts import layer_shapes, parameters, training_flops

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
    "config, sparse",
    [(STOCK, False)]  # transformers' BERT always predicts all tokens
    + [(config_of("ForPreTraining", **UNEQUAL | more), sparse) for more in ({}, EMPTY) for sparse in (False, True)],
)
def test_training_flops(config, sparse):
    """Training FLOPs equal those that torch counts, with predictions for all tokens or only for labeled tokens."""
    model = AutoModelForPreTraining.from_config(config, attn_implementation="eager")
    model.sparse_prediction = sparse
    embeddings = torch.randn(B, L, config.hidden_size, requires_grad=True)
    labels = torch.full((B, L), -100)
    labels[0, 2:] = 7
    predicted = (L - 2) / B if sparse else L
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=embeddings, labels=labels, next_sentence_label=torch.zeros(B).long()).loss.backward()
    assert counter.get_total_flops() == pytest.approx(B * training_flops(config, L, predicted), rel=1e-12)
