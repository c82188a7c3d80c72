"""Token classification: training with transformers' Trainer, comparison and shrinking on texts split into words."""

import csv
import json
import random
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import model_of
from transformers import AutoTokenizer, RobertaTokenizer

import fixedbert
from fixedbert.exporting.export import export
from fixedbert.loading.sentence_models import TextSettings
from fixedbert.support.errors import InputError
from fixedbert.tasks.words import WordRows, check_splits_words, load_words

compare = partial(fixedbert.compare, runtime=["torch"])

NAMES = ["DET", "NOUN", "VERB"]
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: number for number, name in enumerate(NAMES)}}


def write_rows(file, rows, **columns):
    names = ("tokens", "ner_tags", *columns)
    file.write_text(
        "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in zip(*rows, *columns.values(), strict=True))
    )
    return file


def rows_of(words, count, longest=9):
    """Returns lists of words that become several tokens, and a label for each word."""
    draw = random.Random(0)
    texts = [
        [draw.choice(words) + draw.choice(["", "xy"]) for _ in range(draw.randint(1, longest))] for _ in range(count)
    ]
    return texts, [[draw.choice([*NAMES, -100]) for _ in text] for text in texts]


@torch.no_grad()
def predictions_of(model, tokenizer, words, length):
    """Returns the probabilities for each word, or None for words without a token."""
    encoded = tokenizer([words], is_split_into_words=True, truncation=True, max_length=length, return_tensors="pt")
    probabilities, ids = model(**encoded).logits[0].softmax(-1), encoded.word_ids()
    return [probabilities[ids.index(number)] if number in ids else None for number in range(len(words))]


def test_words_are_compared(tmp_path):
    """Without the tag O, all measures are based on the first token of each word, except for truncated words."""
    model = model_of("ForTokenClassification", num_hidden_layers=1, **SHAPE, **LABELS).eval()
    save(model, tmp_path / "one")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    texts, labels = rows_of(["cat", "sat", "dog", "where"], 19)
    texts[3], labels[3] = ["\u200b", "cat"], ["DET", "DET"]  # the tokenizer drops the first word
    file = write_rows(tmp_path / "rows.jsonl", (texts, labels))
    before = [predictions_of(model, tokenizer, words, 13) for words in texts]
    with torch.no_grad():
        model.classifier.bias[1] += 1.0
    save(model, tmp_path / "two")
    after = [predictions_of(model, tokenizer, words, 13) for words in texts]
    export(tmp_path / "one", tmp_path / "graphs")
    sources = [tmp_path / name for name in ("one", "two", "graphs")]
    options = {"max_seq_length": 13, "batch_size": 4, "output_dir": tmp_path / "out"}
    first, second, graph = (result := compare(sources, file, **options)).models
    lines, right, count = [], [], 0
    for row, (words, names) in enumerate(zip(texts, labels, strict=True)):
        for number, (word, name, *pair) in enumerate(zip(words, names, before[row], after[row], strict=True)):
            if pair[0] is None:
                continue
            classes = [NAMES[int(x.argmax())] for x in pair]
            count += 1
            if name != -100:
                right.append([label == name for label in classes])
            if classes[0] != classes[1]:
                label = "" if name == -100 else name
                lines.append([str(row), str(number), word, label, *classes[:2]])
    one, two = np.array(right).T
    assert [x.scores for x in (first, second)] == [{"accuracy": pytest.approx(x.mean())} for x in (one, two)]
    assert (second.lost, second.gained) == ((one & ~two).sum(), (two & ~one).sum()) and second.gained > 0
    assert 0 < len(lines) and second.fidelity.agreement == pytest.approx(1 - len(lines) / count)
    assert graph.fidelity.agreement == 1 and abs(graph.fidelity.divergence) < 1e-5
    assert first.truncated == sum(None in row for row in before) - 1 > 0
    assert result.item == "word" and "truncated: rows with more than 13 tokens" in str(result)
    with (tmp_path / "out/changed.csv").open(newline="", encoding="utf-8") as written:
        header, *changed = csv.reader(written)
    assert header[:6] == ["row", "word", "text", "label", "one", "two"]
    assert lines == [line[:6] for line in changed]


def test_columns_and_labels(tmp_path):
    """Columns can be specified, label ids replace missing label names, and ambiguous columns are refused."""
    model = model_of("ForTokenClassification", **SHAPE, num_labels=3).eval()
    save(model, tmp_path / "model")
    row = {"words": ["cat", "sat"], "tags": [2, 0], "ner_tags": [0, 0], "labels": [0, 0]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    (classes,) = ([int(x.argmax()) for x in predictions_of(model, tokenizer, words, 9)] for words in [row["words"]])
    names = {"text_column_names": "words", "label_column_name": "tags"}
    scores = compare([tmp_path / "model"], tmp_path / "rows.jsonl", **names).models[0].scores
    assert scores == {"accuracy": ((classes[0] == 2) + (classes[1] == 0)) / 2}
    with pytest.raises(InputError, match="`label_column_name` must be set for .*: ner_tags, labels"):
        compare([tmp_path / "model"], tmp_path / "rows.jsonl", text_column_names="words")


def test_invalid_rows(tmp_path):
    """Invalid rows are refused or skipped, and the other rows keep their position in the file."""
    row = {"tokens": ["the", "cat"], "ner_tags": ["O", None]}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [row, row | {"ner_tags": [1]}, row])))
    with pytest.raises(InputError, match="line 2: 'ner_tags' is not a list with a label for each of the 2 words"):
        load_words(str(tmp_path / "a.jsonl"))
    rows = load_words(str(tmp_path / "a.jsonl"), skip_bad_rows=True)
    assert rows["row"][:] == [0, 2] and rows["labels"][0] == ["O", ""]


def test_tokenizers_that_join_words():
    """A byte-level tokenizer that adds no blank before words, and would therefore join them, is refused."""
    alphabet = {token: number for number, token in enumerate("<s> <pad> </s> <unk> <mask> Ġ a b".split())}
    joining = RobertaTokenizer(vocab=alphabet, merges=[], add_prefix_space=False)
    check_splits_words(RobertaTokenizer(vocab=alphabet, merges=[], add_prefix_space=True))
    with pytest.raises(InputError, match="joins the words in a list; save it with add_prefix_space=True"):
        WordRows(Dataset.from_dict({"words": [["a", "b"]]})).features(joining, TextSettings(), 9)
