"""The faster dropout for CPUs: a dropout, in our trainers alone."""

import pytest
import torch
import transformers
from helpers.tiny_models import HEADS, SHAPE, inputs_of, model_of
from torch import nn
from transformers import BertConfig, Trainer

from fixedbert.training.arguments import CommonArguments
from fixedbert.training.dropout import FastDropout, use_fast_dropout
from fixedbert.training.trainer import CommonTrainer


def test_dropout_keeps_what_it_should():
    """Guards: the faster dropout drops with its probability, keeps the mean, repeats by seed, and is off in eval."""
    dropout = FastDropout(0.1)
    x = torch.full((997, 1001), 2.0, requires_grad=True)  # not a multiple of four elements
    torch.manual_seed(0)
    y = dropout(x)
    kept = y != 0
    assert abs(kept.double().mean().item() - 0.9) < 5 * (0.09 / x.numel()) ** 0.5
    assert torch.allclose(y[kept], torch.tensor(2 / 0.9), rtol=1e-4)
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept) and torch.allclose(x.grad[kept], torch.tensor(1 / 0.9), rtol=1e-4)
    torch.manual_seed(0)
    assert torch.equal(dropout(x), y) and not torch.equal(dropout(x), y)
    assert dropout.eval()(x) is x
    assert torch.equal(FastDropout(0.0)(x), x) and FastDropout(1.0)(x).abs().max() == 0
    by_column = (kept.double().mean(0) - 0.9).abs().max()
    assert by_column < 6 * (0.09 / 997) ** 0.5  # no pattern in the bits


@pytest.mark.parametrize("head", HEADS)
def test_every_dropout_of_a_model_is_replaced(head):
    """Guards: all modules with their probability and mode; weights, their names, and outputs without it stay."""
    model = model_of(head, attn_implementation="eager", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    inputs, weights = inputs_of(head), list(model.state_dict())
    expected = model.eval()(**inputs)[0]
    model.base_model.encoder.layer[0].attention.self.dropout.train()
    before = [(name, x.p, x.training) for name, x in dropouts(model, nn.Dropout)]
    use_fast_dropout(model)
    assert len(before) >= 10  # one of the embeddings and three of each layer
    assert [(name, x.p, x.training) for name, x in dropouts(model, FastDropout)] == before
    assert not dropouts(model, nn.Dropout) and list(model.state_dict()) == weights
    assert torch.equal(model.eval()(**inputs)[0], expected)


def dropouts(model: nn.Module, kind: type) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if type(module) is kind]


def test_our_trainers_use_it_and_others_do_not(tmp_path):
    """Guards: a model of ours has it in our trainers; stock BERT, a bare model and transformers' Trainer do not."""
    arguments = CommonArguments(output_dir=str(tmp_path), use_cpu=True)
    model = model_of("ForMaskedLM")
    Trainer(model=model, args=arguments)
    assert dropouts(model, nn.Dropout) and not dropouts(model, FastDropout)
    CommonTrainer(model=model, args=arguments)
    assert dropouts(model, FastDropout) and not dropouts(model, nn.Dropout)
    stock = transformers.BertForMaskedLM(BertConfig(**SHAPE, num_attention_heads=4))
    CommonTrainer(model=stock, args=arguments)
    assert not dropouts(stock, FastDropout)


def test_eager_attention_uses_it():
    """Guards: the attention's probabilities go through the module that was put in, not through torch's function."""
    model = model_of("Model", attn_implementation="eager", hidden_dropout_prob=0.0).train()
    use_fast_dropout(model)
    calls = []
    for layer in model.encoder.layer:
        layer.attention.self.dropout.register_forward_hook(lambda *_: calls.append(1))
    model(**inputs_of("Model"))
    assert len(calls) == 3
