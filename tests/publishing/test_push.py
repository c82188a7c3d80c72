"""Tests that a pushed directory is complete and loads with and without fixedbert."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.fake_hub import FakeHub
from helpers.tiny_models import HEADS, UNEQUAL, inputs_of, model_of
from helpers.tiny_tasks import glue_arguments, write_model
from huggingface_hub import ModelCard, constants
from transformers import AutoConfig, BertConfig, BertModel, BertTokenizer

import fixedbert
from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP
from fixedbert.support.errors import InputError
from fixedbert_cli import main

CODE = {f"{part}_fixed_head_bert.py" for part in ("configuration", "attention", "unpadding", "modeling")}
WITHOUT_FIXEDBERT = """
import sys
sys.modules["fixedbert"] = None  # importing it raises ModuleNotFoundError
"""


@pytest.fixture
def hub():
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def online(hub, monkeypatch):
    """A fake Hub that this process uses in place of the Hugging Face Hub."""
    fields = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    for name, value in fields.items():
        monkeypatch.setattr(constants, name, value)
    return hub


@pytest.fixture
def folder(tmp_path, vocabulary) -> Path:
    """A model directory such as the scripts write, with a pickle and a checkpoint."""
    folder = tmp_path / "model"
    write_model(str(folder), vocabulary)
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "checkpoint-7").mkdir()
    (folder / "checkpoint-7" / "model.safetensors").write_bytes(b"")
    (folder / "all_results.json").write_text('{"eval_mlm_loss": 2.5}')
    return folder


def push(folder, *more, token="hf_write"):
    main(["push", str(folder), "user/model", "--token", token, *more])


def test_all_auto_classes_are_in_every_configuration(tmp_path):
    """A saved model with any task head lists the Auto classes for all task heads and contains their code."""
    assert {reference.split(".")[1] for reference in AUTO_MAP.values()} == {
        "FixedHeadBertConfig", *(f"FixedHeadBert{head}" for head in HEADS)
    }  # fmt: skip
    config = fixedbert.FixedHeadBertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=3)
    for head in ("ForQuestionAnswering", "Model"):
        getattr(fixedbert, f"FixedHeadBert{head}")(config).save_pretrained(tmp_path / head)
        assert json.loads((tmp_path / head / "config.json").read_text())["auto_map"] == AUTO_MAP
        assert CODE < {file.name for file in (tmp_path / head).iterdir()}
    assert AutoConfig.from_pretrained(tmp_path / "Model").auto_map == AUTO_MAP


def test_saved_model_loads_without_fixedbert(tmp_path):
    """A saved model loads with trust_remote_code alone and computes bit-identical logits."""
    shape = {"hidden_size": 9, "intermediate_size": 21, "unpad_inputs": True, "sparse_prediction": True, **UNEQUAL}
    model, inputs = model_of("ForPreTraining", **shape).eval(), inputs_of("ForPreTraining", size=3)
    model.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        torch.save((inputs, model(**inputs).prediction_logits), tmp_path / "expected.pt")
    program = f"""{WITHOUT_FIXEDBERT}
import torch, transformers
inputs, expected = torch.load("expected.pt")
model = transformers.AutoModelForPreTraining.from_pretrained("model", trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules."), type(model)
assert torch.equal(model(**inputs).prediction_logits, expected)
"""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_pushed_model_loads_without_fixedbert(hub, folder, tmp_path):
    """Every Auto class loads a pushed model with trust_remote_code alone, and saving it again keeps the code."""
    command = ["push", str(folder), "user/model", "--license", "cc0-1.0", "--commit_message", "First"]
    done = hub.run([sys.executable, "-m", "fixedbert", *command], tmp_path / "home", "hf_write")
    assert done.returncode == 0 and f"{hub.url}/user/model/commit/" in done.stdout, done.stderr
    assert hub.messages == ["First"]
    files = hub.repositories["user/model"]
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()

    program = f"""{WITHOUT_FIXEDBERT}
import transformers
for name, reference in {AUTO_MAP}.items():
    opened = getattr(transformers, name).from_pretrained("user/model", trust_remote_code=True)
    assert type(opened).__name__ == reference.split(".")[1], type(opened)
saved = {str(tmp_path / "saved")!r}
transformers.AutoModelForPreTraining.from_pretrained("user/model", trust_remote_code=True).save_pretrained(saved)
transformers.AutoModelForMaskedLM.from_pretrained(saved, trust_remote_code=True)
"""
    done = hub.run(program, tmp_path / "home", PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_script_pushes_its_results_and_no_token(hub, folder, download, tmp_path):
    """--push_to_hub uploads weights, code and a model card with the results, and never writes the token to a file."""
    arguments = glue_arguments(str(folder), download, tmp_path / "rte", "--do_train", "--do_eval", "--max_steps", "1")
    more = ["--push_to_hub", "--hub_model_id", "organization/rte", "--hub_token", "hf_write"]
    done = hub.run([sys.executable, str(ROOT / "run_glue.py"), *arguments, *more], tmp_path / "home")
    assert done.returncode == 0, done.stderr[-3000:]
    files = hub.repositories["organization/rte"]
    assert CODE | {"README.md", "model.safetensors", "all_results.json", "tokenizer.json"} < files.keys()
    assert not any(b"hf_write" in content for content in files.values())
    assert not any(b"hf_write" in file.read_bytes() for file in (tmp_path / "rte").rglob("*") if file.is_file())
    card = ModelCard(files["README.md"].decode())
    assert {entry.dataset_name for entry in card.data.eval_results} == {"GLUE rte, from files"}
    assert "seed 42" in card.content
    assert 'from_pretrained("organization/rte")' in card.content and str(tmp_path) not in card.content

    arguments[arguments.index("--output_dir") + 1] = str(tmp_path / "again")
    hub.fail("POST", "/commit/", status=500, times=9)
    failed = hub.run([sys.executable, str(ROOT / "run_glue.py"), *arguments, *more], tmp_path / "home")
    assert failed.returncode == 1 and "is complete, but the upload failed" in failed.stderr
    assert (tmp_path / "again" / "model.safetensors").exists()


def test_private_is_not_public(online, folder):
    """--private never uploads weights to a public repository."""
    online.create("user/model")
    with pytest.raises(InputError, match="this repository is public"):
        push(folder, "--license", "mit", "--private")
    assert "model.safetensors" not in online.repositories["user/model"]


def test_only_files_of_a_model_are_uploaded(online, folder):
    """Pickles, checkpoints and secrets are not uploaded, and old weights on the Hub are deleted."""
    online.create("user/model")
    old = {"model.safetensors.index.json": b"{}", "model-00001-of-00002.safetensors": b"old", "figure.png": b"mine"}
    online.commit("user/model", old)
    for name in ("secret.env", "train.pickle", "tf_model.h5"):
        (folder / name).write_text("secret")
    push(folder, "--license", "mit")
    assert online.repositories["user/model"].keys() - {".gitattributes"} == {
        *CODE, "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "all_results.json", "figure.png",
    }  # fmt: skip


def test_license_of_the_card(online, folder):
    """Pushing requires a license. A license that is passed is written to the card, which otherwise stays unchanged."""
    with pytest.raises(InputError, match="`license` is required"):
        push(folder)
    assert not online.requests
    (folder / "README.md").write_text("---\ntags: [a]\nodd: {x: 1}\n---\n# Mine\n")
    push(folder, "--license", "mit")
    card = ModelCard(online.repositories["user/model"]["README.md"].decode())
    assert (card.data.license, card.data.tags, card.data.odd) == ("mit", ["a"], {"x": 1}) and "# Mine" in card.text


def test_dry_run(online, folder, capsys):
    """--dry_run lists the files, requires a license, changes no file, and does not connect to the Hub."""
    with pytest.raises(InputError, match="`license` is required"):
        push(folder, "--dry_run")
    push(folder, "--license", "mit", "--dry_run")
    listed = capsys.readouterr().out.splitlines()[1:]
    assert not online.requests and not (folder / "README.md").exists()
    push(folder, "--license", "mit")
    assert {*listed} == online.repositories["user/model"].keys() - {".gitattributes"}


def test_token_without_write_access(online, folder):
    """A read-only token raises an error before a repository is created."""
    with pytest.raises(InputError, match="user/model: the upload to .* failed: .*403 Forbidden"):
        push(folder, "--license", "mit", token="hf_read")
    assert "user/model" not in online.repositories


def test_other_models_are_refused(online, folder):
    """A directory without a FixedHeadBert raises an error before the first request to the Hub."""
    BertModel(BertConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    for directory in (folder, folder / "missing"):
        with pytest.raises(InputError):
            push(directory, "--license", "mit")
    assert not online.requests


@pytest.mark.slow
def test_conversion_reads_from_the_hub(hub, tmp_path, vocabulary):
    """fixedbert convert with a Hub id downloads weights, tokenizer and license."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_text("---\nlicense: mit\n---\n# bert\n")
    hub.create("user/bert")
    files = [file for file in (tmp_path / "bert").rglob("*") if file.is_file()]
    hub.commit("user/bert", {file.relative_to(tmp_path / "bert").as_posix(): file.read_bytes() for file in files})
    command = [sys.executable, "-m", "fixedbert", "convert", "user/bert", "--output_dir", str(tmp_path / "out")]
    done = hub.run([*command, "--attention_head_size", "16"], tmp_path / "home")
    assert done.returncode == 0, done.stderr[-3000:]
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "user/bert" and card.data.license == "mit"
    assert (tmp_path / "out" / "tokenizer.json").exists()
