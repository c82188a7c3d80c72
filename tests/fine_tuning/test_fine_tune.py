"""Tests for complete runs of run_glue.py and run_squad.py, which must not depend on batches, order or processes."""

import json
import os
import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, fork_server
from helpers.outputs import log_of, results, weights_in
from helpers.tiny_tasks import QUICK, glue, glue_arguments, squad
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)

from fixedbert.commands import COMMANDS, groups
from fixedbert.fine_tuning.trainer import ExampleSampler
from fixedbert.support.errors import InputError
from fixedbert.tasks.texts import load_task
from run_glue import main as run_glue
from run_squad import main as run_squad


def test_losses_equal_those_of_transformers(model, download, tmp_path):
    """With random order, the loss of each step equals that of transformers' Trainer on padded features."""
    steps = ("--do_train", "--num_train_epochs", "2", "--per_device_train_batch_size", "4", "--logging_steps", "1")
    glue(model, download, tmp_path / "ours", *steps, "--train_sampling_strategy", "random", "--learning_rate", "1e-3")
    state = json.loads((tmp_path / "ours/trainer_state.json").read_text())

    tokenizer = AutoTokenizer.from_pretrained(model)
    data = load_task("rte", download, ("train",))
    rows = data.splits["train"].map(lambda row: {"label": data.labels.classes.index(row["label"])})

    def tokenize(batch):
        return tokenizer(batch["sentence1"], batch["sentence2"], padding="max_length", max_length=64, truncation=True)

    plain_args = TrainingArguments(
        output_dir=str(tmp_path / "plain"),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        logging_steps=1,
        learning_rate=1e-3,
        save_strategy="no",
        disable_tqdm=True,
    )
    set_seed(42)
    plain = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=plain_args,
        train_dataset=rows.map(tokenize, batched=True),
        processing_class=tokenizer,
    )
    plain.train()
    losses = [[e["loss"] for e in log if "loss" in e] for log in (state["log_history"], plain.state.log_history)]
    assert len(losses[0]) == state["global_step"] == 2 * 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_results_do_not_depend_on_batches(model, download, tmp_path):
    """Metrics and predictions do not depend on batch size or padding. Predictions keep the order of the rows."""
    train = ("--do_train", "--max_steps", "30", "--learning_rate", "3e-3", "--max_seq_length", "60")
    glue(model, download, tmp_path / "trained", *train, task="stsb")
    trained = str(tmp_path / "trained")
    results, predictions = [], []
    for number, more in enumerate([(), ("--per_device_eval_batch_size", "3"), ("--per_device_eval_batch_size", "1")]):
        output = tmp_path / str(number)
        both = ("--do_eval", "--do_predict", "--max_seq_length", "60")
        results.append(glue(trained, download, output, *both, *more, task="stsb"))
        predictions.append((output / "STS-B.tsv").read_text())
    for other in results[1:]:
        for name in ("eval_pearson", "eval_spearmanr", "eval_loss"):
            assert other[name] == pytest.approx(results[0][name], rel=1e-4)
    assert predictions[0] == predictions[1] == predictions[2]

    loaded = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    rows = load_task("stsb", download, ("test",)).splits["test"]
    one_by_one = [
        loaded(**tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt")).logits.item() for row in rows
    ]
    written = [float(line.split("\t")[1]) for line in predictions[0].splitlines()[1:]]
    assert written == pytest.approx(np.clip(one_by_one, 0, 5), abs=1e-3) and len(set(written)) > 3


def test_squad_from_training_to_answers(model, questions, tmp_path):
    """SQuAD 2.0 runs write the files and metrics of run_qa.py. Results do not depend on batch size or padding."""
    output = tmp_path / "trained"
    steps = ("--max_steps", "5", "--learning_rate", "1e-3", "--null_score_diff_threshold", "0.1")
    found = squad(model, questions, output, "--do_train", "--do_eval", "--do_predict", *steps)
    names = {"exact", "f1", "total", "HasAns_f1", "NoAns_exact", "best_f1", "best_f1_thresh", "loss", "samples"}
    assert {f"eval_{name}" for name in names} <= set(found)
    answers = {kind: json.loads((output / f"{kind}_predictions.json").read_text()) for kind in ("eval", "predict")}
    assert list(answers["eval"]) == [f"q{number}" for number in range(31)]
    assert answers["predict"] == answers["eval"]  # the same questions and threshold
    n_best = json.loads((output / "eval_nbest_predictions.json").read_text())
    assert set(n_best["q0"][0]) == {"text", "probability", "start_logit", "end_logit"}
    odds = json.loads((output / "eval_null_odds.json").read_text())
    assert {q for q, text in answers["eval"].items() if not text} == {
        q for q, value in odds.items() if value > found["eval_null_score_diff_threshold"]
    }
    assert (output / "squad.png").read_bytes()[:4] == b"\x89PNG"
    AutoModelForQuestionAnswering.from_pretrained(output)
    again = squad(str(output), questions, tmp_path / "again", "--do_eval", "--per_device_eval_batch_size", "3")
    assert again["eval_loss"] == pytest.approx(found["eval_loss"], rel=1e-5)
    other = json.loads((tmp_path / "again" / "eval_null_odds.json").read_text())
    assert other == pytest.approx(odds, abs=1e-4)


def test_different_labels_need_a_new_head(model, download, tmp_path, capsys):
    """Training on different labels replaces the task head of the model, but keeps all other weights."""
    glue(model, download, tmp_path / "mnli", "--do_train", "--max_steps", "2", task="mnli")
    unchanged = ("--do_train", "--max_steps", "1", "--learning_rate", "0")
    glue(str(tmp_path / "mnli"), download, tmp_path / "rte", *unchanged, task="rte")
    glue(str(tmp_path / "mnli"), download, tmp_path / "again", *unchanged, task="mnli")
    glue(str(tmp_path / "rte"), download, tmp_path / "mrpc", *unchanged, task="mrpc")  # also has two labels
    assert "with a new head for one label per text (entailment, not_entailment)" in capsys.readouterr().out
    weights = {name: weights_in(tmp_path / name) for name in ("mnli", "rte", "again", "mrpc")}
    query = "bert.encoder.layer.1.attention.self.query.weight"
    assert all(torch.equal(weights["mnli"][query], weights[name][query]) for name in weights)
    assert weights["rte"]["classifier.weight"].shape == (2, 32)
    assert torch.equal(weights["mnli"]["classifier.weight"], weights["again"]["classifier.weight"])
    assert not torch.equal(weights["rte"]["classifier.weight"], weights["mrpc"]["classifier.weight"])


@pytest.mark.parametrize("task", ["rte", "stsb", "squad"])
def test_accumulated_steps_are_large_steps(model, download, questions, tmp_path, task):
    """Four accumulated batches of 2 rows give the same step as one batch of 8, even if the last step is smaller."""
    script, data = (squad, questions) if task == "squad" else (partial(glue, task=task), download)
    run = ["--do_train", "--num_train_epochs", "1", "--max_train_samples", "11", "--learning_rate", "1e-2"]
    weights = []
    for size, steps in (("8", "1"), ("2", "4")):  # 8 rows, then 3
        batch = ("--per_device_train_batch_size", size, "--gradient_accumulation_steps", steps)
        script(model, data, tmp_path / size, *run, *batch, "--optim", "sgd")
        weights.append(weights_in(tmp_path / size))
        weights[-1]["losses"] = torch.tensor([entry["loss"] for entry in log_of(tmp_path / size)[:2]])
    query = "bert.encoder.layer.1.attention.self.query.weight"
    assert not torch.equal(weights_in(Path(model))[query], weights[0][query]) and len(weights[0]["losses"]) == 2
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-5, atol=2e-6, msg=name)


def test_validation_rows_that_are_training_rows(model, tmp_path, capsys):
    """A warning counts the validation rows whose texts also occur in the training data, ignoring whitespace."""
    train, dev = tmp_path / "train.csv", tmp_path / "dev.tsv"
    train.write_text("sentence1,sentence2,label\none,two,no\ntwo,one,yes\nthree,one,no\n")
    run = ("--do_train", "--do_eval", "--max_steps", "1")

    def warnings(*rows):
        dev.write_text("sentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
        files = ("--train_file", str(train), "--validation_file", str(dev))
        output = ("--output_dir", str(tmp_path / f"out-{len(list(tmp_path.iterdir()))}"))
        run_glue(["--model_name_or_path", model, *files, *QUICK, *output, *run])
        return [line for line in capsys.readouterr().out.splitlines() if "training data" in line]

    (line,) = warnings("one\ttwo \tyes", "two\t one\tyes", "one\tone\tno")
    assert line.startswith("validation: 2 of 3 rows also occur in the training data")
    assert warnings("one\tthree\tyes", "two\ttwo\tno") == []


def test_maximum_counts(model, questions, tmp_path):
    """`max_predict_samples` limits the number of predictions."""
    few = ("--do_train", "--do_predict", "--max_steps", "1", "--max_predict_samples", "3")
    squad(model, questions, tmp_path / "few-questions", *few)
    expected = [f"q{number}" for number in sorted(random.Random(42).sample(range(31), 3))]
    assert [*json.loads((tmp_path / "few-questions/predict_predictions.json").read_text())] == expected


BEST = "--eval_strategy steps --eval_steps 1 --save_strategy steps --save_steps 1 --load_best_model_at_end".split()
BEST += ["--metric_for_best_model"]


def test_metrics_of_questions(model, questions, tmp_path):
    """The best checkpoint can be selected by a metric for unanswerable questions, if there are such questions."""
    rows = [json.loads(line) for line in Path(questions).read_text().splitlines()]
    rows = [row for row in rows if row["answers"]["text"] not in ([], ["a"], ["the"])]  # articles are empty answers
    (tmp_path / "answered.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = ("--do_train", "--do_eval", "--max_steps", "2", *BEST)
    squad(model, questions, tmp_path / "out", *run, "NoAns_f1")
    state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    assert state["best_metric"] == max(entry.get("eval_NoAns_f1", 0) for entry in state["log_history"])
    with pytest.raises(InputError, match="'NoAns_f1': unknown metric; available metrics: loss, exact, HasAns_exact"):
        squad(
            model, questions, tmp_path / "no", *run, "NoAns_f1", "--validation_file", str(tmp_path / "answered.jsonl")
        )


def test_early_stopping_keeps_the_best(model, download, tmp_path):
    """Training stops after two evaluations without a better metric and loads the best checkpoint."""
    steps = ("--max_steps", "9", "--learning_rate", "0", "--early_stopping_patience", "2")
    glue(model, download, tmp_path / "out", "--do_train", "--do_eval", *steps, *BEST, "accuracy")
    state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    assert state["global_step"] == 3 and state["best_global_step"] == 1


def test_runs_resume_on_the_same_data_only(model, questions, tmp_path, monkeypatch):
    """An interrupted run resumes only if its data are unchanged, including additional answers."""
    steps = ("--do_train", "--max_steps", "3", "--save_strategy", "steps", "--save_steps", "1")
    file = Path(shutil.copy(questions, tmp_path))

    def run():
        squad(model, str(file), tmp_path / "run", *steps)

    def stop(trainer, checkpoint):
        trainer.train()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.fine_tuning.fine_tune.train", stop)
        run()
    original, times = file.read_text(), file.stat()
    rows = [json.loads(line) for line in original.splitlines()]
    answers = next(row["answers"] for row in rows if row["answers"]["answer_start"] not in ([], [0]))
    answers["text"].append(answers["text"][0])
    answers["answer_start"].append(answers["answer_start"][0])
    file.write_text("\n".join(map(json.dumps, rows)))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(InputError, match="run.partial: the data has changed"):
        run()
    file.write_text(original)
    run()
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.slow
def test_two_processes_are_one(model, download, tmp_path):
    """A run has the same weights, metrics and predictions in two processes as in one."""
    run = ("--do_train", "--do_eval", "--do_predict", "--num_train_epochs", "2", "--learning_rate", "1e-2")
    run += ("--optim", "sgd", "--max_train_samples", "18", "--per_device_train_batch_size")
    two = glue_arguments(model, download, tmp_path / "two", *run, "3")
    pair = fork_server.Pair(ROOT / "run_glue.py", two, tmp_path / "printed")
    run_glue(glue_arguments(model, download, tmp_path / "one", *run, "6"))
    pair.finished()
    one, two = (weights_in(tmp_path / name) for name in ("one", "two"))
    for name in one:
        assert torch.allclose(one[name], two[name], rtol=1e-5, atol=1e-6), name  # Adam would amplify rounding errors
    first, second = (results(tmp_path / name) for name in ("one", "two"))
    assert first["eval_accuracy"] == second["eval_accuracy"]
    assert first["eval_loss"] == pytest.approx(second["eval_loss"], rel=1e-5)
    assert (tmp_path / "one/RTE.tsv").read_text() == (tmp_path / "two/RTE.tsv").read_text()


@pytest.mark.slow
def test_two_processes_evaluate_squad_like_one(model, questions, tmp_path):
    """SQuAD scores and losses are the same in two processes as in one, although the last batch is padded."""
    squad(model, questions, tmp_path / "trained", "--do_train", "--max_steps", "3")
    files = ("--validation_file", questions, "--version_2_with_negative")
    size = ("--max_seq_length", "32", "--doc_stride", "8", "--per_device_eval_batch_size", "4")
    more = (*files, *size, *QUICK, "--do_eval", "--output_dir")
    start = ("--model_name_or_path", str(tmp_path / "trained"))
    pair = fork_server.Pair(ROOT / "run_squad.py", [*start, *more, str(tmp_path / "two")], tmp_path / "printed")
    run_squad([*start, *more, str(tmp_path / "one")])
    pair.finished()
    one, two = (results(tmp_path / name) for name in ("one", "two"))
    for name in ("eval_f1", "eval_exact", "eval_best_f1", "eval_loss", "eval_samples"):
        assert one[name] == pytest.approx(two[name], rel=1e-5), name


def test_batches_of_similar_lengths():
    """ExampleSampler groups similar lengths, and its order depends on the seed and the epoch."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 128, 1300).tolist()
    sampler = ExampleSampler(lengths, np.arange(1300), 13, 3)
    first = list(sampler)
    assert sorted(first) == list(range(1300)) and first == list(ExampleSampler(lengths, np.arange(1300), 13, 3))
    batches = np.array([lengths[i] for i in first]).reshape(-1, 13)
    assert (batches.max(1) - batches.min(1)).mean() < 10  # the lengths span 123 tokens
    assert batches[0].max() == max(lengths)  # so that a lack of memory is noticed in the first step
    shorter = (np.diff(batches[1:].mean(1)) < 0).mean()
    assert 0.35 < shorter < 0.65  # steps are not sorted by length
    odd = list(ExampleSampler(lengths[:1295], np.arange(1295), 13, 3))  # an incomplete last step
    assert sorted(odd) == list(range(1295))
    batches = [[lengths[i] for i in odd[start : start + 13]] for start in range(0, 1295, 13)]
    assert np.mean([max(batch) - min(batch) for batch in batches]) < 10
    sampler.set_epoch(1)
    assert list(sampler) != first and list(ExampleSampler(lengths, np.arange(1300), 13, 4)) != first


# The arguments of transformers' run_glue.py and run_qa.py (version 4.55 and later), except TrainingArguments and those
# that docs/fine_tuning.md names as missing.
COMMON = (
    "model_name_or_path config_name tokenizer_name cache_dir model_revision token trust_remote_code "
    "dataset_name dataset_config_name max_seq_length max_train_samples "
    "max_eval_samples max_predict_samples train_file validation_file test_file"
)
RUN_GLUE = f"{COMMON} task_name ignore_mismatched_sizes"
RUN_QA = f"{COMMON} version_2_with_negative null_score_diff_threshold doc_stride n_best_size max_answer_length"


@pytest.mark.parametrize("command, names", [("glue", RUN_GLUE), ("squad", RUN_QA)])
def test_every_flag_of_transformers_exists(command, names):
    """Nearly every flag of transformers' run_glue.py and run_qa.py is an option of the command."""
    own = {each.name for _, members in groups(COMMANDS[command]) for each in members}
    assert {*names.split()} <= own
