"""The benchmark of time to a quality: clocks, turns, held-out text, sizes, ratios, and a small run of it all."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from small_models import inputs_of, model_of
from transformers import BertConfig, BertForPreTraining, TrainerControl, TrainerState, TrainingArguments, get_scheduler

from benchmarks import contenders, quality, sides
from benchmarks.curves import ratio_text, ratios, where
from fixedbert.counts import training_flops
from fixedbert.errors import InputError
from fixedbert.training.arguments import ModelArguments, parse
from fixedbert.training.fine_tuning import FineTuningArguments
from fixedbert.training.glue_data import GlueDataArguments
from fixedbert.training.pretraining import PretrainingArguments
from fixedbert.training.pretraining_data import PretrainingDataArguments, make_examples
from fixedbert.training.squad_data import SquadDataArguments

WORDS = "the a function takes returns list string file read write what does one two three four five six".split()


@pytest.fixture
def data(tmp_path, monkeypatch, vocabulary):
    """A folder like that of FIXEDBERT_DATA, with small texts."""
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(" ".join(rng.choice(WORDS, size=9)).capitalize() + "." for _ in range(12))

    folder = tmp_path / "data"
    for name in ("wikipedia", "books", "vocab"):
        (folder / name).mkdir(parents=True)
    Dataset.from_dict({"text": [text() for _ in range(60)]}).to_parquet(folder / "wikipedia" / "0.parquet")
    for number in range(3):
        (folder / "books" / f"{number}.txt").write_text(text())
    (folder / "vocab" / "vocab.txt").write_text(open(vocabulary).read())
    monkeypatch.setenv("FIXEDBERT_DATA", str(folder))
    return folder


def write_recipe(folder, name="ours", **changes) -> str:
    """A recipe of a tiny model."""
    overrides = "hidden_size=16,num_hidden_layers=1,num_attention_heads=3,attention_head_size=5,intermediate_size=20"
    entries = {"config_name": "tiny", "config_overrides": overrides, "max_seq_length": 64, "max_steps": 100}
    entries |= {"learning_rate": 0.003, "warmup_steps": 10, "per_device_train_batch_size": 4} | changes
    file = folder / f"{name}.yaml"
    file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in entries.items()))
    return str(file)


def padded_batch() -> dict[str, torch.Tensor]:
    """A batch of pretraining, whose padding has no labels."""
    batch = inputs_of("ForPreTraining", labels=True)
    batch["labels"][batch["attention_mask"] == 0] = -100
    return batch


def test_seconds_are_those_of_training(tmp_path, monkeypatch):
    """Guards: evaluation and the turns of others do not count, a training ends with its time, and the learning rate
    has followed the schedule of the recipe's steps to its end."""
    now, turns, points = [1000.0], [], []

    class Pipe:
        def send(self, message):
            (turns if message is None else points).append(message)

        def recv(self):
            now[0] += 5000  # the others' turn

    def evaluate(*_):
        now[0] += 700
        return 3.0

    monkeypatch.setattr(sides.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(sides, "held_out_loss", evaluate)
    yardstick = sides.Yardstick(Pipe(), [], seconds=60.0, steps=100)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, warmup_steps=10)
    model, state, control = model_of("ForPreTraining"), TrainerState(), TrainerControl()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler = get_scheduler("linear", optimizer, 7, sides.MANY)
    yardstick.on_train_begin(arguments, state, control, model=model, lr_scheduler=scheduler)
    rates = []
    while not control.should_training_stop:
        now[0] += 1
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        state.global_step += 1
        yardstick.on_step_end(arguments, state, control, model=model)
    assert [point["seconds"] for point in points] == list(range(0, 61, 2))
    assert [point["steps"] for point in points] == list(range(0, 61, 2))
    assert len(turns) == 4  # of 12 s; the last one ends with the training
    expected = [0.5 * min(share / 0.1, (1 - share) / 0.9) for share in np.arange(1, 61) / 60]
    assert rates == pytest.approx(expected, abs=1e-12)


def test_operations_are_those_that_are_computed():
    """Guards: of ours real and labelled tokens count, of stock BERT every place; evaluation counts on neither side."""
    batch = padded_batch()
    rows, width = batch["input_ids"].shape
    ours = model_of("ForPreTraining")
    real, labelled = batch["attention_mask"].sum(1).tolist(), batch["labels"].ne(-100).sum(1).tolist()
    assert sides.computed_tokens(ours, batch) == list(zip(real, labelled, strict=True))
    stock = BertForPreTraining(BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4))
    assert sides.computed_tokens(stock, batch) == [(width, width)] * rows
    yardstick = sides.Yardstick(SimpleNamespace(send=lambda _: None), [batch], seconds=60.0, steps=100)
    scheduler = get_scheduler("constant", torch.optim.SGD([torch.zeros(1)], lr=0.5))
    arguments = SimpleNamespace(get_warmup_steps=lambda _: 0, lr_scheduler_type="constant", lr_scheduler_kwargs={})
    yardstick.on_train_begin(arguments, TrainerState(), None, model=stock, lr_scheduler=scheduler)
    assert yardstick.flops == 0
    stock.train()
    stock(**batch)
    assert yardstick.flops == rows * training_flops(stock.config, width, width)


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM"])
def test_held_out_loss_is_the_mean_over_tokens(head):
    """Guards: batches of any size give the loss of all labelled tokens, without dropout, with the sparse head too."""
    batch = padded_batch()
    model = model_of(head, hidden_dropout_prob=0.5, sparse_prediction=True, unpad_inputs=True)
    names = [
        name for name in batch if head == "ForPreTraining" or name not in ("token_type_ids", "next_sentence_label")
    ]
    outputs = model.eval()(**{name: batch[name] for name in names})
    expected = outputs.masked_lm_loss if head == "ForPreTraining" else outputs.loss
    parts = [{name: tensor[part] for name, tensor in batch.items()} for part in (slice(0, 5), slice(5, None))]
    assert sides.held_out_loss(model, parts) == pytest.approx(expected.item(), rel=1e-5)
    assert model.training


def test_ratio_of_a_curve_by_hand():
    """Guards: where a curve comes to a loss, between its points, and how many times as long the other one takes."""
    slow = [{"seconds": 10.0 * n, "loss": loss} for n, loss in enumerate((10, 9, 8, 7.5, 6.5, 5, 5.5))]
    fast = [{"seconds": 10.0 * n, "loss": loss} for n, loss in enumerate((10, 6, 7, 4))]
    assert where(fast, 8, "seconds") == 5 and where(fast, 6, "seconds") == 10
    assert where(fast, 5, "seconds") == pytest.approx(20 + 10 * 2 / 3)
    assert where(fast, 3.9, "seconds") is None
    times = (20 / 5, 30 / 6.25, 40 / 8.75, 50 / (80 / 3), 60 / 25)
    assert ratios(slow, fast, "seconds") == pytest.approx(times)
    assert ratio_text(slow, fast, "seconds") == "2.40 (1.88-4.80)"
    assert ratio_text(fast, slow, "seconds") == "not reached"


def test_all_are_held_to_the_same_text(data, tmp_path):
    """Guards: the tokens and masks of the held-out loss depend on no seed, and no recipe trains on their documents,
    even if it asks for another split."""
    one, other = (contenders.held_out_batches(seed) for seed in (1, 2))
    for first, second in zip(one, other, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in ("input_ids", "labels"))
    labelled = sum(int(batch["labels"].ne(-100).sum()) for batch in one)
    maskable = sum(int(batch["attention_mask"].sum()) - 3 * len(batch["labels"]) for batch in one)
    assert labelled / maskable == pytest.approx(0.15, abs=0.02)
    held_out = contenders.bert_examples(1)[2].numbers
    for objective in ("mlm", "mlm+nsp"):
        changes = {"validation_split_percentage": 50, "document_boundary": "blank_line", "mlm_probability": 0.3}
        recipe = write_recipe(tmp_path, objective=objective, **changes)
        command = contenders.recipe_flags(recipe, tmp_path / "ours", 7)
        arguments = parse(command, ModelArguments, PretrainingDataArguments, PretrainingArguments)
        examples = make_examples(*arguments, BertConfig(), None)[1]
        assert examples.mlm_probability == 0.3
        assert len(examples.numbers) + len(held_out) == 63 and not set(examples.numbers) & set(held_out)


def test_stock_draws_new_masks_in_each_pass(data):
    """Guards: after a pass over the text a plain Trainer gets the examples of the next epoch, not the same again."""
    examples = contenders.bert_examples(1)[1]
    passes = contenders.EpochAfterEpoch(examples)
    count = len(passes)
    found = [passes[index]["input_ids"] for index in [*range(count), *range(count)]]
    expected = [examples[index]["input_ids"] for index in range(2 * count)]
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert any(not np.array_equal(one, other) for one, other in zip(found[:count], found[count:], strict=True))


def test_all_train_on_one_device(data, tmp_path, monkeypatch):
    """Guards: a recipe for a CPU trains on the accelerator where stock BERT does."""
    monkeypatch.setattr(contenders, "device_options", lambda: {"use_cpu": False, "bf16": False})
    command = contenders.recipe_flags(write_recipe(tmp_path, use_cpu=True), tmp_path / "ours", 7)
    assert not parse(command, ModelArguments, PretrainingDataArguments, PretrainingArguments)[2].use_cpu


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"config_overrides": "hidden_size=64"}, "parameters besides the embeddings are more than stock BERT's"),
        ({"model_name_or_path": "runs/mini"}, "model_name_or_path: all begin with random weights"),
        ({"dataset_name": "sample"}, "dataset_name: all begin with random weights, on the same text"),
        ({"objective": "clm"}, "objective clm predicts no masked tokens"),
        ({"stages": [{"steps": 60}, {"steps": 40}]}, "stages: their steps cannot be stretched over the time"),
        ({"torch_compile": True}, "torch_compile: padding is computed, and would not be counted"),
        ({"max_steps": None, "num_train_epochs": 1, "bf16": True}, "give max_steps"),
    ],
)
def test_unequal_comparisons_are_refused(data, tmp_path, changes, message):
    """Guards: a larger model, trained weights and another text are refused before anything is trained."""
    command = ["--recipe", write_recipe(tmp_path, **changes), "--stock_shape", "1", "32", "2", "64"]
    with pytest.raises(InputError, match=message):
        quality.main([*command, "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_failed_side_is_no_result(tmp_path):
    """Guards: a process that ends with an error ends the comparison in a sentence that names its log; one that ends
    without has finished."""

    class Closed:
        def send(self, _):
            pass

        def recv(self):
            raise EOFError

    side = sides.Side(print, tmp_path / "ours.log")
    side.pipe, side.process = Closed(), SimpleNamespace(pid=1, join=lambda: None, exitcode=0)
    assert not side.take_turn()
    side.process.exitcode = 3
    with pytest.raises(InputError, match="ours: its process ended with exit status 3; .*ours.log"):
        side.take_turn()


def test_fine_tuning_is_the_same_for_all(tmp_path, monkeypatch, capsys):
    """Guards: both scripts take the command, which differs in the model alone; what is done is not done again."""
    commands = []

    def script(kind, metrics):
        def main(command):
            model_args, _, training_args = parse(command, ModelArguments, kind, FineTuningArguments)
            commands.append([word for word in command if "models" not in word])
            assert "models" in model_args.model_name_or_path and training_args.seeds == [1, 2, 3]
            training_args.folder.mkdir(parents=True)
            runs = [{name: value + seed / 100 for name, value in metrics.items()} for seed in training_args.seeds]
            (training_args.folder / "results.json").write_text(json.dumps({"runs": runs}))

        return main

    monkeypatch.setenv("FIXEDBERT_DATA", "data")
    monkeypatch.setattr(quality, "in_a_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(
        quality, "run_glue", script(GlueDataArguments, {"eval_accuracy": 0.4, "eval_accuracy_mm": 0.5})
    )
    monkeypatch.setattr(quality, "run_squad", script(SquadDataArguments, {"eval_f1": 11, "eval_exact_match": 4}))
    for _ in range(2):
        quality.print_fine_tuned(["stock", "ours"], tmp_path / "models")
    assert len(commands) == 4 and commands[:2] == commands[2:]
    (line,) = {line for line in capsys.readouterr().out.splitlines() if line.startswith("ours")}
    assert line.split() == "ours 42.0 (41.0-43.0) 52.0 (51.0-53.0) 11.0 (11.0-11.0) 4.0 (4.0-4.0)".split()


@pytest.mark.slow  # two processes, of which each imports torch
def test_small_run_from_end_to_end(data, tmp_path, capsys):
    """Guards: both train for their seconds in turns, the losses fall, table, picture and models are there; a second
    call trains what is new alone."""
    output = tmp_path / "out"
    command = ["--minutes", "0.05", "--stock_shape", "1", "32", "2", "64", "--stock_batch_size", "4"]
    command += ["--output_dir", str(output), "--stock_learning_rate", "0.003"]
    quality.main([*command, "--recipe", write_recipe(tmp_path)])
    results = quality.read_results(output / "results.jsonl")
    assert results.keys() == {"stock-0.003", "ours"}
    for name, result in results.items():
        points = result["points"]
        assert points[0]["seconds"] == 0 and 3 <= points[-1]["seconds"] < 4
        assert points[-1]["flops"] > 0 and points[-1]["loss"] < points[0]["loss"]
        assert (output / name / "model.safetensors").exists() and (output / name / "tokenizer.json").exists()
    assert (output / "quality.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "ratio of times" in shown and shown.count("ours:") >= 3  # turns
    file = (output / "results.jsonl").read_bytes()
    packed = write_recipe(tmp_path, "packed", objective="mlm", lr_scheduler_type="warmup_stable_decay",
                          lr_scheduler_kwargs={"num_decay_steps": 20}, muon_learning_rate=0.003)  # fmt: skip
    quality.main([*command, "--recipe", write_recipe(tmp_path), packed])
    assert (output / "results.jsonl").read_bytes().startswith(file)
    assert list(quality.read_results(output / "results.jsonl")) == [*results, "packed"]
    with pytest.raises(InputError, match="ours had another value of settings"):
        quality.main([*command, "--recipe", write_recipe(tmp_path, learning_rate=0.001)])
