"""New tokens get embeddings that are the mean of their former pieces."""

import json
from pathlib import Path

import pytest
import torch
from helpers import ROOT, fork_server
from helpers.outputs import StopAfter, same_weights, weights_in
from helpers.script_arguments import glue_of, pretraining
from helpers.tiny_checkpoints import WORDS
from helpers.tiny_models import bert_of, model_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

import run_glue
import run_pretraining
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.support.errors import InputError
from fixedbert.training.interruption import train
from fixedbert.training.loading import add_embeddings, pieces_of_new_tokens

SIZE = len(WORDS)


@pytest.fixture
def tokenizer():
    vocabulary = {word: token_id for token_id, word in enumerate([*WORDS, "matran", "##yx"])}
    tokenizer = BertTokenizer(vocab=vocabulary, additional_special_tokens=["[E1]", "the dog"])
    tokenizer.add_tokens(["Where", "\u03a9", " "])
    return tokenizer


def test_pieces_of_a_wordpiece_tokenizer(tokenizer):
    """New words, new endings, added tokens and special tokens are split by the old vocabulary."""
    pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in pieces_of_new_tokens(tokenizer, SIZE)]
    unknown = ["[UNK]"]
    assert pieces[:-1] == [["mat", "##r", "##a", "##n"], ["y", "##x"], unknown * 3, ["the", "dog"], ["where"], unknown]
    assert pieces[-1] == tokenizer.convert_ids_to_tokens(list(range(SIZE)))  # a blank has no pieces
    assert pieces_of_new_tokens(tokenizer, len(tokenizer)) == []


@pytest.mark.parametrize("kind", ["byte level", "unigram"])
def test_pieces_of_other_tokenizers(kind):
    """The last tokens of a byte-level or Unigram vocabulary are split by the vocabulary before them."""
    text, special = ["one two oné two one two three threes"] * 9, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if kind == "byte level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(text, trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        backend.train_from_iterator(text, trainers.UnigramTrainer(special_tokens=special, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    size = len(tokenizer) - 3
    tokenizer.add_tokens(["oné<"])
    pieces = pieces_of_new_tokens(tokenizer, size)
    assert len(pieces) == 4 and all(max(ids) < size for ids in pieces)
    texts = [tokenizer.decode(token_id).strip() for token_id in range(size, size + 3)] + ["oné<"]
    decoded = [tokenizer.decode(ids).strip() for ids in pieces]
    if kind == "byte level":
        assert decoded == texts
    else:  # the last tokens are letters, which may be unknown to the old vocabulary
        assert decoded[-1] == "oné<unk>" and not {*decoded[:-1]} - {*texts, "<unk>"}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["FixedHeadBert", "Bert", "Roberta", "DistilBert", "Electra"])
def test_rows_are_means(family, tied, tokenizer, tmp_path):
    """New rows of embeddings, output weights and biases are means, all others keep their values, also after saving."""
    options = {"vocab_size": SIZE, "tie_word_embeddings": tied}
    if family == "FixedHeadBert":
        model = model_of("ForMaskedLM", **options).eval()
    else:
        model = bert_of("ForMaskedLM", family, **options, **{"embedding_size": 32} if family == "Electra" else {})
    ids = torch.arange(5, 16)[None]
    with torch.no_grad():
        before = model(ids).logits
        add_embeddings(model, tokenizer)
        after = model(torch.cat([ids, torch.tensor([[len(tokenizer) - 1]])], dim=1)[:, :-1]).logits
    assert torch.equal(after[..., :SIZE], before) and after.shape[-1] == model.config.vocab_size == len(tokenizer)
    output, embeddings = model.get_output_embeddings(), model.get_input_embeddings().weight
    assert (output.weight is embeddings) == tied
    the_dog = torch.tensor([WORDS.index("the"), WORDS.index("dog")])
    for table in (embeddings, output.weight, output.bias):
        assert torch.equal(table[SIZE + 3], table[the_dog].mean(0))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(load_bert(tmp_path)(ids).logits, after)


@pytest.fixture
def extended(pretrained, tmp_path) -> Path:
    """Directory with a copy of a pretrained model without dropout, whose tokenizer has two more tokens."""
    model = load_bert(pretrained)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0
    model.save_pretrained(tmp_path / "extended")
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.add_tokens(["document 7"])
    tokenizer.save_pretrained(tmp_path / "extended")
    return tmp_path / "extended"


@pytest.mark.parametrize("own", [True, False])
def test_pretraining(corpus, pretrained, extended, tmp_path, monkeypatch, own):
    """Without the flag, new tokens are an error before a store is built. With it, a run trains and resumes exactly."""
    model = ["--model_name_or_path", str(extended if own else pretrained), "--tokenizer_name", str(extended)]
    store = ["--store_dir", str(tmp_path / "store"), "--save_steps", "1"]

    def run(output, *more):
        command = pretraining(corpus, tmp_path / output, *model, *store, *more)
        del command[:6]  # the sizes of a new model
        run_pretraining.main(command)

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


def test_fine_tuning(extended, tasks, tmp_path, vocabulary):
    """Fine-tuning adds embeddings with the flag if the old tokens are the same. The result needs no flag."""
    with pytest.raises(InputError, match="`resize_embeddings` to add embeddings"):
        run_glue.main(glue_of(extended, tasks, tmp_path / "out"))
    with pytest.raises(InputError, match="the vocabulary differs from that of .*extended"):
        other = ("--tokenizer_name", vocabulary, "--resize_embeddings")
        run_glue.main(glue_of(extended, tasks, tmp_path / "out", *other))
    run_glue.main(glue_of(extended, tasks, tmp_path / "out", "--resize_embeddings"))
    assert weights_in(tmp_path / "out")["bert.embeddings.word_embeddings.weight"].shape[0] == 102
    command = glue_of(tmp_path / "out", tasks, tmp_path / "again")
    command.remove("--do_train")
    run_glue.main(command)


@pytest.mark.slow
def test_two_processes_add_the_same_embeddings(corpus, extended, tmp_path):
    """Two processes with half the batch each train the same model as one process."""
    for name, batch in (("one", "4"), ("two", "2")):
        command = pretraining(corpus, tmp_path / name, "--model_name_or_path", str(extended), "--resize_embeddings")
        del command[:6]
        command += ["--per_device_train_batch_size", batch, "--store_dir", str(tmp_path / "store")]
        if name == "one":
            run_pretraining.main(command)
        else:
            fork_server.Pair(ROOT / "run_pretraining.py", command, tmp_path / "printed").finished()
    one, two = weights_in(tmp_path / "one"), weights_in(tmp_path / "two")
    for key in one:
        assert torch.allclose(one[key], two[key], rtol=0, atol=1e-5), key
