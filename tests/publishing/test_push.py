"""Tests that a pushed directory is complete, and that models on the Hub load with and without fixedbert."""

import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers import ROOT
from helpers.hub_server import Hub
from helpers.tiny_models import UNEQUAL, bert_of, inputs_of, model_of
from helpers.tiny_tasks import write_model
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import filter_repo_objects
from transformers import BertTokenizer

from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP
from fixedbert.support.errors import InputError
from fixedbert_cli import main

CODE = {f"{part}_fixed_head_bert.py" for part in ("configuration", "attention", "unpadding", "modeling")}


@pytest.fixture
def api(monkeypatch) -> Mock:
    """Replaces the client of the Hub. `api.uploaded` contains the files that an upload would send."""
    api = Mock(endpoint="https://hub", uploaded={})

    def upload(repo_id, folder_path, allow_patterns=None, ignore_patterns=None, **_):
        names = [file.relative_to(folder_path).as_posix() for file in Path(folder_path).rglob("*") if file.is_file()]
        chosen = filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        api.uploaded |= {name: Path(folder_path, name).read_bytes() for name in chosen}
        return Mock(commit_url=f"https://hub/{repo_id}/commit/1")

    api.create_repo.side_effect = lambda name, **_: Mock(repo_id=name)
    api.upload_folder.side_effect = upload
    monkeypatch.setattr("fixedbert.publishing.push.HfApi", lambda **_: api)
    return api


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


def push(folder, *more):
    main(["push", str(folder), "user/model", *more])


def test_read_only_directory(api, folder, monkeypatch):
    """A directory in which the code and the card cannot be updated is refused with one sentence."""
    monkeypatch.setattr("shutil.copy", Mock(side_effect=OSError(errno.EROFS, "Read-only file system", "code.py")))
    with pytest.raises(InputError, match="^code.py: Read-only file system; make the disk writable, or push a copy"):
        push(folder)
    assert not api.mock_calls


def test_only_files_of_a_model_are_uploaded(api, folder, capsys):
    """Pickles, checkpoints and secrets are not uploaded, code is current, and old weights on the Hub are deleted."""
    for name in ("secret.env", "train.pickle", "tf_model.h5"):
        (folder / name).write_text("secret")
    (folder / "modeling_fixed_head_bert.py").write_text("raise SystemExit")  # of an older fixedbert
    (folder / "attention_fixed_head_bert.py").unlink()
    push(folder, "--dry_run")
    listed = capsys.readouterr().out.splitlines()[1:]
    assert not api.mock_calls and not (folder / "README.md").exists()
    push(folder, "--license", "mit")
    assert "https://hub/user/model/commit/1" in capsys.readouterr().out
    assert api.uploaded.keys() == {*listed} == {
        *CODE, "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "all_results.json",
    }  # fmt: skip
    assert all(api.uploaded[name] == (ROOT / "fixedbert/model" / name).read_bytes() for name in CODE)
    options = api.upload_folder.call_args.kwargs
    old = ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "figure.png"]
    assert [*filter_repo_objects(old, allow_patterns=options["delete_patterns"])] == old[:2]


def test_own_card_is_kept(api, folder):
    """A license that is passed is added to the card, which otherwise stays unchanged."""
    (folder / "README.md").write_text("---\ntags: [a]\nodd: {x: 1}\n---\n# Mine\n")
    push(folder)
    assert "license" not in api.uploaded["README.md"].decode()
    push(folder, "--license", "mit")
    card = ModelCard(api.uploaded["README.md"].decode())
    assert (card.data.license, card.data.tags, card.data.odd) == ("mit", ["a"], {"x": 1}) and "# Mine" in card.text


def test_private_is_not_public(api, folder):
    """--private never uploads weights to a public repository."""
    api.model_info.return_value.private = False
    with pytest.raises(InputError, match="this repository is public"):
        push(folder, "--private")
    assert not api.uploaded


def test_refused_uploads(api, folder):
    """If the Hub refuses an upload, the error is one sentence that names the repository."""
    api.create_repo.side_effect = HfHubHTTPError("403 Forbidden: no rights\nmore", response=Mock(headers={}))
    with pytest.raises(InputError, match="^user/model: the upload to https://hub failed: 403 Forbidden: no rights.$"):
        push(folder)


def test_incomplete_and_other_models_are_refused(api, folder, tmp_path):
    """A directory without a complete FixedHeadBert and a tokenizer is refused before the first request to the Hub."""
    bert_of("Model").save_pretrained(tmp_path / "bert")
    (tmp_path / "cut").mkdir()
    for file in folder.glob("*.*"):
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes()[: -1000 if "safetensors" in file.name else None])
    (folder / "tokenizer.json").unlink()
    for directory in (tmp_path / "bert", tmp_path / "cut", folder, tmp_path / "missing"):
        with pytest.raises(InputError, match=f"^{directory}"):
            push(directory)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    shutil.copy(folder / "config.json", tmp_path)
    for words in (["push", "user/model", "--dry_run"], ["convert", "--output_dir", str(tmp_path / "new")]):
        with pytest.raises(InputError, match=f"^{tmp_path}: contains graphs instead of weights"):
            main([words[0], str(tmp_path), *words[1:]])
    assert not api.mock_calls


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_files_that_name_other_code_are_refused(folder, tmp_path, file):
    """Loading an uploaded model must not run code from elsewhere. A converted model names only fixedbert's code."""
    content = json.loads((folder / file).read_text()) | {"auto_map": {"AutoModel": "other/repo--evil.Evil"}}
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"{file}: auto_map names code .* remove 'AutoModel'"):
        push(folder, "--dry_run")
    main(["convert", str(folder), "--output_dir", str(tmp_path / "new")])
    push(tmp_path / "new", "--dry_run")


@pytest.mark.slow
def test_model_on_the_hub_loads_without_fixedbert(folder, tmp_path):
    """Every Auto class loads a model with trust_remote_code alone. Logits are the same, even if it is saved again."""
    shape = {"hidden_size": 9, "intermediate_size": 21, "unpad_inputs": True, "sparse_prediction": True, **UNEQUAL}
    model, inputs = model_of("ForPreTraining", **shape).eval(), inputs_of("ForPreTraining", size=3)
    model.save_pretrained(folder)
    with torch.no_grad():
        torch.save((inputs, model(**inputs).prediction_logits), tmp_path / "expected.pt")
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
    with Hub(model=folder) as hub:
        done = hub.run("-c", program, home=tmp_path / "home", PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_conversion_reads_from_the_hub(tmp_path, vocabulary):
    """fixedbert convert with a Hub id downloads weights, tokenizer and license."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    bert_of("Model", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_text("---\nlicense: mit\n---\n# bert\n")
    options = ["--output_dir", str(tmp_path / "out"), "--attention_head_size", "16"]
    with Hub(bert=tmp_path / "bert") as hub:
        done = hub.run("-m", "fixedbert", "convert", "user/bert", *options, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr[-3000:]
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "user/bert" and card.data.license == "mit"
    assert (tmp_path / "out" / "tokenizer.json").exists()
