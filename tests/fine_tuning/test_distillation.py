"""Tests for distillation: losses, teachers that do not match the student, and resumption."""

import copy
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers.outputs import configure, same_weights
from helpers.tiny_models import bert_of, inputs_of, model_of
from helpers.tiny_tasks import glue, squad
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

from fixedbert.fine_tuning.distillation import Teacher, load_teacher
from fixedbert.fine_tuning.trainer import FineTuningTrainer
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments
from fixedbert.training.speed import enable_unpadding

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
STEPS = ("--do_train", "--num_train_epochs", "2", "--per_device_train_batch_size", "4", "--learning_rate", "1e-3")


@pytest.fixture(scope="module")
def teacher(model, download, tmp_path_factory) -> str:
    """Returns the directory of a model fine-tuned on RTE. Its logits differ clearly from those of a new head."""
    directory = tmp_path_factory.mktemp("teacher") / "rte"
    glue(model, download, directory, "--do_train", "--max_steps", "8", "--learning_rate", "3e-3")
    return str(directory)


def naive_divergence(student, teacher, temperature, mask=None):
    """Returns T² KL(teacher / T || student / T) for logits, computed with loops over rows and classes."""
    total = 0.0
    for row, (ours, theirs) in enumerate(zip(student.tolist(), teacher.tolist(), strict=True)):
        kept = [n for n in range(len(ours)) if mask is None or mask[row, n]]
        q, p = ([math.exp(logits[n] / temperature) for n in kept] for logits in (ours, theirs))
        q, p = ([x / math.fsum(values) for x in values] for values in (q, p))
        total += math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_loss_for_classes(temperature):
    """The distillation loss for classes equals its definition, even if the teacher uses different label ids."""
    student, other = (model_of("ForSequenceClassification", num_labels=3, initializer_range=r) for r in (0.3, 0.5))
    inputs, labels = inputs_of("ForSequenceClassification"), [2, 0, 1]
    outputs = student.eval()(**inputs)
    loss = Teacher(other.eval(), INPUTS, labels, student.config).loss(inputs, outputs, temperature)
    targets = other(**inputs).logits.double()[:, labels]
    assert loss.item() == pytest.approx(naive_divergence(outputs.logits.double(), targets, temperature), rel=1e-5)
    assert loss.item() > 1e-3


@pytest.mark.parametrize("outputs", [1, 3])
def test_loss_for_scores(outputs):
    """The distillation loss for regression is the mean squared error in the student's scale, at any temperature."""
    fields = {"num_labels": outputs, "problem_type": "regression"}
    student, other = (model_of("ForSequenceClassification", initializer_range=r, **fields) for r in (0.3, 0.5))
    student.config.target_mean, student.config.target_std = [5.0] * outputs, [2.0] * outputs
    inputs, labels = inputs_of("ForSequenceClassification"), [2, 0, 1][-outputs:] if outputs > 1 else [0]
    ours, theirs = student.eval()(**inputs), other.eval()(**inputs)
    expected = (ours.logits - (theirs.logits[:, labels] - 5) / 2).square().mean().item()
    teacher = Teacher(other, INPUTS, labels, student.config)
    assert teacher.loss(inputs, ours, 3.0).item() == pytest.approx(expected, rel=1e-5)


def test_loss_for_several_labels_per_text():
    """The distillation loss for multi-label models is the KL divergence per label, averaged over the labels."""
    fields = {"num_labels": 3, "problem_type": "multi_label_classification"}
    student, other = (model_of("ForSequenceClassification", initializer_range=r, **fields) for r in (0.3, 0.5))
    inputs = inputs_of("ForSequenceClassification")
    outputs, targets = student.eval()(**inputs), other.eval()(**inputs)
    loss = Teacher(other, INPUTS, [2, 0, 1], student.config).loss(inputs, outputs, 2.0)
    pairs = zip(targets.logits[:, [2, 0, 1]].flatten().tolist(), outputs.logits.flatten().tolist(), strict=True)
    both = [naive_divergence(torch.tensor([[q, 0.0]]), torch.tensor([[p, 0.0]]), 2.0) for p, q in pairs]
    assert loss.item() == pytest.approx(sum(both) / len(both), rel=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_loss_for_question_answering(temperature):
    """The distillation loss for question answering ignores padding, at which the models' logits differ."""
    student = model_of("ForQuestionAnswering", initializer_range=0.3)
    enable_unpadding(student)
    other = bert_of("ForQuestionAnswering")
    inputs = inputs_of("ForQuestionAnswering")
    outputs, targets = student.eval()(**inputs), other.eval()(**inputs)
    loss = Teacher(other, INPUTS, None, student.config).loss(inputs, outputs, temperature)
    expected = [
        naive_divergence(outputs[name].double(), targets[name].double(), temperature, inputs["attention_mask"])
        for name in ("start_logits", "end_logits")
    ]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-5)
    loss.backward()
    gradients = [weight.grad for weight in student.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients) and any(gradient.any() for gradient in gradients)


def test_weights_of_the_losses(model, teacher, download, tmp_path):
    """With weight 0, training is bit-identical to training without a teacher. The model card names the teacher."""
    glue(model, download, tmp_path / "without", *STEPS)
    for weight in ("0", "0.5"):
        more = ("--teacher_model", teacher, "--distillation_weight", weight)
        glue(model, download, tmp_path / weight, *STEPS, *more)
    assert same_weights(tmp_path / "without", tmp_path / "0")
    assert not same_weights(tmp_path / "without", tmp_path / "0.5")
    assert "teacher_model" in (tmp_path / "0.5/README.md").read_text()


def test_question_answering_with_a_teacher(model, questions, tmp_path):
    """run_squad.py trains with a teacher, but the evaluation loss depends only on the labels."""
    steps = ("--do_train", "--max_steps", "3", "--learning_rate", "1e-3")
    untaught = squad(model, questions, tmp_path / "teacher", *steps)
    taught = ("--teacher_model", str(tmp_path / "teacher"), "--distillation_temperature", "3")
    student = squad(model, questions, tmp_path / "student", *steps, "--do_eval", *taught)
    assert math.isfinite(student["train_loss"]) and student["train_loss"] != untaught["train_loss"]
    again = squad(str(tmp_path / "student"), questions, tmp_path / "again", "--do_eval")
    assert again["eval_loss"] == pytest.approx(student["eval_loss"], rel=1e-5)


def test_interrupted_run_resumes(model, teacher, download, tmp_path, monkeypatch):
    """A run that is interrupted and resumed has bit-identical weights. It does not resume with a different teacher."""
    own = tmp_path / "teacher"
    shutil.copytree(teacher, own)
    steps = (*STEPS, "--teacher_model", str(own))
    glue(model, download, tmp_path / "complete", *steps)
    original, calls = FineTuningTrainer.training_step, []

    def stopping(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:  # of 12 steps in 2 epochs
            signal.raise_signal(signal.SIGTERM)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", stopping)
    with pytest.raises(SystemExit, match="143"):
        glue(model, download, tmp_path / "resumed", *steps)
    other = AutoModelForSequenceClassification.from_pretrained(own)
    with torch.no_grad():
        other.classifier.bias += 1
    other.save_pretrained(own)
    with pytest.raises(InputError, match="teacher"):
        glue(model, download, tmp_path / "resumed", *steps)
    shutil.copy(Path(teacher, "model.safetensors"), own)
    glue(model, download, tmp_path / "resumed", *steps)
    assert len(calls) == 12
    assert same_weights(tmp_path / "complete", tmp_path / "resumed")


def load(teacher, student, tokenizer) -> Teacher:
    arguments = ModelArguments(model_name_or_path="unused")
    return load_teacher(teacher, AutoModelForSequenceClassification, arguments, student, tokenizer, 32)


def test_labels_are_matched_by_name(teacher, tmp_path):
    """The loss depends neither on the teacher's label ids nor on the case of its label names."""
    flipped = AutoModelForSequenceClassification.from_pretrained(teacher)
    student = copy.deepcopy(flipped.config)
    flipped.config.id2label = {0: "NOT_ENTAILMENT", 1: "ENTAILMENT"}
    with torch.no_grad():
        flipped.classifier.weight.copy_(flipped.classifier.weight.flip(0))
        flipped.classifier.bias.copy_(flipped.classifier.bias.flip(0))
    flipped.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    tokenizer.save_pretrained(tmp_path)
    one, two = (load(name, student, tokenizer) for name in (teacher, str(tmp_path)))
    assert (one.labels, two.labels) == ([0, 1], [1, 0]) and not one.model.training
    inputs = tokenizer(["the list", "a string of one"], ["two", "read a file"], padding=True, return_tensors="pt")
    outputs = model_of("ForSequenceClassification").eval()(**inputs)
    assert one.loss(inputs, outputs, 2.0).item() == pytest.approx(two.loss(inputs, outputs, 2.0).item(), rel=1e-5)
    two.model.load_state_dict(one.model.state_dict())
    assert one.fingerprint() != two.fingerprint()  # the label ids are part of the fingerprint


def test_unsuitable_teachers(teacher, tmp_path):
    """Teachers with different labels or a different tokenizer are refused."""
    unnamed, cased = (Path(shutil.copytree(teacher, tmp_path / name)) for name in ("unnamed", "cased"))
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    student = AutoModelForSequenceClassification.from_pretrained(teacher).config
    configure(unnamed, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=False).save_pretrained(cased)
    for directory, message in ((cased, "tokenizer differs from"), (unnamed, r"labels \(LABEL_0, LABEL_1\) differ")):
        with pytest.raises(InputError, match=f"^`teacher_model`: .*its {message}"):
            load(str(directory), student, tokenizer)


def test_teachers_for_a_different_task(model, teacher, download, tmp_path):
    """A regression model can teach a regression model. A classifier or a model without a task head cannot."""
    taught = ("--do_train", "--max_steps", "1", "--teacher_model")
    with pytest.raises(InputError, match="^`teacher_model`: .*'classifier.bias', 'classifier.weight'"):
        glue(model, download, tmp_path / "no", *taught, model)
    with pytest.raises(InputError, match=r"its labels \(entailment, not_entailment\) differ"):
        glue(model, download, tmp_path / "no", *taught, teacher, task="stsb")
    glue(model, download, tmp_path / "score", *taught[:-1], task="stsb")
    found = glue(model, download, tmp_path / "stsb", *taught, str(tmp_path / "score"), task="stsb")
    assert math.isfinite(found["train_loss"])
