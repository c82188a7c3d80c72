"""The line that says how a training runs, and launchers whose word did not reach it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from helpers.script_arguments import pretraining
from helpers.tiny_models import HEADS, bert_of, inputs_of, model_of

import run_pretraining
from fixedbert.pretraining.trainer import PretrainingArguments
from fixedbert.support.errors import InputError
from fixedbert.training.running import check_saving, check_world, running_text
from fixedbert.training.trainer import CommonTrainer

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_FSDP", "FSDP_VERSION")


@pytest.fixture(autouse=True)
def not_launched(monkeypatch):
    for name in (*LAUNCHED, "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)


def arguments(folder: Path, **given) -> PretrainingArguments:
    return PretrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **given)


def trainer_with(monkeypatch, device: str, processes: int = 1, gpus: int = 1, precision: str = "no", **enabled):
    """What the line reads of a Trainer on `device`: 3 examples on each device, accumulated 5 times."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    of_arguments = {"world_size": processes, "n_gpu": gpus, "device": torch.device(device)}
    plugins = {"fsdp_plugin": SimpleNamespace(fsdp_version=2), "deepspeed_plugin": SimpleNamespace(zero_stage=3)}
    return SimpleNamespace(
        args=SimpleNamespace(per_device_train_batch_size=3, gradient_accumulation_steps=5, **of_arguments),
        accelerator=SimpleNamespace(mixed_precision=precision, state=SimpleNamespace(**plugins)),
        is_fsdp_enabled=enabled.get("fsdp", False),
        is_deepspeed_enabled=enabled.get("deepspeed", False),
    )


def test_line_of_every_strategy(monkeypatch):
    """Guards: processes, devices, strategy, precision and examples a step are those of the Trainer."""
    lines = {
        "one process on CPU, fp32, 15 examples a step (3 at once, 5 times)": {"device": "cpu", "gpus": 0},
        "7 processes on CPU, DDP, fp32, 105 examples a step (3 on each of 7 devices, 5 times)": {
            **{"device": "cpu", "processes": 7, "gpus": 0}
        },
        "8 x NVIDIA H100, FSDP2, bf16, 120 examples a step (3 on each of 8 devices, 5 times)": {
            **{"device": "cuda", "processes": 8, "precision": "bf16", "fsdp": True}
        },
        "8 x NVIDIA H100, DeepSpeed ZeRO-3, fp16, 120 examples a step (3 on each of 8 devices, 5 times)": {
            **{"device": "cuda", "processes": 8, "precision": "fp16", "deepspeed": True}
        },
        "2 x NVIDIA H100, DataParallel, fp32, 30 examples a step (3 on each of 2 devices, 5 times)": {
            **{"device": "cuda", "gpus": 2}
        },
        "1 x NVIDIA H100, fp32, 15 examples a step (3 at once, 5 times)": {"device": "cuda"},
    }
    for line, given in lines.items():
        assert running_text(trainer_with(monkeypatch, **given)) == line
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision="tf32"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # as accelerate launch --num_processes 2 does without GPUs
    line = "accelerate launch was asked for several processes, and has started one: "
    assert running_text(trainer_with(monkeypatch, "cpu", gpus=0)).startswith(line)
    assert ", tf32, " in running_text(trainer_with(monkeypatch, "cuda"))


def test_training_begins_with_the_line(corpus, tmp_path, capsys):
    """Guards: a training prints it once, before its first step; an evaluation alone does not."""
    run_pretraining.main(pretraining(corpus, tmp_path / "model", "--gradient_accumulation_steps", "3"))
    printed = capsys.readouterr().out
    line = "one process on CPU, fp32, 12 examples a step (4 at once, 3 times)\n"
    assert printed.count("a step") == printed.count(line) == 1 and printed.index(line) < printed.index("{'loss'")


@pytest.mark.parametrize(
    ("launcher", "flags", "instructions", "expected"),
    [
        ("bf16", {}, ("amx_bf16",), "bf16"),
        ("bf16", {"bf16": False}, ("amx_bf16",), "bf16"),  # Trainer cannot switch it off
        ("no", {"bf16": True}, ("amx_bf16",), "bf16 (not accelerate's mixed_precision no)"),
        ("bf16", {}, (), "fp32 (not accelerate's mixed_precision bf16)"),
        ("no", {}, (), "fp32"),
        (None, {}, (), "fp32"),
    ],
)
def test_precision_is_the_one_that_holds(launcher, flags, instructions, expected, monkeypatch, tmp_path):
    """Guards: where Trainer's arguments or the processor win over accelerate's mixed_precision, the line says so."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    if launcher:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    trainer = CommonTrainer(model_of("ForMaskedLM"), arguments(tmp_path, **flags))
    assert f", {expected}, 8 examples a step" in running_text(trainer)


@pytest.mark.parametrize("more", [{}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}])
def test_one_of_several_processes_does_not_train_alone(more, monkeypatch, tmp_path):
    """Guards: variables of a launcher that are not enough to meet the other processes are refused before all work."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", **more}.items():
        monkeypatch.setenv(name, value)
    expected = "RANK=1 and WORLD_SIZE=3 say that this process is one of several, but it would train alone"
    with pytest.raises(InputError, match=expected):
        arguments(tmp_path)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(InputError, match=expected):  # on a GPU, where accelerate wants LOCAL_RANK too
        check_world(SimpleNamespace(world_size=1, distributed_state=None))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert arguments(tmp_path).world_size == 1


def test_fsdp_without_a_launcher_is_refused(monkeypatch, tmp_path):
    """Guards: no training is plain in silence where FSDP was asked for, nor is FSDP 1 begun on a CPU."""
    with pytest.raises(InputError, match="FSDP spreads a model over the processes that a launcher starts"):
        arguments(tmp_path, fsdp=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match="use accelerate launch --config_file fixedbert/recipes/accelerate/fsdp.yaml"):
        arguments(tmp_path)
    for version, expected in (("1", DistributedType.MULTI_CPU), ("2", DistributedType.MULTI_GPU)):
        monkeypatch.setenv("FSDP_VERSION", version)
        state = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU)
        launched = SimpleNamespace(world_size=2, distributed_state=state, fsdp=None)
        if version == "1":
            with pytest.raises(InputError, match="FSDP 1 trains on no CPU: give accelerate launch --fsdp_version 2"):
                check_world(launched)
        else:
            check_world(launched)  # accelerate looks for FSDP beside GPUs only
        assert state.distributed_type == expected


def test_fsdp_that_saves_no_model_is_refused():
    """Guards: a training is not begun that would end without its weights."""
    check_saving(FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT"))
    with pytest.raises(InputError, match="no trained model with SHARDED_STATE_DICT: give fsdp_state_dict_type FULL"):
        check_saving(FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT"))


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
        trainer = CommonTrainer(model, arguments(tmp_path, **given))
        assert trainer.accelerator.ddp_handler.find_unused_parameters is expected
