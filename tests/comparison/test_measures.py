"""`fixedbert compare` of rerankers, embedding models and taggers, in the measures that their users decide by."""

import csv
import json
import random
from functools import partial
from itertools import chain, compress
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, TEXTS, save, save_sentence_model, write_texts
from helpers.tiny_models import model_of
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch.nn.functional import normalize
from transformers import AutoTokenizer

import fixedbert
from fixedbert.comparison.compare import batch_notes
from fixedbert.support.errors import InputError
from fixedbert.tasks.entities import entities_of, entity_scores, split_tags
from fixedbert.tasks.predictions import Predictions
from fixedbert.tasks.ranking import ranking_scores
from fixedbert_cli import main

compare = partial(fixedbert.compare, runtime=["torch"])


def write_csv(file, header, rows):
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])
    return file


def changed_units(directory):
    with (directory / "changed.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@torch.no_grad()
def disturb(model):
    """Adds noise to the weights of the layers."""
    torch.manual_seed(0)
    for weights in model.base_model.encoder.parameters():
        weights.add_(0.2 * torch.randn_like(weights))


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory):
    """Two rerankers, pairs of 13 queries and 91 passages in random order, and the scores of both models."""
    directory, scores = tmp_path_factory.mktemp("rerankers"), []
    lines = (write_texts(directory) / "rows.txt").read_text().splitlines()
    queries = random.Random(0).sample([line for line in lines[:13] for _ in range(7)], 91)
    pairs = [*zip(queries, lines[50:141], strict=True)]
    model = model_of("ForSequenceClassification", initializer_range=0.3, num_labels=1, **SHAPE).eval()
    for name in ("one", "two"):
        save(model, directory / name)
        tokenizer = AutoTokenizer.from_pretrained(directory / name)
        inputs = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            scores.append(model(**inputs).logits[:, 0].double().numpy())
            disturb(model)
    return directory, pairs, *scores


def test_rerankers_with_queries(rerankers, tmp_path):
    """Rankings are scored, compared and listed by query. The sample contains whole queries."""
    directory, pairs, one, two = rerankers
    names, queries = np.unique([query for query, _ in pairs], return_inverse=True)
    draw, sources = np.random.default_rng(0), [directory / "one", directory / "two"]
    labels = draw.integers(0, 3, len(pairs))
    labels[queries == 4] = 0  # a query without a relevant row
    extra = [("the cat", "a dog", 1)]  # a query with one row
    rows = [(query, text, label) for (query, text), label in zip(pairs, labels, strict=True)]
    file = write_csv(tmp_path / "rows.csv", ("query", "passage", "label"), rows + extra)
    columns = {"text_column_names": "query,passage", "query_column_name": "query"}
    result = compare(sources, file, output_dir=tmp_path / "out", **columns)
    kept = queries != 4
    for model, scores in zip(result.models, (one, two), strict=True):
        expected, _ = ranking_scores(scores[kept], labels[kept], queries[kept])
        assert model.scores == pytest.approx(expected)
    first = [
        [max(np.flatnonzero(queries == query), key=scores.__getitem__) for scores in (one, two)] for query in range(13)
    ]
    changed = [query for query in range(13) if query != 4 and len({*first[query]}) > 1]
    measured = result.models[1]
    assert measured.fidelity.agreement == pytest.approx(1 - len(changed) / 12) and 0 < len(changed) < 12
    right = np.array([[labels[row] > 0 for row in pair] for query, pair in enumerate(first) if query != 4])
    assert (
        measured.lost == (right[:, 0] & ~right[:, 1]).sum() and measured.gained == (right[:, 1] & ~right[:, 0]).sum()
    )
    assert result.rows == result.available == 84 and result.item == "query"
    lines = changed_units(tmp_path / "out")
    assert [line["query"] for line in lines] == [names[query] for query in changed]
    for line, query in zip(lines, changed, strict=True):
        assert [line["one"], line["two"]] == [pairs[row][1] for row in first[query]]
    sampled = compare(sources[:1], file, max_eval_samples=20, **columns)
    assert sampled.rows == 14  # two queries
    with pytest.raises(InputError, match="reads pairs of texts, but each row has a single text"):
        compare(sources[:1], file, **columns | {"text_column_names": "passage"})
    unlabeled = write_csv(tmp_path / "unlabeled.csv", ("query", "passage"), pairs)
    assert compare(sources[:1], unlabeled, **columns).models[0].scores == {}


def test_rerankers_without_queries(rerankers, tmp_path, capsys):
    """Labels 0 and 1 are scored by average precision and by accuracy at a probability of 0.5, not as regression."""
    directory, pairs, one, two = rerankers
    labels = np.random.default_rng(0).integers(0, 2, len(pairs))
    rows = [(*pair, label) for pair, label in zip(pairs, labels, strict=True)]
    file = write_csv(tmp_path / "rows.csv", ("question", "sentence", "label"), rows)
    result = compare([directory / "one", directory / "two"], file, output_dir=tmp_path / "out")
    for model, scores in zip(result.models, (one, two), strict=True):
        expected = average_precision_score(labels, scores), ((scores > 0) == labels).mean()
        assert [*model.scores.values()] == pytest.approx(expected)
    assert result.models[1].lost == (((one > 0) == labels) & ((two > 0) != labels)).sum()
    assert result.models[1].fidelity.unit == "score" and not (tmp_path / "out/changed.csv").exists()
    assert "scores above 0 predict the label 1" in str(result)
    output = capsys.readouterr().out
    assert "regression" not in output and "rows.csv: text columns: question, sentence\n" in output


@pytest.mark.parametrize(
    "labels, columns, message",
    [
        ([0, 0, 0, 0], "question", "each query in .* has a single row, or no row with a label above 0"),
        ([0, 1, 1, -2], "question", "with `query_column_name`, labels must be at least 0"),
        ([0, 1, 1, 1], "label", "must name different columns"),
        ([0, 1, 1, 1], "id", "column .*id"),
    ],
)
def test_invalid_queries(rerankers, tmp_path, labels, columns, message):
    """Queries that cannot be ranked, negative labels, and unknown columns are refused."""
    rows = [(query, text, label) for query, text, label in zip("aabb", TEXTS, labels, strict=True)]
    file = write_csv(tmp_path / "rows.csv", ("question", "sentence", "label"), rows)
    with pytest.raises((InputError, SystemExit, ValueError), match=message):
        compare([rerankers[0] / "one"], file, query_column_name=columns)


def test_queries_need_scores(tmp_path):
    """Classifiers and embedding models have no scores by which rows could be ranked."""
    save(model_of("ForSequenceClassification", **SHAPE), tmp_path / "model")
    file = write_csv(tmp_path / "rows.csv", ("question", "sentence"), [("a", "the cat"), ("a", "the dog")])
    with pytest.raises(InputError, match="`query_column_name` is for models that predict one score per row"):
        compare([tmp_path / "model"], file, query_column_name="question")


@pytest.fixture(scope="module")
def embedders(tmp_path_factory):
    """Two embedding models, pairs of texts, and the embeddings (pairs, 2, D) of both models."""
    directory, embeddings = tmp_path_factory.mktemp("embedders"), []
    lines = (write_texts(directory) / "rows.txt").read_text().splitlines()[:74]
    lines[9] = lines[3]  # a copy
    model = model_of("Model", initializer_range=0.3, **SHAPE).eval()
    for name in ("one", "two"):
        save_sentence_model(model, directory / name, "Pooling")
        tokenizer = AutoTokenizer.from_pretrained(directory / name, model_max_length=17)
        inputs = tokenizer(lines, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        embeddings.append(normalize((states * mask).sum(1) / mask.sum(1), dim=-1).view(37, 2, -1))
        disturb(model)
    return directory, [*zip(lines[::2], lines[1::2], strict=True)], *embeddings


def test_embeddings_with_labels(embedders, tmp_path, capsys):
    """Pairs of texts are scored by the correlation of their similarity with the labels, or by average precision."""
    directory, pairs, one, two = embedders
    sources, draw = [directory / "one", directory / "two"], np.random.default_rng(0)
    for number, labels in enumerate((draw.random(37), draw.integers(0, 6, 37), draw.integers(0, 2, 37))):
        rows = [(*pair, label) for pair, label in zip(pairs, labels, strict=True)]
        file = write_csv(tmp_path / f"{number}.csv", ("sentence1", "sentence2", "score"), rows)
        result = compare(sources, file, label_column_name="score", batch_size=5)
        for model, embeddings in zip(result.models, (one, two), strict=True):
            cosines = (embeddings[:, 0] * embeddings[:, 1]).sum(-1).double().numpy()
            if number < 2:
                assert model.scores["spearmanr"] == pytest.approx(spearmanr(cosines, labels)[0], abs=1e-3)
                assert model.scores["pearson"] == pytest.approx(np.corrcoef(cosines, labels)[0, 1], abs=1e-3)
            else:
                assert model.scores == {"average_precision": pytest.approx(average_precision_score(labels, cosines))}
        assert result.rows == 37 and result.models[1].lost is None
    output = capsys.readouterr().out
    file = write_csv(
        tmp_path / "classes.csv", ("sentence1", "sentence2", "label"), [("a", "b", "same"), ("c", "d", "x")]
    )
    assert compare(sources[:1], file).models[0].scores == {} and "not used" not in output
    assert "a number for a pair of texts; the labels are not used" in capsys.readouterr().out
    file = write_csv(tmp_path / "single.csv", ("text", "score"), [("a", 1), ("b", 2)])
    with pytest.raises(InputError, match="'score': for embedding models, a label must be a number"):
        compare(sources[:1], file, label_column_name="score")


@pytest.mark.parametrize("is_labeled", [False, True])
def test_nearest_neighbours(embedders, tmp_path, is_labeled):
    """With and without labels, texts whose nearest neighbour changes are counted and listed."""
    directory, pairs, *embeddings = embedders
    header = ("sentence1", "sentence2", "label") if is_labeled else ("sentence1", "sentence2")
    rows = [(*pair, number % 4) if is_labeled else pair for number, pair in enumerate(pairs)]
    file = write_csv(tmp_path / "rows.csv", header, rows)
    result = compare([directory / "one", directory / "two"], file, output_dir=tmp_path / "out")
    assert result.rows == (37 if is_labeled else 74)
    texts, nearest = [text for pair in pairs for text in pair], []
    for each in embeddings:
        cosines = (flat := each.flatten(0, 1)) @ flat.T
        cosines[cosines > 1 - 1e-6] = -1
        nearest.append(cosines.argmax(1).tolist())
    expected = {
        (texts[k], texts[a], texts[b]) for k, (a, b) in enumerate(zip(*nearest, strict=True)) if texts[a] != texts[b]
    }
    lines = changed_units(tmp_path / "out")
    assert {(line["text"], line["one"], line["two"]) for line in lines} == expected and 0 < len(lines) < 74
    assert result.models[1].fidelity.agreement == pytest.approx(1 - len(lines) / 74)
    assert result.models[1].fidelity.measures["lowest cosine"] == pytest.approx(
        float((embeddings[0] * embeddings[1]).sum(-1).min()), abs=1e-4
    )
    fidelity = result.models[1].fidelity
    assert fidelity.divergence == pytest.approx(1 - fidelity.measures["mean cosine"], abs=1e-4)  # also for pairs


def test_embeddings_that_depend_on_the_batch():
    """A note names models whose embedding of a text alone differs from that in a batch, as in int8 graphs."""
    values = normalize(torch.randn(13, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    single = normalize(values[:7] + torch.tensor([0.0, 0.1, 0.0, 0.0]), dim=-1)
    outputs = {"random": values, "single": single}
    for kind, count in (("embeddings", 1), ("classes", 0)):
        model = Mock(outputs=lambda order, kind=kind: [Predictions(outputs[order], kind)])
        model.result.label = "small, onnxruntime-int8"
        notes = batch_notes([model])
        assert len(notes) == count and all(
            "small, onnxruntime-int8: the embeddings of a text alone and" in note for note in notes
        )
    assert notes == [] and batch_notes([Mock(outputs=lambda order: [Predictions(values[:7], "embeddings")])]) == []


TAGS = ["O", "B-PET", "I-PET", "B-MAT"]


def test_entities(tmp_path):
    """Taggers with the tag O are scored and compared by entities. Words without a label do not count."""
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {name: number for number, name in enumerate(TAGS)}}
    model = model_of("ForTokenClassification", num_hidden_layers=1, initializer_range=0.5, **SHAPE, **names).eval()
    save(model, tmp_path / "one")
    with torch.no_grad():
        model.classifier.bias[1] += 2.0
    save(model, tmp_path / "two")
    draw = random.Random(0)
    texts = [draw.choices(["cat", "dog", "sat", "mat", "ran"], k=draw.randint(2, 9)) for _ in range(31)]
    labels = [draw.choices(TAGS, k=len(words)) for words in texts]
    labels[0][1] = None
    rows = [json.dumps({"tokens": words, "ner_tags": tags}) for words, tags in zip(texts, labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    command = ["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--output_dir", str(tmp_path / "out")]
    main([*command, "--validation_file", str(tmp_path / "rows.jsonl"), "--runtime", "torch"])
    written = json.loads((tmp_path / "out/comparison.json").read_text())
    tokenizer, found = AutoTokenizer.from_pretrained(tmp_path / "one"), []
    for name in ("one", "two"):
        tagger = type(model).from_pretrained(tmp_path / name).eval()
        with torch.no_grad():  # each word is one token
            logits = [tagger(**tokenizer(" ".join(words), return_tensors="pt")).logits[0, 1:-1] for words in texts]
        found.append([[TAGS[k] for k in values.argmax(-1)] for values in logits])
    sentences = [row for row, words in enumerate(texts) for _ in words]
    parts, flat = split_tags(TAGS), [[*chain(*tags)] for tags in (*found, labels)]
    kept = [tag is not None for tag in flat[-1]]
    scored = [entities_of([*compress(tags, kept)], [*compress(sentences, kept)], parts) for tags in flat]
    for measured, entities in zip(written["models"], scored, strict=False):
        assert (
            measured["scores"] == pytest.approx(entity_scores(scored[-1], entities)) and measured["scores"]["f1"] > 0
        )
    right = [[entities.get(words) == kind for words, kind in scored[-1].items()] for entities in scored]
    assert written["models"][1]["lost"] == sum(one and not two for one, two in zip(*right[:2], strict=True))
    one, two = ({*entities_of(tags, sentences, parts).items()} for tags in flat[:2])
    agreement = len(one & two) / len(one | two)
    assert written["models"][1]["fidelity"]["agreement"] == pytest.approx(agreement) and 0 < agreement < 1
    lines = changed_units(tmp_path / "out")
    assert [*lines[0]] == ["row", "word", "text", "label", "one", "two"]
    for line in lines:
        row, word, count = int(line["row"]), int(line["word"]), len(line["text"].split())
        assert texts[row][word : word + count] == line["text"].split() and line["one"] != line["two"]
    assert written["item"] == "entity"
