"""The training scripts on tiny data: results, objectives, several processes and invalid input."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import ROOT
from helpers.outputs import log_of, results
from helpers.script_arguments import QUICK, glue_of, pretraining, squad_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

import run_glue
import run_pretraining
import run_squad
from fixedbert.support.errors import InputError
from fixedbert.training.speed import FastDropout
from fixedbert.training.trainer import CommonTrainer


def test_results_of_pretraining(pretrained):
    """Pretraining reports plausible losses and the speed, and saves no setting that is for training only."""
    model = AutoModelForPreTraining.from_pretrained(pretrained)
    assert (model.config.vocab_size, model.config.attention_head_size) == (100, 6)
    metrics = results(pretrained)
    assert 0 < metrics["eval_mlm_loss"] < 10 and 0.3 < metrics["eval_nsp_loss"] < 2
    assert 0 <= metrics["eval_mlm_accuracy"] <= 1 and 0 <= metrics["eval_nsp_accuracy"] <= 1
    assert not model.config.sparse_prediction  # used in training only
    assert any(entry.get("tokens_per_second", 0) > 0 for entry in log_of(pretrained))


@pytest.mark.parametrize("flow", ["pretraining", "glue", "squad"])
def test_training_uses_fast_paths(corpus, pretrained, tasks, tmp_path, monkeypatch, flow):
    """Training skips padding, predicts only labeled tokens in pretraining, and uses FastDropout."""
    recorded, original = [], CommonTrainer.training_step

    def record(self, model, *args, **kwargs):
        model = self.accelerator.unwrap_model(model)
        dropouts = {type(module) for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        recorded.append((model.base_model.unpad_inputs, getattr(model, "sparse_prediction", None), dropouts))
        return original(self, model, *args, **kwargs)

    monkeypatch.setattr(CommonTrainer, "training_step", record)
    if flow == "pretraining":
        run_pretraining.main(pretraining(corpus, tmp_path / "out", "--max_steps", "1", "--do_eval", "false"))
    elif flow == "glue":
        run_glue.main(glue_of(pretrained, tasks, tmp_path / "out", "--max_steps", "1"))
    else:
        run_squad.main(squad_of(pretrained, tasks, tmp_path / "out", "--max_steps", "1"))
    assert recorded == [(True, True if flow == "pretraining" else None, {FastDropout})]


def test_held_out_metrics_do_not_depend_on_the_batch_size(corpus, pretrained, tmp_path):
    """Held-out losses are averages over tokens and segment pairs, and do not depend on the batch size."""
    seen = []
    for size in ("1", "7"):
        arguments = ["--model_name_or_path", str(pretrained), "--train_file", corpus, "--max_seq_length", "32"]
        arguments += ["--do_eval", "--use_cpu", "--output_dir", str(tmp_path / size)]
        run_pretraining.main([*arguments, "--per_device_eval_batch_size", size])
        seen.append(results(tmp_path / size))
    for name in ("eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_loss", "eval_nsp_accuracy"):
        assert seen[0][name] == pytest.approx(seen[1][name], rel=1e-5), name
        assert seen[0][name] == pytest.approx(results(pretrained)[name], rel=1e-5), name


def test_weights_that_overflow_are_refused(corpus, pretrained, tmp_path):
    """If the weights overflow, training stops in its first step, evaluation fails, and no output remains."""
    shutil.copytree(pretrained, tmp_path / "overflow")
    weights = load_file(tmp_path / "overflow" / "model.safetensors")
    weights["bert.encoder.layer.0.attention.self.query.weight"][3] = 3e38
    save_file(weights, tmp_path / "overflow" / "model.safetensors", metadata={"format": "pt"})
    command = ["--model_name_or_path", str(tmp_path / "overflow"), "--train_file", corpus, "--max_seq_length", "32"]
    command += ["--do_eval", "--output_dir", str(tmp_path / "output"), *QUICK]
    with pytest.raises(InputError, match="step 1: non-finite loss; no checkpoint has been saved"):
        run_pretraining.main([*command, "--do_train"])
    with pytest.raises(InputError, match="evaluation outputs contain NaN or infinity"):
        run_pretraining.main(command)
    assert [path.name for path in tmp_path.iterdir()] == ["overflow"]


@pytest.mark.parametrize("task, flag", [("mlm", "--do_train"), ("clm", "--separate_documents")])
def test_other_objectives(corpus, tmp_path, task, flag):
    """Packed rows train a masked or causal model, with the correct perplexity, summary and plot."""
    run_pretraining.main(pretraining(corpus, tmp_path / "run", "--objective", task, flag))
    metrics = results(tmp_path / "run")
    assert metrics["eval_loss"] == metrics[f"eval_{task}_loss"]
    assert metrics["eval_perplexity"] == pytest.approx(2.718281828 ** metrics["eval_loss"])
    model_class = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}[task]
    model, report = model_class.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not report["missing_keys"] and model.config.is_decoder == (task == "clm")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["objective"] == task and summary["steps"] == 3 and summary["examples in a step"] == 4
    assert summary["corpus"]["counts"]["documents"] == 12 and summary["real tokens seen"] > 100
    assert (tmp_path / "run" / "pretraining.png").stat().st_size > 10_000


def test_several_corpora(corpus, tmp_path):
    """Each corpus can have its own document boundary. The number of settings must match."""
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"body": "Line {n} here."}}\n' for n in range(30)))
    files = ("--train_file", corpus, str(tmp_path / "lines.jsonl"))
    options = ("--text_column_name", "text", "body", "--document_boundary", "row", "line")
    run_pretraining.main(pretraining(corpus, tmp_path / "run", *files, *options, "--objective", "mlm"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["corpus"]["counts"]["documents"] == 42
    assert "line" in summary["corpus"]["corpora"][1] and "text file" in summary["corpus"]["corpora"][0]
    with pytest.raises(InputError, match="`document_boundary` has 3 values for 2 corpora"):
        run_pretraining.main(pretraining(corpus, tmp_path / "bad", *files, *options, "line"))


OPENMP = """
import os, runpy, sys

class StopAtTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, StopAtTorch())
"""
RUN = "runpy.run_path('run_glue.py', run_name='__main__')"


@pytest.mark.parametrize("code, expected", [(RUN, "100000"), ("import fixedbert", "None")])
def test_openmp_spinning_is_limited(code, expected):
    """Scripts limit OpenMP spinning before importing torch. The library never does."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", OPENMP + code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[-1] == expected, done.stderr
