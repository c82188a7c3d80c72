"""Tests of fine-tuning on the user's own files: predictions, sets of labels, scores, class weights and long texts."""

import csv
import json
import random

import numpy as np
import pytest
import torch
from helpers.tiny_tasks import QUICK, WORDS
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, BertTokenizer
from transformers.trainer_pt_utils import LabelSmoother

from fixedbert.fine_tuning.trainer import ExampleSampler, FineTuningArguments, pool_windows, weighted_cross_entropy
from fixedbert.support.errors import InputError
from fixedbert.tasks.labels import SINGLE, Labels
from run_glue import main as run_glue


def write_csv(file, header, rows):
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])
    return str(file)


def texts(count, words=5, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=words)) for _ in range(count)]


def train(model, output, *more):
    """Fine-tunes for two steps and returns the metrics, the trained model and a function that computes its logits."""
    run_glue(["--model_name_or_path", model, *QUICK, "--max_steps", "2", "--output_dir", str(output), *more])
    trained = AutoModelForSequenceClassification.from_pretrained(output).eval()
    tokenizer = BertTokenizer.from_pretrained(output)

    def logits(batch, **options):
        with torch.no_grad():
            return trained(**tokenizer(batch, padding=True, return_tensors="pt", **options)).logits.double().numpy()

    file = output / "all_results.json"
    return json.loads(file.read_text()) if file.exists() else {}, trained, logits


def predictions_in(output):
    with (output / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def test_several_labels_per_text(model, tmp_path):
    """Columns of 0 and 1 train a model with several labels per text, which keeps its threshold."""
    rows = [(text, n % 2, int(n % 3 == 0), int(n % 5 < 2)) for n, text in enumerate(texts(29))]
    file = write_csv(tmp_path / "a.csv", ("text", "a", "b", "c"), rows)
    files = ("--train_file", file, "--test_file", file, "--label_column_name", "a,b,c")
    options = ("--validation_split_percentage", "20", "--threshold", "0.4", "--do_train", "--do_eval", "--do_predict")
    results, trained, logits = train(model, tmp_path / "out", *files, *options)
    assert trained.config.problem_type == "multi_label_classification" and trained.config.num_labels == 3
    assert {"eval_micro_f1", "eval_macro_f1", "eval_exact_match", "eval_average_precision"} <= results.keys()
    assert results["eval_samples"] == 6
    for line, (text, *_) in zip(predictions_in(tmp_path / "out"), rows, strict=True):
        for name, probability in zip("abc", torch.tensor(logits([text])[0]).sigmoid().tolist(), strict=True):
            assert float(line[f"probability_{name}"]) == pytest.approx(probability, abs=2e-6)
            assert line[f"prediction_{name}"] == str(int(probability >= 0.4))
    assert 'if x["score"] >= 0.4]' in (tmp_path / "out" / "README.md").read_text()
    predict = ("--model_name_or_path", str(tmp_path / "out"), *QUICK, "--test_file", file, "--do_predict")
    run_glue([*predict, "--output_dir", str(tmp_path / "later")])
    assert predictions_in(tmp_path / "later") == predictions_in(tmp_path / "out")
    run_glue([*predict, "--output_dir", str(tmp_path / "half"), "--threshold", "0.5"])
    assert predictions_in(tmp_path / "half") != predictions_in(tmp_path / "out")


def test_regression_on_any_scale(model, tmp_path, capsys):
    """Scores far from unit scale cause a message in training. Predictions and metrics are the model's own outputs."""
    files = [
        write_csv(tmp_path / f"{name}.csv", ("text", "label"), ((t, a + b * n) for n, t in enumerate(texts(13))))
        for name, a, b in (("unit", 0.5, 0.25), ("large", 5e5, 0.25), ("narrow", 1e-6, 1e-4))
    ]
    for number, file in enumerate(files):
        options = ("--train_file", file, "--validation_file", file, "--test_file", file)
        results, trained, logits = train(
            model, tmp_path / str(number), *options, "--do_train", "--do_eval", "--do_predict"
        )
        printed = capsys.readouterr().out
        assert ("rescale them" in printed) == (number > 0)
        assert number != 1 or "the scores have mean 5e+05 and standard deviation 0.9354" in printed
        predicted = [float(line["prediction"]) for line in predictions_in(tmp_path / str(number))]
        scores = logits(texts(13))
        assert predicted == pytest.approx(scores[:, 0].tolist(), rel=1e-4)
        with open(file) as rows:
            errors = [abs(float(row["label"]) - y) for row, y in zip(csv.DictReader(rows), scores[:, 0], strict=True)]
        assert results["eval_mae"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_class_weights(model, tmp_path, capsys):
    """Class weights change only the training loss. Balanced weights have an average of 1 over the rows."""
    both = Labels(SINGLE, {"a": "a", "b": "b"})
    both.match(["a", "b"])
    weights = both.class_weights("balanced", np.array([0] * 9 + [1]))
    assert weights == {"a": pytest.approx(10 / 18), "b": 5.0}
    assert "class weights: a 0.5556, b 5" in capsys.readouterr().out
    logits, labels = torch.randn(7, 2), torch.tensor([0, 1, 1, 0, 0, 1, 0])
    expected = cross_entropy(logits, labels, reduction="none") * torch.tensor([2.0, 3.0])[labels]
    assert weighted_cross_entropy(logits, labels, [2.0, 3.0]).item() == pytest.approx(expected.mean().item())
    smoothed = weighted_cross_entropy(logits, labels, [1.0, 1.0], 0.1)
    assert smoothed.item() == pytest.approx(LabelSmoother(0.1)({"logits": logits}, labels).item())
    with pytest.raises(InputError, match="`class_weights` '1,2,3': must be balanced, or 2 positive numbers"):
        both.class_weights("1,2,3", labels.numpy())
    file = write_csv(tmp_path / "a.csv", ("text", "label"), zip(texts(13), "aaaaaaaaaaabb", strict=True))
    files = ("--train_file", file, "--validation_file", file, "--do_train", "--do_eval", "--learning_rate", "0")
    weights, smoothing = ("--class_weights", "2,4"), ("--label_smoothing_factor", "0.1")
    plain, weighted, both = (
        train(model, tmp_path / f"out{len(more)}", *files, *more)[0] for more in ((), weights, (*weights, *smoothing))
    )
    assert weighted["eval_loss"] == plain["eval_loss"]
    assert len({run["train_loss"] for run in (plain, weighted, both)}) == 3


def test_windows_of_long_texts(model, tmp_path, capsys):
    """With a stride, the logits of a long text are averaged over its overlapping windows."""
    rows = texts(6, words=3) + texts(5, words=30)
    file = write_csv(tmp_path / "a.csv", ("text", "label"), zip(rows, "abababababa", strict=True))
    files = ("--train_file", file, "--test_file", file, "--max_seq_length", "13", "--do_train", "--do_predict")
    _, _, logits = train(model, tmp_path / "out", *files, "--stride", "4")
    assert "11 rows are split into" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/train_results.json").read_text())["train_samples"] == 11
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "out")
    for line, text in zip(predictions_in(tmp_path / "out"), rows, strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        starts = range(0, max(1, len(ids) - 4), 11 - 4)
        each = np.concatenate([logits([tokenizer.decode(ids[start : start + 11])]) for start in starts])
        pooled = torch.tensor(each.mean(axis=0)).softmax(0)
        assert float(line["probability_a"]) == pytest.approx(pooled[0].item(), abs=1e-5)
    train(model, tmp_path / "truncated", *files)
    assert "train: 5 of 11 rows are truncated to 13 tokens" in capsys.readouterr().out
    with pytest.raises(InputError, match="`stride` 11: must be at least 0 and below 11"):
        train(model, tmp_path / "no", *files, "--stride", "11")


def test_one_window_of_each_text_per_epoch():
    """Each epoch draws one window of each text, and different epochs draw different windows."""
    examples = np.array([0] * 5 + [1] + [2] * 7)
    for grouped in (True, False):
        sampler = ExampleSampler([4 + n for n in range(13)], examples, 2, 3, grouped)
        epochs = []
        for epoch in range(9):
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
            assert sorted(examples[window] for window in epochs[-1]) == [0, 1, 2] and len(sampler) == 3
        assert len({window for epoch in epochs for window in epoch}) > 6
    outputs, order = np.array([[1.0], [5.0], [2.0], [4.0]]), np.array([1, 0, 1, 0])
    assert pool_windows(outputs, order).tolist() == [[4.5], [1.5]]


def test_metric_for_the_best_model(tmp_path):
    """For error metrics, lower is better."""
    arguments = {"output_dir": str(tmp_path), "metric_for_best_model": "eval_mse", "use_cpu": True}
    assert FineTuningArguments(**arguments).greater_is_better is False
    assert FineTuningArguments(**arguments | {"metric_for_best_model": "macro_f1"}).greater_is_better is True
    assert FineTuningArguments(**arguments | {"metric_for_best_model": "pearson_loss"}).greater_is_better is True
    for metric, wrong in (("eval_mse", True), ("accuracy", False)):
        with pytest.raises(InputError, match=f"`greater_is_better` cannot be {str(wrong).lower()} for {metric}"):
            FineTuningArguments(**arguments | {"metric_for_best_model": metric}, greater_is_better=wrong)


def test_text_columns_of_the_model(model, tmp_path, capsys):
    """A model for text pairs uses the columns on which it was trained. A message names other columns."""
    pairs = zip(texts(4), texts(4, seed=1), "abab", strict=True)
    file = write_csv(tmp_path / "a.csv", ("answer", "question", "label"), pairs)
    files = ("--train_file", file, "--text_column_names", "question,answer", "--do_train")
    _, trained, _ = train(model, tmp_path / "out", *files)
    assert trained.config.text_column_names == ["question", "answer"]
    predict = ["--model_name_or_path", str(tmp_path / "out"), *QUICK, "--do_predict", "--output_dir"]
    run_glue([*predict, str(tmp_path / "same"), "--test_file", file])
    swapped = ("--text_column_names", "answer,question")
    run_glue([*predict, str(tmp_path / "swapped"), "--test_file", file, *swapped])
    assert "columns are answer, question, but the model was trained on question, answer" in capsys.readouterr().out
    assert predictions_in(tmp_path / "same") != predictions_in(tmp_path / "swapped")
