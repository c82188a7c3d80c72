"""Shared by all tests: no network, and real data where FIXEDBERT_DATA names it."""

import atexit
import gc
import os
import resource
import shutil
import signal
import tempfile

# Before transformers is imported: nothing here may reach for the Hub, or find what another run has cached.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # as many test processes as cores; sums in another order are not the same bits
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="fixedbert-tests-")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts its background jobs; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

from pathlib import Path  # noqa: E402
from string import ascii_lowercase as LETTERS  # noqa: E402

import pytest  # noqa: E402
from helpers.script_arguments import pretraining  # noqa: E402
from helpers.tiny_tasks import write_download, write_model, write_questions  # noqa: E402


def pytest_collection_finish():
    """What imports left behind is not searched for garbage: Trainer and matplotlib collect it after every run."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def same_signals():
    """Handlers of signals are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def real_data() -> Path:
    """The folder with real text and tasks; CONTRIBUTING.md says what is in it."""
    if "FIXEDBERT_DATA" not in os.environ:
        pytest.skip("FIXEDBERT_DATA does not say where real data is")
    return Path(os.environ["FIXEDBERT_DATA"])


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    """A vocab.txt that covers the words of the little texts in the tests."""
    words = "the a function takes returns list string file read write what does . ? , ##s one two three four five six"
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split(), *letters, *(f"##{x}" for x in letters)]
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(dict.fromkeys(tokens)) + "\n")
    return str(file)


@pytest.fixture(scope="module")
def model(vocabulary, tmp_path_factory) -> str:
    """A little pretrained model without dropout, and its tokenizer."""
    folder = str(tmp_path_factory.mktemp("model"))
    write_model(folder, vocabulary)
    return folder


@pytest.fixture(scope="module")
def download(tmp_path_factory) -> str:
    """All tasks of GLUE in the layout of the download."""
    folder = tmp_path_factory.mktemp("glue")
    write_download(folder)
    return str(folder)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    """Questions in lines, a third of them without an answer."""
    file = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    write_questions(file)
    return str(file)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """Twelve little documents of a few sentences."""
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
    """What run_pretraining.py leaves after a few steps."""
    from run_pretraining import main

    output = tmp_path_factory.mktemp("model") / "pretrained"
    main(pretraining(corpus, output))
    return output


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> Path:
    """Tasks of texts and of questions, a twentieth of the built-in sample."""
    from fixedbert.data import sample

    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        for rows in (sample.sentence_pairs, sample.questions):
            patch.setattr(sample, rows.__name__, lambda count, split, rows=rows: rows(count // 20, split))
        sample.write_tasks(folder)
    return folder


@pytest.fixture
def full_disk():
    """Call it, and no file can grow beyond the size given; without one, files can again, as pytest's own has to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=soft: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
