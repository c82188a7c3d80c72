"""Stages of pretraining: growth of the model and its moments, the data of each stage, runs that are continued."""

import json
import os
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, fork_server
from helpers.tiny_models import config_of, inputs_of, model_of
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, BertConfig, TrainerCallback
from transformers.integrations import TensorBoardCallback

import run_pretraining
from fixedbert import convert
from fixedbert.pretraining.arguments import PretrainingArguments
from fixedbert.pretraining.pretrain import main as pretrain
from fixedbert.pretraining.stages import Stage, begin_stage, data_leads, grown_moments, stages_of
from fixedbert.support.errors import InputError, Stopped
from fixedbert.training.interruption import train
from fixedbert.training.loading import load_model
from fixedbert.training.output import complete_checkpoints
from fixedbert.training.trainer import CommonTrainer

SHAPE = "hidden_size=32,num_attention_heads=5,attention_head_size=6,intermediate_size=37"
GROWTH = {"num_attention_heads": 7, "attention_head_size": 13, "intermediate_size": 53}


def naive(name: str, values: torch.Tensor, shape: torch.Size, power: int) -> torch.Tensor:
    """Entry by entry: those of a model with 5 heads of 6 in one with 7 of 13, zero elsewhere."""
    wide, scale = torch.zeros(shape, dtype=values.dtype), (13 / 6) ** 0.5
    place = {head * 6 + entry: head * 13 + entry for head in range(5) for entry in range(6)}
    for index in np.ndindex(*values.shape):
        there, factor = list(index), 1.0
        if "attention.self" in name:
            there[0] = place[index[0]]
            factor = scale**power if "query" in name else 1.0
        elif name.endswith("attention.output.dense.weight"):
            there[1] = place[index[1]]
        wide[tuple(there)] = values[index] * factor
    return wide


def test_moments_are_carried_exactly():
    """
    Guards: AdamW's moments are those entry by entry of a naive loop, and those that the larger model's own gradients
    give for what was there: of queries divided by s and by its square. What is new has zeros.
    """
    small = model_of("ForPreTraining").double().eval()
    large = convert(small, **GROWTH)
    inputs = inputs_of("ForPreTraining", labels=True)
    for model in (small, large):
        model(**inputs).loss.backward()
    names = [name for name, _ in small.named_parameters() if "word_embeddings" not in name]
    gradients = [small.get_parameter(name).grad for name in names]
    state = {
        number: {"step": torch.tensor(5.0), "exp_avg": gradient, "exp_avg_sq": gradient**2}
        for number, gradient in enumerate(gradients)
    }
    found = grown_moments(state, dict(enumerate(names)), small.config, large.config)
    assert found.keys() == state.keys()
    for number, name in enumerate(names):
        parameter, old = large.get_parameter(name), gradients[number]
        assert found[number]["step"] == 5
        for key, moment, power in (("exp_avg", old, -1), ("exp_avg_sq", old**2, -2)):
            assert torch.allclose(
                found[number][key], naive(name, moment, parameter.shape, power), rtol=1e-14, atol=0
            ), name
        ours = found[number]["exp_avg"]
        there = naive(name, torch.ones_like(old), parameter.shape, 0).bool()
        assert torch.allclose(ours[there], parameter.grad[there], rtol=1e-9, atol=1e-11), name
        assert not ours[~there].any()
    assert any(parameter.shape != gradient.shape for parameter, gradient in
               zip(map(large.get_parameter, names), gradients, strict=True))  # fmt: skip


def stage(end: int, length: int, at_once: int, times: int = 1) -> Stage:
    return Stage(end, {}, config_of("ForPreTraining"), length, (at_once, times))


def test_stage_goes_on_in_the_epoch():
    """Guards: a stage begins behind the examples that were seen, at its own batch's next step; other rows, anew."""
    # 23 examples are 6 steps of 4, or 4 of 6. After 8 steps of 4, 8 of epoch 1 are seen: 2 steps of 6 hold them.
    stages = [stage(8, 16, 4), stage(10, 16, 3, 2), stage(13, 32, 3, 2), stage(20, 32, 12)]
    leads = data_leads(stages, [23, 23, 11, 11], 1)
    assert leads[:2] == [0, 4 + 2 - 8]
    # Steps 9 and 10 are 2 and 3 of epoch 1, the last. Longer rows begin epoch 2 of 2 steps, also after a whole epoch.
    assert leads[2] == 2 * 2 - 10
    # Steps 11 and 12 are epoch 2, 13 half of epoch 3: 6 of 11, which are less than a step of 12, the whole epoch.
    assert leads[3] == 4 * 1 - 13
    assert data_leads(stages[:2], [23, 23], 2) == [0, 2 * 2 + 2 - 8]  # 3 steps of 8 are an epoch, 2 of 12
    assert data_leads(stages[:1], [23], 1) == [0]


def arguments_of(tmp_path, *stages, **options) -> PretrainingArguments:
    options = {"do_train": True, "use_cpu": True, "report_to": "none", "stages": [*stages], **options}
    return PretrainingArguments(output_dir=str(tmp_path / "run"), **options)


FIRST = {"steps": 3}


@pytest.mark.parametrize(
    "stages, message",
    [
        ([FIRST, {"steps": 0}], "stage 2 of `stages`: steps 0: give a whole number of at least 1"),
        ([FIRST, {"steps": 2.5}], "steps 2.5: give a whole number"),
        ([FIRST, {"steps": True}], "steps True: give a whole number"),
        ([FIRST, {"num_attention_heads": 7}], "stage 2 of `stages`: it has no steps"),
        ([FIRST, {"steps": 4, "num_hidden_layers": 4}], "num_hidden_layers: no stage can change it, only num_att"),
        ([FIRST, {"steps": 4, "head_embedding": "add"}], "head_embedding: no stage can change it"),
        ([FIRST, {"steps": 4, "num_attention_heads": [7, 5, 5]}], r"num_attention_heads \[7, 5, 5\]: give a whole"),
        ([FIRST, {"steps": 4, "attention_head_size": []}], r"attention_head_size \[\]: give a whole number"),
        ([FIRST, {"steps": 4, "attention_head_size": [7, 8]}], "stage 2 of `stages`: 2 values of attention_head_size"),
        ([FIRST, {"steps": 4, "attention_head_size": 5}], "stage 2 of `stages`: 5 heads of 5 cannot represent 5 hea"),
        ([FIRST, {"steps": 4, "intermediate_size": 36}], "stage 2 of `stages`: .*36 cannot represent 37 neurons"),
        ([{"steps": 4, "intermediate_size": 53}], "intermediate_size: the first shape is that of the model"),
        ([FIRST, {"steps": 4, "max_seq_length": 12}], "stage 2 of `stages`: `max_seq_length` 12 is more than the 11"),
        ([{**FIRST, "max_seq_length": 4}], "stage 1 of `stages`: `max_seq_length` 4 leaves no room"),
    ],
)
def test_stages_that_make_no_sense(tmp_path, stages, message):
    """Guards: an unknown field, no steps, less of anything or a length that does not fit is one sentence, at once."""
    with pytest.raises(InputError, match=message):
        stages_of(config_of("ForPreTraining"), 11, arguments_of(tmp_path, *stages))


@pytest.mark.parametrize(
    "config, options, message",
    [
        ({}, {"max_steps": 8}, "`max_steps` 8: the stages have 7 steps together"),
        ({}, {"do_train": False}, "give `do_train` too"),
        (
            {},
            {"save_strategy": "best", "metric_for_best_model": "loss"},
            "the best checkpoint can be of another shape",
        ),
        ({}, {"optim": "adagrad"}, "`optim` adagrad: only AdamW's state can grow"),
        ({}, {"torch_compile": True}, "`torch_compile`: batches have one shape"),
        ({"qk_norm": True}, {}, "stage 2 of `stages`: attention_head_size=13: with qk_norm"),
    ],
)
def test_what_does_not_go_with_stages(tmp_path, config, options, message):
    """Guards: a model that cannot grow, or flags that stages cannot honour, end in a sentence before training."""
    arguments = arguments_of(tmp_path, FIRST, {"steps": 4, "max_seq_length": 11, **GROWTH}, **options)
    with pytest.raises(InputError, match=message):
        stages_of(config_of("ForPreTraining", **config), 11, arguments)


def test_stock_bert_cannot_grow(tmp_path):
    """Guards: a model becomes no other kind of model between two stages; its rows and batches can change."""
    config = BertConfig(num_attention_heads=12)
    changed = arguments_of(tmp_path, FIRST, {"steps": 4, "max_seq_length": 64, "total_train_batch_size": 24})
    assert [(one.max_seq_length, one.batch) for one in stages_of(config, 32, changed)] == [(32, (8, 1)), (64, (8, 3))]
    assert changed.max_steps == 7
    with pytest.raises(InputError, match="a model of the type bert cannot grow; convert it first"):
        stages_of(config, 32, arguments_of(tmp_path, FIRST, {"steps": 4, **GROWTH}))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """Twelve little documents of a few sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        sentences = [
            f"File {'abcdefghij'[index]} of list {'abcdefghijkl'[number]} does {'abcdefghij'[index] * 3}."
            for index in range(9)
        ]
        (folder / f"{number:02}.txt").write_text(" ".join(sentences))
    return str(folder)


class StopAt(TrainerCallback):
    """Breaks a run off at the end of a step, before what is due then; or sends SIGTERM within it, or before step 1."""

    def __init__(self, step: int, by_signal: bool):
        self.step, self.by_signal = step, by_signal

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.by_signal and state.global_step == self.step == 0:
            self.step = -1  # once
            os.kill(os.getpid(), signal.SIGTERM)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.by_signal and state.global_step == self.step - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_step_end(self, args, state, control, **kwargs):
        if not self.by_signal and state.global_step == self.step:
            raise KeyboardInterrupt


def record(output) -> list[dict]:
    """All that is written down of a run, but times and speeds."""
    results = json.loads((output / "all_results.json").read_text())
    entries = [*json.loads((output / "trainer_state.json").read_text())["log_history"], results]
    return [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in entries
    ]


@pytest.fixture(scope="module")
def recipe(corpus, vocabulary, tmp_path_factory) -> str:
    """Three stages: 7 steps of 4 pairs; 9 of 6, with heads and neurons added; 8 with larger values, longer rows."""
    file = tmp_path_factory.mktemp("recipe") / "grow.yaml"
    file.write_text(f"""
config_name: tiny
config_overrides: {SHAPE}
tokenizer_name: {vocabulary}
train_file: {corpus}
max_seq_length: 24
stages:
  - steps: 7
  - {{steps: 9, num_attention_heads: 7, attention_head_size: 13, intermediate_size: 53, total_train_batch_size: 6}}
  - {{steps: 8, value_head_size: 15, max_seq_length: 32}}
do_train: true
do_eval: true
per_device_train_batch_size: 4
total_train_batch_size: 4
learning_rate: 0.001
logging_steps: 3
eval_strategy: steps
eval_steps: 5
eval_on_start: true
save_steps: 4
use_cpu: true
report_to: none
disable_tqdm: true
""")
    return str(file)


def test_grown_run_is_one_run(recipe, tmp_path, monkeypatch):
    """
    Guards: a run of three stages has the loss after a boundary that it had before, one schedule, one log and one
    speed; no example twice; no two models at once; and broken off within a stage, after a boundary, by a signal at
    one or in the first evaluation, or taken back to a stage before, it ends with the same bits.

    Slow, for a whole run and five that are broken off and continued.
    """
    batch = inputs_of("ForPreTraining", labels=True)
    batch = {name: values % 60 if name == "input_ids" else values for name, values in batch.items()}
    batch["labels"] = torch.where(batch["labels"] < 60, batch["labels"], -100)
    losses, rows, sizes, models = [], [], {}, []
    training_step = CommonTrainer.training_step

    def measured(checkpoint, *args):
        begin = begin_stage(checkpoint, *args)
        with torch.no_grad():
            folders = [Path(folder) for folder in (checkpoint, begin)]
            losses.append([AutoModelForPreTraining.from_pretrained(folder)(**batch).loss for folder in folders])
        first, then = (torch.load(folder / "optimizer.pt")["state"] for folder in folders)
        same = [number for number in first if first[number]["exp_avg"].shape == then[number]["exp_avg"].shape]
        assert first.keys() == then.keys() and len(same) > 20
        assert all(torch.equal(first[number]["exp_avg_sq"], then[number]["exp_avg_sq"]) for number in same)
        return begin

    def remembered(self, model, inputs, *args, **kwargs):
        sizes[self.train_dataset.max_seq_length] = len(self.train_dataset)
        parts = (inputs["input_ids"], inputs["labels"], inputs["attention_mask"].bool())
        rows.extend(str((ids[real].tolist(), labels[real].tolist())) for ids, labels, real in zip(*parts, strict=True))
        return training_step(self, model, inputs, *args, **kwargs)

    def alone(*args):
        assert all(model() is None for model in models)
        models.append(weakref.ref(model := load_model(*args)))
        return model

    with monkeypatch.context() as patch:
        patch.setattr("fixedbert.pretraining.pretrain.load_model", alone)
        patch.setattr("fixedbert.pretraining.pretrain.begin_stage", measured)
        patch.setattr(CommonTrainer, "training_step", remembered)
        run_pretraining.main([recipe, "--output_dir", str(tmp_path / "whole")])

    assert len(models) == 3
    assert len(losses) == 2 and all(after.item() == pytest.approx(before.item(), abs=1e-5) for before, after in losses)
    assert not (tmp_path / "whole" / "_stage").exists()
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert [config[name] for name in (*GROWTH, "value_head_size")] == [7, 13, 53, 15]
    log = record(tmp_path / "whole")
    logged = [(entry["step"], entry["learning_rate"]) for entry in log if "loss" in entry]
    assert logged == [(step, pytest.approx(1e-3 * (1 - (step - 1) / 24))) for step in range(3, 25, 3)]
    assert [entry["step"] for entry in log[:-1] if "eval_loss" in entry] == [0, 5, 10, 15, 20, 24]
    results = json.loads((tmp_path / "whole" / "train_results.json").read_text())
    assert results["train_steps_per_second"] * results["train_runtime"] == pytest.approx(24, rel=0.01)
    assert results["train_samples_per_second"] * results["train_runtime"] == pytest.approx(130, rel=0.01)
    assert len(rows) == 7 * 4 + 17 * 6 and sizes.keys() == {24, 32}
    of_4, of_6 = -(-sizes[24] // 4), -(-sizes[24] // 6)  # steps of an epoch
    epochs, steps = divmod(7, of_4)
    later = (-(-steps * 4 // 6) + 9) // of_6
    again = epochs * (of_4 * 4 - sizes[24]) + later * (of_6 * 6 - sizes[24])  # what fills up the last steps
    assert 82 - len({*rows[:82]}) == again
    reached = [entry["epoch"] for entry in log if "loss" in entry]
    assert reached == sorted(reached)

    cuts = [(11, 8, False), (8, 7, False), (7, 7, True), (0, 1, True), (21, 20, False)]
    for number, (step, saved, by_signal) in enumerate(cuts):
        cut = tmp_path / f"cut{number}"
        command, breaking = [recipe, "--output_dir", str(cut)], StopAt(step, by_signal)

        def stop(trainer, *args, callback=breaking, **kwargs):
            trainer.add_callback(callback)
            train(trainer, *args, **kwargs)

        with monkeypatch.context() as patch, pytest.raises(Stopped if by_signal else KeyboardInterrupt):
            patch.setattr("fixedbert.pretraining.pretrain.train", stop)
            run_pretraining.main(command)
        assert complete_checkpoints(cut.with_name(f"cut{number}.partial"))[-1].name == f"checkpoint-{saved}"
        back = ["--resume_from_checkpoint", f"{cut}.partial/checkpoint-4"] if step == 21 else []
        run_pretraining.main([*command, *back])
        assert (cut / "_unused-checkpoint-20").exists() == bool(back)
        assert record(cut) == log
        one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", cut))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class StopStage(TrainerCallback):
    """Stops the training after some steps of the run."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (3, 5, 7):
            control.should_training_stop = True


class Board(TensorBoardCallback):
    """Where TensorBoard would be told to write; the package need not be installed."""

    def __init__(self):
        self.logging_dir = None

    def on_train_begin(self, *args, **kwargs):
        pass

    on_log = on_train_end = on_train_begin


def test_tensorboard_has_one_directory(recipe, tmp_path):
    """Guards: all stages, and a run that goes on, write into one directory, so that TensorBoard shows one run."""
    board = Board()
    pretrain(
        [recipe, "--output_dir", str(tmp_path / "run"), "--do_eval", "false", "--eval_strategy", "no"],
        callbacks=[board],
    )
    assert board.logging_dir == str(tmp_path / "run.partial" / "runs")


def test_callback_ends_a_stage(recipe, tmp_path, monkeypatch):
    """Guards: where a callback stops the training the next stage begins, with the next examples and no warning."""
    rows, warnings, training_step = [], [], CommonTrainer.training_step

    def remembered(self, model, inputs, *args, **kwargs):
        parts = (inputs["input_ids"], inputs["attention_mask"].bool())
        rows.extend(str(ids[real].tolist()) for ids, real in zip(*parts, strict=True))
        return training_step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(CommonTrainer, "training_step", remembered)
    monkeypatch.setattr("transformers.trainer.logger.warning", warnings.append)
    command = [recipe, "--output_dir", str(tmp_path / "run"), "--do_eval", "false", "--eval_strategy", "no"]
    pretrain([*command, "--eval_on_start", "false"], callbacks=[StopStage()])
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [config[name] for name in (*GROWTH, "value_head_size")] == [7, 13, 53, 15]
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == 7
    assert len(rows) == len({*rows}) == 3 * 4 + 2 * 6 + 2 * 6
    assert not [text for text in warnings if "missing keys" in text]


@pytest.mark.slow
def test_two_processes_grow_like_one(recipe, tmp_path):
    """Guards: two processes hand over to a stage together, and train in all stages what one process trains."""
    no_dropout = ("--config_overrides", f"{SHAPE},hidden_dropout_prob=0,attention_probs_dropout_prob=0")
    one, two = ([recipe, *no_dropout, "--output_dir", str(tmp_path / name)] for name in ("one", "two"))
    pair = fork_server.Pair(ROOT / "run_pretraining.py", two, tmp_path / "printed")
    run_pretraining.main(one)
    pair.finished()
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], rtol=1e-4, atol=1e-4), name
    for a, b in zip(record(tmp_path / "one"), record(tmp_path / "two"), strict=True):
        for name in a.keys() & {"loss", "learning_rate", "epoch", "num_input_tokens_seen", "eval_loss"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3), (name, a, b)
