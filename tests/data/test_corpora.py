"""Corpora and tokenizers: every way in gives whole documents, or one clear sentence."""

import bz2
import gzip
import json
import lzma
import os
import random
import time
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
from transformers import BertTokenizer

from fixedbert import FixedHeadBertConfig
from fixedbert.data.corpora import Corpus, CorpusReader
from fixedbert.data.corpus_files import corpus_files
from fixedbert.data.readers import DataFile
from fixedbert.data.tokenizers import check_same_vocabulary, load_tokenizer, trained_tokenizer
from fixedbert.support.errors import InputError


def documents(source, **options) -> list:
    reader = CorpusReader(Corpus(str(source), **options))
    found = list(reader)
    assert reader.position == reader.size
    return found


def test_text_files_are_documents_with_bom_and_crlf(tmp_path):
    """Guards: a text file is one document; byte order mark and carriage returns do not get into the text."""
    (tmp_path / "a.txt").write_bytes("\ufeffOne.\r\n\r\nTwo – é.\r\n".encode())
    (tmp_path / "b.txt").write_text("Three.")
    (tmp_path / "c.txt").write_text("")
    assert documents(tmp_path) == ["One.\n\nTwo – é.\n", "Three."]
    assert documents(tmp_path / "a.txt", document_boundary="blank_line") == ["One.\n", "Two – é.\n"]
    assert documents(tmp_path, document_boundary="line") == ["One.\n", "\n", "Two – é.\n", "Three."]


def test_formats_folders_and_globs_mix(tmp_path):
    """Guards: rows of jsonl, csv, tsv and parquet are documents, a folder is searched whole, and a glob is one too."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text('{"text": "One.", "id": 1}\n\n{"text": "Two.", "other": 2}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["Three.", None], "url": ["x", "y"]}), tmp_path / "b.parquet")
    (tmp_path / "c[1].txt").write_text("Four.")
    (tmp_path / "d.csv").write_text('id,text\n1,"Five, ""and"" so\non."\n')
    (tmp_path / "e.tsv").write_text('text\tid\n"Six.\t1\nSeven."\t2\n')  # quotation marks are text
    (tmp_path / "ignored.md").write_text("Not this.")
    expected = ["", '"Six.', 'Five, "and" so\non.', "Four.", "One.", 'Seven."', "Three.", "Two."]
    assert sorted(documents(tmp_path)) == expected
    assert documents(tmp_path / "**" / "*.jsonl") == ["One.", "Two."]


@pytest.mark.parametrize("suffix, opener", [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_compressed_files(tmp_path, suffix, opener):
    """Guards: compressed files are read like others, and a truncated one is said to be so."""
    file = tmp_path / f"a.jsonl{suffix}"
    with opener(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": f"{n} {'é' * n}"}) + "\n" for n in range(500))
    assert len(documents(tmp_path)) == 500
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"a\.jsonl\{suffix}: cannot be read .*download it again"):
        documents(tmp_path)


def test_boundaries_from_a_column_and_from_empty_rows(tmp_path):
    """Guards: consecutive rows with one value are the sentences of a document; an empty row can end one too."""
    rows = [("a", "One."), ("a", "Two."), ("b", "Three."), ("a", ""), ("a", "Four.")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"book": b, "text": t}) + "\n" for b, t in rows))
    table = pyarrow.table({"book": [b for b, _ in rows], "text": [t for _, t in rows]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    for file in ("a.jsonl", "b.parquet"):
        found = documents(tmp_path / file, document_boundary="column", document_column="book")
        assert found == [["One.", "Two."], ["Three."], ["Four."]]
        assert documents(tmp_path / file, document_boundary="blank_line") == ["One.\nTwo.\nThree.\n", "Four.\n"]
    with pytest.raises(InputError, match="no column 'volume'.*`document_column_name`"):
        documents(tmp_path / "b.parquet", document_boundary="column", document_column="volume")
    with pytest.raises(InputError, match="go together"):
        Corpus("a.jsonl", document_boundary="column")


def test_inferred_boundaries(tmp_path):
    """Guards: a stream of sentences is cut before what looks like a chapter, else after 500; the run says so."""
    lines = ["one .", "", "chapter 1", "two .", "the chapter of accidents .", "prologue", *["x ."] * 1000]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    found = documents(tmp_path / "a.txt", document_boundary="inferred")
    assert [len(sentences) for sentences in found] == [1, 3, 500, 500, 1]
    assert found[1] == ["chapter 1\n", "two .\n", "the chapter of accidents .\n"]
    assert "chapter, or else 500 rows" in Corpus("a.txt", document_boundary="inferred").description()


def test_text_column_can_be_named(tmp_path):
    """Guards: another column than "text" is taken on request, and asked for with those there are."""
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n')
    assert documents(tmp_path, text_column="body") == ["One."]
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: no column 'text' \(there are body\).*`text_column_name`"):
        documents(tmp_path)


def broken(tmp_path, name):
    file = tmp_path / name
    if name == "cut.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": ["One."] * 1000}), file)
        file.write_bytes(file.read_bytes()[:-100])
    elif name == "latin1.txt":
        file.write_bytes("One.\nTwo é.\n".encode("latin-1"))
    elif name == "bad.jsonl":
        file.write_text('{"text": "One."}\n{"text": \n')
    elif name == "surrogate.jsonl":
        file.write_text('{"text": "One."}\n{"text": "a \\ud83d"}\n')
    elif name == "open.csv":
        file.write_text('text\n"One.\n')
    elif name == "list.json":
        file.write_text('["One."]\n')
    elif name == "no.csv":
        file.write_text("a,b\n1,2\n")
    elif name != "absent.txt":
        file.write_text("x")
    return file


def test_files_are_looked_at_once_not_row_by_row(tmp_path, monkeypatch):
    """Guards: a row of jsonl costs no look into the file system."""
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n' * 1000)
    looked = []
    monkeypatch.setattr("fixedbert.support.files.check_regular", looked.append)
    assert documents(tmp_path / "a.jsonl") == ["One."] * 1000
    assert 1 <= len(looked) <= 3


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("absent.txt", "absent.txt: no such file"),
        ("a.docx", "a.docx: a format that cannot be read; give .txt"),
        ("bad.jsonl", "bad.jsonl, line 2: not JSON"),
        ("surrogate.jsonl", "surrogate.jsonl, line 2: character 3 of 'text' is half of a surrogate pair"),
        ("open.csv", "open.csv, line 2: not csv"),
        ("list.json", "list.json, row 0: not a JSON object"),
        ("no.csv", r"no.csv, line 2: no column 'text' \(there are a, b\)"),
        ("cut.parquet", "cut.parquet: cannot be read"),
        ("latin1.txt", "latin1.txt, line 2: byte 5 is not UTF-8"),
        ("a.txt.gz", "a.txt.gz: cannot be read"),
    ],
)
def test_bad_files_are_one_sentence_with_the_place(tmp_path, name, sentence):
    """Guards: a missing, unknown, truncated or wrongly encoded file is named, with the line where there is one."""
    with pytest.raises(InputError, match=sentence):
        documents(broken(tmp_path, name))


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.jsonl", '{"text": ["a b"]}', "line 1: 'text' is a list, not text; .*`text_column_name`"),
        ("a.jsonl", '{"text": "x"}\n{"text": 7}', "line 2: 'text' is a number, not text"),
        ("a.jsonl", '{"text": NaN}', "line 1: 'text' is a number, not text"),
        ("a.jsonl", '{"text": true}', "line 1: 'text' is true or false, not text"),
        ("a.jsonl", '{"text": {"en": "x"}}', "line 1: 'text' is an object, not text"),
        ("a.jsonl", '{"text": "x", "text": "y"}', "line 1: not JSON .*a field twice"),
        ("a.jsonl", '{"text": ' + "[" * 100_000, "line 1: not JSON .*recursion"),
        ("a.jsonl", '{"text": "x", "n": ' + "9" * 5000 + "}", "line 1: not JSON .*Exceeds the limit"),
        ("a.csv", "id,text\n1,x\n2,y,z\n", "line 3: more fields than the header has columns"),
        ("a.csv", "id,text\n1,x\n2\n", "line 3: fewer fields than the header has columns"),
        ("a.tsv", "text\ttext\nx\ty\n", "line 1: two columns have the same name, 'text'"),
        ("a.parquet", {"text": [1, 2]}, "row 0: 'text' is a number, not text; .*`text_column_name`"),
        ("a.parquet", {"text": [["x"]]}, "row 0: 'text' is a list, not text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, name, content, sentence):
    """Guards: no value but text is trained on, no row with shifted columns, and no column of two with one name."""
    if isinstance(content, dict):
        pyarrow.parquet.write_table(pyarrow.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence) as said:
        documents(tmp_path / name)
    assert len(str(said.value)) <= 1000 and name in str(said.value)


def test_only_regular_files_are_read(tmp_path):
    """Guards: a pipe is refused at once; reading it would wait forever."""
    os.mkfifo(tmp_path / "a.txt")
    for pattern in ("a.txt", "*.txt"):
        with pytest.raises(InputError, match="a.txt: not a regular file"):
            documents(tmp_path / pattern)
    for kind in (".tsv", ".json"):
        os.mkfifo(tmp_path / f"a{kind}")
        with pytest.raises(InputError, match=f"a{kind}: not a regular file"):
            next(DataFile(tmp_path / f"a{kind}").rows())


def test_long_lines_are_refused(tmp_path, monkeypatch):
    """Guards: a line that is longer than memory, as a small compressed file can hold one, is not read whole."""
    monkeypatch.setattr("fixedbert.data.readers.LARGEST_LINE", 2**20)
    for name in ("a.jsonl.gz", "a.txt.gz"):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write('{"text": "x"}\n' + "x" * 2**21)
        with pytest.raises(InputError, match=rf"{name}, line 2: longer than 1 MiB"):
            documents(tmp_path / name)


def test_small_files_take_little_memory(tmp_path):
    """Guards: reading a small text file asks for as much memory as it needs, not for that of the largest document."""
    (tmp_path / "a.txt").write_text("One.\n" * 1000)
    tracemalloc.start()
    try:
        assert documents(tmp_path / "a.txt") == ["One.\n" * 1000]
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_document_without_boundaries_is_refused(tmp_path, monkeypatch):
    """Guards: a text file too large for one document is an error that says how to cut it, not one huge document."""
    monkeypatch.setattr("fixedbert.data.boundaries.LARGEST_DOCUMENT", 2**20)
    (tmp_path / "a.txt").write_text("x" * (2**20 + 1))
    line = "x" * 1023
    (tmp_path / "b.txt").write_text(f"{line}\n" * 1025)
    (tmp_path / "c.csv").write_text("text,id\n" + f"{line},1\n" * 1026)
    column = {"document_boundary": "column", "document_column": "id"}
    for name, options in (("a.txt", {}), ("b.txt", {"document_boundary": "blank_line"}), ("c.csv", column)):
        with pytest.raises(InputError, match=rf"{name}: more than 1 MiB in one document.*`document_boundary`"):
            documents(tmp_path / name, **options)


def test_hub_data_sets_are_read_in_batches(tmp_path):
    """Guards: a data set as `load_dataset` gives it, here from a local folder: rows in order, columns checked."""
    pyarrow.parquet.write_table(
        pyarrow.table({"text": [f"row {n}" for n in range(2500)], "doc": [n // 1000 for n in range(2500)]}),
        tmp_path / "train-00000-of-00001.parquet",
    )
    assert documents(tmp_path, on_hub=True) == [f"row {n}" for n in range(2500)]
    found = documents(tmp_path, on_hub=True, document_boundary="column", document_column="doc")
    assert [len(sentences) for sentences in found] == [1000, 1000, 500]
    with pytest.raises(InputError, match="no column 'body'"):
        documents(tmp_path, on_hub=True, text_column="body")
    with pytest.raises(InputError, match="nobody/nothing: the data set could not be loaded"):
        documents("nobody/nothing", on_hub=True)


def test_trained_tokenizer_is_an_ordinary_bert_tokenizer(tmp_path):
    """Guards: WordPiece of the size asked for, with BERT's special tokens, trained once for the same text."""
    (tmp_path / "a.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 20)
    corpora = [Corpus(str(tmp_path / "a.txt"), document_boundary="line")]
    tokenizer = trained_tokenizer(corpora, 60, store_dir=tmp_path)
    assert len(tokenizer) == 60
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(str(tmp_path / "saved"))
    assert "".join(loaded.tokenize("The fox?")).replace("##", "") == "thefox[UNK]"
    ids = loaded("the", "fox")["input_ids"]
    assert ids[0] == loaded.cls_token_id and ids[-1] == loaded.sep_token_id
    assert loaded.mask_token_id is not None and loaded.pad_token_id == 0
    assert trained_tokenizer(corpora, 60, store_dir=tmp_path).get_vocab() == tokenizer.get_vocab()
    cased = trained_tokenizer(corpora, 60, do_lower_case=False, store_dir=tmp_path)
    assert "T" in cased.get_vocab() and "T" not in tokenizer.get_vocab()


def test_tokenizer_that_cannot_be_saved_is_one_sentence(tmp_path, monkeypatch, full_disk):
    """Guards: a full disk, for which tokenizers has an error of its own, names the folder and what to do."""
    (tmp_path / "a.txt").write_text("The quick brown fox.\n" * 20)
    original = BertTokenizer.save_pretrained
    monkeypatch.setattr(BertTokenizer, "save_pretrained", lambda *args: (full_disk(100), original(*args)))
    try:
        with pytest.raises(InputError, match=f"{tmp_path}: no space left .*give another `store_dir`"):
            trained_tokenizer([Corpus(str(tmp_path / "a.txt"))], 60, store_dir=tmp_path)
    finally:
        full_disk()


def test_tokenizer_trains_on_a_share(tmp_path):
    """Guards: a share of the documents is what it learns from, and no text at all is an error."""
    (tmp_path / "a.txt").write_text("".join(f"{chr(0x4E00 + n)} file\n" for n in range(1000)))
    corpora = [Corpus(str(tmp_path / "a.txt"), document_boundary="line")]
    vocabulary = trained_tokenizer(corpora, 5000, share=0.3, store_dir=tmp_path).get_vocab()
    seen = sum(chr(0x4E00 + n) in vocabulary for n in range(1000))
    assert 230 < seen < 370
    (tmp_path / "a.txt").write_text(" \n \n")
    with pytest.raises(InputError, match="a.txt: the corpus is empty"):
        trained_tokenizer(corpora, 60, store_dir=tmp_path)
    with pytest.raises(InputError, match="a.txt: no text in a share of 0.3 .*give a larger `tokenizer_train_share`"):
        trained_tokenizer(corpora, 60, share=0.3, store_dir=tmp_path)


def test_words_that_wordpiece_never_looks_into_are_not_trained_on(tmp_path):
    """Guards: a word of a million characters takes no hours, is in no token, and what is beside it still is."""
    letters = random.Random(0).choices("abcdefghijklmnopv", k=1_000_000)
    other = "http://" + "www/" * 50 + " " + "字中" * 300 + " [MASK] [SEP]"  # words of few characters, and text
    (tmp_path / "a.txt").write_text("The quick fox.\n" * 20 + "".join(letters) + f" zebra zebra {other}")
    began = time.process_time()
    vocabulary = trained_tokenizer([Corpus(str(tmp_path / "a.txt"))], 200, store_dir=tmp_path).get_vocab()
    assert time.process_time() - began < 10
    assert {"quick", "zebra", "http", "www", "字", "中", "mask", "sep"} <= vocabulary.keys()
    assert not {"v", "##v"} & vocabulary.keys()  # of the long word alone
    (tmp_path / "b.txt").write_text("".join(letters[:101]))
    with pytest.raises(InputError, match="b.txt: all words have more than 100 characters; put blanks between"):
        trained_tokenizer([Corpus(str(tmp_path / "b.txt"))], 200, store_dir=tmp_path)


def test_vocabulary_is_no_larger_than_asked(tmp_path):
    """Guards: of more characters than there is room for, at the beginning of words and inside, the commonest stay."""
    characters = [chr(0x4E00 + number) for number in range(900)]
    (tmp_path / "a.txt").write_text("".join(characters) + "".join(characters[:30]) + " ab bc" * 9)
    corpora = [Corpus(str(tmp_path / "a.txt"))]
    for size in (2000, 100, 40, 7):
        tokenizer = trained_tokenizer(corpora, size, store_dir=tmp_path)
        assert min(size - 2, 900) <= len(tokenizer) <= size
        known = [character for character in characters if tokenizer.tokenize(character) != ["[UNK]"]]
        assert size < 100 or characters[:30] == known[:30]
    with pytest.raises(InputError, match="^`vocab_size` 6: no room .* 7 is the least"):
        trained_tokenizer(corpora, 6, store_dir=tmp_path)


def test_old_line_ends_and_encodings(tmp_path):
    """Guards: a file whose lines end with carriage returns alone has lines; UTF-16 is named."""
    for name, text in (
        ("a.txt", "One.\rTwo.\r"),
        ("b.csv", "text,id\rOne.,1\rTwo.,2"),
        ("c.tsv", "text\tid\rOne.\t1\r"),
    ):
        (tmp_path / name).write_bytes(text.encode())
    assert documents(tmp_path / "a.txt") == ["One.\nTwo.\n"]
    assert documents(tmp_path / "a.txt", document_boundary="line") == ["One.\n", "Two.\n"]
    assert documents(tmp_path / "b.csv") == ["One.", "Two."] and documents(tmp_path / "c.tsv") == ["One."]
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "One."}\r{"text": "Two."}\r')
    assert documents(tmp_path / "d.jsonl") == ["One.", "Two."]
    (tmp_path / "e.txt").write_bytes(b"One\rand.\nTwo.\n")  # a line feed ends lines, and the rest is text
    assert documents(tmp_path / "e.txt", document_boundary="line") == ["One\rand.\n", "Two.\n"]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        (tmp_path / "f.csv").write_bytes("text,id\nTwo é.,1\n".encode(encoding))
        with pytest.raises(InputError, match="f.csv: UTF-16 or UTF-32, not UTF-8; convert the file"):
            documents(tmp_path / "f.csv")


def test_tokenizer_of_another_model_is_refused(tmp_path, vocabulary):
    """Guards: weights whose own tokenizer gives other numbers to tokens are not trained on with a foreign one."""
    own = load_tokenizer(vocabulary)
    own.save_pretrained(tmp_path / "model")
    check_same_vocabulary(own, "own", str(tmp_path / "model"))
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(list(own.get_vocab()))))
    other = load_tokenizer(str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match="^vocab.txt: .* is not that of .*model.*leave `tokenizer_name` out"):
        check_same_vocabulary(other, "vocab.txt", str(tmp_path / "model"))


def test_only_models_without_a_tokenizer_are_not_compared(tmp_path, vocabulary, monkeypatch):
    """Guards: the comparison is left out where a model has no tokenizer, not where it has one that cannot be had."""
    own = load_tokenizer(vocabulary)
    (tmp_path / "without").mkdir()
    check_same_vocabulary(own, "own", str(tmp_path / "without"))
    for name in ("vocab.json", "spiece.model", "tokenizer_config.json"):
        (tmp_path / "without" / name).write_text("{}")
        with pytest.raises(InputError, match="without: "):
            check_same_vocabulary(own, "own", str(tmp_path / "without"))
        (tmp_path / "without" / name).unlink()

    files = ["config.json", "model.safetensors"]
    monkeypatch.setattr("fixedbert.data.tokenizers.list_repo_files", lambda *args, **options: files)
    check_same_vocabulary(own, "own", "user/mini")
    files.append("vocab.txt")
    with pytest.raises(InputError, match="^user/mini: no tokenizer could be loaded from it"):
        check_same_vocabulary(own, "own", "user/mini")

    def broken(*args, **options):
        raise ConnectionError("no way there")

    monkeypatch.setattr("fixedbert.data.tokenizers.list_repo_files", broken)
    with pytest.raises(InputError, match="^user/mini: the Hub does not say .* .no way there.; .* Hub in reach"):
        check_same_vocabulary(own, "own", "user/mini")


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
    with pytest.raises(InputError, match="neither a directory nor the name of a model on the Hub"):
        load_tokenizer(str(tmp_path / "nothing"))
    FixedHeadBertConfig().save_pretrained(tmp_path / "model")  # where transformers 5 makes one of special tokens alone
    with pytest.raises(InputError, match="there is no tokenizer in it"):
        load_tokenizer(str(tmp_path / "model"))


def test_vocabulary_of_bert_base_uncased(real_data):
    """Guards: with the real vocabulary ids are those that BERT checkpoints expect."""
    tokenizer = load_tokenizer(str(next((real_data / "vocab").glob("*.txt"))))
    assert len(tokenizer) == 30522
    assert tokenizer("Hello, my dog is cute")["input_ids"] == [101, 7592, 1010, 2026, 3899, 2003, 10140, 102]


def test_real_wikipedia_and_books_load(real_data):
    """Guards: the real corpora come in as whole articles and whole novels, from 6 and 98 files."""
    books = documents(real_data / "books")
    assert len(books) == 98 and not any(text.startswith("\ufeff") or "\r" in text for text in books)
    assert len(documents(real_data / "wikipedia")) == 13488
    assert len(corpus_files(str(real_data / "wikipedia"))) == 6


@pytest.fixture
def tree(tmp_path):
    """texts/ with one.txt, deep/two.txt and b[1]/three.txt, and beside it elsewhere/four.txt."""
    for name in ("texts/one.txt", "texts/deep/two.txt", "texts/b[1]/three.txt", "elsewhere/four.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    return tmp_path


def names(pattern) -> list[str]:
    return [file.name for file in corpus_files(str(pattern))]


def test_a_path_that_exists_is_no_pattern(tree):
    """Guards: brackets and stars in the names of files and folders are these names; only else they are patterns."""
    for name in ("book[1].txt", "book1.txt", "what?.txt", "whatx.txt", "*.txt"):
        (tree / name).write_text(name)
    assert names(tree / "book[1].txt") == ["book[1].txt"]
    assert names(tree / "what?.txt") == ["what?.txt"]
    assert names(tree / "*.txt") == ["*.txt"]
    assert names(tree / "book[12].txt") == ["book1.txt"]  # no such path, so a pattern
    assert names(tree / "texts" / "b[1]") == ["three.txt"]
    assert names(tree / "texts" / "b[1]" / "*.txt") == ["three.txt"]
    (tree / "texts" / "b1").mkdir()
    (tree / "texts" / "b1" / "other.txt").write_text("x")
    assert names(tree / "texts" / "b[1]" / "*.txt") == names(tree / "t*" / "b[1]" / "*.txt") == ["three.txt"]
    assert names(tree / "texts" / "b[1]" / "o*.txt") == ["other.txt"]  # b[1] has none
    (tree / "b[1].csv").write_text("text\nx\n")
    assert documents(tree / "b[1].csv") == ["x"]


def test_patterns_match_as_in_a_shell(tree, monkeypatch):
    """Guards: **, classes, hidden names, folders that a pattern matches, and relative paths."""
    (tree / ".hidden").mkdir()
    (tree / ".hidden" / "five.txt").write_text("x")
    everything = ["four.txt", "three.txt", "two.txt", "one.txt"]
    assert names(tree / "**" / "*.txt") == names(tree / "**") == everything
    assert names(tree / "**" / "t*.txt") == ["three.txt", "two.txt"] and names(tree / "[e-t]*") == everything
    assert names(tree / ".h*" / "*.txt") == ["five.txt"]
    monkeypatch.chdir(tree)
    assert names("**/*.txt") == everything and names("texts/*.txt") == ["one.txt"] == names("./texts/one.txt")
    (tree / "empty").mkdir()
    assert names("e*") == ["four.txt"]
    for absent in ("empty", "nothing", "nothing/*.txt", "texts/*.csv", "texts/one.txt/*", "**/*.json"):
        with pytest.raises(InputError, match="no such file, and no folder or glob"):
            corpus_files(absent)


def test_linked_folders_are_read_once(tree):
    """Guards: links to folders are followed; loops, parents and two links to one folder or file give a file once."""
    texts = tree / "texts"
    for name, target in (
        ("linked", tree / "elsewhere"),
        ("again", tree / "elsewhere"),
        ("loop", texts),
        ("up", tree),
        ("deep/loop", texts / "deep"),
        ("deep/same.txt", texts / "one.txt"),
        ("a.txt", tree / "elsewhere" / "four.txt"),
    ):
        (texts / name).symlink_to(target)
    everything = ["four.txt", "one.txt", "three.txt", "two.txt"]
    for pattern in (texts, texts / "**" / "*.txt", texts / "**", texts / "loop", tree / "*"):
        files = corpus_files(str(pattern))
        assert sorted(file.name for file in files) in (everything, ["a.txt", *everything[1:]]), pattern
        assert len({file.resolve() for file in files}) == 4
    assert texts / "one.txt" in corpus_files(str(texts))  # not deep/same.txt


def test_links_that_lead_nowhere_are_named(tree):
    """Guards: a text or a folder of them that a broken link meant is not left out in silence."""
    for name in ("texts/gone.txt", "texts/deep/folder", "texts/self.txt"):
        (tree / name).symlink_to(tree / ("gone" if "self" not in name else name))
        with pytest.raises(InputError, match=f"{name}: a link to .*, which is not there; correct or remove it"):
            corpus_files(str(tree / "texts"))
        with pytest.raises(InputError, match=f"{name}: a link to"):
            corpus_files(str(tree / name))
        (tree / name).unlink()
    (tree / "texts" / ".#one.txt").symlink_to("user@host.1")  # an editor's lock
    assert len(corpus_files(str(tree / "texts"))) == 3
