"""Fixtures shared by all tests."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

# Must be set before importing transformers. Tests do not access the Hub, and use a cache of their own.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # one process per core, and reproducible sums
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="fixedbert-tests-")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # shells disable Ctrl-C for background jobs
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
    """Excludes imported objects from garbage collection, so that Trainer's collections are faster."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def same_signals():
    """Restores the signal handlers after the test."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def real_data() -> Path:
    """Returns the directory with real texts and tasks, which CONTRIBUTING.md describes."""
    if "FIXEDBERT_DATA" not in os.environ:
        pytest.skip("FIXEDBERT_DATA is not set")
    return Path(os.environ["FIXEDBERT_DATA"])


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    """Returns the path of a vocab.txt for the texts in the tests."""
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
    """Returns 300 documents of up to 40 sentences with up to 12 tokens. Token i of document d has id 1000 d + i."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 13, size=rng.integers(1, 41)).tolist() for _ in range(300)]
    return make_store(tmp_path_factory.mktemp("many"), *lengths)


@pytest.fixture(scope="module")
def model(vocabulary, tmp_path_factory) -> str:
    """Returns the directory of a tiny pretrained model without dropout, with its tokenizer."""
    directory = str(tmp_path_factory.mktemp("model"))
    write_model(directory, vocabulary)
    return directory


@pytest.fixture(scope="module")
def download(tmp_path_factory) -> str:
    """Returns a directory with all tasks in the format of the GLUE download."""
    directory = tmp_path_factory.mktemp("glue")
    write_download(directory)
    return str(directory)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    """Returns the path of a .jsonl file with questions. A third of them have no answer."""
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    write_questions(file)
    return str(file)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """Returns a directory with 12 short documents."""
    directory = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        sentences = [
            f"Sentence {index} of document {number} is about {(LETTERS * 2)[3 * index + number :][:3]}."
            for index in range(9)
        ]
        (directory / f"{number:02}.txt").write_text(" ".join(sentences))
    return str(directory)


@pytest.fixture(scope="session")
def pretrained(corpus, tmp_path_factory) -> Path:
    """Returns the output directory of a short run of run_pretraining.py."""
    from run_pretraining import main

    output = tmp_path_factory.mktemp("model") / "pretrained"
    main(pretraining(corpus, output))
    return output


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> Path:
    """Returns a directory with text pairs and questions: the tasks of the demo, at 5% of their size."""
    from experiments import sample_tasks

    directory = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        for rows in (sample_tasks.sentence_pairs, sample_tasks.questions):
            patch.setattr(sample_tasks, rows.__name__, lambda count, split, rows=rows: rows(count // 20, split))
        sample_tasks.write_tasks(directory)
    return directory


TRACED: dict[tuple, bytes] = {}


@pytest.fixture
def trace_once(monkeypatch):
    """Traces only one graph for all models with the same task head, weights and pooling."""
    from fixedbert.exporting import export

    trace = export.trace

    def cached(graph, batch, file):
        pooling = vars(graph.pooling) if graph.pooling else {}
        weights = [float(weight.double().sum()) for weight in graph.model.state_dict().values()]
        key = (graph.head, pooling.get("mode"), pooling.get("normalize"), *weights)
        if key not in TRACED:
            trace(graph, batch, file)
            TRACED[key] = file.read_bytes()
        file.write_bytes(TRACED[key])

    monkeypatch.setattr(export, "trace", cached)
