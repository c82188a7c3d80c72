"""Tests of pretraining in stages: growth between stages, the learning-rate schedule, and resumption."""

import json
import signal
from pathlib import Path

import pytest
import torch
from helpers.outputs import record, same_weights
from helpers.script_arguments import read
from helpers.tiny_models import inputs_of
from transformers import AutoModelForPreTraining, TrainerCallback

import run_pretraining
from fixedbert.pretraining.pretrain import pretrain
from fixedbert.pretraining.stages import plan_stages
from fixedbert.support.errors import InputError, Stopped
from fixedbert.training.trainer import CommonTrainer

SHAPE = "hidden_size=32,num_attention_heads=5,attention_head_size=6,intermediate_size=37"
GROWTH = {"num_attention_heads": 7, "attention_head_size": 13, "intermediate_size": 53}


@pytest.fixture(scope="module")
def recipe(corpus, tmp_path_factory) -> str:
    """Returns a recipe with 3 stages. The second has a larger model and batch size, the third has longer pairs."""
    file = tmp_path_factory.mktemp("recipe") / "grow.yaml"
    file.write_text(f"""
config_name: tiny
config_overrides: {{hidden_size: 32, num_attention_heads: 5, attention_head_size: 6, intermediate_size: 37}}
vocab_size: 100
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
save_steps: 4
use_cpu: true
report_to: none
disable_tqdm: true
""")
    return str(file)


AVERAGES = ("loss", "train_loss", "fill_ratio", "mlm_accuracy")  # averages since the last log, which resuming resets


class StopAt(TrainerCallback):
    """A callback that interrupts the run with output directory `name` at a step, by an exception or by SIGTERM."""

    def __init__(self, name: str, step: int, by_signal: bool):
        self.name, self.step, self.by_signal = name, step, by_signal

    def on_step_begin(self, args, state, control, **kwargs):
        if Path(args.output_dir).name == f"{self.name}.partial" and state.global_step == self.step - 1:
            if not self.by_signal:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)


def test_stages_and_resumption(recipe, tmp_path, monkeypatch):
    """
    A stage starts from a model with the same outputs as the previous stage's model.

    It uses new examples, and continues the learning-rate schedule. A run that is interrupted in any stage resumes with
    bit-identical results.
    """
    rows: list[str] = []
    training_step = CommonTrainer.training_step
    starts = []

    def recorded(self, model, inputs, *args, **kwargs):
        if not self.state.global_step and not self.step_losses:
            starts.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        parts = (inputs["input_ids"], inputs["labels"], inputs["attention_mask"].bool())
        rows.extend(str((ids[real].tolist(), labels[real].tolist())) for ids, labels, real in zip(*parts, strict=True))
        return training_step(self, model, inputs, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(CommonTrainer, "training_step", recorded)
        run_pretraining.main([recipe, "--output_dir", str(tmp_path / "run")])

    outputs = [tmp_path / name for name in ("run-stage1", "run-stage2", "run")]
    batch = inputs_of("ForPreTraining", labels=True)
    batch["input_ids"] = batch["input_ids"] % 60
    batch["labels"] = torch.where(batch["labels"] < 60, batch["labels"], -100)
    for before, after, start in zip(outputs, outputs[1:], starts[1:], strict=False):
        model = AutoModelForPreTraining.from_pretrained(after).eval()
        model.load_state_dict(start)
        with torch.no_grad():
            losses = [x(**batch).loss.item() for x in (AutoModelForPreTraining.from_pretrained(before), model)]
        assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [config[name] for name in (*GROWTH, "value_head_size")] == [7, 13, 53, 15]
    logs = [[entry for entry in record(output, *AVERAGES) if "learning_rate" in entry] for output in outputs]
    for log, first_step in zip(logs, (0, 7, 16), strict=True):
        expected = [1e-3 * (1 - (first_step + entry["step"] - 1) / 24) for entry in log]
        assert [entry["learning_rate"] for entry in log] == pytest.approx(expected)
    assert len(rows) == 7 * 4 + 17 * 6
    assert not {*rows[:28]} & {*rows[28:82]}  # the second stage does not repeat the examples of the first

    command = [recipe, "--output_dir", str(tmp_path / "again")]
    for name, step, by_signal in (("again-stage1", 6, False), ("again-stage2", 2, True), ("again", 7, True)):
        with pytest.raises((KeyboardInterrupt, Stopped)):
            pretrain(**read("pretrain", command), callbacks=[StopAt(name, step, by_signal)])
        assert (tmp_path / f"{name}.partial").exists()
    pretrain(**read("pretrain", command))
    for output in outputs:
        resumed = tmp_path / output.name.replace("run", "again")
        assert record(resumed, *AVERAGES) == record(output, *AVERAGES)
        assert same_weights(resumed, output)


FIRST = {"steps": 3}


@pytest.mark.parametrize(
    "stages, message",
    [
        ([FIRST, {"steps": 0}], "stage 2 of `stages` needs steps > 0 and can change only max_seq_length"),
        ([FIRST, {"steps": 4, "attention_head_size": 5}], "stage 2 of `stages`: 5 heads of size 5 cannot repr"),
        ([FIRST, {"steps": 4, "max_seq_length": 600}], "stage 2 of `stages`: `max_seq_length` 600"),
    ],
)
def test_invalid_stages(tmp_path, stages, message):
    """Errors in a later stage are reported before the first stage is trained."""
    arguments = {"config_name": "tiny", "config_overrides": SHAPE, "use_cpu": True, "do_train": True}
    with pytest.raises(InputError, match=message):
        plan_stages(arguments | {"output_dir": str(tmp_path / "run"), "stages": stages})


def test_stages_from_a_stock_bert(tmp_path):
    """A stock BERT becomes a FixedHeadBert when it grows. Stages have different batch sizes, seeds and directories."""
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    arguments = {"config_name": str(tmp_path / "bert"), "use_cpu": True, "output_dir": str(tmp_path / "run")}
    with pytest.raises(InputError, match="`separate_documents` is not supported by models of type bert"):
        plan_stages(arguments | {"objective": "mlm", "separate_documents": True})
    stages = [FIRST, {"steps": 4, "max_seq_length": 64, "total_train_batch_size": 24}, {"steps": 5, **GROWTH}]
    stages[2] |= {"num_attention_heads": 12, "attention_head_size": 128, "intermediate_size": 4000}
    first, second, third = plan_stages(arguments | {"stages": stages, "do_lower_case": False, "strip_accents": False})
    assert (first.config.model_type, second.config.model_type) == ("bert", "bert")
    assert third.config.attention_head_size == 128 and third.config.intermediate_size == 4000
    assert [stage.first_step for stage in (first, second, third)] == [0, 3, 7]
    assert {stage.schedule_steps for stage in (first, second, third)} == {12}
    assert third.arguments["model_name_or_path"] == second.arguments["output_dir"] == f"{tmp_path}/run-stage2"
    assert (third.arguments["seed"], third.arguments["total_train_batch_size"]) == (44, 24)
    assert "config_name" not in third.arguments
    for name in ("do_lower_case", "strip_accents"):
        assert name in first.arguments and name not in second.arguments  # its tokenizer decides
