"""Calibration data for each task head, and its split into calibration and held-out rows."""

import json

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, save, write_texts
from helpers.tiny_models import model_of

from fixedbert.loading.loaded_model import LoadedModel
from fixedbert.loading.sentence_models import SentencePooling
from fixedbert.option_values import make
from fixedbert.options import ShrinkOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.calibration import load_batches, mask_randomly
from fixedbert.tasks.predictions import MASKED_POSITIONS
from fixedbert.tasks.task_heads import unlabeled_rows


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Returns a function that loads a tiny model with a given task head."""

    def load(head, **config):
        directory = tmp_path_factory.mktemp("model") / "model"
        save(model_of(head, **SHAPE, **config), directory)
        return LoadedModel.load(directory)

    return load


def shrink_options(**options) -> ShrinkOptions:
    return ShrinkOptions(model="unused", output_dir="unused", speedup=[2.0], **options)


def data_for(texts, file="rows.txt", **options):
    return shrink_options(**{"train_file": [str(texts / file)], "batch_size": 13} | options)


def rows_of(batches):
    """Returns the token ids of all rows as tuples, without padding."""
    return [
        tuple(ids[mask.bool()].tolist())
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def test_pairs_are_batched_by_length(texts, loaded):
    """Pairs are truncated and keep their token type ids. Batches have similar lengths. Text columns can be chosen."""
    options = data_for(texts, "pairs.csv", max_seq_length=17, max_train_samples=50)
    calibration, held_out, _ = load_batches(options, loaded("ForSequenceClassification"), 0)
    lengths = [batch["input_ids"].shape[1] for batch in calibration]
    assert len(rows_of(calibration)) == 42 and len(rows_of(held_out)) == 8
    assert lengths == sorted(lengths) and lengths[-1] <= 17
    assert all(batch["token_type_ids"].any() for batch in calibration)
    lines = (texts / "rows.txt").read_text().splitlines()
    options = data_for(texts, "pairs.csv", text_column_names="sentence2")
    (second,) = unlabeled_rows(options, "SequenceClassification", None, 17, "train", separate=False)
    assert second.data["sentence1"][:] == lines[1::2]


def test_running_text_for_a_masked_lm(texts, loaded):
    """Rows for a masked LM have no padding. Each row has masked positions, but no special token is masked."""
    model = loaded("ForMaskedLM")
    batches, _, _ = load_batches(data_for(texts, max_seq_length=11, max_train_samples=31), model, 0)
    assert [batch["input_ids"].shape for batch in batches] == [(13, 11)] * 2
    for batch in batches:
        positions = batch[MASKED_POSITIONS]
        assert positions.any(dim=1).all() and (batch["input_ids"][positions] == model.tokenizer.mask_token_id).all()
        assert not positions[:, [0, -1]].any()  # [CLS] and [SEP]
    ids = torch.tensor([[2, 7, 8, 3]] * 2000)
    masked = mask_randomly({"input_ids": ids}, model.tokenizer, torch.Generator().manual_seed(0))
    assert 0.5 <= masked[MASKED_POSITIONS].float().mean() * 2 <= 0.6  # at least one of two tokens


def test_pairs_for_an_embedding_model(texts, loaded):
    """For a model with pooling, the two texts in a pair are separate rows."""
    model = loaded("Model")
    model.pooling = SentencePooling("mean", normalize=True)
    calibration, held_out, _ = load_batches(data_for(texts, "pairs.csv"), model, 0)
    assert len(rows_of(calibration)) + len(rows_of(held_out)) == 200
    assert not any(batch["token_type_ids"].any() for batch in calibration)


def test_questions_are_split_into_windows(loaded, tmp_path):
    """For a question answering model, each question is paired with all windows of its paragraph."""
    questions = [{"id": number, "question": "who sat", "answers": []} for number in "ab"]
    paragraph = {"context": "the cat sat on the mat . " * 5, "qas": questions}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    options = data_for(tmp_path, "squad.json", max_seq_length=16)
    calibration, held_out, _ = load_batches(options, loaded("ForQuestionAnswering"), 0)
    assert len(rows_of(calibration)) + len(rows_of(held_out)) > 2 * 2
    assert all(batch["input_ids"].shape[1] <= 16 for batch in calibration)


def test_held_out_rows_are_disjoint(texts, loaded):
    """The held-out rows are used neither for calibration nor for distillation."""
    model = loaded("ForSequenceClassification")
    for count, sizes in ((26, (26, 4, 146)), (100, (100, 16, 134))):
        parts = [rows_of(part) for part in load_batches(data_for(texts, max_train_samples=count), model, 150)]
        assert tuple(map(len, parts)) == sizes
        assert not {*parts[1]} & {*parts[0], *parts[2]}


def test_glue_task_holds_out_the_validation_split(texts, loaded, tmp_path):
    """For a GLUE task, held-out rows come from the validation split and all others from the training split."""
    model = loaded("ForSequenceClassification")
    lines = (texts / "rows.txt").read_text().splitlines()
    (tmp_path / "CoLA").mkdir()
    for name, part in (("train", lines[:120]), ("dev", lines[120:])):
        (tmp_path / f"CoLA/{name}.tsv").write_text("".join(f"a\t{n % 2}\t\t{line}\n" for n, line in enumerate(part)))
    options = shrink_options(task_name="CoLA", data_dir=str(tmp_path), batch_size=13, max_train_samples=90)
    calibration, held_out, _ = load_batches(options, model, 0)
    expected = {tuple(model.tokenizer(line)["input_ids"]) for line in lines[120:]}
    assert len(rows_of(held_out)) == 15 and {*rows_of(held_out)} <= expected
    assert len(rows_of(calibration)) == 90


def test_invalid_calibration_data(texts, loaded):
    """A missing file, invalid lengths, and rows that are unsuitable for the task head raise InputError."""
    with pytest.raises(InputError, match="specify either `task_name` or `train_file`"):
        make({"model": "a", "output_dir": "b", "params": 1}, ShrinkOptions)
    with pytest.raises(InputError, match="2: must be between 3 and 23"):
        load_batches(data_for(texts, max_seq_length=2), loaded("ForSequenceClassification"), 0)
    with pytest.raises(InputError, match="multiple-choice models"):
        load_batches(data_for(texts), loaded("ForMultipleChoice"), 0)
    with pytest.raises(InputError, match="use a `train_file` in SQuAD format"):
        load_batches(shrink_options(task_name="sst2"), loaded("ForQuestionAnswering"), 0)
