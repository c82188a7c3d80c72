"""Tests that a pushed directory is complete and loads with and without fixedbert."""

import json
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.fake_hub import FakeHub
from helpers.tiny_models import UNEQUAL, inputs_of, model_of
from helpers.tiny_tasks import glue, write_model
from huggingface_hub import ModelCard, constants, hf_api
from transformers import BertConfig, BertModel, BertTokenizer

from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP
from fixedbert.support.errors import InputError
from fixedbert_cli import main

CODE = {f"{part}_fixed_head_bert.py" for part in ("configuration", "attention", "unpadding", "modeling")}


@pytest.fixture
def online(monkeypatch):
    """A fake Hub that this process uses in place of the Hugging Face Hub."""
    with FakeHub() as hub:
        fields = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        fields["HUGGINGFACE_CO_URL_TEMPLATE"] = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in fields.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # a client with the old endpoint
        yield hub


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


def test_pushed_model_loads_without_fixedbert(online, folder, tmp_path, monkeypatch, capsys):
    """Every Auto class loads a pushed model with trust_remote_code alone. Logits are the same, even if saved again."""
    shape = {"hidden_size": 9, "intermediate_size": 21, "unpad_inputs": True, "sparse_prediction": True, **UNEQUAL}
    model, inputs = model_of("ForPreTraining", **shape).eval(), inputs_of("ForPreTraining", size=3)
    model.save_pretrained(folder)
    with torch.no_grad():
        torch.save((inputs, model(**inputs).prediction_logits), tmp_path / "expected.pt")
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    main(["push", str(folder), "user/model", "--license", "cc0-1.0", "--commit_message", "First"])
    assert f"{online.url}/user/model/commit/" in capsys.readouterr().out and online.messages == ["First"]
    program = f"""
import sys
sys.modules["fixedbert"] = None  # importing it raises ModuleNotFoundError
import torch, transformers
for name, reference in {AUTO_MAP}.items():
    opened = getattr(transformers, name).from_pretrained("user/model", trust_remote_code=True)
    assert type(opened).__name__ == reference.split(".")[1], type(opened)
inputs, expected = torch.load({str(tmp_path / "expected.pt")!r})
for source in ("user/model", {str(tmp_path / "saved")!r}):
    model = transformers.AutoModelForPreTraining.from_pretrained(source, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    assert torch.equal(model(**inputs).prediction_logits, expected)
    model.save_pretrained({str(tmp_path / "saved")!r})
"""
    done = online.run(program, tmp_path / "home", PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-3000:]


def test_script_pushes_its_results_and_no_token(online, folder, download, tmp_path):
    """--push_to_hub uploads weights, code and a model card with the results, and never writes the token to a file."""
    flags = ["--do_train", "--do_eval", "--max_steps", "1", "--push_to_hub", "--hub_model_id", "organization/rte"]
    flags += ["--hub_token", "hf_write"]
    glue(str(folder), download, tmp_path / "rte", *flags)
    files = online.repositories["organization/rte"]
    assert CODE | {"README.md", "model.safetensors", "all_results.json", "tokenizer.json"} < files.keys()
    assert not any(b"hf_write" in content for content in files.values())
    assert not any(b"hf_write" in file.read_bytes() for file in (tmp_path / "rte").rglob("*") if file.is_file())
    card = ModelCard(files["README.md"].decode())
    assert {entry.dataset_name for entry in card.data.eval_results} == {"GLUE rte, from files"}
    assert "seed 42" in card.content
    assert 'from_pretrained("organization/rte")' in card.content and str(tmp_path) not in card.content
    online.fail("POST", "/commit/", status=500, times=9)
    with pytest.raises(InputError, match="is complete, but the upload failed"):
        glue(str(folder), download, tmp_path / "again", *flags)
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
    """--dry_run lists the files, requires a valid name and license, changes no file, and works without the Hub."""
    with pytest.raises(InputError, match="^a b: must be user/name"):
        main(["push", str(folder), "a b", "--dry_run"])
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


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_files_that_name_other_code_are_refused(online, folder, tmp_path, file):
    """Loading an uploaded model must not run code from elsewhere. A converted model names only fixedbert's code."""
    content = json.loads((folder / file).read_text()) | {"auto_map": {"AutoModel": "other/repo--evil.Evil"}}
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"{file}: auto_map names code .* remove 'AutoModel'"):
        push(folder, "--license", "mit", "--dry_run")
    main(["convert", str(folder), "--output_dir", str(tmp_path / "new")])
    push(tmp_path / "new", "--license", "mit", "--dry_run")


def test_uploaded_code_is_current(online, folder):
    """A model of an older fixedbert is uploaded with the current code, and one of a newer version is refused."""
    (folder / "modeling_fixed_head_bert.py").write_text("raise SystemExit")
    (folder / "attention_fixed_head_bert.py").unlink()
    push(folder, "--license", "mit")
    uploaded = online.repositories["user/model"]
    assert all(uploaded[name] == (ROOT / "fixedbert/model" / name).read_bytes() for name in CODE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"fixedbert_version": "99"}))
    with pytest.raises(InputError, match="saved by fixedbert 99; update fixedbert first"):
        push(folder, "--license", "mit")


def test_conversion_reads_from_the_hub(online, tmp_path, vocabulary):
    """fixedbert convert with a Hub id downloads weights, tokenizer and license."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_text("---\nlicense: mit\n---\n# bert\n")
    online.create("user/bert")
    files = [file for file in (tmp_path / "bert").rglob("*") if file.is_file()]
    online.commit("user/bert", {file.relative_to(tmp_path / "bert").as_posix(): file.read_bytes() for file in files})
    main(["convert", "user/bert", "--output_dir", str(tmp_path / "out"), "--attention_head_size", "16"])
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "user/bert" and card.data.license == "mit"
    assert (tmp_path / "out" / "tokenizer.json").exists()
