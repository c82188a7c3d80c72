"""Tests that the settings of sentence-transformers models apply in all commands."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.outputs import configure
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import MEAN, SHAPE, TEXTS, save, save_sentence_model
from helpers.tiny_models import model_of

from fixedbert import convert
from fixedbert.comparison.candidates import load_candidates
from fixedbert.comparison.compare import compare
from fixedbert.exporting.export import export
from fixedbert.loading.loaded_model import LoadedModel
from fixedbert.loading.sentence_models import TextSettings, read_text_settings
from fixedbert.options import CalibrationOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.calibration import task_rows

LONG = [f"The CAT Sat on {text} AND {text}" for text in TEXTS]
SETTINGS = {"max_seq_length": 13, "do_lower_case": True}
PROMPTS = {"prompts": {"query": "Who: ", "passage": "where "}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Directory with a model whose tokenizer is cased, although its vocabulary is lowercase."""
    directory = tmp_path_factory.mktemp("sentences") / "model"
    torch.manual_seed(0)
    model = model_of("Model", num_hidden_layers=1, **SHAPE)
    options = {"do_lower_case": False, "additional_special_tokens": ["[E1]"]}
    model.resize_token_embeddings(SHAPE["vocab_size"] + 1, mean_resizing=False)
    save_sentence_model(model, directory, "Pooling", settings=SETTINGS, prompts=PROMPTS, **options)
    return directory


def test_settings_apply_as_in_sentence_transformers(directory, tmp_path, capsys, monkeypatch):
    """All commands and the code in cards truncate, lowercase and prefix texts like sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    reference = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    texts = [*LONG, "[E1] The CAT"]
    expected = torch.nn.functional.normalize(torch.from_numpy(reference.encode(texts)), dim=-1)
    export(directory, tmp_path / "graph")
    for candidate in (*load_candidates(str(directory), ""), *load_candidates(str(tmp_path / "graph"), "")):
        encoded = candidate.model.tokenizer(
            [candidate.model.settings.prompt + text for text in texts], truncation=True, max_length=13
        )
        candidate.features = [[dict(zip(encoded, row, strict=True))] for row in zip(*encoded.values(), strict=True)]
        (predictions,), _ = candidate.timed(range(len(texts)))
        assert torch.allclose(predictions.values, expected, rtol=0, atol=1e-5)
    (tmp_path / "rows.txt").write_text("\n".join(texts))
    result = compare([directory, tmp_path / "graph"], tmp_path / "rows.txt", runtime=["torch"])
    assert result.models[1].fidelity.divergence < 1e-6
    variables = run_snippet(tmp_path / "graph" / "README.md", monkeypatch, tmp_path)
    encoded = reference.encode(["the cat sat " * 1000, "A second text."])
    assert torch.allclose(torch.from_numpy(variables["embeddings"]), torch.from_numpy(encoded), rtol=0, atol=1e-5)
    convert(directory, tmp_path / "wide", attention_head_size=9)
    variables = run_snippet(tmp_path / "wide" / "README.md", monkeypatch, tmp_path)
    assert torch.allclose(torch.from_numpy(variables["embeddings"]), torch.from_numpy(encoded), rtol=0, atol=1e-5)
    capsys.readouterr()
    loaded = LoadedModel.load(directory)
    rows = task_rows(CalibrationOptions(train_file=[str(tmp_path / "rows.txt")]), loaded, 100)
    tokenizer = reference.tokenizer
    ids = [tokenizer(f"Who: {text}", truncation=True)["input_ids"] for text in texts]
    assert sorted(row.tokens["input_ids"] for row in rows) == sorted(ids) and tokenizer.model_max_length == 13
    out = capsys.readouterr().out
    assert f"{directory}: each text is preceded by the default prompt 'Who: '\n" in out
    assert "prompts other than the default prompt are not used: passage\n" in out
    truncated = sum(len(tokenizer(f"Who: {text}")["input_ids"]) > 13 for text in texts)
    assert 0 < truncated < 5 and f"{truncated} of 5 calibration rows were truncated to 13 tokens\n" in out


def test_settings_of_other_models(tmp_path, directory, capsys):
    """Models that are not from sentence-transformers have no settings. An unknown default prompt raises an error."""
    save(model_of("Model", **SHAPE), tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(SETTINGS))
    assert read_text_settings(tmp_path) == TextSettings()
    (tmp_path / "modules.json").write_text('[{"type": "models.Transformer", "path": ""}]')
    assert read_text_settings(tmp_path) == TextSettings(13, True, "")
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "", "passage": "where "}, "default_prompt_name": None}))
    assert read_text_settings(tmp_path).prompt == ""
    assert "prompts other than the default prompt are not used: passage" in capsys.readouterr().out
    file.write_text(json.dumps({"default_prompt_name": "document"}))
    assert read_text_settings(tmp_path).prompt == "" and not capsys.readouterr().out
    file.write_text(json.dumps({"prompts": {}, "default_prompt_name": "sts"}))
    with pytest.raises(InputError, match="default_prompt_name 'sts' is not one of the prompts query, document"):
        read_text_settings(tmp_path)


def test_nested_layout(directory, tmp_path):
    """A transformer in a subdirectory keeps its settings and pooling. Alone, the subdirectory is refused."""
    nested = Path(shutil.copytree(directory, tmp_path / "nested"))
    files = [file for file in nested.iterdir() if file.name not in ("modules.json", "1_Pooling")]
    (nested / "0_Transformer").mkdir()
    for file in files:
        file.rename(nested / "0_Transformer" / file.name)
    (nested / "0_Transformer" / "config_sentence_transformers.json").rename(
        nested / "config_sentence_transformers.json"
    )
    modules = json.loads((nested / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (nested / "modules.json").write_text(json.dumps(modules))
    plain, other = (LoadedModel.load(each) for each in (directory, nested))
    assert (other.settings, other.pooling.mode) == (plain.settings, plain.pooling.mode)
    with pytest.raises(InputError, match=f"0_Transformer: only a module of .* use the whole model, {nested}."):
        convert(nested / "0_Transformer", tmp_path / "part")


def test_unsupported_pooling(directory, tmp_path):
    """A pooling that leaves out prompts is refused with the file."""
    copy = Path(shutil.copytree(directory, tmp_path / "model"))
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(MEAN | {"include_prompt": False}))
    with pytest.raises(InputError, match="1_Pooling/config.json: .* include prompt tokens, not include_prompt false"):
        LoadedModel.load(copy)


def test_cards_of_rerankers(tmp_path):
    """A converted cross-encoder, with or without a modules.json, has its own card, and reads only pairs of texts."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    save(model_of("ForSequenceClassification", num_labels=1, **SHAPE), tmp_path / "plain")
    configure(tmp_path / "plain", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    sentence_transformers.CrossEncoder(str(tmp_path / "plain"), device="cpu").save_pretrained(str(tmp_path / "saved"))
    for source in ("plain", "saved"):
        convert(tmp_path / source, tmp_path / f"{source}-fixed")
        assert "SentenceTransformer" not in (tmp_path / f"{source}-fixed" / "README.md").read_text()
        (tmp_path / "rows.csv").write_text("query,text\na,b\n")
        with pytest.raises(InputError, match="reads pairs of texts, but each row has a single text"):
            options = CalibrationOptions(train_file=[str(tmp_path / "rows.csv")])
            task_rows(options, LoadedModel.load(tmp_path / source), 9)
