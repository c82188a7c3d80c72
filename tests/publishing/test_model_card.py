"""Model cards: true to the code and to the results, with metadata that the Hub understands."""

import json
import re
from pathlib import Path

import pytest
import yaml
from helpers.tiny_tasks import glue, squad
from huggingface_hub import ModelCard
from transformers import DistilBertConfig, RobertaConfig

from fixedbert import PRESETS, FixedHeadBertModel, preset_config
from fixedbert.counts import forward_flops, parameters
from fixedbert.pretraining.pretrain import main as run_pretraining
from fixedbert.publishing.model_card import checkpoint_card, data_of, read_card, shape_table

HELD_OUT = "held-out documents of the training data"
CARDS = Path(__file__).parents[2] / "model_cards"


def metadata(card: ModelCard | Path) -> dict:
    text = card.read_text(encoding="utf-8") if isinstance(card, Path) else str(card)
    return yaml.safe_load(text.split("---\n")[1])


def preset_row(name: str) -> str:
    """What model_cards/presets.md says of a preset."""
    preset, config = PRESETS[name], preset_config(name)
    everything, layers = parameters(config)
    reported = f"{preset.squad_f1} / {preset.squad_em} / {preset.mnli}" if preset.parameters else ""
    cells = [
        f"`{name}`", preset.source, config.hidden_size, config.num_hidden_layers,
        f"{config.num_attention_heads} of {config.head_dim}", config.intermediate_size, f"{everything:,}",
        f"{layers:,}", f"{forward_flops(config, 128) / 1e6:,.1f}", reported,
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def test_table_of_presets():
    """Guards: model_cards/presets.md has each preset once, in their order, with exact counts, and no other."""
    rows = re.findall(r"^\| `.*$", (CARDS / "presets.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [preset_row(name) for name in PRESETS]


def test_operations_in_a_card_are_those_of_the_first_row_of_table_2a():
    """Guards: 24 layers of 4 D H P + 2 n H P + 2 D F, twice, in millions, computed here by hand."""
    flops = 2 * 24 * (4 * 512 * 1024 + 2 * 128 * 1024 + 2 * 512 * 4096)
    assert f"| {flops / 1e6:,.1f} MFLOP |" in shape_table(preset_config("fixed-512-8x128"))


def test_fine_tuned_model_has_a_card(model, download, tmp_path):
    """Guards: run_glue.py leaves a card with command, versions, seed and model-index of exactly its results."""
    results = glue(
        model, download, tmp_path / "out", "--do_train", "--do_eval", "--max_steps", "2", "--seed", "7", task="mrpc"
    )
    data = metadata(tmp_path / "out" / "README.md")
    assert data["pipeline_tag"] == "text-classification" and data["library_name"] == "transformers"
    (entry,) = data["model-index"]
    found = {metric["type"]: metric["value"] for result in entry["results"] for metric in result["metrics"]}
    expected = {key.removeprefix("eval_"): value for key, value in results.items() if key.startswith("eval_")}
    for key in ("accuracy", "f1", "combined_score", "loss"):
        assert found[key] == pytest.approx(expected[key], abs=1e-6)
    assert not any("runtime" in key or "samples" in key for key in found)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "python run_glue.py --model_name_or_path" in text and "seed 7" in text and "- Steps: 2" in text
    assert "one run with one seed" in text and "AutoModelForSequenceClassification.from_pretrained" in text


def test_squad_model_has_a_card(model, questions, tmp_path):
    """Guards: run_squad.py leaves one too, with its own file's name as the data set."""
    squad(model, questions, tmp_path / "out", "--do_train", "--do_eval", "--max_steps", "1")
    data = metadata(tmp_path / "out" / "README.md")
    assert data["pipeline_tag"] == "question-answering"
    results = data["model-index"][0]["results"]
    assert {metric["type"] for result in results for metric in result["metrics"]} >= {"exact", "f1"}
    assert results[0]["dataset"]["name"] == "questions.jsonl"


def test_pretrained_model_has_a_card(tmp_path, monkeypatch):
    """Guards: run_pretraining.py's card says from what, on what, and how many real tokens."""
    texts = [" ".join(f"Sentence {place} of text {number} is short." for place in range(9)) for number in range(60)]
    monkeypatch.setattr("fixedbert.data.sample.documents", lambda: texts)  # the sample takes seconds to collect
    run_pretraining(
        ["--config_name", "tiny", "--dataset_name", "sample", "--do_train", "--do_eval", "--max_steps", "1",
         "--per_device_train_batch_size", "4", "--max_eval_samples", "8", "--max_seq_length", "32", "--use_cpu",
         "--config_overrides", "hidden_size=32,num_hidden_layers=1,intermediate_size=37", "--disable_tqdm", "true",
         "--save_strategy", "no", "--output_dir", str(tmp_path / "out")]
    )  # fmt: skip
    data, text = metadata(tmp_path / "out" / "README.md"), (tmp_path / "out" / "README.md").read_text()
    assert data["pipeline_tag"] == "fill-mask" and "Started from: random weights" in text
    seen = json.loads((tmp_path / "out" / "summary.json").read_text())["real tokens seen"]
    assert f"{seen:,} real tokens seen" in text and "Data: sample" in text
    assert "perplexity" in text.split("## Results")[1] and "held-out documents" in text


def test_card_of_a_hub_task_names_its_data():
    """Guards: metadata given by name reach the card; a bare model is a feature extractor, without results."""
    config = preset_config("tiny")
    card = checkpoint_card(config, FixedHeadBertModel.__name__, "me/tiny", base_model="me/bert", license="mit")
    data = metadata(card)
    assert data["base_model"] == "me/bert" and data["license"] == "mit"
    assert data["pipeline_tag"] == "feature-extraction" and "model-index" not in data
    assert 'AutoModel.from_pretrained("me/tiny")' in str(card) and "has not been measured" in str(card)
    assert set(data["tags"]) == {"fixedbert", "bert", "custom_code"}


def test_card_of_a_roberta_can_be_loaded():
    """Guards: the scripts train RoBERTa-like models too, whose card names the Auto class that there is."""
    config = RobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37, vocab_size=99
    )
    results = {"eval_accuracy": 0.5, "eval_loss": float("nan"), "eval_name": "x"}
    on = {"type": "files", "name": "dev.tsv"}
    card = checkpoint_card(config, "RobertaForSequenceClassification", "me/r", "", results, on)
    data = metadata(card)
    assert "import AutoTokenizer, AutoModelForSequenceClassification" in str(card) and "trust_remote" not in str(card)
    assert [m["type"] for r in data["model-index"][0]["results"] for m in r["metrics"]] == ["accuracy"]


def test_card_of_a_distilbert_has_its_shape():
    """Guards: fields under DistilBERT's own names are in the card of a model that the scripts have trained."""
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=37, vocab_size=99)
    card = str(checkpoint_card(config, "DistilBertForSequenceClassification", "me/d", count=12345))
    assert "| feed-forward width | 37 |" in card and "| head size (d_p) | 8 |" in card
    assert f"| parameters of the layers | {2 * (4 * (32 * 32 + 32) + 2 * 32 * 37 + 37 + 32 + 4 * 32):,} |" in card


@pytest.mark.parametrize(
    "script, given, expected",
    [
        ("glue", {"task_name": ["MNLI"]}, (["GLUE mnli"], ["nyu-mll/glue"], "GLUE mnli")),
        ("glue", {"task_name": "mnli", "data_dir": "x"}, (["GLUE mnli, from files"], [], "GLUE mnli, from files")),
        ("glue", {"train_file": "a/tr.csv", "validation_file": "a/va.csv"}, (["a/tr.csv"], [], "va.csv")),
        ("squad", {"dataset_name": "rajpurkar/squad"}, (["rajpurkar/squad"], ["rajpurkar/squad"], "rajpurkar/squad")),
        ("pretraining", {"dataset_name": ["a/b", "c"], "train_file": "d"}, (["a/b", "c", "d"], ["a/b"], HELD_OUT)),
        ("pretraining", {"train_file": ["a/x.txt", "b"]}, (["a/x.txt", "b"], [], HELD_OUT)),
    ],
)
def test_data_of_a_run(script, given, expected):
    """Guards: training data are told from validation data, ids of the Hub from files, pretraining from fine-tuning."""
    trained_on, hub_ids, evaluated_on = data_of(given, f"run_{script}.py")
    assert (trained_on, hub_ids, evaluated_on["name"]) == expected


def test_card_survives_reading(tmp_path):
    """Guards: a card that was saved is read with the same metadata and text."""
    card = checkpoint_card(preset_config("tiny"), "FixedHeadBertForPreTraining", "tiny", license="apache-2.0")
    card.save(tmp_path / "README.md")
    assert str(read_card(tmp_path / "README.md")) == str(card)
