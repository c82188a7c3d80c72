"""Embeddings for new tokens in pretraining and fine-tuning."""

from pathlib import Path

import pytest
import torch
from helpers.outputs import weights_in
from helpers.script_arguments import glue_of, pretraining
from helpers.tiny_models import bert_of, model_of
from transformers import AutoTokenizer

import run_glue
import run_pretraining
from fixedbert.loading.checkpoints import load_bert
from fixedbert.support.errors import InputError
from fixedbert.training.models import resize


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["FixedHeadBert", "Bert", "Roberta"])
def test_other_outputs_stay_the_same(family, tied, tmp_path):
    """New embeddings do not change the outputs for other tokens, and a saved model contains the new embeddings."""
    options = {"vocab_size": 50, "tie_word_embeddings": tied}
    is_stock = family != "FixedHeadBert"
    model = bert_of("ForMaskedLM", family, **options) if is_stock else model_of("ForMaskedLM", **options)
    ids = torch.arange(5, 16)[None]
    with torch.no_grad():
        before = model.eval()(ids).logits
        resize(model, 57)
        after = model(ids).logits
        model.save_pretrained(tmp_path)
        assert torch.equal(after[..., :50], before) and torch.equal(load_bert(tmp_path)(ids).logits, after)


@pytest.fixture
def extended(pretrained, tmp_path) -> Path:
    """A directory with a copy of a pretrained model, with two more tokens in the tokenizer."""
    load_bert(pretrained).save_pretrained(tmp_path / "extended")
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.add_tokens(["document 7"])
    tokenizer.save_pretrained(tmp_path / "extended")
    return tmp_path / "extended"


def test_pretraining_without_the_flag(corpus, pretrained, extended, tmp_path):
    """Without the flag, new tokens are refused before any text is tokenized."""
    model = ["--model_name_or_path", str(pretrained), "--tokenizer_name", str(extended)]
    command = pretraining(corpus, tmp_path / "out", *model, "--store_dir", str(tmp_path / "store"))
    with pytest.raises(InputError, match="102 token ids, but the model has only 100"):
        run_pretraining.main(command[6:])  # without the sizes of a new model
    assert not (tmp_path / "store").exists()


def test_fine_tuning(extended, tasks, tmp_path, vocabulary):
    """With the flag, fine-tuning adds embeddings if the old tokens are unchanged."""
    with pytest.raises(InputError, match="the vocabulary differs"):
        other = ("--tokenizer_name", vocabulary, "--resize_embeddings")
        run_glue.main(glue_of(extended, tasks, tmp_path / "out", *other))
    run_glue.main(glue_of(extended, tasks, tmp_path / "out", "--resize_embeddings"))
    assert weights_in(tmp_path / "out")["bert.embeddings.word_embeddings.weight"].shape[0] == 102
