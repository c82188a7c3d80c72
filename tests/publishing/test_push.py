"""Tests that a pushed directory is complete and loads with and without fixedbert."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from helpers.tiny_models import HEADS, UNEQUAL, inputs_of, model_of
from helpers.tiny_tasks import glue, write_model
from huggingface_hub import ModelCard, constants
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoConfig, BertConfig, BertModel, BertTokenizer, Trainer

import fixedbert
from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP
from fixedbert.support.errors import InputError
from fixedbert_cli import main

CODE = {f"{part}_fixed_head_bert.py" for part in ("configuration", "attention", "unpadding", "modeling")}
WITHOUT_FIXEDBERT = """
import sys
sys.modules["fixedbert"] = None  # importing it raises ModuleNotFoundError
"""


class FakeApi:
    """Stand-in for HfApi that keeps the files of one repository. Only the token "hf_write" has write access."""

    endpoint, private = "https://hub", False
    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []

    def __init__(self, token: str):
        self.token = token

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> SimpleNamespace:
        self.requests.append("create_repo")
        if self.token != "hf_write":
            raise HTTPError("403 Forbidden")
        return SimpleNamespace(repo_id=repo_id)

    def model_info(self, repo_id: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private)

    def upload_folder(self, *, repo_id, folder_path, commit_message, allow_patterns, ignore_patterns, delete_patterns):
        self.requests.append(commit_message)
        local = [file.relative_to(folder_path).as_posix() for file in folder_path.rglob("*") if file.is_file()]
        for name in filter_repo_objects([*self.files], allow_patterns=delete_patterns):
            del self.files[name]
        for name in filter_repo_objects(local, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            self.files[name] = (folder_path / name).read_bytes()
        return SimpleNamespace(commit_url=f"{self.endpoint}/{repo_id}/commit/1")


@pytest.fixture
def online(monkeypatch) -> type[FakeApi]:
    """Replaces HfApi with an empty FakeApi."""
    monkeypatch.setattr(FakeApi, "files", {})
    monkeypatch.setattr(FakeApi, "requests", [])
    monkeypatch.setattr("fixedbert.publishing.push.HfApi", FakeApi)
    return FakeApi


@pytest.fixture
def folder(tmp_path, vocabulary) -> Path:
    """Model directory as written by the scripts, with a pickle and a checkpoint."""
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
for name, reference in {AUTO_MAP}.items():
    opened = getattr(transformers, name).from_pretrained("model", trust_remote_code=True)
    assert type(opened).__name__ == reference.split(".")[1], type(opened)
"""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


def test_failed_upload_of_a_script(folder, download, tmp_path, monkeypatch):
    """If the upload at the end of a run fails, the output directory is complete."""

    def fail(*args, **kwargs):
        raise HTTPError("500 Internal Server Error")

    for name in ("init_hf_repo", "_push_from_checkpoint"):
        monkeypatch.setattr(Trainer, name, lambda *args, **kwargs: None)
    monkeypatch.setattr(Trainer, "push_to_hub", fail)
    with pytest.raises(InputError, match="rte is complete, but the upload failed: 500"):
        glue(str(folder), download, tmp_path / "rte", "--do_train", "--max_steps", "1", "--push_to_hub")
    assert (tmp_path / "rte" / "model.safetensors").exists()


def test_private_is_not_public(online, folder):
    """--private never uploads weights to a public repository."""
    with pytest.raises(InputError, match="this repository is public"):
        push(folder, "--license", "mit", "--private")
    assert not online.files


def test_only_files_of_a_model_are_uploaded(online, folder):
    """Pickles, checkpoints and secrets are not uploaded, and old weights on the Hub are deleted."""
    online.files |= {
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": b"old",
        "figure.png": b"mine",
    }
    for name in ("secret.env", "train.pickle", "tf_model.h5"):
        (folder / name).write_text("secret")
    push(folder, "--license", "mit")
    assert online.files.keys() == {
        *CODE, "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "all_results.json", "figure.png",
    }  # fmt: skip


def test_license_of_the_card(online, folder):
    """A model card needs a license. The one that is passed is written to the card, and all else stays unchanged."""
    with pytest.raises(InputError, match="`license` is required"):
        push(folder)
    assert not online.requests
    (folder / "README.md").write_text("---\ntags: [a]\nodd: {x: 1}\n---\n# Mine\n")
    push(folder, "--license", "mit")
    card = ModelCard(online.files["README.md"].decode())
    assert (card.data.license, card.data.tags, card.data.odd) == ("mit", ["a"], {"x": 1}) and "# Mine" in card.text


def test_dry_run(online, folder, capsys):
    """--dry_run lists the files, requires a license, changes no file, and does not connect to the Hub."""
    with pytest.raises(InputError, match="`license` is required"):
        push(folder, "--dry_run")
    push(folder, "--license", "mit", "--dry_run")
    listed = capsys.readouterr().out.splitlines()[1:]
    assert not online.requests and not (folder / "README.md").exists()
    push(folder, "--license", "mit")
    assert {*listed} == online.files.keys()


def test_token_without_write_access(online, folder):
    """A read-only token raises an error before a repository is created."""
    with pytest.raises(InputError, match="user/model: the upload to .* failed: 403 Forbidden"):
        push(folder, "--license", "mit", token="hf_read")
    assert online.requests == ["create_repo"]


def test_other_models_are_refused(online, folder):
    """A directory without a FixedHeadBert raises an error before the first request to the Hub."""
    BertModel(BertConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    for directory in (folder, folder / "missing"):
        with pytest.raises(InputError):
            push(directory, "--license", "mit")
    assert not online.requests


def test_conversion_reads_from_the_hub(tmp_path, vocabulary):
    """fixedbert convert with a Hub id reads weights, tokenizer and license from the cache of the Hub."""
    repository = Path(constants.HF_HUB_CACHE) / "models--user--bert"
    bert = repository / "snapshots" / "0123"
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(bert)
    tokenizer.save_pretrained(bert)
    (bert / "README.md").write_text("---\nlicense: mit\n---\n# bert\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    main(["convert", "user/bert", "--output_dir", str(tmp_path / "out"), "--attention_head_size", "16"])
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "user/bert" and card.data.license == "mit"
    assert (tmp_path / "out" / "tokenizer.json").exists()
