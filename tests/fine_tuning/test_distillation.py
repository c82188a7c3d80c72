"""Fine-tuning with a teacher: the loss, what teaches and what is refused, runs as exact as without a teacher."""

import copy
import json
import math
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers import ROOT, fork_server
from helpers.tiny_models import inputs_of, model_of
from helpers.tiny_tasks import glue, glue_arguments, squad
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertTokenizer,
    DistilBertConfig,
    DistilBertModel,
)

from fixedbert.fine_tuning.distillation import Teacher, load_teacher
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.trainer import FineTuningArguments, FineTuningTrainer
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments
from fixedbert.training.speed import enable_unpadding

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
STEPS = ("--do_train", "--num_train_epochs", "2", "--per_device_train_batch_size", "4", "--learning_rate", "1e-3")


@pytest.fixture(scope="module")
def teacher(model, download, tmp_path_factory) -> str:
    """A model of RTE, certain enough to differ from a new head."""
    folder = tmp_path_factory.mktemp("teacher") / "rte"
    glue(model, download, folder, "--do_train", "--max_steps", "8", "--learning_rate", "3e-3")
    return str(folder)


def naive_divergence(student, teacher, temperature, among=None):
    """T² KL(teacher / T || student / T) of lists of logits, one row and one class after the other."""
    total = 0.0
    for row, (found, wanted) in enumerate(zip(student.tolist(), teacher.tolist(), strict=True)):
        chosen = [n for n in range(len(found)) if among is None or among[row, n]]
        q, p = ([math.exp(logits[n] / temperature) for n in chosen] for logits in (found, wanted))
        q, p = ([x / math.fsum(values) for x in values] for values in (q, p))
        total += math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_loss_of_classes_is_the_naive_one(temperature):
    """Guards: Hinton's loss of three classes, which the teacher numbers in another way, at any temperature."""
    student, other = (model_of("ForSequenceClassification", num_labels=3, initializer_range=r) for r in (0.3, 0.5))
    inputs, classes = inputs_of("ForSequenceClassification"), [2, 0, 1]
    outputs = student.eval()(**inputs)
    loss = Teacher(other.eval(), INPUTS, classes).loss(inputs, outputs, temperature)
    wanted = other(**inputs).logits.double()[:, classes]
    assert loss.item() == pytest.approx(naive_divergence(outputs.logits.double(), wanted, temperature), rel=1e-5)
    assert loss.item() > 1e-3


def test_loss_of_a_regression_is_the_squared_error():
    """Guards: scores are compared as they are, whatever the temperature."""
    student, other = (model_of("ForSequenceClassification", num_labels=1, initializer_range=r) for r in (0.3, 0.5))
    inputs = inputs_of("ForSequenceClassification")
    outputs = student.eval()(**inputs)
    pairs = zip(outputs.logits[:, 0].tolist(), other.eval()(**inputs).logits[:, 0].tolist(), strict=True)
    expected = math.fsum((found - wanted) ** 2 for found, wanted in pairs) / len(outputs.logits)
    assert Teacher(other, INPUTS, [0]).loss(inputs, outputs, 3.0).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stock", [False, True], ids=["fixed", "stock"])
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_loss_of_answers_is_over_real_tokens(stock, temperature):
    """Guards: padding, which a FixedHeadBert gives the lowest number and BERT some number, has no share and no NaN."""
    student, other = (model_of("ForQuestionAnswering", initializer_range=r) for r in (0.3, 0.5))
    enable_unpadding(student)
    if stock:
        torch.manual_seed(3)
        shape = {"vocab_size": 99, "hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 5}
        other = BertForQuestionAnswering(BertConfig(**shape, intermediate_size=37, initializer_range=0.5))
    else:
        enable_unpadding(other)
    inputs = inputs_of("ForQuestionAnswering")
    outputs, wanted = student.eval()(**inputs), other.eval()(**inputs)
    loss = Teacher(other, INPUTS, None).loss(inputs, outputs, temperature)
    expected = [
        naive_divergence(outputs[name].double(), wanted[name].double(), temperature, inputs["attention_mask"])
        for name in ("start_logits", "end_logits")
    ]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-5)
    loss.backward()
    gradients = [weight.grad for weight in student.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients) and any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForQuestionAnswering"])
def test_a_student_that_is_its_teacher_learns_nothing(model, tmp_path, head):
    """Guards: at weight 1 the labels have no share, so that there is no gradient; an evaluation is by labels alone."""
    student = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    classes = [0, 1] if head == "ForSequenceClassification" else None
    arguments = FineTuningArguments(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, teacher_model="itself", distillation_weight=1.0
    )
    trainer = FineTuningTrainer(
        model=student,
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(model),
        teacher=Teacher(copy.deepcopy(student).eval(), INPUTS, classes),
    )
    inputs = inputs_of(head, labels=True)
    trainer.compute_loss(student.train(), inputs).backward()
    assert all(weight.grad is None or weight.grad.abs().max() < 1e-6 for weight in student.parameters())
    assert trainer.compute_loss(student.eval(), inputs).item() == student(**inputs).loss.item() > 0.1


def test_weight_of_zero_is_no_teacher(model, teacher, download, tmp_path):
    """Guards: a teacher draws no random number: at weight 0 the weights have the bits of a run without it."""
    glue(model, download, tmp_path / "without", *STEPS)
    for weight in ("0", "0.5"):
        more = ("--teacher_model", teacher, "--distillation_weight", weight)
        glue(model, download, tmp_path / weight, *STEPS, *more)
    without, zero, half = (load_file(tmp_path / name / "model.safetensors") for name in ("without", "0", "0.5"))
    assert without.keys() == half.keys()
    assert all(torch.equal(without[name], zero[name]) for name in without)
    assert not torch.equal(without["classifier.weight"], half["classifier.weight"])
    assert f"- Distilled from: `{Path(teacher).name}`" in (tmp_path / "0.5/README.md").read_text()


def test_answers_have_a_teacher_too(model, questions, tmp_path):
    """Guards: run_squad.py learns from a teacher's starts and ends; the trained model is evaluated without it."""
    steps = ("--do_train", "--max_steps", "3", "--learning_rate", "1e-3")
    squad(model, questions, tmp_path / "teacher", *steps)
    taught = ("--teacher_model", str(tmp_path / "teacher"), "--distillation_temperature", "3")
    found = squad(model, questions, tmp_path / "student", *steps, "--do_eval", *taught)
    plain = squad(model, questions, tmp_path / "plain", *steps)
    assert math.isfinite(found["train_loss"]) and found["train_loss"] != plain["train_loss"]
    shutil.rmtree(tmp_path / "teacher")
    again = squad(str(tmp_path / "student"), questions, tmp_path / "again", "--do_eval", *taught)
    assert again["eval_loss"] == pytest.approx(found["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("stock", [False, True], ids=["fixed", "stock"])
def test_steps_of_several_batches_are_those_of_one(model, teacher, download, tmp_path, stock):
    """Guards: four batches of 2 have the loss, gradient and weights of one batch of 8, for stock BERT as well."""
    if stock:
        tokenizer = AutoTokenizer.from_pretrained(model)
        shape = {"hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 5, "intermediate_size": 37}
        torch.manual_seed(0)
        BertForPreTraining(
            BertConfig(vocab_size=len(tokenizer), **shape, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        ).save_pretrained(tmp_path / "stock")
        tokenizer.save_pretrained(tmp_path / "stock")
        model = str(tmp_path / "stock")
    more = ("--do_train", "--max_steps", "4", "--max_train_samples", "16", "--logging_steps", "1")
    more += ("--learning_rate", "1e-3", "--teacher_model", teacher, "--label_smoothing_factor", "0.1")
    logs = []
    for batch, batches in (("8", "1"), ("2", "4")):
        size = ("--per_device_train_batch_size", batch, "--gradient_accumulation_steps", batches)
        glue(model, download, tmp_path / batch, *more, *size)
        log = json.loads((tmp_path / batch / "trainer_state.json").read_text())["log_history"]
        logs.append([(entry["loss"], entry["grad_norm"]) for entry in log if "loss" in entry])
    assert len(logs[0]) == 4
    for one, other in zip(*logs, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_stopped_run_goes_on_with_its_teacher(model, teacher, download, tmp_path, monkeypatch):
    """Guards: the same command ends with the same bits; with another teacher's weights it does not go on."""
    own = tmp_path / "teacher"
    shutil.copytree(teacher, own)
    steps = (*STEPS, "--teacher_model", str(own))
    glue(model, download, tmp_path / "whole", *steps)
    original, calls = FineTuningTrainer.training_step, []

    def stopping(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:  # of 12; an epoch has 6
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", stopping)
    with pytest.raises(SystemExit, match="143"):
        glue(model, download, tmp_path / "stopped", *steps)
    other = AutoModelForSequenceClassification.from_pretrained(own)
    with torch.no_grad():
        other.classifier.bias += 1
    other.save_pretrained(own)
    with pytest.raises(InputError, match="or the teacher are not those that the unfinished run began with"):
        glue(model, download, tmp_path / "stopped", *steps)
    shutil.copy(Path(teacher, "model.safetensors"), own)
    glue(model, download, tmp_path / "stopped", *steps)
    assert len(calls) == 12
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def loaded(teacher, student, tokenizer) -> Teacher:
    arguments = ModelArguments(model_name_or_path="unused")
    return load_teacher(teacher, AutoModelForSequenceClassification, arguments, student, tokenizer, 32)


def test_labels_in_another_order_are_the_same(teacher, tmp_path):
    """Guards: labels agree by name, in capitals or not: a teacher that numbers them otherwise teaches the same."""
    turned = AutoModelForSequenceClassification.from_pretrained(teacher)
    student = copy.deepcopy(turned.config)
    turned.config.id2label = {0: "NOT_ENTAILMENT", 1: "ENTAILMENT"}
    with torch.no_grad():
        turned.classifier.weight.copy_(turned.classifier.weight.flip(0))
        turned.classifier.bias.copy_(turned.classifier.bias.flip(0))
    turned.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    tokenizer.save_pretrained(tmp_path)
    one, two = (loaded(place, student, tokenizer) for place in (teacher, str(tmp_path)))
    assert (one.classes, two.classes) == ([0, 1], [1, 0]) and not one.model.training
    inputs = tokenizer(["the list", "a string of one"], ["two", "read a file"], padding=True, return_tensors="pt")
    outputs = model_of("ForSequenceClassification").eval()(**inputs)
    assert one.loss(inputs, outputs, 2.0).item() == pytest.approx(two.loss(inputs, outputs, 2.0).item(), rel=1e-5)
    two.model.load_state_dict(one.model.state_dict())
    assert one.fingerprint() != two.fingerprint()  # a run goes on with neither other weights nor another order


def without_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def with_another_vocabulary(folder):
    tokens = BertTokenizer.from_pretrained(folder).get_vocab()
    words = sorted(tokens, key=tokens.get)
    (folder / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:])]) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)


def with_capitals(folder):
    tokens = BertTokenizer.from_pretrained(folder).get_vocab()
    BertTokenizer(vocab=tokens, do_lower_case=False).save_pretrained(folder)


def changing(**fields):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_tokenizer, "there is no tokenizer"),
        (with_another_vocabulary, "its tokenizer gives a text other tokens than the student's"),
        (with_capitals, "its tokenizer gives a text other tokens than the student's"),
        (
            changing(id2label={"0": "LABEL_0", "1": "LABEL_1"}),
            "its labels are LABEL_0, LABEL_1, and those of",
        ),
        (changing(problem_type="multi_label_classification"), "its labels are .*; give a model of this task"),
        (changing(max_position_embeddings=16), "`max_seq_length` 32 is more than the 16 positions"),
    ],
    ids=["no tokenizer", "vocabulary", "capitals", "names", "several labels", "positions"],
)
def test_other_teachers_are_refused(teacher, tmp_path, change, message):
    """Guards: a teacher whose logits would be of other classes or of another text is refused in a sentence."""
    shutil.copytree(teacher, tmp_path / "teacher")
    student = AutoModelForSequenceClassification.from_pretrained(teacher).config
    change(tmp_path / "teacher")
    with pytest.raises(InputError, match=f"^`teacher_model`: .*{message}"):
        loaded(str(tmp_path / "teacher"), student, AutoTokenizer.from_pretrained(teacher))


def test_a_teacher_is_of_the_task(model, teacher, download, questions, tmp_path):
    """Guards: no random head teaches; scores and classes are not mixed up; one teacher is not that of many tasks."""
    taught = ("--do_train", "--max_steps", "1", "--teacher_model")
    absent = "^`teacher_model`: .* it has no weights for {}.bias, {}.weight; give a model of this task"
    with pytest.raises(InputError, match=absent.format("classifier", "classifier")):
        glue(model, download, tmp_path / "no", *taught, model)
    with pytest.raises(InputError, match=absent.format("qa_outputs", "qa_outputs")):
        squad(model, questions, tmp_path / "no", *taught, teacher)
    with pytest.raises(InputError, match="its labels are entailment, not_entailment, and those of the data a number"):
        glue(model, download, tmp_path / "no", *taught, teacher, task="stsb")
    with pytest.raises(InputError, match="`teacher_model` is for a single `task_name`"):
        glue(model, download, tmp_path / "no", *taught, teacher, task="rte mrpc")
    with pytest.raises(InputError, match=f"^`teacher_model`: {re.escape(str(tmp_path / 'nothing'))}"):
        glue(model, download, tmp_path / "no", *taught, str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="^`teacher_model`: "):
        glue(model, download, tmp_path / "no", *taught, "")
    assert not (tmp_path / "no").exists()
    glue(model, download, tmp_path / "score", *taught[:-1], task="stsb")
    found = glue(model, download, tmp_path / "stsb", *taught, str(tmp_path / "score"), task="stsb")
    assert math.isfinite(found["train_loss"])


def test_a_teacher_reads_no_more_than_its_student(model, teacher, download, tmp_path):
    """Guards: Trainer keeps what the student reads; a BERT cannot teach a DistilBERT, which has no segments."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=30, n_layers=1, n_heads=5, hidden_dim=37)
    DistilBertModel(config).save_pretrained(tmp_path / "student")
    tokenizer.save_pretrained(tmp_path / "student")
    taught = ("--do_train", "--max_steps", "1", "--teacher_model", teacher)
    with pytest.raises(InputError, match="^`teacher_model`: it reads token_type_ids, which DistilBert"):
        glue(str(tmp_path / "student"), download, tmp_path / "no", *taught)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"distillation_temperature": 0.0}, "`distillation_temperature` 0.0: must be above 0"),
        ({"distillation_temperature": math.nan}, "`distillation_temperature` nan: must be above 0"),
        ({"distillation_weight": 1.5}, "`distillation_weight` 1.5: must be between 0 and 1"),
    ],
)
def test_flags_that_make_no_sense(tmp_path, flags, message):
    """Guards: a temperature or a weight without effect, or out of range, is refused."""
    with pytest.raises(InputError, match=message):
        FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, **flags)


@pytest.mark.slow
def test_two_processes_with_a_teacher_are_one(model, teacher, download, tmp_path):
    """Guards: on two processes, each with its own copy of the teacher, training ends with the weights of one."""
    taught = ("--do_train", "--max_steps", "6", "--learning_rate", "1e-3", "--teacher_model", teacher)
    commands = {
        name: glue_arguments(model, download, tmp_path / name, *taught, "--per_device_train_batch_size", batch)
        for name, batch in (("one", "6"), ("two", "3"))
    }
    commands = {name: [*words, "--max_train_samples", "18"] for name, words in commands.items()}
    pair = fork_server.Pair(ROOT / "run_glue.py", commands["two"], tmp_path / "printed")
    run_glue(commands["one"])
    pair.finished()
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        if not name.endswith("key.bias"):  # it has no gradient but rounding errors, which Adam makes large
            assert torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-5), name
