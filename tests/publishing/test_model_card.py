"""Tests that model cards describe the model, its training and its results correctly, with valid Hub metadata."""

import json
import re
from pathlib import Path

import pytest
import yaml
from helpers import ROOT
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import model_of
from helpers.tiny_tasks import glue
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, DistilBertConfig, RobertaConfig

from fixedbert import PRESETS, convert, preset_config
from fixedbert.counts import forward_flops, parameters
from fixedbert.publishing.model_card import checkpoint_card, datasets_of
from fixedbert.support.tables import markdown_table
from run_pretraining import main as run_pretraining


def metadata(card: ModelCard | Path) -> dict:
    text = card.read_text(encoding="utf-8") if isinstance(card, Path) else str(card)
    return yaml.safe_load(text.split("---\n")[1])


def preset_row(name: str) -> tuple:
    preset, config = PRESETS[name], preset_config(name)
    total, in_layers = parameters(config)
    reported = f"{preset.squad_f1} / {preset.squad_em} / {preset.mnli}" if preset.parameters else ""
    return (
        f"`{name}`", preset.source, config.hidden_size, config.num_hidden_layers,
        f"{config.num_attention_heads} of {config.head_dim}", config.intermediate_size, f"{total:,}",
        f"{in_layers:,}", f"{forward_flops(config, 128) / 1e6:,.1f}", reported,
    )  # fmt: skip


def test_table_of_presets():
    """model_cards/presets.md lists all presets in order and with exact parameter counts."""
    rows = re.findall(r"^\| `.*$", (ROOT / "model_cards" / "presets.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == markdown_table([(), *(preset_row(name) for name in PRESETS)]).splitlines()[2:]


def test_fine_tuned_model(model, download, tmp_path):
    """run_glue.py writes a card with the run's arguments, seed and exact results, but without local paths."""
    flags = ("--do_train", "--do_eval", "--max_steps", "2", "--seed", "7")
    results = glue(model, download, tmp_path / "out", *flags, task="mrpc")
    data = metadata(tmp_path / "out" / "README.md")
    assert data["pipeline_tag"] == "text-classification" and data["library_name"] == "transformers"
    (entry,) = data["model-index"]
    metrics = {metric["type"]: metric["value"] for result in entry["results"] for metric in result["metrics"]}
    for key in ("accuracy", "f1", "combined_score", "loss"):
        assert metrics[key] == pytest.approx(results[f"eval_{key}"], abs=1e-6)
    assert not any("runtime" in key or "samples" in key for key in metrics)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "max_steps: 2\n" in text and "seed 7" in text
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 128
    assert str(tmp_path) not in text and download not in text and model not in text
    assert 'pipeline("text-classification"' in text and "text_pair" in text


def test_pretrained_model(corpus, tmp_path):
    """run_pretraining.py writes a card with the preset, the data, the token count and the held-out results."""
    run_pretraining(
        ["--config_name", "tiny", "--train_file", corpus, "--do_train", "--do_eval", "--max_steps", "1",
         "--per_device_train_batch_size", "4", "--max_eval_samples", "8", "--max_seq_length", "32", "--use_cpu",
         "--config_overrides", "hidden_size=32,num_hidden_layers=1,intermediate_size=37", "--disable_tqdm", "true",
         "--save_strategy", "no", "--output_dir", str(tmp_path / "out")]
    )  # fmt: skip
    data, text = metadata(tmp_path / "out" / "README.md"), (tmp_path / "out" / "README.md").read_text()
    assert data["pipeline_tag"] == "fill-mask" and "config_name: tiny\n" in text
    tokens = json.loads((tmp_path / "out" / "summary.json").read_text())["real tokens seen"]
    assert f"{tokens:,} non-padding tokens" in text and f"train_file:\n- {Path(corpus).name}\n" in text
    assert "perplexity" in text.split("## Results on held-out data")[1]


def test_cards_of_stock_models():
    """Cards for RoBERTa and DistilBERT mention no remote code, and DistilBERT's sizes are correct."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    results = {"eval_accuracy": 0.5, "eval_loss": float("nan"), "eval_name": "x"}
    model = AutoModelForSequenceClassification.from_config(RobertaConfig(vocab_size=99, **sizes))
    card = checkpoint_card(model, "me/r", "", results, {"type": "files", "name": "dev.tsv"})
    assert "import fixedbert" not in str(card) and "trust_remote" not in str(card)
    assert [m["type"] for r in metadata(card)["model-index"][0]["results"] for m in r["metrics"]] == ["accuracy"]
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=37, vocab_size=99)
    text = str(checkpoint_card(AutoModelForSequenceClassification.from_config(config), "me/d"))
    assert "2 layers of width 32 with 4 heads of 8, feed-forward 37, 0.0 M parameters\n" in text


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForMultipleChoice", "LMHeadModel"])
def test_snippet_truncates(head, tmp_path, monkeypatch):
    """The code in a card runs on texts of any length."""
    save(model_of(head, **SHAPE), tmp_path / "model", model_max_length=512)
    convert(tmp_path / "model", tmp_path / "wide", attention_head_size=9)
    variables = run_snippet(tmp_path / "wide" / "README.md", monkeypatch, tmp_path)
    assert variables["inputs"]["input_ids"].shape == (2, 23)
    assert variables["outputs"][0].shape[0] == (1 if head == "ForMultipleChoice" else 2)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"task_name": ["MNLI"]}, (["nyu-mll/glue"], "GLUE mnli")),
        ({"task_name": "mnli", "data_dir": "x"}, ([], "GLUE mnli, from files")),
        ({"train_file": "/a/tr.csv", "validation_file": "/a/va.csv"}, ([], "va.csv")),
        ({"dataset_name": ["a/b", "c"], "train_file": "d"}, (["a/b"], "held-out data")),
    ],
)
def test_datasets_of_a_run(arguments, expected):
    """Cards distinguish evaluation data from training data, and Hub ids from files."""
    datasets, evaluated_on = datasets_of(arguments)
    assert (datasets, evaluated_on["name"]) == expected
