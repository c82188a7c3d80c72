"""Faster training: dropout on CPUs, and bf16 on hardware that supports it."""

import pytest
import torch
from helpers.tiny_models import bert_of, inputs_of, model_of
from torch import nn
from transformers import Trainer

from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.training.arguments import CommonArguments
from fixedbert.training.speed import FastDropout, use_fast_dropout
from fixedbert.training.trainer import CommonTrainer


def test_fast_dropout():
    """FastDropout has the correct probability and scale, is reproducible, and does nothing in eval mode."""
    dropout = FastDropout(0.1)
    x = torch.full((997, 1001), 2.0, requires_grad=True)  # the number of elements is not a multiple of four
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
    assert (kept.double().mean(0) - 0.9).abs().max() < 6 * (0.09 / 997) ** 0.5  # no visible pattern in the columns


def dropouts(model: nn.Module, kind: type) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if type(module) is kind]


def test_every_dropout_layer_is_replaced():
    """use_fast_dropout replaces every nn.Dropout, and keeps probabilities, modes, weights and eval outputs."""
    model = model_of(
        "ForMaskedLM", attn_implementation="eager", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3
    )
    inputs, weights = inputs_of("ForMaskedLM"), list(model.state_dict())
    expected = model.eval()(**inputs)[0]
    model.base_model.encoder.layer[0].attention.self.dropout.train()
    before = [(name, x.p, x.training) for name, x in dropouts(model, nn.Dropout)]
    use_fast_dropout(model)
    assert len(before) >= 10  # one in the embeddings and three per layer
    assert [(name, x.p, x.training) for name, x in dropouts(model, FastDropout)] == before
    assert not dropouts(model, nn.Dropout) and list(model.state_dict()) == weights
    assert torch.equal(model.eval()(**inputs)[0], expected)


def test_only_our_trainers_use_fast_dropout(tmp_path):
    """CommonTrainer replaces dropout in a FixedHeadBert, but not in stock BERT. transformers' Trainer never does."""
    arguments = CommonArguments(output_dir=str(tmp_path), use_cpu=True)
    model = model_of("ForMaskedLM")
    Trainer(model=model, args=arguments)
    assert dropouts(model, nn.Dropout) and not dropouts(model, FastDropout)
    CommonTrainer(model=model, args=arguments)
    assert dropouts(model, FastDropout) and not dropouts(model, nn.Dropout)
    stock = bert_of("ForMaskedLM")
    CommonTrainer(model=stock, args=arguments)
    assert not dropouts(stock, FastDropout)


@pytest.fixture
def processor(monkeypatch):
    """Returns a function that sets which instructions the CPU appears to support."""
    return lambda *names: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))


def test_fine_tuning_uses_bf16_where_it_is_faster(tmp_path, processor, monkeypatch, caplog):
    """Fine-tuning uses bf16 by default if the hardware is faster in bf16."""

    def bf16(**options) -> bool:
        return FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **options).bf16

    processor("avx512_bf16")
    assert bf16() is True and bf16(bf16=False) is False
    for extra, expected in ({}, False), ({"amx_bf16": True}, True):
        intel = {"cpu_name": "Intel Xeon", "avx512_bf16": True, **extra}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda intel=intel: intel)
        assert bf16() is expected
    processor()
    assert bf16() is False and not caplog.records


@pytest.mark.parametrize("flags, launched", [({"bf16": True}, "no"), ({"bf16_full_eval": True}, "no"), ({}, "bf16")])
def test_emulated_bf16_is_replaced_with_a_warning(flags, launched, processor, monkeypatch, caplog, tmp_path):
    """bf16 is replaced by float32 on a CPU that would emulate it, no matter how it is requested."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)  # as `accelerate launch` does
    flags |= {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
    processor("amx_bf16")
    given = CommonArguments(**flags)
    assert given.bf16_full_eval or given.mixed_precision == "bf16"
    processor()
    replaced = CommonArguments(**flags)
    assert (replaced.bf16, replaced.bf16_full_eval, replaced.mixed_precision) == (False, False, "no")
    assert caplog.records[0].message.startswith("using float32 instead of bf16")
