"""Tokenizers are loaded, checked, trained and applied to continuous text."""

import json
import unicodedata
from pathlib import Path

import datasets
import pytest
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from fixedbert import FixedHeadBertConfig
from fixedbert.data.corpora import Corpus
from fixedbert.data.sequences import read_sequences
from fixedbert.data.store import prepare_store, prepare_tokenizer
from fixedbert.data.tokenizers import (
    check_features,
    check_same_vocabulary,
    check_unknown_tokens,
    check_vocab_size,
    count_losses,
    load_tokenizer,
)
from fixedbert.support.errors import InputError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CASED = [*SPECIAL, "[unused1]", *"The the C c Cl é e a ##l ##x".split()]
CASED_TOKENS = ["The", "C", "Cl", "é"]


def save_vocabulary(directory: Path, config: dict | None = None) -> str:
    FixedHeadBertConfig(vocab_size=len(CASED)).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(CASED) + "\n")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | config))
    return str(directory)


def tokens(directory: str) -> list[str]:
    """Returns the tokens of four words and checks that saving and loading the tokenizer does not change them."""
    tokenizer = load_tokenizer(directory)
    tokenizer.save_pretrained(Path(directory, "saved"))
    found = tokenizer.tokenize("The C Cl é")
    assert AutoTokenizer.from_pretrained(Path(directory, "saved")).tokenize("The C Cl é") == found
    return found


def test_vocabulary_files(tmp_path, vocabulary):
    """A tokenizer can be loaded from a vocab.txt file, also with a byte order mark and CRLF."""
    ids = load_tokenizer(vocabulary)("The list?")["input_ids"]
    assert load_tokenizer(vocabulary).convert_ids_to_tokens(ids) == ["[CLS]", "the", "list", "?", "[SEP]"]
    assert load_tokenizer(vocabulary, do_lower_case=False).tokenize("The")[0] == "[UNK]"
    assert load_tokenizer(vocabulary).tokenize("É") == ["e"]
    assert load_tokenizer(vocabulary, strip_accents=False).tokenize("É") == ["[UNK]"]
    (tmp_path / "marked.txt").write_bytes(("\ufeff" + "\r\n".join(CASED) + "\r\n").encode())
    assert load_tokenizer(str(tmp_path / "marked.txt"), False).get_vocab() == {t: n for n, t in enumerate(CASED)}


def test_directories_without_a_tokenizer(tmp_path, vocabulary):
    """A directory without tokenizer files, and a tokenizer without special tokens, raise InputError."""
    FixedHeadBertConfig().save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="model: contains no tokenizer"):
        load_tokenizer(str(tmp_path / "model"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=BertTokenizer(vocab=vocabulary).backend_tokenizer)
    tokenizer.save_pretrained(tmp_path / "gpt")
    with pytest.raises(InputError, match="not a BERT tokenizer; missing special tokens: cls, sep, pad, mask"):
        load_tokenizer(str(tmp_path / "gpt"))


def test_tokenizers_without_a_fast_form(tmp_path, vocabulary):
    """A tokenizer that exists only in Python raises InputError."""
    (tmp_path / "vocab.txt").write_text(Path(vocabulary).read_text())
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "basic"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    FixedHeadBertConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="BertJapaneseTokenizer is not supported because it has no fast implementat"):
        load_tokenizer(str(tmp_path))


def test_do_lower_case_is_for_a_vocabulary(tmp_path):
    """`do_lower_case` applies to a vocab.txt. For a directory, it is refused."""
    directory = save_vocabulary(tmp_path / "own", {"do_lower_case": False})
    assert tokens(directory) == CASED_TOKENS
    assert load_tokenizer(f"{directory}/vocab.txt", False).tokenize("The C Cl é") == CASED_TOKENS
    with pytest.raises(InputError, match="`do_lower_case` is only for"):
        load_tokenizer(directory, True)


@pytest.mark.parametrize("config", [None, {}])
def test_lowercasing_with_a_cased_vocabulary(tmp_path, config):
    """A lowercasing normalizer with a cased vocabulary raises InputError."""
    with pytest.raises(InputError, match="40% of the tokens .such as 'The', 'C', 'Cl'. are unreachable"):
        load_tokenizer(save_vocabulary(tmp_path, config))


def test_tokens_without_an_embedding(tmp_path, vocabulary):
    """A token id for which the model has no embedding raises InputError, even if the ids are not contiguous."""
    tokenizer = load_tokenizer(vocabulary)
    check_vocab_size(tokenizer, len(tokenizer), "model")
    tokenizer.save_pretrained(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["model"]["vocab"]["the"] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="model: the tokenizer has 501 token ids, but the model has only"):
        check_vocab_size(load_tokenizer(str(tmp_path)), len(tokenizer), "model")


def test_vocabulary_must_match_the_model(tmp_path, vocabulary):
    """A tokenizer whose vocabulary differs from the model's vocabulary raises InputError."""
    own = load_tokenizer(vocabulary)
    own.save_pretrained(tmp_path / "model")
    check_same_vocabulary(own, "own", str(tmp_path / "model"))
    check_same_vocabulary(own, "own", None)
    check_same_vocabulary(own, "own", str(tmp_path / "without"))
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(list(own.get_vocab()))))
    other = load_tokenizer(str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match="^vocab.txt: the vocabulary differs .*model; omit `tokenizer_name`"):
        check_same_vocabulary(other, "vocab.txt", str(tmp_path / "model"))


def test_unknown_tokens(tmp_path, vocabulary):
    """Too many unknown tokens raise InputError in each function that tokenizes text."""
    tokenizer = load_tokenizer(vocabulary)
    (tmp_path / "a.txt").write_text("the list\n" * 9 + "8 9 10 11 12 13\n" * 100)
    with pytest.raises(InputError, match=r"a.txt: 97% of 618 tokens are unknown; use a tokenizer"):
        prepare_store([Corpus(str(tmp_path / "a.txt"))], tokenizer, store_dir=tmp_path)
    features = datasets.Dataset.from_dict({"input_ids": [[5, 6], [tokenizer.unk_token_id] * 300]})
    with pytest.raises(InputError, match="train: 99% of 302 tokens are unknown"):
        check_features("train", features, tokenizer)
    check_unknown_tokens("text", 199, 199)  # too few for the check
    check_unknown_tokens("text", 8, 200)


def test_running_text(tmp_path, vocabulary):
    """Sequences continue across lines and files."""
    tokenizer = load_tokenizer(vocabulary)
    (tmp_path / "a.txt").write_text("one two three\nfour\n")
    (tmp_path / "b.txt").write_text("five six seven one")
    sources = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    sequences = read_sequences(sources, tokenizer, 5, 10)
    assert [tokenizer.decode(ids[1:-1]) for ids in sequences[:2]] == ["one two three", "four five six"]
    assert sequences.shape == (4, 5) and sequences[:3].equal(read_sequences(sources, tokenizer, 5, 3))
    assert (sequences[:, 0] == tokenizer.cls_token_id).all() and (sequences[:, -1] == tokenizer.sep_token_id).all()
    assert read_sequences(sources, tokenizer, 50, 3).shape == (0, 50)  # the text is too short


def test_trained_tokenizer_is_an_ordinary_bert_tokenizer(tmp_path):
    """Training returns a BERT tokenizer of the requested vocabulary size, which the store keeps for the next call."""
    (tmp_path / "a.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 20)
    corpora = [Corpus(str(tmp_path / "a.txt"), document_boundary="line")]
    tokenizer = prepare_tokenizer(corpora, 60, store_dir=tmp_path)
    assert len(tokenizer) == 60
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(str(tmp_path / "saved"))
    assert "".join(loaded.tokenize("The fox?")).replace("##", "") == "thefox[UNK]"
    ids = loaded("the", "fox")["input_ids"]
    assert ids[0] == loaded.cls_token_id and ids[-1] == loaded.sep_token_id and loaded.pad_token_id == 0
    assert prepare_tokenizer(corpora, 60, store_dir=tmp_path).get_vocab() == tokenizer.get_vocab()
    cased = prepare_tokenizer(corpora, 60, do_lower_case=False, store_dir=tmp_path)
    assert "T" in cased.get_vocab() and "T" not in tokenizer.get_vocab()


MARKED = ["यहाँ", "আমি", "தமிழ்", "ที่นี่", "한국", "möchte"]


def test_accents_and_vowel_signs(tmp_path):
    """With `strip_accents` false, a new vocabulary keeps accents and vowel signs, also when it is loaded again."""
    (tmp_path / "a.txt").write_text(" ".join(MARKED).title() + " Paris.")
    corpora = [Corpus(str(tmp_path / "a.txt"))]
    keeps, as_bert, strips = (
        prepare_tokenizer(corpora, 300, True, tmp_path / "store", strip_accents=value) for value in (False, None, True)
    )
    keeps.save_pretrained(tmp_path / "saved")
    for tokenizer in (keeps, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert [tokenizer.decode(tokenizer(word)["input_ids"][1:-1]) for word in MARKED] == MARKED
        assert tokenizer.tokenize("PARIS") == ["paris"] and tokenizer.unk_token not in tokenizer.tokenize("한국")
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())["strip_accents"] is False
    removed = ["यहा", "আমি", "தமிழ", "ทน", unicodedata.normalize("NFD", "한국"), "mochte"]
    for tokenizer in (as_bert, strips):
        assert [tokenizer.decode(tokenizer(word)["input_ids"][1:-1]) for word in MARKED] == removed
    stores = {prepare_store(corpora, tokenizer, store_dir=tmp_path).directory for tokenizer in (keeps, as_bert)}
    assert len(stores) == 2
    texts = [*MARKED, "Paris\t\n", "a\0b\u200dc", "plain", "が", "–’"]
    assert count_losses(texts, keeps) == {"changed_characters": 0, "removed_characters": 2}
    # हा loses one dot, ல் a dot, ที่นี่ its four vowel signs and tone marks, and 한국 becomes six letters.
    assert count_losses(texts, strips) == {"changed_characters": 1 + 0 + 1 + 4 + 2 + 1 + 1, "removed_characters": 2}


def test_corpus_without_text(tmp_path):
    """Training a tokenizer on a corpus without text raises InputError instead of never ending."""
    (tmp_path / "a.txt").write_text(" \n \n")
    with pytest.raises(InputError, match="the corpus contains no words"):
        prepare_tokenizer([Corpus(str(tmp_path / "a.txt"), document_boundary="line")], 60, store_dir=tmp_path)


def test_vocabulary_is_not_larger_than_requested(tmp_path):
    """The vocabulary never exceeds the requested size, and the most frequent characters are kept."""
    characters = [chr(0x4E00 + number) for number in range(900)]
    (tmp_path / "a.txt").write_text("".join(characters) + "".join(characters[:30]) + " ab bc" * 9)
    corpora = [Corpus(str(tmp_path / "a.txt"))]
    for size in (2000, 100, 40, 7):
        tokenizer = prepare_tokenizer(corpora, size, store_dir=tmp_path)
        assert min(size - 2, 900) <= len(tokenizer) <= size
        known = [character for character in characters if tokenizer.tokenize(character) != ["[UNK]"]]
        assert size < 100 or characters[:30] == known[:30]
