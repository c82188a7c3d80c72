"""Calibration data for each task head, and its split into calibration and held-out rows."""

import json

import pytest
import torch
from helpers.tiny_checkpoints import LETTERS, SHAPE, save, write_texts
from helpers.tiny_models import model_of
from transformers import BertConfig

from fixedbert.loading.loaded_model import LoadedModel
from fixedbert.loading.sentence_models import SentencePooling
from fixedbert.options import ShrinkOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.calibration import TokenizedRow, hold_out, load_batches, mask_randomly
from fixedbert.tasks.fidelity import measure_fidelity
from fixedbert.tasks.predictions import PREDICTED_POSITIONS, QUERIES
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


def test_pairs_are_batched_by_length(texts, loaded, monkeypatch):
    """Pairs are truncated and keep their token type ids. Batches have similar lengths and a limited size."""
    options = data_for(texts, "pairs.csv", max_seq_length=17, max_train_samples=50)
    calibration, held_out, _ = load_batches(options, loaded("ForSequenceClassification"), 0)
    lengths = [batch["input_ids"].shape[1] for batch in calibration]
    assert len(rows_of(calibration)) == 42 and len(rows_of(held_out)) == 8
    assert lengths == sorted(lengths) and lengths[-1] <= 17
    assert all(batch["token_type_ids"].any() for batch in calibration)
    lines = (texts / "rows.txt").read_text().splitlines()
    options = data_for(texts, "pairs.csv", text_column_names="sentence2")
    (second,) = unlabeled_rows(options, "SequenceClassification", (BertConfig(), None), 17, "train", 100)
    assert second.data["sentence1"][:] == lines[1::2]
    monkeypatch.setattr("fixedbert.tasks.calibration.CPU_TOKENS", 50)
    options = data_for(texts, "pairs.csv")
    for batch in sum(load_batches(options, loaded("ForSequenceClassification"), 0), []):
        assert len(batch["input_ids"]) in (1, 50 // batch["input_ids"].shape[1]) or batch["input_ids"].numel() <= 50


def test_running_text_for_a_masked_lm(texts, loaded):
    """Rows for a masked LM have no padding. Each row has masked positions, but no special token is masked."""
    model = loaded("ForMaskedLM")
    batches, _, _ = load_batches(data_for(texts, max_seq_length=11, max_train_samples=31), model, 0)
    assert [batch["input_ids"].shape for batch in batches] == [(13, 11)] * 2
    for batch in batches:
        positions = batch[PREDICTED_POSITIONS]
        assert positions.any(dim=1).all() and (batch["input_ids"][positions] == model.tokenizer.mask_token_id).all()
        assert not positions[:, [0, -1]].any()  # [CLS] and [SEP]
    ids = torch.tensor([[2, 7, 8, 3]] * 2000)
    masked = mask_randomly({"input_ids": ids}, model.tokenizer, torch.Generator().manual_seed(0))
    assert 0.5 <= masked[PREDICTED_POSITIONS].float().mean() * 2 <= 0.6  # at least one of two tokens


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_first_tokens_of_words_are_predicted(tmp_path, loaded, side):
    """Calibration of a token classifier counts the first token of each word, as in evaluation, and no other token."""
    model = loaded("ForTokenClassification")
    model.tokenizer.padding_side = side
    words = [["ab", "c", "def"][: 1 + n % 3] for n in range(53)]
    rows = [["\u200b"], *([f"q{n}", *row] for n, row in enumerate(words))]  # the tokenizer removes the first word
    (tmp_path / "words.jsonl").write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    options = shrink_options(train_file=[str(tmp_path / "words.jsonl")], batch_size=13)
    batches = sum(load_batches(options, model, 0), [])
    first = [tokens for batch in batches for tokens in batch["input_ids"][batch[PREDICTED_POSITIONS]].tolist()]
    expected = [model.tokenizer.tokenize(word)[0] for n, row in enumerate(words) for word in [f"q{n}", *row]]
    assert sorted(model.tokenizer.convert_ids_to_tokens(first)) == sorted(expected)
    model.model.config.id2label = {0: "O", 1: "B-X"}
    fidelity = measure_fidelity(model.model, model.model, batches)
    assert (fidelity.unit, fidelity.agreement) == ("entity", 1)
    (tmp_path / "texts.csv").write_text("text\n" + "".join(f"q{n} ab\n" for n in range(53)))
    batches = sum(load_batches(data_for(tmp_path, "texts.csv"), model, 0), [])
    assert measure_fidelity(model.model, model.model, batches).unit == "token"


def test_rows_of_a_query_stay_together(tmp_path, loaded):
    """Shrinking draws and holds out whole queries, because the agreement counts their first results."""
    model = loaded("ForSequenceClassification", num_labels=1)
    lines = [f"q{n % 29},text {n},{n}" for n in range(29 * 7)]
    (tmp_path / "queries.csv").write_text("query,text,row\n" + "\n".join(lines) + "\n")
    options = {"text_column_names": "query,text", "query_column_name": "query", "max_train_samples": 100}
    calibration, held_out, _ = load_batches(data_for(tmp_path, "queries.csv", **options), model, 0)
    counts = torch.cat([batch[QUERIES] for batch in held_out]).bincount()
    assert counts.tolist() == [7, 7] and sum(len(batch["input_ids"]) for batch in calibration) == 12 * 7
    fidelity = measure_fidelity(model.model, model.model, held_out)
    assert (fidelity.unit, fidelity.agreement) == ("query", 1)
    with pytest.raises(InputError, match="no value that occurs in several rows"):
        load_batches(data_for(tmp_path, "queries.csv", **options | {"query_column_name": "row"}), model, 0)
    with pytest.raises(InputError, match="query_column_name.* such as rerankers"):
        load_batches(data_for(tmp_path, "queries.csv", **options), loaded("ForSequenceClassification"), 0)


def test_pairs_for_an_embedding_model(texts, loaded):
    """For a model with pooling, the two texts in a pair are separate rows."""
    model = loaded("Model")
    model.pooling = SentencePooling("mean", normalize=True)
    calibration, held_out, _ = load_batches(data_for(texts, "pairs.csv"), model, 0)
    assert len(rows_of(calibration)) + len(rows_of(held_out)) == 200
    assert not any(batch["token_type_ids"].any() for batch in calibration)


def test_questions_are_split_into_windows(loaded, tmp_path):
    """A question is paired with all windows of its context. Contexts of held-out questions occur nowhere else."""
    model, paragraphs = loaded("ForQuestionAnswering"), []
    for letter in LETTERS:
        questions = [{"id": f"{letter}{n}", "question": "who sat", "answers": []} for n in range(3)]
        paragraphs.append({"context": f"{letter} sat . " * 7, "qas": questions})
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    options = data_for(tmp_path, "squad.json", max_seq_length=16)
    parts = [rows_of(part) for part in load_batches(options, model, 999)]
    assert all(3 * 26 < len(parts[0]) + len(parts[1]) and len(row) <= 16 for part in parts for row in part)
    letters = {*model.tokenizer.convert_tokens_to_ids(LETTERS)}
    calibration, held_out, distillation = ({id for row in part for id in row} & letters for part in parts)
    assert len(held_out) == 4 and calibration == distillation == letters - held_out
    (tmp_path / "one.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs[:1]}]}))
    with pytest.raises(InputError, match="rows have the same context"):
        load_batches(data_for(tmp_path, "one.json", max_seq_length=16), model, 0)


def test_rows_with_the_same_text_are_on_one_side():
    """Rows with the same first text are held out together, unless it is so frequent that only equal rows are."""
    rare = [TokenizedRow({"n": n}, (f"{n % 40}", f"{n}")) for n in range(120)]  # each first text occurs 3 times
    frequent = [TokenizedRow({"n": n}, ("the same", f"{n % 60}")) for n in range(120)]  # each row occurs twice
    for rows, side in ((rare, lambda row: row.texts[0]), (frequent, lambda row: row.texts)):
        held_out, rest = hold_out(rows, 20)
        assert len(held_out) in (18, 20) and len(held_out) + len(rest) == 120
        assert not {*map(side, held_out)} & {*map(side, rest)}
    groups = [TokenizedRow({}, (f"{n % 2}",)) for n in range(9)]
    assert [row.texts for row in hold_out(groups, 2)[0]] == [("1",)] * 4  # the smaller one, if all are too large


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_only_drawn_rows_are_checked(head, loaded, tmp_path):
    """Rows of all files are drawn with equal chances, and checked only if they are drawn. The seed determines them."""
    model = loaded(f"For{head}")

    def draw(seed=0, bad=-1):
        for name, numbers in {"a": range(30), "b": range(30, 300)}.items():
            texts = [(number, 5 if number == bad else str(number)) for number in numbers]
            rows = [{"id": n, "text": x, "tokens": [x], "context": x, "question": "q"} for n, x in texts]
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = shrink_options(train_file=[str(tmp_path / f"{name}.jsonl") for name in "ab"], seed=seed)
        first, second = unlabeled_rows(options, head, (model.model.config, model.tokenizer), 16, "train", 100)
        assert 3 <= len(first.data) <= 17 and len(first.data) + len(second.data) == 100
        return [int("".join(*texts)) for part in (first, second) for texts in part.texts()]

    drawn = draw()
    assert draw(bad=next(number for number in range(30, 300) if number not in drawn)) == drawn != draw(seed=1)
    with pytest.raises(InputError, match="must be text, not int"):
        draw(bad=drawn[-1])


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
    expected = {tuple(model.tokenizer(line)["input_ids"]) for line in lines[120:]}
    calibration, held_out, _ = load_batches(options, model, 0)
    assert len(rows_of(held_out)) == 15 and {*rows_of(held_out)} <= expected
    assert len(rows_of(calibration)) == 90
    calibration, held_out, _ = load_batches(options, loaded("ForMaskedLM"), 0)
    assert len(rows_of(held_out)) == 15 and len(rows_of(calibration)) == 90


def test_invalid_calibration_data(texts, loaded):
    """Rows that are unsuitable for the task head raise InputError."""
    with pytest.raises(InputError, match="files in SQuAD format have fixed column names"):
        load_batches(data_for(texts, text_column_names="question"), loaded("ForQuestionAnswering"), 0)
    with pytest.raises(InputError, match="use a `train_file` in SQuAD format"):
        load_batches(shrink_options(task_name="sst2"), loaded("ForQuestionAnswering"), 0)
