"""Corpora and tokenizers: every way in gives whole documents, or one clear sentence."""

import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from fixedbert.data.corpora import load_corpus
from fixedbert.data.tokenizers import load_tokenizer, train_tokenizer
from fixedbert.errors import InputError


def texts(**options) -> list[str]:
    return load_corpus(**options)["text"][:]


def test_text_files_are_documents_with_bom_and_crlf(tmp_path):
    """Guards: a text file is one document; byte order mark and carriage returns do not get into the text."""
    (tmp_path / "a.txt").write_bytes("\ufeffOne.\r\n\r\nTwo – é.\r\n".encode())
    (tmp_path / "b.txt").write_text("Three.")
    assert texts(files=[str(tmp_path)]) == ["One.\n\nTwo – é.\n", "Three."]
    assert texts(files=[str(tmp_path / "a.txt")], document_boundary="blank_line") == ["One.", "Two – é.\n"]


def test_formats_folders_and_globs_mix(tmp_path):
    """Guards: jsonl and parquet rows are documents, a folder is searched whole, and a glob is one too."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text('{"text": "One.", "id": 1}\n{"text": "Two.", "id": 2}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["Three."], "url": ["x"]}), tmp_path / "b.parquet")
    (tmp_path / "c[1].txt").write_text("Four.")
    (tmp_path / "ignored.md").write_text("Not this.")
    assert sorted(texts(files=[str(tmp_path)])) == ["Four.", "One.", "Three.", "Two."]
    assert texts(files=[str(tmp_path / "**" / "*.jsonl")]) == ["One.", "Two."]


def test_text_column_can_be_named(tmp_path):
    """Guards: another column than "text" is taken on request, and asked for with those there are."""
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n')
    assert texts(files=[str(tmp_path)], text_column="body") == ["One."]
    with pytest.raises(InputError, match=r"a\.jsonl: no column 'text' \(there are body\).*--text_column_name"):
        texts(files=[str(tmp_path)])


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("absent.txt", None, "absent.txt: no such file"),
        ("a.docx", "x", "a.docx: not one of the formats"),
        ("empty.txt", " \n", "empty.txt: the corpus is empty"),
        ("bad.jsonl", '{"text": \n', "bad.jsonl: could not be read"),
        ("empty.jsonl", "", "empty.jsonl: .*"),
    ],
)
def test_bad_files_are_one_sentence_with_the_file(tmp_path, name, content, sentence):
    """Guards: a missing, unknown, empty or broken file is named in the error."""
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        texts(files=[str(tmp_path / name)])


def test_no_corpus_is_said():
    """Guards: neither files nor a data set is an error that says what to give."""
    with pytest.raises(InputError, match="--train_file"):
        texts()


def test_trained_tokenizer_is_an_ordinary_bert_tokenizer(tmp_path):
    """Guards: WordPiece trained on a corpus has the size asked for, BERT's special tokens, and comes back."""
    corpus = datasets.Dataset.from_dict({"text": ["The quick brown fox jumps over the lazy dog."] * 20})
    tokenizer = train_tokenizer(corpus, vocab_size=60)
    assert len(tokenizer) == 60
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = loaded.tokenize("The fox?")
    assert "".join(text).replace("##", "") == "thefox[UNK]"
    ids = loaded("the", "fox")["input_ids"]
    assert ids[0] == loaded.cls_token_id and ids[-1] == loaded.sep_token_id
    assert loaded.mask_token_id is not None and loaded.pad_token_id == 0


def test_vocabulary_file_and_its_errors(tmp_path, vocabulary):
    """Guards: a vocab.txt is a tokenizer; a missing one, or one without BERT's special tokens, is named."""
    tokenizer = load_tokenizer(vocabulary)
    assert tokenizer.convert_ids_to_tokens(tokenizer("The list?")["input_ids"]) == [
        "[CLS]",
        "the",
        "list",
        "?",
        "[SEP]",
    ]
    assert load_tokenizer(vocabulary, do_lower_case=False).tokenize("The")[0] == "[UNK]"
    with pytest.raises(InputError, match="no such vocabulary file"):
        load_tokenizer(str(tmp_path / "vocab.txt"))
    (tmp_path / "vocab.txt").write_text("the\nlist\n")
    with pytest.raises(InputError, match=r"not a BERT vocabulary, it lacks .*\[MASK\]"):
        load_tokenizer(str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match="no tokenizer could be loaded"):
        load_tokenizer(str(tmp_path / "nothing"))


def test_vocabulary_of_bert_base_uncased(real_data):
    """Guards: with the real vocabulary ids are those that BERT checkpoints expect."""
    tokenizer = load_tokenizer(str(next((real_data / "vocab").glob("*.txt"))))
    assert len(tokenizer) == 30522
    assert tokenizer("Hello, my dog is cute")["input_ids"] == [101, 7592, 1010, 2026, 3899, 2003, 10140, 102]


def test_real_wikipedia_and_books_load(real_data):
    """Guards: the real corpora come in as whole articles and whole novels."""
    books = load_corpus(files=[str(real_data / "books")])
    assert len(books) == 98 and not any(text.startswith("\ufeff") for text in books["text"][:3])
    articles = load_corpus(files=[str(real_data / "wikipedia")])
    assert len(articles) == 13488 and articles.column_names == ["text"]


def test_jsonl_line_with_another_type(tmp_path):
    """Guards: numbers in the text column are read as text rather than crashing later."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": 5}) + "\n")
    assert texts(files=[str(tmp_path)]) == ["5"]
