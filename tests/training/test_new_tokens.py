"""Embeddings for new tokens in pretraining and fine-tuning."""

import json
from pathlib import Path

import pytest
import torch
from helpers.outputs import StopAfter, same_weights, weights_in
from helpers.script_arguments import glue_of, pretraining
from helpers.tiny_models import bert_of, model_of
from transformers import AutoTokenizer

import run_glue
import run_pretraining
from fixedbert.loading.checkpoints import load_bert
from fixedbert.support.errors import InputError
from fixedbert.training.interruption import train
from fixedbert.training.models import resize


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["FixedHeadBert", "Bert", "Roberta"])
def test_other_outputs_stay_the_same(family, tied, tmp_path):
    """New embeddings do not change the outputs for other tokens, and a saved model contains the new embeddings."""
    options = {"vocab_size": 50, "tie_word_embeddings": tied}
    model = (
        model_of("ForMaskedLM", **options) if family == "FixedHeadBert" else bert_of("ForMaskedLM", family, **options)
    )
    ids = torch.arange(5, 16)[None]
    with torch.no_grad():
        before = model.eval()(ids).logits
        resize(model, 57)
        after = model(ids).logits
        model.save_pretrained(tmp_path)
        assert torch.equal(after[..., :50], before) and torch.equal(load_bert(tmp_path)(ids).logits, after)


@pytest.fixture
def extended(pretrained, tmp_path) -> Path:
    """A directory with a copy of a pretrained model, without dropout and with two more tokens in the tokenizer."""
    model = load_bert(pretrained)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0
    model.save_pretrained(tmp_path / "extended")
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.add_tokens(["document 7"])
    tokenizer.save_pretrained(tmp_path / "extended")
    return tmp_path / "extended"


def test_pretraining(corpus, pretrained, extended, tmp_path, monkeypatch):
    """Without the flag, new tokens fail before a store is built. With it, a run trains and resumes exactly."""
    model = ["--model_name_or_path", str(pretrained), "--tokenizer_name", str(extended)]
    store = ["--store_dir", str(tmp_path / "store"), "--save_steps", "1"]

    def run(output, *more):
        command = pretraining(corpus, tmp_path / output, *model, *store, *more)
        run_pretraining.main(command[6:])  # without the sizes of a new model

    with pytest.raises(InputError, match="102 token ids, but the model has only 100 .*`resize_embeddings`"):
        run("refused")
    assert not (tmp_path / "store").exists() and not (tmp_path / "refused").exists()
    run("complete", "--resize_embeddings")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            "fixedbert.pretraining.pretrain.train",
            lambda trainer, checkpoint: (trainer.add_callback(StopAfter(2)), train(trainer, checkpoint)),
        )
        run("stopped", "--resize_embeddings")
    run("stopped", "--resize_embeddings")
    assert same_weights(tmp_path / "complete", tmp_path / "stopped")
    assert json.loads((tmp_path / "complete" / "config.json").read_text())["vocab_size"] == 102
    assert len(AutoTokenizer.from_pretrained(tmp_path / "complete")) == 102


def test_fine_tuning(extended, tasks, tmp_path, vocabulary, capsys):
    """With the flag, fine-tuning adds embeddings if the old tokens are unchanged. The result needs no flag."""
    with pytest.raises(InputError, match="`resize_embeddings` to add embeddings"):
        run_glue.main(glue_of(extended, tasks, tmp_path / "out"))
    with pytest.raises(InputError, match="the vocabulary differs from that of .*extended"):
        other = ("--tokenizer_name", vocabulary, "--resize_embeddings")
        run_glue.main(glue_of(extended, tasks, tmp_path / "out", *other))
    run_glue.main(glue_of(extended, tasks, tmp_path / "out", "--resize_embeddings"))
    assert "added 2 embeddings for new tokens" in capsys.readouterr().out
    assert weights_in(tmp_path / "out")["bert.embeddings.word_embeddings.weight"].shape[0] == 102
    command = glue_of(tmp_path / "out", tasks, tmp_path / "again")
    command.remove("--do_train")
    run_glue.main(command)
