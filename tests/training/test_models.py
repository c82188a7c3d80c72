"""Loading a configuration and a model: corrupted files, missing weights, and untrusted directories."""

import pytest
import torch
from helpers.outputs import configure
from helpers.tiny_tasks import write_model
from transformers import AutoModelForSequenceClassification

from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.options import ModelOptions
from fixedbert.support.errors import InputError
from fixedbert.training.models import load_config, load_model, reinitialize_head
from fixedbert_cli import main


def test_head_without_weights(tmp_path, vocabulary):
    """A missing task head is initialized only for training. One of a different shape is replaced only on request."""
    write_model(str(tmp_path / "pretrained"), vocabulary)
    tokenizer = load_tokenizer(vocabulary)

    def load(name: str, num_labels: int, train: bool, **options):
        arguments = ModelOptions(model_name_or_path=str(tmp_path / name), **options)
        config = load_config(arguments, num_labels=num_labels)
        return load_model(AutoModelForSequenceClassification, arguments, config, tokenizer, train)

    with pytest.raises(InputError, match="weights are missing for 'classifier.bias', 'classifier.weight'"):
        load("pretrained", 3, train=False)
    model = load("pretrained", 3, train=True)
    model.save_pretrained(tmp_path / "classifier")
    with pytest.raises(InputError, match=r"classifier.bias has shape \(3,\), but .* requires \(5,\)"):
        load("classifier", 5, train=True)
    assert load("classifier", 5, train=True, ignore_mismatched_sizes=True).classifier.out_features == 5
    again = load("classifier", 3, train=False)
    assert torch.equal(again.classifier.weight, model.classifier.weight)
    before = {name: weight.clone() for name, weight in again.state_dict().items()}
    after = reinitialize_head(again).state_dict()
    assert {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])} == {"classifier"}


@pytest.mark.parametrize("command", ["convert", "inspect"])
def test_code_of_a_model_is_not_run(tmp_path, vocabulary, monkeypatch, command):
    """convert and inspect never run code from a model directory and never ask for permission to do so."""
    remote = tmp_path / "remote"
    write_model(str(remote), vocabulary)
    configure(remote, model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    (remote / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("asked for permission"))
    text = tmp_path / "text.txt"
    text.write_text("One.\n")
    with pytest.raises(InputError, match="remote"):
        texts = ["--validation_file", str(text)] if command == "inspect" else []
        main([command, str(remote), "--output_dir", str(tmp_path / "out"), *texts])
    assert not (tmp_path / "executed").exists() and not (tmp_path / "out").exists()
