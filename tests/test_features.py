"""Features of texts: made once, found again by what the rows hold, verified, and made in several processes."""

import errno
import os
import signal
from pathlib import Path

import datasets
import pytest
from accelerate import PartialState
from transformers import BertTokenizer

from fixedbert.data.features import prepare_features
from fixedbert.data.glue import text_features
from fixedbert.errors import InputError


@pytest.fixture
def tokenizer(vocabulary):
    return BertTokenizer(vocab=vocabulary)


@pytest.fixture
def rows() -> datasets.Dataset:
    texts = {"sentence1": ["One two.", "Two six."], "sentence2": ["Four.", "Five."]}
    return datasets.Dataset.from_dict({**texts, "label": [1, 0]})


def test_features_are_made_once(rows, tokenizer, vocabulary):
    """Guards: a second run finds the features by what the rows hold, on any number of processes; new text is new."""
    first = text_features(rows, tokenizer, 9)
    (file,) = {entry["filename"] for entry in first.cache_files}
    made = os.stat(file).st_mtime_ns
    for again in (text_features(rows.select([0, 1]), tokenizer, 9), text_features(rows, tokenizer, 9, num_proc=2)):
        assert again[:] == first[:]
        assert os.stat(file).st_mtime_ns == made
    assert text_features(rows.select([1]), tokenizer, 9)["input_ids"][0] == first["input_ids"][1]
    assert text_features(rows, tokenizer, 6)["length"][:] == [6, 6]
    tokenizer.truncation_side = "left"
    assert text_features(rows, tokenizer, 6)["input_ids"][:] != text_features(rows, tokenizer, 9)["input_ids"][:]
    without_types = BertTokenizer(vocab=vocabulary, model_input_names=["input_ids", "attention_mask"])
    assert "token_type_ids" not in text_features(rows, without_types, 9).column_names
    tokenizer.truncation_side = "right"
    assert text_features(rows, tokenizer, 9, overwrite_cache=True)[:] == first[:]
    assert os.stat(file).st_mtime_ns > made


def test_damaged_features_are_made_again(rows, tokenizer):
    """Guards: a cached file with another bit or cut off is not memory-mapped, which could end the interpreter."""
    first = text_features(rows, tokenizer, 11)
    expected, file = first[:], Path(first.cache_files[0]["filename"])
    whole = file.read_bytes()
    place = whole.index(bytes(8), len(whole) // 2)
    for damaged in (whole[:-100], whole[:place] + b"\xff" + whole[place + 1 :]):
        file.unlink()
        file.write_bytes(damaged)
        assert text_features(rows, tokenizer, 11)[:] == expected
        assert file.read_bytes() == whole


@pytest.mark.parametrize("first", [True, False])
def test_one_process_verifies_features(rows, tokenizer, monkeypatch, first):
    """Guards: of the processes of a machine only the first reads all cached features to verify them."""
    expected, verified = text_features(rows, tokenizer, 13)[:], []
    monkeypatch.setattr("fixedbert.data.features.is_sealed", lambda file: verified.append(file.name) or True)
    monkeypatch.setattr(PartialState, "is_local_main_process", first)
    assert text_features(rows, tokenizer, 13)[:] == expected
    assert verified == ["features.arrow"] * first


def test_features_that_cannot_be_written_are_one_sentence(rows, tokenizer, tmp_path, monkeypatch):
    """Guards: a cache that is a file, full or read-only says where it is; no shared memory says what to do."""
    (tmp_path / "file").write_text("")
    with monkeypatch.context() as patch, pytest.raises(InputError, match="file/fixedbert/.*HF_DATASETS_CACHE"):
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
        text_features(rows, tokenizer, 12)

    def no_lock():
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("fixedbert.data.processes.multiprocessing.Lock", no_lock)
    with pytest.raises(InputError, match="/dev/shm, which cannot be used .Read-only.*--preprocessing_num_workers 1"):
        text_features(rows, tokenizer, 12, num_proc=2)


def killed(batch, tokenizer):
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_process_is_one_sentence(rows, tokenizer):
    """Guards: a process that tokenizes and is killed, as for memory, names the flag that needs less of it."""
    with pytest.raises(InputError, match="was killed, perhaps for memory; .*--preprocessing_num_workers"):
        prepare_features(rows, killed, {"tokenizer": tokenizer}, num_proc=2)
