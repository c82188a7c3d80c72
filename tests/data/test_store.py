"""The store: its content, its reuse, resumption after an interruption, and errors."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_stores import make_store
from transformers import BertTokenizer

from fixedbert.data import store as store_module
from fixedbert.data.corpora import Corpus
from fixedbert.data.store import Documents, prepare_store, tokenize_sentences
from fixedbert.support.errors import InputError


def sentences_of(documents: Documents, tokenizer) -> list[list[str]]:
    return [
        [tokenizer.decode(part) for part in np.split(documents.tokens(number), documents.sentence_ends(number))[:-1]]
        for number in range(len(documents))
    ]


def rows(path: Path, *texts: str | None) -> Corpus:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Corpus(str(path))


@pytest.mark.parametrize("piece", [20, 500_000])
def test_documents_are_tokenized_like_their_sentences(tokenizer, monkeypatch, piece):
    """Sentences tokenized together have the same tokens as separate sentences."""
    monkeypatch.setattr(store_module, "PIECE_CHARACTERS", piece)
    documents = [["the file.", "", "two files [MASK]?", "Read[CLS]it"], [], ["¿¿"], ["\u200d", "a"]]
    documents.append([f"{word} file ." for word in "one two three four five".split()] * 7)
    for sentences, (ids, ends) in zip(documents, tokenize_sentences(documents, tokenizer), strict=True):
        alone = [tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in sentences]
        assert ids.tolist() == sum(alone, []) and ids.dtype == np.uint16
        assert ends.tolist() == sorted(set(np.cumsum([len(a) for a in alone])) - {0})


def test_stores_are_reused_until_something_changes(tmp_path, tokenizer):
    """A store is reused only if the texts, the tokenizer, the document boundary and the language match."""

    def shards() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("*.arrow")}

    def prepare(tokenizer=tokenizer, language="en", **options):
        before = shards()
        documents = prepare_store([Corpus(str(tmp_path / "*.txt"), **options)], tokenizer, language, 1, tmp_path / "s")
        return len(shards().items() - before.items()), len(documents)

    (tmp_path / "a.txt").write_text("One file.\n\nTwo files.")
    assert prepare() == (1, 1)
    assert prepare() == (0, 1)
    assert prepare(document_boundary="blank_line") == (1, 2)
    assert prepare(language="de") == (1, 1)
    more = BertTokenizer(vocab={**tokenizer.get_vocab(), "file.": len(tokenizer)})
    assert prepare(more) == (1, 1)
    (tmp_path / "a.txt").write_text("Six file.\n\nTwo files.")  # same length
    assert prepare() == (1, 1)
    (tmp_path / "b.txt").write_text("Three.")
    assert prepare() == (1, 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_and_shards_do_not_change_the_store(tmp_path, tokenizer, monkeypatch, processes):
    """The documents and their order do not depend on the number of processes and shards."""
    monkeypatch.setattr(store_module, "SHARD_DOCUMENTS", 7)
    texts = [f"file {'one two three four'.split()[n % 4]} " * (n + 1) for n in range(40)]
    documents = prepare_store([rows(tmp_path / "a.jsonl", *texts)], tokenizer, "en", processes, tmp_path / "store")
    assert documents.description["shards"] == 6
    expected = [[text] for text in texts]
    assert [[s + " " for s in sentences] for sentences in sentences_of(documents, tokenizer)] == expected


def test_killed_preparation_resumes(tmp_path, tokenizer, monkeypatch):
    """After SIGKILL, the worker processes exit, and the next preparation keeps the complete shards."""
    corpus = rows(tmp_path / "a.jsonl", *(f"file {n} " + "one two three. " * 300 for n in range(1000)))
    monkeypatch.setattr(store_module, "SHARD_DOCUMENTS", 50)
    arguments = ([corpus], tokenizer, "en", 2, tmp_path / "store")
    run = multiprocessing.get_context("fork").Process(target=prepare_store, args=arguments)
    run.start()
    while run.is_alive() and len(list((tmp_path / "store").rglob("shard-*.arrow"))) < 3:
        time.sleep(0.01)
    run.kill()
    run.join()
    time.sleep(0.5)
    (directory,) = (path for path in (tmp_path / "store").glob("store-*") if path.is_dir())
    done = len(list(directory.glob("shard-*.arrow")))
    time.sleep(0.5)
    assert not (directory / "store.json").exists() and len(list(directory.glob("shard-*.arrow"))) == done
    with pytest.raises(InputError, match="incomplete or corrupted"):
        Documents(directory)
    times = {path: path.stat().st_mtime_ns for path in directory.glob("shard-*.arrow")}
    documents = prepare_store([corpus], tokenizer, store_dir=tmp_path / "store")
    assert len(documents) == 1000 and not list(directory.glob("*.partial"))
    assert all(path.stat().st_mtime_ns == before for path, before in times.items())


@pytest.mark.slow
def test_script_that_workers_import(tmp_path, vocabulary):
    """Where workers are spawned, as on macOS, a script without a guard fails at once, with the reason."""
    rows(tmp_path / "a.jsonl", "one two.")
    script = tmp_path / "script.py"
    script.write_text(f"""
from transformers import BertTokenizer
from fixedbert.data.corpora import Corpus
from fixedbert.data.store import prepare_store
from fixedbert.support import processes

processes.START_METHOD = "spawn"
prepare_store([Corpus("a.jsonl")], BertTokenizer({vocabulary!r}), store_dir="store")
""")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert 'in a script, call fixedbert only below if __name__ == "__main__"; otherwise' in last


@pytest.mark.parametrize("name", ["shard-000000.arrow", "documents.npy", "store.json"])
def test_corrupted_files(tmp_path, name):
    """A truncated store file raises InputError, and so does a readable file whose checksum is wrong."""
    documents = make_store(tmp_path, [2, 3], [1], [4], shard_size=2)
    content = (documents.directory / name).read_bytes()
    half = len(content) // 2
    for corrupted in (content[:-40], content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]):
        (documents.directory / name).write_bytes(corrupted)
        with pytest.raises(InputError, match=f"incomplete or corrupted .{name}.*remove it"):
            Documents(documents.directory)


def test_store_depends_on_content(tmp_path, tokenizer, monkeypatch):
    """The store depends on the content of a file and not on its name. Unchanged files are hashed only once."""
    read = []
    hash_of = store_module.file_sha256
    monkeypatch.setattr(store_module, "file_sha256", lambda file: (read.append(file.name), hash_of(file))[1])

    def fingerprint(name: str) -> str:
        return prepare_store([Corpus(str(tmp_path / name))], tokenizer, store_dir=tmp_path / "store").directory.name

    file = tmp_path / "a.txt"
    file.write_text("One file.")
    os.utime(file, ns=(10**18, 10**18))
    time.sleep(0.02)
    first = fingerprint("a.txt")
    assert fingerprint("a.txt") == first and read == ["a.txt"]
    file.write_text("Two file.")
    os.utime(file, ns=(10**18, 10**18))
    time.sleep(0.02)
    assert fingerprint("a.txt") != first and read == ["a.txt"] * 2
    (tmp_path / "b.txt").write_text("One file.")
    assert fingerprint("b.txt") == first


MEMORY = """
import resource
import sys
from transformers import BertTokenizer
from fixedbert.data import store
from fixedbert.data.corpora import Corpus
store.SHARD_CHARACTERS = 300_000
documents = store.prepare_store([Corpus(sys.argv[2])], BertTokenizer(vocab=sys.argv[1]), "en", 1, sys.argv[3])
assert len(documents) == int(sys.argv[4])
own = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path, vocabulary):
    """The peak memory of the process and its worker does not grow with the size of the corpus."""
    peaks = []
    for count in (250, 1000):
        corpus = rows(tmp_path / f"{count}.jsonl", *(f"{n} " + "file one two. " * 1500 for n in range(count)))
        command = [sys.executable, "-c", MEMORY, vocabulary, corpus.source, str(tmp_path / "store"), str(count)]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        peaks.append(int(run.stdout) / 1024)
    text = (tmp_path / "1000.jsonl").stat().st_size / 2**20
    assert text > 18 and peaks[1] - peaks[0] < 0.5 * text, peaks  # MiB
