"""Models stored in bfloat16 or float16 are trained in float32, and saved in the dtype in which they were stored."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.outputs import StopAfter, record, same_weights, weights_in
from helpers.script_arguments import glue_of, read, squad_of
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification

import run_glue
import run_squad
from fixedbert.fine_tuning.trainer import FineTuningTrainer
from fixedbert.pretraining.pretrain import pretrain
from fixedbert.training.interruption import train
from fixedbert.training.output import complete_checkpoints

FLOAT32 = ("--bf16", "false", "--max_steps", "6", "--save_steps", "2", "--learning_rate", "1e-4")


@pytest.fixture(scope="module")
def half(pretrained, tmp_path_factory) -> Path:
    """Returns a directory with the same model stored in `bfloat16` and in `float32`."""
    directory = tmp_path_factory.mktemp("half")
    model = AutoModelForPreTraining.from_pretrained(pretrained).bfloat16()
    for dtype in (torch.bfloat16, torch.float32):
        copy = shutil.copytree(pretrained, directory / str(dtype).removeprefix("torch."))
        model.to(dtype).save_pretrained(copy)
    return directory


def assert_rounded(saved: Path, expected: Path):
    """Asserts that the weights in `saved` are those in `expected` in bfloat16."""
    weights, rounded = weights_in(saved), {name: x.bfloat16() for name, x in weights_in(expected).items()}
    assert {x.dtype for x in weights.values()} == {torch.bfloat16} and weights.keys() == rounded.keys()
    assert all(torch.equal(weights[name], rounded[name]) for name in weights)


def test_glue_trains_in_float32(half, tasks, tmp_path, monkeypatch, capsys):
    """A bfloat16 model trains like the same float32 model until it is saved, also if the run is interrupted twice."""

    def run(name: str, *more: str, dtype: str = "bfloat16"):
        run_glue.main(glue_of(half / dtype, tasks, tmp_path / name, *FLOAT32, *more))

    run("float32", dtype="float32")
    assert "trained in float32" not in capsys.readouterr().out
    run("bfloat16")
    assert f"{half / 'bfloat16'}: will be trained in float32 and saved in bfloat16" in capsys.readouterr().out
    assert_rounded(tmp_path / "bfloat16", tmp_path / "float32")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "bfloat16").dtype == torch.bfloat16
    assert same_weights(tmp_path / "bfloat16/checkpoint-6", tmp_path / "float32")
    before, after = (weights_in(path) for path in (half / "float32", tmp_path / "bfloat16/checkpoint-6"))
    layers = [name for name in before if ".layer." in name and name.endswith("dense.weight")]
    assert min((before[name] != after[name]).float().mean() for name in layers) > 0.95

    def stop(trainer, checkpoint):
        trainer.add_callback(StopAfter(3))
        train(trainer, checkpoint)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.fine_tuning.fine_tune.train", stop)
        run("interrupted")
    assert [path.name for path in complete_checkpoints(tmp_path / "interrupted.partial")] == ["checkpoint-2"]
    run("interrupted")
    (tmp_path / "interrupted").rename(tmp_path / "interrupted.partial")  # as if killed before the evaluation
    run("interrupted")
    assert same_weights(tmp_path / "interrupted", tmp_path / "bfloat16")
    uninterrupted = record(tmp_path / "bfloat16", "train_loss")
    assert record(tmp_path / "interrupted", "train_loss") == uninterrupted


def test_evaluation_keeps_the_dtype(half, tasks, tmp_path, monkeypatch):
    """Without training, a model is evaluated in its own dtype."""
    dtypes, evaluate = [], FineTuningTrainer.evaluate
    monkeypatch.setattr(
        FineTuningTrainer,
        "evaluate",
        lambda trainer, *args, **options: dtypes.append(trainer.model.dtype) or evaluate(trainer, *args, **options),
    )
    run_glue.main(glue_of(half / "bfloat16", tasks, tmp_path / "model", *FLOAT32))
    run_glue.main(glue_of(tmp_path / "model", tasks, tmp_path / "out", *FLOAT32, "--do_train", "false"))
    assert dtypes == [torch.float32, torch.bfloat16]


def test_squad_trains_in_float32(half, tasks, tmp_path):
    """squad rounds the weights only at the end."""
    for dtype in ("bfloat16", "float32"):
        run_squad.main(squad_of(half / dtype, tasks, tmp_path / dtype, *FLOAT32))
    assert_rounded(tmp_path / "bfloat16", tmp_path / "float32")


def test_pretraining_stages_keep_the_dtype(half, corpus, tmp_path):
    """Each pretraining stage saves the dtype of the first model, also if the model grows."""
    options = ["--train_file", corpus, "--max_seq_length", "32", "--do_train", "--use_cpu", "--bf16", "false"]
    options += ["--model_name_or_path", str(half / "bfloat16"), "--output_dir", str(tmp_path / "out")]
    stages = [{"steps": 2}, {"steps": 2, "intermediate_size": 53}]
    pretrain(**read("pretrain", options), stages=stages)
    for directory in (tmp_path / "out-stage1", tmp_path / "out"):
        assert {x.dtype for x in weights_in(directory).values()} == {torch.bfloat16}
