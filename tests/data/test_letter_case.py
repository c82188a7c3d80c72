"""Case and accents: a tokenizer does what its files and flags say, and its vocabulary is of that kind."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from fixedbert import FixedHeadBertConfig
from fixedbert.data.tokenizers import check_size, load_tokenizer
from fixedbert.support.errors import InputError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CASED = [*SPECIAL, "[unused1]", *"The the C c Cl é e a ##l ##x".split()]
AS_WRITTEN, LOWERED = ["The", "C", "Cl", "é"], ["the", "c", "c", "##l", "e"]


def directory(folder: Path, vocabulary: list[str] | None = CASED, config: dict | None = None, **settings) -> str:
    """With a vocab.txt or, if there are settings, a tokenizer.json of a tokenizer that has them."""
    FixedHeadBertConfig(vocab_size=len(CASED)).save_pretrained(folder)
    if vocabulary:
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    if settings:
        BertTokenizer(vocab=str(folder / "vocab.txt"), **settings).save_pretrained(folder)
        (folder / "vocab.txt").unlink()
        (folder / "tokenizer_config.json").unlink()
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | config))
    return str(folder)


def tokens(folder: str, *flag) -> list[str]:
    """Tokens of four words, the same with the tokenizer when it is saved and opened again."""
    tokenizer = load_tokenizer(folder, *flag)
    tokenizer.save_pretrained(Path(folder, "saved"))
    found = tokenizer.tokenize("The C Cl é")
    assert AutoTokenizer.from_pretrained(Path(folder, "saved")).tokenize("The C Cl é") == found
    assert load_tokenizer(str(Path(folder, "saved")), *flag).tokenize("The C Cl é") == found
    return found


def test_flags_hold_for_directories(tmp_path):
    """Guards: --do_lower_case false or true decides for a directory too, whatever it says, and is saved along."""
    for number, config in enumerate((None, {"do_lower_case": False}, {"do_lower_case": True})):
        folder = directory(tmp_path / str(number), config=config)
        assert tokens(folder, False) == AS_WRITTEN
        assert load_tokenizer(folder, True).tokenize("The C Cl é") == LOWERED
    assert tokens(directory(tmp_path / "json", do_lower_case=False), False) == AS_WRITTEN


def test_cased_vocabularies_are_not_lower_cased_in_silence(tmp_path, capsys):
    """Guards: where nothing says so, or tokenizer_config.json contradicts it, a cased vocabulary is refused."""
    sentence = "so that 40% of its tokens never come, such as 'The', 'C', 'Cl'; give `do_lower_case` false .`cased`"
    for number, config in enumerate((None, {}, {"do_lower_case": True})):
        with pytest.raises(InputError, match=sentence):
            load_tokenizer(directory(tmp_path / str(number), config=config))
    with pytest.raises(InputError, match=sentence):
        load_tokenizer(str(tmp_path / "0" / "vocab.txt"))
    load_tokenizer(str(tmp_path / "0"), True)  # as asked
    assert "4 of 10 tokens never come, such as 'The', 'C', 'Cl', because" in capsys.readouterr().out
    assert tokens(directory(tmp_path / "said", config={"do_lower_case": False})) == AS_WRITTEN


def test_what_tokenizer_json_says_holds(tmp_path):
    """Guards: without a tokenizer_config.json, or with one that is silent, its case and accents are not overridden."""
    silent = (None, {}, {"tokenizer_class": "BertTokenizerFast"}, {"strip_accents": None})
    for number, config in enumerate(silent):
        assert tokens(directory(tmp_path / f"c{number}", config=config, do_lower_case=False)) == AS_WRITTEN
    vocabulary = [*SPECIAL, *"the c é ##l".split()]  # as of German and Vietnamese models
    folder = directory(tmp_path / "accents", vocabulary, do_lower_case=True, strip_accents=False)
    assert tokens(folder) == ["the", "c", "c", "##l", "é"]


@pytest.mark.parametrize(
    "config, settings, sentence",
    [
        ({"do_lower_case": True}, {"do_lower_case": False}, "do_lower_case is True in .*, and lowercase is False in"),
        ({"strip_accents": False}, {"strip_accents": True}, "strip_accents is False in .* strip_accents is True in"),
        ({"tokenize_chinese_chars": False}, {"tokenize_chinese_chars": True}, "handle_chinese_chars is True in"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, config, settings, sentence):
    """Guards: tokenizer_config.json and tokenizer.json that disagree are named; only a flag decides about case."""
    folder = directory(tmp_path, config=config, **settings)
    with pytest.raises(InputError, match=f"{sentence}.*correct the one that is not the model's"):
        load_tokenizer(folder)
    if "do_lower_case" in config:
        assert tokens(folder, False) == AS_WRITTEN


def test_vocabularies_side_by_side(tmp_path):
    """Guards: a vocab.txt with other tokens than tokenizer.json is named; the same, or added tokens, is not."""
    folder = directory(tmp_path, do_lower_case=False)
    for vocabulary in ([*CASED[:-1], "other"], CASED[:-1], [*CASED, "more"], [*CASED[:-2], *reversed(CASED[-2:])]):
        (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
        with pytest.raises(InputError, match="vocab.txt has other tokens than tokenizer.json, [12] of them, such as"):
            load_tokenizer(folder)
    (tmp_path / "vocab.txt").write_text("\ufeff" + "\r\n".join(CASED) + "\r\n")
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(tmp_path)
    assert len(load_tokenizer(folder)) == len(CASED) + 1


@pytest.mark.parametrize(("before", "end"), [("", "\r\n"), ("", "\r"), ("\ufeff", "\n"), ("", "\n\n")])
def test_ends_of_lines_of_a_vocabulary(tmp_path, before, end):
    """Guards: however a vocabulary's lines end, each is a token with the number of its line, also after a mark."""
    (file := tmp_path / "vocab.txt").write_bytes((before + end.replace("\n\n", "\n").join(CASED) + end).encode())
    assert load_tokenizer(str(file), False).get_vocab() == {token: number for number, token in enumerate(CASED)}


def test_blank_line_that_became_a_token(tmp_path):
    """Guards: transformers makes a token of a blank line at the end, which never comes and is no contradiction."""
    folder = directory(tmp_path, [*CASED, ""], do_lower_case=False)
    (tmp_path / "vocab.txt").write_text("\n".join(CASED) + "\n\n")
    assert "" in json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokens(folder) == AS_WRITTEN


def test_byte_order_mark_of_a_folder(tmp_path):
    """Guards: transformers would take the mark for a part of [PAD], which then has another number than the model's."""
    folder = directory(tmp_path, ["\ufeff[PAD]", *CASED[1:]])
    with pytest.raises(InputError, match="vocab.txt: begins with a byte order mark, .*; remove the mark"):
        load_tokenizer(folder, False)


def test_accents_that_never_come_are_named(tmp_path, capsys):
    """Guards: strip_accents with a vocabulary that has some is refused, or named where it was asked for."""
    folder = directory(tmp_path, config={"do_lower_case": False, "strip_accents": True})
    with pytest.raises(InputError, match="10% of its tokens never come, such as 'é'"):
        load_tokenizer(folder)
    assert tokens(folder, False) == ["The", "C", "Cl", "e"]
    assert "1 of 10 tokens never come, such as 'é'" in capsys.readouterr().out


def test_vocabulary_that_fits_loads_without_a_word(tmp_path, capsys, vocabulary):
    """Guards: nothing is said of an ordinary vocabulary, nor of one without a case."""
    load_tokenizer(vocabulary)
    Path(tmp_path, "vocab.txt").write_text("\n".join([*SPECIAL, "林", "##森", "3", "##5"]))  # neither has a case
    load_tokenizer(str(tmp_path / "vocab.txt"), False)
    assert capsys.readouterr().out == ""


def test_real_vocabulary_has_nothing_to_name(real_data, capsys):
    """Guards: BERT's own vocabulary, with its few tokens that never come, loads without a word."""
    load_tokenizer(str(next((real_data / "vocab").glob("*.txt"))))
    assert capsys.readouterr().out == ""


def test_flags_that_a_tokenizer_cannot_keep_are_refused(tmp_path, vocabulary):
    """Guards: a tokenizer with a normalizer of its own kind is not changed by a flag in silence."""
    own = BertTokenizer(vocab=vocabulary)
    own.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    special = {f"{role}_token": getattr(own, f"{role}_token") for role in ("unk", "cls", "sep", "pad", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, **special).save_pretrained(tmp_path)
    assert (
        load_tokenizer(str(tmp_path)).tokenize("THE") == load_tokenizer(str(tmp_path), True).tokenize("THE") == ["the"]
    )
    with pytest.raises(InputError, match="`do_lower_case` false .`cased`. cannot be kept"):
        load_tokenizer(str(tmp_path), False)


def test_tokenizers_of_special_tokens_alone(tmp_path, vocabulary):
    """Guards: what transformers 5 makes of a file that it ignores is said; a directory without one is another case."""
    BertTokenizer(vocab_file=vocabulary).save_pretrained(tmp_path / "ignored")
    directory(tmp_path / "named", None, {"vocab_file": "other.txt"})
    for name in ("ignored", "named"):
        with pytest.raises(InputError, match=f"{name}: its tokenizer has special tokens alone.*BertTokenizer.vocab="):
            load_tokenizer(str(tmp_path / name))
    with pytest.raises(InputError, match="there is no tokenizer in it"):
        load_tokenizer(directory(tmp_path / "without", None))


def test_tokens_without_an_embedding_are_refused(tmp_path, vocabulary):
    """Guards: the highest number of a token decides, also where numbers are left out."""
    tokenizer = load_tokenizer(vocabulary)
    check_size(tokenizer, len(tokenizer), "model")
    with pytest.raises(InputError, match=f"model: the tokenizer has {len(tokenizer)} tokens and the model {7}: give"):
        check_size(tokenizer, 7, "model")
    tokenizer.save_pretrained(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["model"]["vocab"]["the"] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="the tokenizer has 501 tokens and the model"):
        check_size(load_tokenizer(str(tmp_path)), len(tokenizer), "model")
    shutil.rmtree(tmp_path)
