"""The line that says what tokenizing did to texts, and texts of which it leaves nothing."""

import random

import datasets
import pytest
from helpers.script_arguments import pretraining

from fixedbert.data.sequences import report_sequences, sequences
from fixedbert.data.token_report import Tokenized, report_tokens, tokenized_features, unknown_words
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.texts import text_features
from fixedbert.pretraining.pretrain import main
from fixedbert.support.errors import InputError

THAI = "ประเทศไทยหรือชื่อทางการว่าราชอาณาจักรไทยเป็นรัฐชาติอันตั้งอยู่ในภูมิภาคเอเชียตะวันออกเฉียงใต้เดิมมีชื่อว่าสยาม"


@pytest.fixture
def tokenizer(vocabulary):
    return load_tokenizer(vocabulary)


def test_rows_unknown_words_and_cuts_are_counted(tokenizer, capsys):
    """Guards: by hand: tokens with the special ones, unknown words as written, rows that were too long."""
    rows = datasets.Dataset.from_dict({"sentence1": ["the list", "thé 7 é", "one two three four five six"]})
    features = text_features(rows, tokenizer, 7)
    found = tokenized_features(features, rows["sentence1"], tokenizer, 7)
    assert found == Tokenized(4 + 5 + 7, 1, ["7"], 3, 1, 7)
    report_tokens("train", found, tokenizer)
    line = "train: 3 rows; 16 tokens, 6.25% of them unknown, such as '7'; 1 rows (33.3%) cut to 7 tokens\n"
    assert capsys.readouterr().out == line
    first = features.select([0])
    assert tokenized_features(first, rows["sentence1"], tokenizer, 7) == Tokenized(4, 0, [], 1, 0, 7)


def test_pairs_that_are_cut_are_counted_once(tokenizer):
    """Guards: a row of two texts is cut once, and one that fills its row to the last token is not."""
    rows = datasets.Dataset.from_dict({"sentence1": ["the a the a", "the a"], "sentence2": ["one two three", "one"]})
    for length, cut in ((10, 0), (9, 1), (6, 1), (5, 2)):
        assert tokenized_features(text_features(rows, tokenizer, length), [], tokenizer, length).cut == cut


@pytest.mark.parametrize(
    "text, lower, reason",
    [
        (THAI * 3, None, "words of more than 100 characters are not looked into; put blanks between"),
        ("ACGT" * 40, None, "words of more than 100 characters"),
        (
            "The List reads",
            False,
            "the vocabulary has them in lower case and without accents alone; give `do_low",
        ),
        ("日本語 テスト", None, "it lacks their letters; give a tokenizer whose vocabulary is of such text"),
    ],
)
def test_too_many_unknown_tokens_are_refused_with_the_reason(vocabulary, text, lower, reason):
    """Guards: a text that the tokenizer does not know is no training data; three examples show why."""
    tokenizer, found = load_tokenizer(vocabulary, lower), Tokenized()
    for number in range(150):
        line = f"{text} file {text}{'x' * (number % 7)}"
        found.add(line, tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"], tokenizer)
    with pytest.raises(InputError, match=f"^texts: [3-9][0-9]% of .* tokens are unknown, such as '.*: {reason}"):
        report_tokens("texts", found, tokenizer)
    assert len(found.unknown_words) <= 3
    found.tokens = found.unknown * 13  # fewer than 8 %
    report_tokens("texts", found, tokenizer)


def test_case_that_the_tokenizer_changes_is_the_reason(tmp_path):
    """Guards: where the vocabulary has a word as it is written, its case or accents are what the tokenizer changes."""
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "Cl", "o"]))
    tokenizer, found = load_tokenizer(str(file), True), Tokenized()
    found.add("C Cl o " * 100, tokenizer("C Cl o " * 100, add_special_tokens=False)["input_ids"], tokenizer)
    with pytest.raises(
        InputError, match="67% of 300 tokens .*'C', 'Cl': the vocabulary has them, .*`do_lower_case` false"
    ):
        report_tokens("texts", found, tokenizer)


def test_unknown_words_are_shown_shortened_and_once(tokenizer, capsys):
    """Guards: examples are different words, and a long one does not fill the screen."""
    assert unknown_words(["7 the 7 8", "9 10"], tokenizer) == ["7", "8", "9"]
    report_tokens("text", Tokenized(1000, 1, ["x" * 300]), tokenizer)
    assert capsys.readouterr().out == f"text: 1,000 tokens, 0.10% of them unknown, such as '{'x' * 24}...'\n"


def test_sequences_report_what_they_take(tmp_path, tokenizer, capsys):
    """Guards: shrink and inspect say it of the text they read, and of no more; special tokens in it are text."""
    (tmp_path / "a.txt").write_text("the list 7\n" * 20 + "8 9 10 11 12 13\n" * 1000)
    report_sequences([str(tmp_path / "a.txt")], tokenizer, 8, 3)
    assert capsys.readouterr().out == f"{tmp_path}/a.txt: 18 tokens, 33.33% of them unknown, such as '7'\n"
    with pytest.raises(InputError, match="a.txt: 99% of .* such as '7', '8', '9': it lacks their letters"):
        report_sequences([str(tmp_path / "a.txt")], tokenizer, 8, 1000)
    (tmp_path / "b.txt").write_text("[MASK] [SEP] [UNK]\n" * 2)
    for ids in sequences([str(tmp_path / "b.txt")], tokenizer, 10, 1):
        assert not {tokenizer.mask_token_id, tokenizer.sep_token_id} & set(ids[0, 1:-1].tolist())


def test_pretraining_reports_its_corpus(tmp_path, vocabulary, capsys):
    """Guards: a run says the share of unknown tokens, of random segments, and shows the headings that it left out."""
    rng, words = random.Random(0), "the a function takes returns list string file read write".split()
    for number in range(12):
        paragraph = " ".join(" ".join(rng.choices(words, k=18)).capitalize() + " 7." for _ in range(6))
        (tmp_path / f"{number}.txt").write_text(f"Early file {number}\n{paragraph}\nList.\n{paragraph}\n")
    options = ("--tokenizer_name", vocabulary, "--leave_out_headings", "--store_dir", str(tmp_path / "store"))
    main(pretraining(str(tmp_path / "*.txt"), tmp_path / "out", *options, "--preprocessing_num_workers", "1"))
    said = capsys.readouterr().out
    assert "24 headings left out, such as 'Early file 0', 'List.', 'Early file 1'" in said
    assert "% of them unknown, such as '7'" in said and "random second segments: " in said
