"""Configuration: configurable head sizes, warnings about unknown fields, and errors for invalid values."""

import importlib.metadata
import json
import logging
import re
import runpy
from configparser import ConfigParser
from pathlib import Path

import pytest
from helpers.tiny_models import config_of
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from fixedbert import FixedHeadBertConfig, FixedHeadBertModel
from fixedbert.model import configuration_fixed_head_bert


def test_values_for_each_layer(tmp_path):
    """Lists, single numbers and None are saved and loaded unchanged, and give each layer the right sizes."""
    shape = {"hidden_size": 32, "num_attention_heads": 5, "num_hidden_layers": 3, "attention_head_size": 6}
    config = FixedHeadBertConfig(**shape)
    assert config.head_sizes == config.value_head_sizes == [6, 6, 6] and config.head_counts == [5, 5, 5]
    lists = {"attention_head_size": [6, 13, 7], "value_head_size": [4, 9, 6], "layer_attention_heads": [2, 5, 3]}
    config = FixedHeadBertConfig(**shape | lists)
    config.save_pretrained(tmp_path)
    config = FixedHeadBertConfig.from_pretrained(tmp_path)
    assert (config.head_sizes, config.value_head_sizes, config.head_counts) == tuple(lists.values())
    assert config.head_dim == 13
    config.head_sizes[0] = 99
    assert config.attention_head_size == [6, 13, 7]
    config.num_hidden_layers = 4
    with pytest.raises(ValueError, match="attention_head_size needs 4 numbers, one per layer, not 3"):
        FixedHeadBertModel(config)
    FixedHeadBertConfig(attention_head_size=None, num_hidden_layers=2).save_pretrained(tmp_path)
    config = FixedHeadBertConfig.from_pretrained(tmp_path)
    assert config.attention_head_size is None and config.head_sizes == [64, 64]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention_head_size": [6, 0, 7]}, "attention_head_size must be at least 1"),
        ({"layer_attention_heads": [-1, 5, 5]}, "layer_attention_heads must be at least 0"),
        ({"layer_attention_heads": [0, 5, 5], "is_decoder": True}, "all decoder layers need heads"),
        ({"layer_attention_heads": [4, 4, 3]}, r"the largest number must equal num_attention_heads \(5\)"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, not 0"),
        ({"attention_head_size": None}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"attention_head_size": 6.5}, "attention_head_size"),
        ({"head_embedding": "sum"}, "head_embedding.*'add', 'mul'.*sum"),
        ({"is_decoder": True, "add_cross_attention": True}, "FixedHeadBert does not support cross-attention"),
    ],
)
def test_invalid_values(changes, message):
    """An invalid value raises an error that names the field."""
    shape = {"hidden_size": 32, "num_attention_heads": 5, "attention_head_size": 6, "num_hidden_layers": 3}
    with pytest.raises(StrictDataclassError, match=message):
        FixedHeadBertConfig(**shape | changes)


@pytest.mark.parametrize("alias", ["head_size", "head_dim"])
def test_aliases_of_the_head_size(alias, tmp_path):
    """Aliases set and return the head size. An alias that contradicts it raises an error, also in config.json."""
    config = FixedHeadBertConfig(**{alias: 7})
    assert config.attention_head_size == 7 and getattr(config, alias) == 7
    setattr(config, alias, 9)
    assert config.attention_head_size == 9
    assert alias not in config.to_dict()
    default = FixedHeadBertConfig().attention_head_size
    for size in (4, default, None):
        with pytest.raises(ValueError, match=f"{alias}=3 contradicts attention_head_size={size}"):
            FixedHeadBertConfig(attention_head_size=size, **{alias: 3})
    assert FixedHeadBertConfig(**{"attention_head_size": 4, alias: 4}).head_sizes == [4] * 12
    with pytest.raises(ValueError, match="head_dim=32 contradicts head_size=128"):
        FixedHeadBertConfig(head_size=128, head_dim=32)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {alias: 64}))
    with pytest.raises(ValueError, match=f"{alias}=64 contradicts attention_head_size=9"):
        FixedHeadBertConfig.from_pretrained(tmp_path)


def test_num_key_value_heads(caplog, tmp_path):
    """`num_key_value_heads` can be passed and set if it is right. A wrong number raises one sentence."""
    config = config_of("Model", num_key_value_heads=5)
    config.num_attention_heads = config.num_key_value_heads = 4  # as in transformers' FSDP tests
    assert config.num_key_value_heads == 4 and "num_key_value_heads" not in config.to_dict()
    assert config_of("Model", num_key_value_heads=1, head_embedding="add").num_key_value_heads == 1
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    for number in (4, None):
        file.write_text(json.dumps(config.to_dict() | {"num_key_value_heads": number}))
        assert FixedHeadBertConfig.from_pretrained(tmp_path).num_key_value_heads == 4
    with pytest.raises(ValueError, match="^num_key_value_heads must be 4, not 2"):
        config_of("Model", num_attention_heads=4, num_key_value_heads=2)
    assert not caplog.records


def test_unknown_keys_warn_and_suggest(caplog, tmp_path):
    """A misspelled argument causes a warning that suggests the right field. Defaults and known keys cause none."""
    default = FixedHeadBertConfig()  # BERT-base with heads of size 128
    assert (default.hidden_size, default.num_attention_heads, default.attention_head_size) == (768, 12, 128)
    assert not caplog.records
    config = FixedHeadBertConfig(num_labels=3, output_attentions=True, output_hidden_states=True, dtype="float32")
    config.auto_map = {"AutoConfig": "configuration_fixed_head_bert.FixedHeadBertConfig"}
    config.my_library = {"spans": [3, 7]}
    config.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger="fixedbert"):
        loaded = FixedHeadBertConfig.from_pretrained(tmp_path, attn_implementation="eager", head_dim=7)
        assert loaded.my_library == {"spans": [3, 7]} and loaded.attention_head_size == 7
        assert AutoConfig.from_pretrained(tmp_path, hidden_size=96, trust_remote_code=False).hidden_size == 96
        assert not caplog.records
        for make in (FixedHeadBertConfig, lambda **keys: FixedHeadBertConfig.from_pretrained(tmp_path, **keys)):
            caplog.clear()
            make(attention_head_sise=64)
            assert "no field 'attention_head_sise'" in caplog.text and "'attention_head_size'" in caplog.text


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_kernels_in_config_json_are_ignored(key, tmp_path):
    """An attention kernel from the Hub runs only if the caller requests it, not if config.json does."""
    FixedHeadBertModel(config_of("Model")).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written | {key: "me/kernel"}))
    for model_class in (FixedHeadBertModel, AutoModel):
        assert model_class.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
    assert FixedHeadBertConfig.from_pretrained(tmp_path, attn_implementation="me/it")._attn_implementation == "me/it"
    file.write_text(json.dumps(written | {key: "eager"}))
    assert AutoModel.from_pretrained(tmp_path).config._attn_implementation == "eager"


def test_configuration_of_a_bert_is_rejected(tmp_path):
    """BERT's configuration is rejected, because the head size would silently become 128."""
    bert = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=37)
    BertModel(bert).save_pretrained(tmp_path)
    for make in (
        lambda: FixedHeadBertConfig(**bert.to_dict()),
        lambda: FixedHeadBertConfig.from_pretrained(tmp_path),
        lambda: FixedHeadBertModel.from_pretrained(tmp_path),
    ):
        with pytest.raises(ValueError, match="model_type is 'bert': convert the model with fixedbert.convert"):
            make()

    class OwnConfig(FixedHeadBertConfig):
        model_type = "own"

    fields = FixedHeadBertConfig(attention_head_size=7).to_dict()
    assert OwnConfig(**OwnConfig(**fields).to_dict()).attention_head_size == 7


@pytest.mark.parametrize("library, version", [("transformers", "4.57.6"), ("torch", "2.9.1")])
def test_remote_code_requires_minimum_versions(library, version, monkeypatch):
    """With versions older than setup.cfg allows, remote code fails with a message that names the minimum."""
    setup = ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    oldest = dict(re.findall(r"(torch|transformers)>=([\d.]+)", setup["options"]["install_requires"]))
    original = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == library else original(name))
    with pytest.raises(ImportError, match=f"{library}>={oldest[library]}.* is required .* found {library}=={version}"):
        runpy.run_path(configuration_fixed_head_bert.__file__)
