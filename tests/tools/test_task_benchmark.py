"""Tests of `python -m benchmarks.tasks`, on tiny models and rows of random words."""

import json
import random

import numpy as np
import pytest
from helpers.tiny_checkpoints import SHAPE, WORDS, save
from helpers.tiny_models import model_of

import fixedbert
from benchmarks import resampling, tasks
from fixedbert.support.files import to_csv


def words(draw, count):
    return draw.choices([word for word in WORDS if word.isalpha() and len(word) > 1], k=count)


@pytest.fixture
def directory(tmp_path):
    """A reranker and a tagger, with rows for calibration and evaluation."""
    wide = SHAPE | {"num_attention_heads": 7, "attention_head_size": 8, "intermediate_size": 48}
    tags = {"id2label": dict(enumerate(["O", "B-PER", "I-PER"]))}
    save(model_of("ForSequenceClassification", num_labels=1, **wide), tmp_path / "reranker")
    save(model_of("ForTokenClassification", **wide, **tags), tmp_path / "tagger")
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        draw, pairs, lines = random.Random(split), [("query", "text", "label")], []
        for query in range(40):
            name = " ".join([*words(draw, 3), chr(97 + query % 26), str(query)])
            pairs += [(name, " ".join(words(draw, draw.randint(2, 9))), int(place == 2)) for place in range(5)]
            tokens = words(draw, draw.randint(3, 13))
            lines.append(json.dumps({"tokens": tokens, "ner_tags": draw.choices(["O", "B-PER"], k=len(tokens))}))
        (tmp_path / "data" / f"rerank_{split}.csv").write_text(to_csv(pairs))
        (tmp_path / "data" / f"tags_{split}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def shrink_by_size(model, output_dir, speedup, **options):
    """Shrinks the layers to a size instead of a speedup, which depends on what else the machine does."""
    for each in speedup:
        target = {"intermediate_size": [int(48 / each)], "num_attention_heads": [int(7 / each)]}
        fixedbert.shrink(model, output_dir=f"{output_dir}/{each:g}x", **target, **options)


def test_benchmark_of_tasks(directory, capsys, monkeypatch):
    """Each version has a score with its standard error and the share of what stays. Nothing is measured twice."""
    monkeypatch.setattr(tasks, "shrink", shrink_by_size)
    output = directory / "results"
    arguments = [str(directory), "--output_dir", str(output), "--models", "reranker", "tagger", "--smoke"]
    tasks.main([*arguments, "--speedups", "2", "3", "--seeds", "1"])
    for model, metric in {"reranker": "nDCG@10", "tagger": "f1"}.items():
        record = json.loads((output / f"{model}.json").read_text())
        models, resampled = record["comparison"]["models"], np.array(record["resampled"])
        assert record["versions"][0] == "stock" and record["versions"][-2:] == ["2x", "3x"]
        assert resampled.shape == (len(models), resampling.RESAMPLES)
        error = 4 * resampled.std(1).max() / resampling.RESAMPLES**0.5
        assert resampled.std(1).min() > 0
        np.testing.assert_allclose(resampled.mean(1), [each["scores"][metric] for each in models], atol=error)
    table = (output / "table.md").read_text()
    capsys.readouterr()
    assert table.count("| 3x |") == 2 and (output / "tasks.png").stat().st_size > 10_000
    monkeypatch.setattr(tasks, "measure_model", None)
    tasks.main(arguments)
    assert capsys.readouterr().out.strip() == table.strip()
