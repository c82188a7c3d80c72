"""`fixedbert compare --tolerance`: the choice of a version, its confirmation on other rows, and its directory."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.snippets import run_snippet
from helpers.tiny_checkpoints import SHAPE, TEXTS, save, write_texts
from helpers.tiny_models import model_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fixedbert
from fixedbert.comparison import runtimes
from fixedbert.comparison.candidates import Candidate, load_candidates
from fixedbert.comparison.choice import halve, points_lost, standard_error, write_version
from fixedbert.comparison.report import RANDOM
from fixedbert.exporting.graphs import GRAPHS
from fixedbert.options import CompareOptions
from fixedbert.shrinking import search
from fixedbert.shrinking.target import OutOfReach
from fixedbert.support.errors import InputError
from fixedbert.tasks.task_heads import compared_rows

ROWS = [(f"{one} {number}", other) for number in range(33) for one, other in zip(TEXTS, TEXTS[::-1], strict=True)]
SECONDS = {"torch": 4.0, "torch-unpadded": 2.0, "torch-bf16": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier of pairs with three classes, and its answers to ROWS, which are the labels in rows.csv."""
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    classifier = model_of("ForSequenceClassification", num_hidden_layers=1, num_labels=3, **SHAPE).eval()
    save(classifier, directory / "one")
    tokenizer = AutoTokenizer.from_pretrained(directory / "one")
    inputs = tokenizer(*map(list, zip(*ROWS, strict=True)), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        classifier.classifier.bias.sub_(classifier(**inputs).logits.mean(0))
        labels = classifier(**inputs).logits.argmax(-1).tolist()
    save(classifier, directory / "one")
    with (directory / "rows.csv").open("w", newline="") as file:
        lines = [(*pair, label) for pair, label in zip(ROWS, labels, strict=True)]
        csv.writer(file).writerows([("sentence1", "sentence2", "label"), *lines])
    return directory


@pytest.fixture
def wrong(monkeypatch):
    """Returns a dict to which a test adds, for a runtime, the indices of the rows to which its answer is wrong."""
    timed, rows_by_runtime = Candidate.timed, dict.fromkeys(SECONDS, frozenset())

    def with_errors(candidate, rows):
        predictions, _ = timed(candidate, rows)
        runtime, rows = candidate.runtime, [*rows]
        values = predictions[0].values.clone()
        chosen = [index for index, row in enumerate(rows) if row in rows_by_runtime[runtime]]
        values[chosen] = values[chosen].roll(1, -1)
        quick = runtime == "torch-unpadded" and len(rows) == 1
        return [replace(predictions[0], values=values)], SECONDS[runtime] / (10 if quick else 1)

    monkeypatch.setattr(runtimes, "has_bf16", lambda **_: True)
    monkeypatch.setattr(Candidate, "timed", with_errors)
    return rows_by_runtime


def fastest(model, tmp_path, tolerance, **options):
    options = {"runtime": [*SECONDS], "tolerance": tolerance, "output_dir": tmp_path / "fast"} | options
    return fixedbert.compare([model / "one"], model / "rows.csv", **options)


def test_choice(model, tmp_path, wrong):
    """The fastest version within the tolerance is written, and another one for single rows if it is faster there."""
    wrong["torch-bf16"] = {0, 70, 71}
    result = fastest(model, tmp_path, 5.0)
    first, last = result.advice.splitlines()[0], result.advice.splitlines()[-1]
    assert first.startswith(f"{tmp_path}/fast/batches: one, torch-bf16, 4.00 times as fast for batches and 4.00")
    assert "On 66 rows that were not used for the choice, it loses 3.03 points of accuracy" in first
    assert f"{tmp_path}/fast/single: one, torch-unpadded, 2.00 times as fast for batches and 20.00" in result.advice
    assert last.endswith("it loses 0.00 points of accuracy (standard error 0.00).")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "fast" / "batches")
    assert loaded.dtype == torch.bfloat16 and loaded.config.unpad_inputs is False
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "fast" / "single").config.unpad_inputs
    written = json.loads((tmp_path / "fast" / "comparison.json").read_text())
    assert written["advice"] == result.advice and (tmp_path / "fast" / "changed.csv").exists()


@pytest.mark.parametrize("half", [0, 1])
def test_both_halves_count(model, tmp_path, wrong, half):
    """A version that loses too much on one half of the rows is not chosen, whichever half it is."""
    wrong["torch-bf16"] = {66 * half + 5}
    result = fastest(model, tmp_path, 0.0)
    assert "batches: one, torch-unpadded" in result.advice and "torch-bf16" not in result.advice
    assert not (tmp_path / "fast" / "single").exists()


def test_nothing_is_faster(model, tmp_path, wrong):
    """If every faster version loses too much, this is said, and no model is written."""
    wrong["torch-bf16"] = wrong["torch-unpadded"] = {*range(0, 132, 2)}
    result = fastest(model, tmp_path, 5.0)
    assert result.advice == "No version within 5 points is faster for batches and single rows."
    assert not (tmp_path / "fast" / "batches").exists()


def test_points_and_standard_error(model):
    """The points are those of the labels in a half, and the jackknife is exact for a mean: here, the accuracy."""
    (first,) = load_candidates(str(model / "one"), "one")
    options = CompareOptions(models=[str(model / "one")], validation_file=str(model / "rows.csv"))
    rows = compared_rows(options, first.model.head, [(first.model.config, first.model.tokenizer)], 23)
    rows.sample(1000)
    half = halve(rows, first)
    assert half == 66 and sorted(rows.data["row"][:]) == [*range(132)]
    first.features, _ = rows.features(first.model.tokenizer, first.model.settings, 23)
    first.predict_all(13)
    flipped = np.random.default_rng(0).random(132) < 0.1
    (outputs,) = first.outputs()
    values = outputs.values.clone()
    values[flipped] = values[flipped].roll(1, -1)
    other = replace(first, predictions={RANDOM: [[replace(outputs, values=values)]]})
    indices = np.arange(half, 132)
    assert points_lost(first, other, rows, indices) == pytest.approx(100 * flipped[indices].mean())
    folds = indices % 10
    kept = [100 * flipped[indices[folds != fold]].mean() for fold in range(10)]
    expected = np.sqrt(0.9 * np.square(kept - np.mean(kept)).sum())
    assert standard_error(first, other, rows, indices) == pytest.approx(expected)


def test_queries_are_not_divided(tmp_path):
    """All rows of a query are in the same half."""
    torch.manual_seed(0)
    reranker = model_of("ForSequenceClassification", num_labels=1, num_hidden_layers=1, **SHAPE).eval()
    save(reranker, tmp_path / "one")
    lines = [f"who {query},the {text},{int(text == query % 3)}" for query in range(70) for text in range(3)]
    (tmp_path / "rows.csv").write_text("\n".join(["query,text,label", *lines]) + "\n")
    options = {"text_column_names": "query,text", "query_column_name": "query"}
    parsed = CompareOptions(models=["one"], validation_file=str(tmp_path / "rows.csv"), **options)
    (first,) = load_candidates(str(tmp_path / "one"), "one")
    rows = compared_rows(parsed, first.model.head, [(first.model.config, first.model.tokenizer)], 23)
    rows.sample(1000)
    half = halve(rows, first)
    groups = rows.data["group"][:]
    assert half == 105 and not {*groups[:half]} & {*groups[half:]}
    result = fixedbert.compare(
        [tmp_path / "one"],
        tmp_path / "rows.csv",
        runtime=["torch", "torch-unpadded"],
        tolerance=0.5,
        output_dir=tmp_path / "fast",
        **options,
    )
    assert "No version" in result.advice or "points of nDCG@10" in result.advice


def test_what_cannot_be_measured_is_refused(model, tmp_path):
    """Too few rows, scores without labels, several models and directories of graphs are refused in one sentence."""
    few = tmp_path / "few.csv"
    few.write_text("\n".join((model / "rows.csv").read_text().splitlines()[:60]) + "\n")
    with pytest.raises(InputError, match="`tolerance` needs at least 64 rows, but there are 59"):
        fixedbert.compare([model / "one"], few, tolerance=1, output_dir=tmp_path / "fast")
    with pytest.raises(InputError, match="`tolerance` requires a single model"):
        fixedbert.compare([model / "one"] * 2, few, tolerance=1, output_dir=tmp_path / "fast")
    torch.manual_seed(0)
    save(model_of("ForSequenceClassification", num_labels=1, num_hidden_layers=1, **SHAPE).eval(), tmp_path / "score")
    (tmp_path / "rows.txt").write_text("the cat\na dog\n" * 50)
    with pytest.raises(InputError, match="`tolerance` needs labels or `query_column_name`"):
        fixedbert.compare([tmp_path / "score"], tmp_path / "rows.txt", tolerance=1, output_dir=tmp_path / "fast")
    assert not (tmp_path / "fast").exists()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
def test_versions(model, tmp_path, monkeypatch, runtime):
    """The directory of each runtime contains a model with the same outputs, and its card contains code that runs."""
    for package in ("onnxruntime", "openvino", "nncf"):
        pytest.importorskip(package)
    (first,) = load_candidates(str(model / "one"), "one")
    options = CompareOptions(models=[str(model / "one")], validation_file=str(model / "rows.csv"))
    rows = compared_rows(options, first.model.head, [(first.model.config, first.model.tokenizer)], 23)
    first.features, _ = rows.features(first.model.tokenizer, first.model.settings, 23)
    write_version(replace(first, result=replace(first.result, name="one", runtime=runtime)), tmp_path / "batches")
    run_snippet(tmp_path / "batches" / "README.md", monkeypatch, tmp_path)
    (written, *_) = load_candidates(str(tmp_path / "batches"), "written")
    written.features = first.features
    (expected,), (actual,) = first.predict(first.batch(range(13))), written.predict(written.batch(range(13)))
    assert torch.allclose(
        actual.values, expected.values, atol=0.1 if runtime not in ("torch", "onnxruntime") else 1e-5
    )
    assert (runtime in GRAPHS) == (not (tmp_path / "batches" / "model.safetensors").exists())


def test_search_resumes(model, tmp_path, monkeypatch):
    """An interrupted search continues with the versions that are complete, and removes them at the end."""
    rows, made, distilled = write_texts(tmp_path) / "pairs.csv", [], []

    def write(directory, folder, context, pruned):
        made.append(context.speedup)
        if len(made) == 3:
            raise KeyboardInterrupt
        shutil.copytree(model / "one", directory, dirs_exist_ok=True)

    def distil(**options):
        distilled.append((options["speedup"], options["distil_steps"]))
        shutil.copytree(model / "one", options["output_dir"])

    monkeypatch.setattr(search, "statistics_for", lambda context: (None, None))
    monkeypatch.setattr(search, "prune", lambda context, prices, pruners: context.original)
    monkeypatch.setattr(search, "refit_and_write", write)
    monkeypatch.setattr(search, "shrink", distil)
    options = {"train_file": [rows], "runtime": ["torch-unpadded"], "max_eval_samples": 70}
    with pytest.raises(KeyboardInterrupt):
        fastest(model, tmp_path, 30.0, **options)
    assert sorted(path.name for path in (tmp_path / "fast.search").glob("*x")) == ["4x", "8x"]
    with pytest.raises(InputError, match="fast.search contains an unfinished search with other options"):
        fastest(model, tmp_path, 20.0, **options)
    result = fastest(model, tmp_path, 30.0, **options)
    assert made == pytest.approx([4, 8, 2**3.5, 2**3.5, 2**3.75, 2**3.875])  # each one halves the interval below 16
    assert distilled == [([pytest.approx(2**speed)], 400) for speed in (3.9375, 3.96875)]
    names = [version.name for version in result.models]
    assert names == ["one", "one", "13.5x", "14.7x", "15.3x-distilled", "15.7x-distilled"]
    assert not (tmp_path / "fast.search").exists() and not (tmp_path / "fast.search.lock").exists()


def test_search_narrows_the_speedup():
    """The next version is slower if one loses too much or is out of reach, and faster otherwise."""
    tried = []

    def make(speedup):
        tried.append(speedup)
        if speedup > 10:
            raise OutOfReach("too fast")
        return Path(f"{speedup:g}x")

    one = search.Search(Mock(), 0.5, lambda directory: 1.0 if float(directory.name[:-1]) > 5 else 0.5)
    assert one.bisect(make, 1.0, 256.0, 4) == {4: Path("4x")}
    assert tried == [16, 4, 8, pytest.approx(2**2.5)]
