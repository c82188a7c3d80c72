"""Muon for the matrices of the layers, AdamW for the rest."""

import math

import pytest
import torch
from small_models import model_of
from transformers import DistilBertConfig, DistilBertForMaskedLM

from fixedbert.errors import InputError
from fixedbert.training.arguments import parse
from fixedbert.training.muon import MuonWithAdamW, orthogonalized, with_muon
from fixedbert.training.pretraining import PretrainingArguments, PretrainingTrainer

SHAPES = [(5, 3), (3, 5), (4, 4), (1, 7)]


def reference_steps(matrix, gradients, rate, decay, momentum=0.95):
    """As torch.optim.Muon documents it, with the learning rate adjusted to AdamW's updates, in float64."""
    matrix, buffer = matrix.double(), torch.zeros_like(matrix, dtype=torch.float64)
    for gradient in gradients:
        buffer = momentum * buffer + gradient.double()
        x = gradient.double() + momentum * buffer
        x = x / x.norm()
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
        matrix = matrix - rate * decay * matrix - 0.2 * math.sqrt(max(matrix.shape)) * rate * x
    return matrix


def test_steps_are_those_of_the_definition():
    """Guards: momentum, orthogonalization, decay and scale of several steps, for tall, wide and square matrices; what
    is no matrix of Muon gets exactly AdamW's steps."""
    torch.manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    others = [torch.nn.Parameter(torch.randn(shape)) for shape in (7, (6, 2))]
    gradients = [[torch.randn_like(one) for one in (*matrices, *others)] for _ in range(3)]
    expected = [
        reference_steps(matrix.detach(), [step[place] for step in gradients], 0.3, 0.1)
        for place, matrix in enumerate(matrices)
    ]
    alone = [torch.nn.Parameter(one.detach().clone()) for one in others]
    adamw = torch.optim.AdamW(alone, lr=0.01, weight_decay=0.1)
    both = with_muon(torch.optim.AdamW([*matrices, *others], lr=0.01, weight_decay=0.1), matrices, 0.3)
    for step in gradients:
        for one, gradient in zip([*matrices, *others, *alone], [*step, *step[len(matrices) :]], strict=True):
            one.grad = gradient.clone()
        both.step()
        adamw.step()
    for matrix, exact in zip(matrices, expected, strict=True):
        assert torch.allclose(matrix.double(), exact, rtol=0, atol=2e-6)
    assert all(torch.equal(one, other) for one, other in zip(others, alone, strict=True))


def test_singular_values_come_near_one():
    """Guards: directions stay and their sizes are evened out, whatever the scale of the gradient."""
    torch.manual_seed(0)
    left, right = torch.linalg.qr(torch.randn(6, 4))[0], torch.linalg.qr(torch.randn(9, 4))[0]
    matrix = left @ torch.diag(torch.tensor([5.0, 2.0, 1.0, 0.5])) @ right.T
    for scale in (1e-5, 1.0, 1e5):
        found = left.T @ orthogonalized(scale * matrix) @ right
        assert ((found.diagonal() > 0.5) & (found.diagonal() < 1.5)).all()
        assert (found - found.diagonal().diag()).abs().max() < 1e-4


def test_step_without_gradients_changes_nothing():
    """Guards: a step that is skipped because it is not finite leaves weights and moments as they are."""
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(2))
    optimizer = with_muon(torch.optim.AdamW([matrix, vector], lr=0.1), [matrix], 0.1)
    optimizer.step()
    assert torch.equal(matrix, torch.ones(2, 3)) and torch.equal(vector, torch.ones(2)) and not optimizer.state


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM"])
def test_matrices_of_the_layers_alone(tmp_path, head):
    """Guards: embeddings, heads, biases and norms stay with AdamW, each with the decay that it has without Muon."""
    model = model_of(head, head_embedding="add")
    options = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "weight_decay": 0.03}
    objective = "mlm+nsp" if head == "ForPreTraining" else "mlm"
    arguments = PretrainingArguments(**options, learning_rate=0.001, muon_learning_rate=0.02)
    trainer = PretrainingTrainer(model=model, args=arguments, objective=objective)
    optimizer = trainer.create_optimizer()
    assert isinstance(optimizer, MuonWithAdamW) and trainer.create_optimizer() is optimizer
    names = {parameter: name for name, parameter in model.named_parameters()}
    (muon,) = (group for group in optimizer.param_groups if "momentum" in group)
    expected = {
        name
        for name, parameter in model.named_parameters()
        if ".encoder.layer." in name and name.endswith(".weight") and parameter.ndim == 2
    }
    assert {names[parameter] for parameter in muon["params"]} == expected and len(expected) == 3 * 6
    assert (muon["lr"], muon["weight_decay"]) == (0.02, 0.03)
    plain = PretrainingTrainer(
        model=model, args=PretrainingArguments(**options, learning_rate=0.001), objective=objective
    ).create_optimizer()
    decays = [
        {names[parameter]: group["weight_decay"] for group in one.param_groups for parameter in group["params"]}
        for one in (plain, optimizer)
    ]
    assert decays[0] == decays[1] and decays[0].keys() == set(names.values())


def test_models_with_layers_elsewhere_are_refused(tmp_path):
    """Guards: a model that is not built like BERT ends in a sentence, and not in a missing attribute."""
    config = DistilBertConfig(dim=6, n_heads=2, hidden_dim=7, n_layers=1, vocab_size=11)
    arguments = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", muon_learning_rate=0.02)
    trainer = PretrainingTrainer(model=DistilBertForMaskedLM(config), args=arguments, objective="mlm")
    with pytest.raises(InputError, match="^--muon_learning_rate: a model of the type distilbert keeps"):
        trainer.create_optimizer()


@pytest.mark.parametrize("flags", ["0", "-1", "inf", "nan", "0.1 --optim sgd"])
def test_settings_without_sense_are_refused(flags):
    """Guards: no rate, or another optimizer for the rest, is refused in a sentence that begins with the argument."""
    with pytest.raises(InputError, match="^--muon_learning_rate"):
        parse(["--muon_learning_rate", *flags.split(), "--use_cpu"], PretrainingArguments)
