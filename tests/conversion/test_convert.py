"""Tests fixedbert convert: the directory that it writes, auxiliary files, and corrupted checkpoints."""

import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import transformers
from helpers.outputs import configure, same_weights
from helpers.tiny_models import bert_of
from huggingface_hub import ModelCard

import fixedbert
from fixedbert import convert
from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.loading.checkpoints import load_bert
from fixedbert.support.errors import InputError
from fixedbert_cli import main


@pytest.fixture
def checkpoint(tmp_path, vocabulary):
    """Directory with a BERT for classification with three labels and its tokenizer, as transformers saves them."""
    folder = tmp_path / "bert"
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    bert = bert_of("ForSequenceClassification", vocab_size=len(tokenizer), id2label={0: "no", 1: "yes", 2: "maybe"})
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_command_writes_a_model_directory(checkpoint, tmp_path, capsys):
    """The Auto classes load the new directory with labels and tokenizer. Converting back restores the weights."""
    sizes = "--attention_head_size 16 --num_attention_heads 6 --intermediate_size 53".split()
    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed"), *sizes])
    printed = capsys.readouterr().out
    assert "4 heads of 8, feed-forward 37" in printed and "6 heads of 16, feed-forward 53" in printed
    assert float(printed.split("largest difference between outputs ")[1].split("\n")[0]) < 1e-4
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "fixed")
    assert type(model) is fixedbert.FixedHeadBertForSequenceClassification
    assert model.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    one, other = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, tmp_path / "fixed"))
    assert one("the function takes a list")["input_ids"] == other("the function takes a list")["input_ids"]

    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "same")])
    main(["convert", str(tmp_path / "same"), "--output_dir", str(tmp_path / "back"), "--bert"])
    configs = [json.loads((folder / "config.json").read_text()) for folder in (checkpoint, tmp_path / "back")]
    assert configs[0] == configs[1] and same_weights(checkpoint, tmp_path / "back")


@pytest.mark.parametrize(
    "saved, named",
    [
        ("ForPreTraining", ["BertForMaskedLM"]),  # as in bert-base
        ("ForPreTraining", None),
        ("ForMaskedLM", None),
    ],
)
def test_heads_missing_from_config_json_are_kept(saved, named, tmp_path):
    """All pretraining heads in the file are kept, even if config.json names a class with fewer or none."""
    bert_of(saved).save_pretrained(tmp_path)
    configure(tmp_path, architectures=named)
    assert type(to_fixed_head_bert(load_bert(tmp_path))) is getattr(fixedbert, f"FixedHeadBert{saved}")


class Malicious:
    """Object that creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def pickle_with_code(checkpoint: Path):
    (checkpoint / "model.safetensors").unlink()
    code = pickle.dumps(Malicious(checkpoint.parent / "executed"))
    (checkpoint / "pytorch_model.bin").write_bytes(code)


def only_tensorflow(checkpoint: Path):
    (checkpoint / "model.safetensors").rename(checkpoint / "tf_model.h5")


@pytest.mark.parametrize(
    "damage, message",
    [
        (pickle_with_code, "pytorch_model.bin: cannot be read as a file of weights"),
        (only_tensorflow, "cannot load a model"),
        (partial(configure, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}), "quantized"),
    ],
)
def test_invalid_checkpoints_are_refused(checkpoint, tmp_path, damage, message):
    """An invalid checkpoint raises an error that names it, runs no pickled code, and leaves no output."""
    damage(checkpoint)
    with pytest.raises(InputError, match=message) as error:
        main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    assert str(checkpoint) in str(error.value)
    assert not (tmp_path / "executed").exists()
    assert not list(tmp_path.glob("fixed*"))


def test_fields_of_other_libraries_are_kept(checkpoint, tmp_path):
    """Fields of config.json that transformers does not know survive a conversion to FixedHeadBert and back."""
    configure(checkpoint, threshold={"a": [1, None]}, qk_norm=True)  # a BERT has no qk_norm
    convert(checkpoint, tmp_path / "fixed")
    convert(tmp_path / "fixed", tmp_path / "back", bert=True)
    for name in ("fixed", "back"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["threshold"] == {"a": [1, None]} and not config.get("qk_norm")


def test_card_metadata_is_kept(checkpoint, tmp_path, caplog):
    """The new model card contains the license, languages and datasets from the source's card, unless it is invalid."""
    card = "---\nlicense: mit\nlanguage: [en, de]\ndatasets: [glue]\nmodel_name: x\n---\n# A model\n"
    (checkpoint / "README.md").write_text(card)
    convert(checkpoint, tmp_path / "good")
    data = ModelCard.load(tmp_path / "good" / "README.md").data
    assert (data.license, data.language, data.datasets, data.model_name) == ("mit", ["en", "de"], ["glue"], None)
    (checkpoint / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff\n")
    convert(checkpoint, tmp_path / "bad")
    assert f"{checkpoint}/README.md: cannot read the model card" in caplog.text
    assert "license: mit" not in (tmp_path / "bad" / "README.md").read_text()
