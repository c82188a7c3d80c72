"""Fixtures for all tests. Tests use no network, and real data only from FIXEDBERT_DATA."""

import atexit
import gc
import os
import resource
import shutil
import signal
import tempfile

# Before importing transformers: tests neither access the Hub nor share a cache.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # one process per core, and a fixed order of summation
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="fixedbert-tests-")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in background jobs of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

from pathlib import Path  # noqa: E402
from string import ascii_lowercase as LETTERS  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from helpers.script_arguments import pretraining  # noqa: E402
from helpers.tiny_stores import make_store  # noqa: E402
from helpers.tiny_tasks import write_download, write_model, write_questions  # noqa: E402
from transformers import BertTokenizer  # noqa: E402

from fixedbert.data.store import Documents  # noqa: E402


def pytest_collection_finish():
    """Excludes imported objects from garbage collection, which Trainer and matplotlib trigger after every run."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def same_signals():
    """Restores the signal handlers after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def real_data() -> Path:
    """The directory with real text and tasks, described in CONTRIBUTING.md."""
    if "FIXEDBERT_DATA" not in os.environ:
        pytest.skip("FIXEDBERT_DATA is not set")
    return Path(os.environ["FIXEDBERT_DATA"])


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    """Path of a vocab.txt for the texts in the tests."""
    words = "the a function takes returns list string file read write what does . ? , ##s one two three four five six"
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split(), *letters, *(f"##{x}" for x in letters)]
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(dict.fromkeys(tokens)) + "\n")
    return str(file)


@pytest.fixture
def tokenizer(vocabulary) -> BertTokenizer:
    return BertTokenizer(vocab=vocabulary)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Documents:
    """300 documents of 1 to 40 sentences of 1 to 12 tokens. Token 1000 d + i is token i of document d."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 13, size=rng.integers(1, 41)).tolist() for _ in range(300)]
    return make_store(tmp_path_factory.mktemp("many"), *lengths)


@pytest.fixture(scope="module")
def model(vocabulary, tmp_path_factory) -> str:
    """Directory of a tiny pretrained model without dropout, with its tokenizer."""
    folder = str(tmp_path_factory.mktemp("model"))
    write_model(folder, vocabulary)
    return folder


@pytest.fixture(scope="module")
def download(tmp_path_factory) -> str:
    """Directory with all GLUE tasks in the layout of the GLUE download."""
    folder = tmp_path_factory.mktemp("glue")
    write_download(folder)
    return str(folder)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    """Path of a .jsonl file with questions, a third of them without an answer."""
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    write_questions(file)
    return str(file)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """Directory with twelve short documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        sentences = [
            f"Sentence {index} of document {number} is about {(LETTERS * 2)[3 * index + number :][:3]}."
            for index in range(9)
        ]
        (folder / f"{number:02}.txt").write_text(" ".join(sentences))
    return str(folder)


@pytest.fixture(scope="session")
def pretrained(corpus, tmp_path_factory) -> Path:
    """Output directory of a few steps of run_pretraining.py."""
    from run_pretraining import main

    output = tmp_path_factory.mktemp("model") / "pretrained"
    main(pretraining(corpus, output))
    return output


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> Path:
    """Directory with text pairs and questions: a twentieth of the built-in sample."""
    from fixedbert.data import sample

    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        for rows in (sample.sentence_pairs, sample.questions):
            patch.setattr(sample, rows.__name__, lambda count, split, rows=rows: rows(count // 20, split))
        sample.write_tasks(folder)
    return folder


@pytest.fixture
def full_disk():
    """Returns a function that limits the size of written files, or lifts the limit without an argument."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=soft: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
