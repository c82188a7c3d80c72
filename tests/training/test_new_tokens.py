"""Tokenizers with more tokens than the model, or with other tokens, are refused."""

from pathlib import Path

import pytest
from helpers.script_arguments import pretraining
from transformers import AutoTokenizer

import run_pretraining
from fixedbert.loading.checkpoints import load_bert
from fixedbert.support.errors import InputError


@pytest.fixture
def extended(pretrained, tmp_path) -> Path:
    """A directory with a copy of a pretrained model, with two more tokens in the tokenizer."""
    load_bert(pretrained).save_pretrained(tmp_path / "extended")
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.add_tokens(["document 7"])
    tokenizer.save_pretrained(tmp_path / "extended")
    return tmp_path / "extended"


def test_new_tokens(corpus, pretrained, extended, tmp_path):
    """New tokens are refused before any text is tokenized."""
    model = ["--model_name_or_path", str(pretrained), "--tokenizer_name", str(extended)]
    command = pretraining(corpus, tmp_path / "out", *model, "--store_dir", str(tmp_path / "store"))
    with pytest.raises(InputError, match="102 token ids, but the model has only 100"):
        run_pretraining.main(command[6:])  # without the sizes of a new model
    assert not (tmp_path / "store").exists()
