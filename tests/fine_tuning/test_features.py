"""Features of texts: made once, found again by what the rows hold, verified, and made in several processes."""

import errno
import os
import signal
from pathlib import Path

import datasets
import numpy as np
import pytest
from accelerate import PartialState
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from fixedbert.data.encoding import encode
from fixedbert.data.sequences import sequences
from fixedbert.data.store import tokenize_sentences
from fixedbert.fine_tuning.features import prepare_features
from fixedbert.fine_tuning.questions import FEATURES, squad_windows
from fixedbert.fine_tuning.texts import text_features
from fixedbert.support.errors import InputError


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
    monkeypatch.setattr("fixedbert.fine_tuning.features.is_sealed", lambda file: verified.append(file.name) or True)
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

    monkeypatch.setattr("fixedbert.support.processes.multiprocessing.Lock", no_lock)
    with pytest.raises(InputError, match="/dev/shm, which cannot be used .Read-only.*`preprocessing_num_workers` 1"):
        text_features(rows, tokenizer, 12, num_proc=2)


def killed(batch, tokenizer):
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_process_is_one_sentence(rows, tokenizer):
    """Guards: a process that tokenizes and is killed, as for memory, names the flag that needs less of it."""
    with pytest.raises(InputError, match="was killed, perhaps for memory; .*`preprocessing_num_workers`"):
        prepare_features(rows, killed, {"tokenizer": tokenizer}, num_proc=2)


def byte_level_tokenizer():
    """A little tokenizer like RoBERTa's."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["one two three"], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = zip(("cls", "pad", "eos", "unk", "mask"), special, strict=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, sep_token="</s>", bos_token="<s>", **{f"{role}_token": one for role, one in roles}
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_special_tokens_in_texts_are_text_in_every_flow(vocabulary, tmp_path, family):
    """Guards: classification, questions, running text and pretraining read a written "[SEP]" or "<mask>" as text."""
    tokenizer = BertTokenizer(vocab=vocabulary) if family == "bert" else byte_level_tokenizer()
    special = [token for token in tokenizer.all_special_tokens if token]
    text = f"one {' two '.join(special)} three"
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}  # "[" is unknown to the little vocabulary

    def written(tokens):
        return [token for token in tokens if token in ids]

    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = datasets.Dataset.from_dict({"sentence1": [text], "sentence2": [text]})
    (row,) = text_features(rows, tokenizer, 128)["input_ids"]
    assert written(row) == ([cls, sep, sep] if family == "bert" else [cls, sep, sep, sep])
    answers = {"text": ["three"], "answer_start": [text.index("three")]}
    question = {"id": "1", "title": "", "context": text, "question": text, "answers": answers}
    windows = squad_windows(datasets.Dataset.from_list([question], features=FEATURES), tokenizer, 128, 16, False)
    assert written(windows["input_ids"][0]) == written(row)
    first, last = windows["start_positions"][0], windows["end_positions"][0]
    offsets = np.array(windows["offsets"][0]).reshape(-1, 2)
    assert text[offsets[first, 0] : offsets[last, 1]] == "three"
    file = tmp_path / "a.txt"
    file.write_text(text)
    (sequence,) = next(sequences([str(file)], tokenizer, 24, 1))
    assert written(sequence.tolist()) == [cls, sep]
    ((tokens, ends),) = tokenize_sentences([[text, "one two", text]], tokenizer)
    alone = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert written(tokens) == [] and tokens[: len(alone)].tolist() == alone and len(ends) == 3
    assert tokenize_sentences([["one", "two"]], tokenizer)[0][1].tolist()[-1] < 10  # after that, as ever


def test_fill_mask_keeps_its_mask(vocabulary):
    """Guards: a tokenizer that was used here takes "[MASK]" for the special token again when it is called as it is."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    encode(tokenizer, "one [MASK]")
    assert tokenizer.mask_token_id in tokenizer("one [MASK]")["input_ids"]
    assert not tokenizer.split_special_tokens
