"""What the trainers share: held-out sums, progress, pictures, steps that are not finite, malloc."""

import ast
import ctypes
import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from helpers import fork_server
from helpers.tiny_models import HEADS, SHAPE, bert_of, inputs_of, model_of
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForPreTraining,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.pretraining.arguments import Objective
from fixedbert.pretraining.picture import draw_pretraining
from fixedbert.pretraining.trainer import SUMS, pretraining_metrics, separate_losses, sums_by_example
from fixedbert.support.errors import Divergence, InputError
from fixedbert.training import speed
from fixedbert.training.arguments import CommonArguments
from fixedbert.training.results import record_metrics
from fixedbert.training.trainer import CommonTrainer

PRIVATE = {
    "_get_grad_norm": ["model", "grad_norm"],
    "_issue_warnings_after_load": ["load_result"],
    "_save": ["output_dir", "state_dict"],
}


def test_trainer_is_used_by_its_public_parts():
    """
    Guards: the package uses or replaces no other private member of Trainer than these four, each of which says why,
    and the installed transformers has them with these arguments.
    """
    owned = {name for name in dir(Trainer) if name.startswith("_") and not name.startswith("__")}
    for node in ast.walk(ast.parse(Path(inspect.getsourcefile(Trainer)).read_text())):  # members of an instance
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self" and node.attr[:1] == "_":
            owned.add(node.attr)
    used = set()
    for file in (Path(__file__).parents[2] / "fixedbert").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            used |= {getattr(node, field, None) for field in ("attr", "name", "value")}
    assert {name for name in used if isinstance(name, str)} & owned == set(PRIVATE)
    for name, arguments in PRIVATE.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == ["self", *arguments]


@pytest.mark.parametrize("objective", get_args(Objective))
def test_held_out_metrics_equal_the_plain_ones(objective):
    """Guards: sums by example, from dense or sparse logits, give the losses and accuracies of the whole set."""
    torch.manual_seed(0)
    logits, labels = torch.randn(13, 7, 11), torch.randint(11, (13, 7))
    labels[torch.rand(13, 7) < 0.6] = -100
    labels[3] = -100  # a row with nothing to predict
    next_logits, next_labels = torch.randn(13, 2), torch.randint(2, (13,))
    inside_word = np.arange(11) > 6

    def sums(logits):
        if objective == "mlm+nsp":
            return sums_by_example((logits, next_logits), (labels, next_labels), objective)
        return sums_by_example(logits, labels, objective, inside_word)

    result = sums(logits)
    assert result.shape == (13, len(SUMS[objective]))
    metrics = pretraining_metrics(EvalPrediction(result.numpy(), None), objective, by_word=objective == "clm")
    task = objective[:3]
    if objective == "clm":
        predictions, targets = logits[:, :-1], labels[:, 1:]
    else:
        predictions, targets = logits, labels
        asked = logits[labels != -100]
        for sparse in (asked, torch.cat([asked, logits[0]])):  # also from batches of one shape, with some left over
            assert torch.allclose(sums(sparse), result)
    loss = cross_entropy(predictions.flatten(0, 1), targets.flatten()).item()
    expected = {
        f"{task}_loss": pytest.approx(loss, rel=1e-6),
        f"{task}_accuracy": pytest.approx((predictions.argmax(-1) == targets)[targets != -100].float().mean().item()),
        "perplexity": pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5),
    }
    if objective == "mlm+nsp":
        expected["nsp_loss"] = pytest.approx(cross_entropy(next_logits, next_labels).item(), rel=1e-6)
        expected["nsp_accuracy"] = pytest.approx((next_logits.argmax(-1) == next_labels).float().mean().item())
    if objective == "clm":
        asked = targets[targets != -100]
        words = (asked <= 6).sum()
        expected["word_perplexity"] = pytest.approx((loss * len(asked) / words).exp().item(), rel=1e-5)
    assert metrics == expected


def test_losses_of_pretraining_are_separate():
    """Guards: our model's two losses are taken as they are; of stock BERT's sum the pairs' is computed again."""
    inputs = inputs_of("ForPreTraining", labels=True)
    ours = model_of("ForPreTraining").eval()(**inputs)
    assert separate_losses(ours, inputs) == (ours.masked_lm_loss, ours.next_sentence_loss)
    torch.manual_seed(0)
    stock = BertForPreTraining(BertConfig(**SHAPE, num_attention_heads=4)).eval()(**inputs)
    of_tokens, of_pairs = separate_losses(stock, inputs)
    expected = cross_entropy(stock.prediction_logits.flatten(0, 1), inputs["labels"].flatten())
    assert torch.allclose(of_tokens, expected)
    assert torch.equal(of_pairs, cross_entropy(stock.seq_relationship_logits, inputs["next_sentence_label"]))
    tokens_alone = inputs_of("ForMaskedLM", labels=True)
    outputs = model_of("ForMaskedLM").eval()(**tokens_alone)
    assert separate_losses(outputs, tokens_alone) == (outputs.loss, None)


def test_curves_are_drawn_from_any_log(tmp_path):
    """Guards: the picture of a run is there, a PNG of some size, also without held-out points."""
    log = [
        {
            "loss": 7.0 - n / 10,
            "mlm_accuracy": n / 50,
            "learning_rate": 1e-4,
            "num_input_tokens_seen": 1000 * n,
            "step": n,
        }
        for n in range(5)
    ]
    held_out = {"eval_loss": 7.1, "eval_mlm_loss": 6.4, "eval_nsp_loss": 0.7, "num_input_tokens_seen": 4000}
    for name, entries in (("a.png", log), ("b.png", [*log, {**held_out, "eval_mlm_accuracy": 0.1}])):
        draw_pretraining(entries, "mlm", "a title", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG") and (tmp_path / name).stat().st_size > 10_000


@pytest.fixture
def about_to_step(tmp_path):
    """A trainer of a linear layer in its first step: the batch has a loss, the weights have gradients."""
    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: None
    arguments = FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    arguments.train_sampling_strategy = "random"
    rows = [{"x": torch.ones(2)}] * 8
    trainer = CommonTrainer(model=model, args=arguments, train_dataset=rows)
    trainer.callback_handler.train_dataloader = trainer.get_train_dataloader()
    trainer.step_losses = [torch.tensor(1.0)]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    return trainer


def test_steps_that_the_fp16_scaler_skips_are_logged_not_counted(about_to_step):
    """Guards: while a scale can be lowered, an infinite gradient norm is the scaler's; below 1 it is divergence."""
    trainer = about_to_step
    trainer.accelerator.scaler = SimpleNamespace(get_scale=lambda: 65536.0)
    trainer.apply_finite_step(torch.tensor(torch.inf))
    assert [entry["skipped_step"] for entry in trainer.state.log_history] == [1] and trainer.nonfinite_steps == 0
    assert all(weight.grad is not None for weight in trainer.model.parameters())
    trainer.accelerator.scaler, trainer.step_losses = SimpleNamespace(get_scale=lambda: 0.5), [torch.tensor(1.0)]
    with pytest.raises(Divergence, match="^step 1: the gradient norm is not finite, on the examples "):
        trainer.apply_finite_step(torch.tensor(torch.inf))
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_json_has_no_numbers_that_json_does_not_have(tmp_path):
    """Guards: a perplexity that overflows, and what is not a number, are null in results, states and checkpoints."""
    trainer = CommonTrainer.__new__(CommonTrainer)
    trainer.args = SimpleNamespace(
        directory=tmp_path, process_index=0, world_size=1, output_dir=str(tmp_path), should_save=True
    )
    trainer.is_world_process_zero, trainer.log_metrics = (lambda: True), (lambda *_: None)
    trainer.state = TrainerState(best_metric=math.inf)
    sums = np.array([[1e6, 3, 1, 1.5, 1]])
    metrics = {f"eval_{name}": value for name, value in pretraining_metrics(SimpleNamespace(predictions=sums)).items()}
    assert metrics["eval_perplexity"] == math.inf
    trainer.state.log_history = [metrics | {"grad_norm": math.nan, "step": 1}]
    record_metrics(trainer, "eval", metrics | {"eval_list": [1.5, (-math.inf, "NaN")]})
    trainer.save_state()

    def no_constant(name):
        raise ValueError(name)

    names = ("all_results.json", "eval_results.json", "trainer_state.json")
    found = [json.loads((tmp_path / name).read_text(), parse_constant=no_constant) for name in names]
    for results in (*found[:2], found[2]["log_history"][0]):
        assert results["eval_perplexity"] is None and results["eval_mlm_loss"] == 1e6
    assert found[0]["eval_list"] == [1.5, [None, "NaN"]]
    assert found[2]["log_history"][0]["grad_norm"] is None and found[2]["best_metric"] is None


def test_tied_weights_are_not_missing(tmp_path, monkeypatch):
    """Guards: a checkpoint, which has tied weights once, loads without a warning; one that lacks a weight does not."""
    said, folder = [], tmp_path / "checkpoint-1"
    monkeypatch.setattr("transformers.trainer.logger.warning", said.append)
    options = {"report_to": "none", "use_cpu": True, "bf16": False, "max_steps": 1, "disable_tqdm": True}
    arguments = CommonArguments(output_dir=str(tmp_path), save_steps=1, **options)
    rows = [{name: values[0] for name, values in inputs_of("ForPreTraining", labels=True).items()}] * 8
    trainer = CommonTrainer(model=model_of("ForPreTraining"), args=arguments, train_dataset=rows)
    trainer.train()
    trainer.train(str(folder))
    assert not said
    weights = load_file(folder / "model.safetensors")
    assert "cls.predictions.decoder.weight" not in weights
    del weights["bert.pooler.dense.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    trainer.train(str(folder))
    assert "['bert.pooler.dense.bias']" in said[0]


def test_weights_that_overflow_are_not_saved(tmp_path):
    """Guards: an update that overflows is found before a checkpoint is saved, and before the trained model is."""

    class Overflow(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == 2:
                model.weight.data[1, 0] = torch.inf

    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: {"loss": torch.nn.functional.linear(x, model.weight).sum()}
    options = {"max_steps": 3, "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    options["train_sampling_strategy"] = "random"
    rows = [{"x": torch.ones(2)}] * 24
    for name, saves, kept in (
        ("a", {"save_steps": 1}, "the last good checkpoint is .*checkpoint-2:"),
        ("b", {"save_strategy": "no"}, "no "),
    ):
        arguments = FineTuningArguments(output_dir=str(tmp_path / name), **options, **saves)
        trainer = CommonTrainer(model=model, args=arguments, train_dataset=rows, callbacks=[Overflow()])
        torch.nn.init.zeros_(model.weight)
        with pytest.raises(Divergence, match=f"^step 3: the weights are not finite; nothing was saved since, {kept}"):
            trainer.train()
            trainer.save_model()
        found = sorted(path.name for path in (tmp_path / name).rglob("checkpoint-*"))
        assert found == (["checkpoint-1", "checkpoint-2"] if name == "a" else [])
        assert not (tmp_path / name / "model.safetensors").exists()


def test_nonfinite_steps_are_counted_in_a_row(about_to_step):
    """Guards: a finite step between two that are not starts the count anew."""
    trainer = about_to_step
    trainer.args.max_nonfinite_steps = 2
    for norm, expected in ((torch.nan, 1), (1.0, 0), (torch.nan, 1)):
        trainer.step_losses = [torch.tensor(1.0)]
        trainer.apply_finite_step(torch.tensor(norm))
        assert trainer.nonfinite_steps == expected
    trainer.step_losses = [torch.tensor(torch.nan)]
    with pytest.raises(Divergence, match="^step 1: the loss is not finite"):
        trainer.apply_finite_step(torch.tensor(1.0))


def test_finite_step_waits_for_the_device_once(about_to_step, monkeypatch):
    """Guards: loss, gradient norm and tokens of a step are read together: to read waits for all the GPU does."""
    read, about_to_step.step_tokens = [], [torch.tensor(3), torch.tensor(2**24 + 1)]

    def count(name):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x: read.append(name) or original(x))

    for name in ("__bool__", "__float__", "item", "tolist"):
        count(name)
    about_to_step.apply_finite_step(torch.tensor(1.0))
    assert read == ["tolist"]
    assert about_to_step.state.num_input_tokens_seen == 2**24 + 4 and about_to_step.step_tokens == []


def test_window_is_shared_out_among_any_number_of_processes(about_to_step, tmp_path, monkeypatch):
    """Guards: what three processes had added up goes on with one or two: sums are kept, and the mean of losses."""
    trainer = about_to_step
    content = {"steps": 6, "total_loss": 7.5, "nonfinite_steps": 1, "seconds": 100.0}
    content["sums"] = [[1.0, 10.0, 20.0], [2.0, 30.0, 40.0], [6.0, 50.0, 60.0]]
    (tmp_path / "logging_window.json").write_text(json.dumps(content))
    trainer.continued_from = str(tmp_path)
    for processes in (1, 2, 3):
        monkeypatch.setattr(TrainingArguments, "world_size", processes)
        losses, windows = [], []
        for process in range(processes):
            monkeypatch.setattr(TrainingArguments, "process_index", process)
            trainer.restore_window()
            losses.append(trainer.window[0].item())
            windows.append(trainer.window[1:])
        assert np.mean(losses) == pytest.approx(3.0) and torch.stack(windows).sum(0).tolist() == [90.0, 120.0]
        assert (trainer.window_steps, trainer.total_loss, trainer.nonfinite_steps) == (6, 7.5, 1)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"sums": 5}'])
def test_checkpoints_of_others_are_not_continued(about_to_step, tmp_path, content):
    """Guards: where what was added up is absent or damaged, a sentence names the file."""
    if content is not None:
        (tmp_path / "logging_window.json").write_text(content)
    about_to_step.continued_from = str(tmp_path)
    with pytest.raises(InputError, match="logging_window.json: .*; a run can go on only from its own checkpoints"):
        about_to_step.restore_window()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_freed_memory_is_kept(tmp_path):
    """Guards: after the call the pages of large tensors stay with the process: no new page faults."""
    script = """
import resource, torch
from fixedbert.training.speed import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(1 << 22)  # 16 MB, 4096 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
keep_freed_memory(torch.device("cpu"))
faults()
print(faults())
"""
    (tmp_path / "faults.py").write_text(script)
    assert int(fork_server.run(tmp_path / "faults.py", [], tmp_path, tmp_path).stdout) < 4096


def test_share_of_the_time_in_which_threads_wait_for_a_processor(tmp_path):
    """Guards: the kernel's counts of each thread are read and those before the window left out; threads that began
    or ended in it, and a system that counts nothing, do no harm."""
    for name, counts in {"11": "900 50 7", "12": "0 100 3"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(f"{counts}\n")
    now = speed.times_of_threads(tmp_path)
    assert now == {"11": (900, 50), "12": (0, 100)}
    assert speed.share_of_waiting({"11": (600, 50), "9": (5, 5)}, now) == 100 / (300 + 100)
    assert speed.share_of_waiting(now, now) == speed.share_of_waiting({}, {}) == 0
    assert speed.times_of_threads(tmp_path / "11") == {}


@pytest.mark.parametrize(
    "waited, threads, device, seconds, said",
    [
        (25, 2, "cpu", 30, "for 25% of the time in which the 2 threads"),
        (24, 2, "cpu", 30, ""),
        (90, 1, "cpu", 30, ""),
        (90, 2, "cuda", 30, ""),
        (90, 2, "cpu", 29, ""),
    ],
)
def test_a_busy_machine_is_named(monkeypatch, capsys, waited, threads, device, seconds, said):
    """Guards: a line says once what other processes take and what helps, where there are threads that wait for each
    other on a CPU, after half a minute, and again of no later stage."""
    clock, counts = [100.0], [{"1": (0, 0)}]
    monkeypatch.setattr(speed.BusyMachine, "said", False)
    monkeypatch.setattr(speed, "times_of_threads", lambda: counts[0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    arguments, state = SimpleNamespace(device=torch.device(device)), SimpleNamespace(global_step=1234)
    for _ in range(2):
        callback = speed.BusyMachine()
        callback.on_train_begin(arguments, state, None)
        before = counts[0]["1"]
        clock[0] += seconds
        counts[0] = {"1": (before[0] + 100 - waited, before[1] + waited)}
        callback.on_step_end(arguments, state, None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == bool(said)
    for line in lines:
        assert line.startswith("step 1,234: other processes have") and said in line
        assert "set OMP_NUM_THREADS=1 (losses differ in their last digits)." in line


def test_a_busy_machine_is_looked_at_in_windows(monkeypatch, capsys):
    """Guards: what was long ago does not hide that the machine is busy now."""
    clock, counts = [0.0], [{"1": (0, 0)}]
    monkeypatch.setattr(speed.BusyMachine, "said", False)
    monkeypatch.setattr(speed, "times_of_threads", lambda: counts[0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    arguments, callback = SimpleNamespace(device=torch.device("cpu")), speed.BusyMachine()
    callback.on_train_begin(arguments, None, None)
    for step, count in enumerate([(1000, 0), (2000, 0), (2050, 50)], start=1):
        clock[0], counts[0] = 30.0 * step, {"1": count}
        callback.on_step_end(arguments, SimpleNamespace(global_step=step), None)
    assert capsys.readouterr().out.startswith("step 3: other processes have the processors for 50% of")


SHAPES = (
    {},
    {"unpad_inputs": True, "sparse_prediction": True},
    {"layer_attention_heads": [5, 0, 2], "intermediate_size": [37, 0, 11]},
    {"head_embedding": "mul", "qk_norm": True},
)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "Model"])
def test_every_parameter_has_a_gradient(head):
    """Guards: DDP may leave out its search for parameters without one: also without labels, heads or neurons."""
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
    """Guards: DDP searches where a model may have some, or where the user says so, and not in ours."""
    for model, given, expected in (
        (model_of("ForMaskedLM"), {}, False),
        (model_of("ForMaskedLM"), {"ddp_find_unused_parameters": True}, True),
        (bert_of("ForMaskedLM"), {}, True),
    ):
        trainer = CommonTrainer(model, CommonArguments(str(tmp_path), use_cpu=True, report_to="none", **given))
        assert trainer.accelerator.ddp_handler.find_unused_parameters is expected
