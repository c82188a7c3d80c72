"""The trainer: held-out metrics, non-finite steps and weights, and assumptions about DDP."""

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from helpers.tiny_models import HEADS, bert_of, inputs_of, model_of
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, Trainer, TrainerCallback

from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.options import Objective
from fixedbert.pretraining.trainer import SUMS, pretraining_metrics, separate_losses, sums_by_example
from fixedbert.support.errors import Divergence, InputError
from fixedbert.training.arguments import CommonArguments
from fixedbert.training.trainer import CommonTrainer

PRIVATE = {
    "_get_grad_norm": ["model", "grad_norm"],
    "_issue_warnings_after_load": ["load_result"],
    "_save": ["output_dir", "state_dict"],
    "_save_rng_state": ["output_dir"],
}


def test_private_members_of_trainer():
    """The package uses only the listed private methods of Trainer, and their signatures have not changed."""
    private = {name for name in dir(Trainer) if name.startswith("_") and not name.startswith("__")}
    for node in ast.walk(ast.parse(Path(inspect.getsourcefile(Trainer)).read_text())):  # attributes set in methods
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self" and node.attr[:1] == "_":
            private.add(node.attr)
    used = set()
    for file in (Path(__file__).parents[2] / "fixedbert").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            used |= {getattr(node, field, None) for field in ("attr", "name", "value")}
    assert {name for name in used if isinstance(name, str)} & private == set(PRIVATE)
    for name, arguments in PRIVATE.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == ["self", *arguments]


@pytest.mark.parametrize("objective", get_args(Objective))
def test_held_out_metrics(objective):
    """Sums per example, from dense or sparse logits, give the losses and accuracies over the complete data set."""
    torch.manual_seed(0)
    logits, labels = torch.randn(13, 7, 11), torch.randint(11, (13, 7))
    labels[torch.rand(13, 7) < 0.6] = -100
    labels[3] = -100  # no token to predict
    next_logits, next_labels = torch.randn(13, 2), torch.randint(2, (13,))

    def sums(logits):
        if objective == "mlm+nsp":
            return sums_by_example((logits, next_logits), (labels, next_labels), objective)
        return sums_by_example(logits, labels, objective)

    result = sums(logits)
    assert result.shape == (13, len(SUMS[objective]))
    metrics = pretraining_metrics(EvalPrediction(result.numpy(), None), objective)
    task = objective[:3]
    if objective == "clm":
        predictions, targets = logits[:, :-1], labels[:, 1:]
    else:
        predictions, targets = logits, labels
        assert torch.allclose(sums(logits[labels != -100]), result)
    loss = cross_entropy(predictions.flatten(0, 1), targets.flatten()).item()
    expected = {
        f"{task}_loss": pytest.approx(loss, rel=1e-6),
        f"{task}_accuracy": pytest.approx((predictions.argmax(-1) == targets)[targets != -100].float().mean().item()),
        "perplexity": pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5),
    }
    if objective == "mlm+nsp":
        expected["nsp_loss"] = pytest.approx(cross_entropy(next_logits, next_labels).item(), rel=1e-6)
        expected["nsp_accuracy"] = pytest.approx((next_logits.argmax(-1) == next_labels).float().mean().item())
    assert metrics == expected


def test_token_and_pair_losses():
    """A FixedHeadBert returns both losses. For stock BERT, which returns only the sum, both are computed."""
    inputs = inputs_of("ForPreTraining", labels=True)
    ours = model_of("ForPreTraining").eval()(**inputs)
    assert separate_losses(ours, inputs) == (ours.masked_lm_loss, ours.next_sentence_loss)
    stock = bert_of("ForPreTraining")(**inputs)
    token_loss, pair_loss = separate_losses(stock, inputs)
    expected = cross_entropy(stock.prediction_logits.flatten(0, 1), inputs["labels"].flatten())
    assert torch.allclose(token_loss, expected)
    assert torch.equal(pair_loss, cross_entropy(stock.seq_relationship_logits, inputs["next_sentence_label"]))
    tokens_alone = inputs_of("ForMaskedLM", labels=True)
    outputs = model_of("ForMaskedLM").eval()(**tokens_alone)
    assert separate_losses(outputs, tokens_alone) == (outputs.loss, None)


@pytest.fixture
def trainer(tmp_path):
    """A trainer for a linear layer in its first step, with a loss for one batch and gradients for the weights."""
    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: None
    arguments = CommonArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    trainer = CommonTrainer(model=model, args=arguments, train_dataset=[{"x": torch.ones(2)}] * 8)
    trainer.step_losses = [torch.tensor(1.0)]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    return trainer


def test_fp16_overflow_is_not_divergence(trainer):
    """An fp16 overflow skips the step, whose loss is not logged, until the loss scale has fallen below 1."""
    trainer.accelerator.scaler = SimpleNamespace(get_scale=lambda: 65536.0)
    assert not trainer.apply_finite_step(torch.tensor(torch.inf))
    assert [entry["skipped_step"] for entry in trainer.state.log_history] == [1]
    trainer.log({"loss": 0.0})
    trainer.log(metrics := {"train_loss": 0.0})
    assert "train_loss" not in metrics and not any("loss" in entry for entry in trainer.state.log_history)
    trainer.accelerator.scaler, trainer.step_losses = SimpleNamespace(get_scale=lambda: 0.5), [torch.tensor(1.0)]
    with pytest.raises(Divergence, match="^step 1: non-finite gradient norm; no checkpoint has been saved; "):
        trainer.apply_finite_step(torch.tensor(torch.inf))


def test_step_synchronizes_with_the_device_once(trainer, monkeypatch):
    """The loss, gradient norm and token count are read from the device in a single transfer."""
    reads, trainer.step_tokens = [], [torch.tensor(3), torch.tensor(2**24 + 1)]

    def count(name):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x: reads.append(name) or original(x))

    for name in ("__bool__", "__float__", "item", "tolist"):
        count(name)
    trainer.apply_finite_step(torch.tensor(1.0))
    assert reads == ["tolist"]
    assert trainer.state.num_input_tokens_seen == 2**24 + 4 and trainer.step_tokens == []


def test_loading_a_checkpoint(tmp_path, monkeypatch):
    """Loading a checkpoint warns about missing weights, but not tied weights. Errors name a corrupted checkpoint."""
    warnings, checkpoint = [], tmp_path / "checkpoint-1"
    monkeypatch.setattr("transformers.trainer.logger.warning", warnings.append)
    options = {"report_to": "none", "use_cpu": True, "max_steps": 1, "disable_tqdm": True}
    arguments = CommonArguments(output_dir=str(tmp_path), save_steps=1, **options)
    rows = [{name: values[0] for name, values in inputs_of("ForPreTraining", labels=True).items()}] * 8
    trainer = CommonTrainer(model=model_of("ForPreTraining"), args=arguments, train_dataset=rows)
    waiting, order = trainer.accelerator.wait_for_everyone, []

    def wait():
        order.append([file.name for file in checkpoint.glob("*state*")])
        waiting()

    monkeypatch.setattr(trainer.accelerator, "wait_for_everyone", wait)
    trainer.train()
    assert ["rng_state.pth"] in order  # of all processes, before the file that marks the checkpoint as complete
    trainer.train(str(checkpoint))
    assert not warnings
    weights = load_file(checkpoint / "model.safetensors")
    assert "cls.predictions.decoder.weight" not in weights
    del weights["bert.pooler.dense.bias"]
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    trainer.train(str(checkpoint))
    assert "['bert.pooler.dense.bias']" in warnings[0]
    with pytest.raises(InputError, match=r"checkpoint-2: cannot be read \(no such directory\)\.$"):
        trainer.train(str(tmp_path / "checkpoint-2"))
    (checkpoint / "scheduler.pt").unlink()
    with pytest.raises(InputError, match=r"checkpoint-1: cannot be read \(scheduler.pt is missing\); remove it"):
        trainer.train(str(checkpoint))


@pytest.mark.parametrize("saves", [{"save_steps": 1}, {"save_strategy": "no"}])
def test_weights_that_overflow_are_not_saved(tmp_path, saves):
    """Non-finite weights are detected before a checkpoint or the trained model is saved."""

    class Overflow(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == 2:
                model.weight.data[1, 0] = torch.inf

    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: {"loss": torch.nn.functional.linear(x, model.weight).sum()}
    options = {"max_steps": 3, "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    arguments = FineTuningArguments(str(tmp_path), train_sampling_strategy="random", **options, **saves)
    rows = [{"x": torch.ones(2)}] * 24
    trainer = CommonTrainer(model=model, args=arguments, train_dataset=rows, callbacks=[Overflow()])
    torch.nn.init.zeros_(model.weight)
    with pytest.raises(Divergence, match="^step 3: the weights contain NaN or infinity; "):
        trainer.train()
        trainer.save_model()
    saved = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert saved == (["checkpoint-1", "checkpoint-2"] if "save_steps" in saves else [])
    assert not (tmp_path / "model.safetensors").exists()


SHAPES = (
    {},
    {"unpad_inputs": True, "sparse_prediction": True},
    {"layer_attention_heads": [5, 0, 2], "intermediate_size": [37, 0, 11]},
    {"head_embedding": "mul", "qk_norm": True},
)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "Model"])
def test_every_parameter_has_a_gradient(head):
    """Every parameter has a gradient, even without labels, heads or neurons, as DDP requires by default."""
    for shape in SHAPES:
        if head == "LMHeadModel" and 0 in shape.get("layer_attention_heads", ()):
            continue  # a decoder has heads in each layer
        model, inputs = model_of(head, **shape), inputs_of(head, labels=True)
        for labels in (inputs.get("labels"), torch.full_like(inputs["input_ids"], -100)):
            if labels is not None and labels.shape == inputs.get("labels", labels).shape and labels.dim() == 2:
                inputs["labels"] = labels
            model.zero_grad()
            model(**inputs).loss.backward()
            assert not [name for name, x in model.named_parameters() if x.grad is None], shape


def test_search_for_unused_parameters(tmp_path):
    """DDP searches for unused parameters in stock models by default, and in a FixedHeadBert only on request."""
    for model, given, expected in (
        (model_of("ForMaskedLM"), {}, False),
        (model_of("ForMaskedLM"), {"ddp_find_unused_parameters": True}, True),
        (bert_of("ForMaskedLM"), {}, True),
    ):
        trainer = CommonTrainer(model, CommonArguments(str(tmp_path), use_cpu=True, report_to="none", **given))
        assert trainer.accelerator.ddp_handler.find_unused_parameters is expected
