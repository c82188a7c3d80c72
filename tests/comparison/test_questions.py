"""Comparison of question answering models."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_tasks import squad
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertTokenizer

import fixedbert
from fixedbert.exporting.export import export
from fixedbert.tasks.squad_metrics import exact_match, squad_scores, squad_v2_scores

compare = partial(fixedbert.compare, runtime=["torch"])


@pytest.fixture(scope="module")
def models(model, questions, tmp_path_factory):
    """Returns a directory with a model, a changed copy, a copy with a different vocabulary, and an ONNX graph."""
    directory = tmp_path_factory.mktemp("models")
    squad(model, questions, directory / "one", "--do_train", "--max_steps", "12", "--learning_rate", "1e-2")
    copy, tokenizer = (
        auto.from_pretrained(directory / "one") for auto in (AutoModelForQuestionAnswering, AutoTokenizer)
    )
    with torch.no_grad():
        copy.qa_outputs.weight.add_(
            0.3 * torch.randn(copy.qa_outputs.weight.shape, generator=torch.Generator().manual_seed(0))
        )
    for name, vocabulary in (("two", tokenizer), ("words", without_letters(tokenizer))):
        copy.save_pretrained(directory / name)
        vocabulary.save_pretrained(directory / name)
    export(directory / "one", directory / "graphs")
    return directory


def without_letters(tokenizer):
    """Returns a tokenizer that splits the word "list" into different tokens."""
    vocabulary = {"lis##" if token == "list" else token: number for token, number in tokenizer.get_vocab().items()}
    return BertTokenizer(vocab=vocabulary)


@pytest.mark.parametrize("version_2", [False, True])
def test_questions_are_compared(models, model, questions, tmp_path, version_2):
    """Answers and scores equal those of fine_tune_squad, and differing answers are listed."""
    rows = [json.loads(line) for line in Path(questions).read_text().splitlines()]
    rows = [row for row in rows if version_2 or row["answers"]["text"]]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    names, expected = ("one", "two", "words"), []
    for name in names:
        more = ("--validation_file", str(file), "--doc_stride", "16", "--version_2_with_negative", str(version_2))
        squad(str(models / name), questions, tmp_path / name, "--do_eval", *more)
        expected.append(json.loads((tmp_path / name / "eval_predictions.json").read_text()))
    sources = [models / name for name in (*names, "graphs")]
    result = compare(sources, file, max_seq_length=32, batch_size=5, output_dir=tmp_path / "out")
    answers = {row["id"]: row["answers"]["text"] for row in rows}
    right = []
    for predictions, measured in zip(expected, result.models, strict=False):
        scores = (squad_v2_scores if version_2 else squad_scores)(predictions, answers)
        exact = scores["exact" if version_2 else "exact_match"]
        assert measured.scores == {"exact_match": pytest.approx(exact), "f1": pytest.approx(scores["f1"])}
        pairs = [(predictions[name], texts or [""]) for name, texts in answers.items()]
        right.append(np.array([any(exact_match(text, answer) for answer in texts) for text, texts in pairs]))
        same = np.mean([predictions[name] == expected[0][name] for name in answers])
        assert measured is result.models[0] or measured.fidelity.agreement == pytest.approx(same)
    first, second, words, graph = result.models
    assert (second.lost, second.gained) == ((right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum())
    assert graph.fidelity.agreement == 1 and graph.fidelity.divergence < 1e-5 < second.fidelity.divergence
    assert np.isnan(words.fidelity.divergence) and "KL" not in str(words.fidelity)  # different tokens
    assert json.loads((tmp_path / "out/comparison.json").read_text())["models"][2]["fidelity"]["divergence"] is None
    with (tmp_path / "out/changed.csv").open(newline="", encoding="utf-8") as written:
        changed = [*csv.DictReader(written)]
    assert changed and "questions that changed: " in str(result)
    for line in changed:
        row = rows[int(line["row"])]
        assert (line["id"], line["question"]) == (row["id"], row["question"])
        for name, predictions in zip(names, expected, strict=True):
            assert line[name] == predictions[row["id"]]
    ids = {name for name in answers if len({predictions[name] for predictions in expected}) > 1}
    assert {line["id"] for line in changed} == ids


def test_questions_without_answers(models, questions, tmp_path):
    """Questions without answers have no scores. Invalid questions can be skipped."""
    rows = [json.loads(line) | {"answers": None} for line in Path(questions).read_text().splitlines()[:7]]
    rows[2]["context"], rows[3]["question"] = "", "what " * 20
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"max_seq_length": 32, "skip_bad_rows": True}
    result = compare([models / "one"], tmp_path / "rows.jsonl", **options)
    assert result.rows == 5 and result.models[0].scores == {} and result.models[0].lost is None
