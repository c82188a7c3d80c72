"""The benchmark of time to a quality: recipes, held-out text, ratios, fine-tuning, and a small run of all."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from helpers.script_arguments import parse
from transformers import BertConfig

from benchmarks import contenders, quality, sides
from benchmarks.curves import ratio, where
from benchmarks.quality_table import best_stock, by_side, markdown, ratio_text, rows_of
from fixedbert.counts import training_flops
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.pretraining.examples import PretrainingDataArguments, make_examples
from fixedbert.pretraining.trainer import PretrainingArguments
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments, make_arguments, mapping, read_arguments
from fixedbert.training.output import write_command

WORDS = "the a function takes returns list string file read write what does one two three four five six".split()

OVERRIDES = "hidden_size=16,num_hidden_layers=1,num_attention_heads=3,attention_head_size=5,intermediate_size=20"


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
    entries = {"config_name": "tiny", "config_overrides": OVERRIDES, "max_seq_length": 64, "max_steps": 100}
    entries |= {"learning_rate": 0.003, "warmup_steps": 10, "per_device_train_batch_size": 4} | changes
    file = folder / f"{name}.yaml"
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in entries.items()]
    file.write_text("".join(["# A tiny one.\n", *lines]))
    return str(file)


def command_of(recipe: str) -> list[str]:
    """What run_pretraining.py is called with."""
    found, _ = contenders.read_recipe(recipe, load_tokenizer(contenders.vocabulary()))
    return [*found.command, *contenders.text_flags(), "--output_dir", "ours", "--seed", "7"]


def test_ratio_of_a_curve_by_hand():
    """Guards: where a curve comes to a loss, between its points, and how many times as long the other one takes."""
    slow = [{"seconds": 10.0 * n, "loss": loss} for n, loss in enumerate((10, 9, 8, 7.5, 6.5, 5, 5.5))]
    fast = [{"seconds": 10.0 * n, "loss": loss} for n, loss in enumerate((10, 6, 7, 4))]
    assert where(fast, 8, "seconds") == 5 and where(fast, 6, "seconds") == 10
    assert where(fast, 5, "seconds") == pytest.approx(20 + 10 * 2 / 3)
    assert where(fast, 3.9, "seconds") is None
    assert ratio(slow, fast, "seconds") == pytest.approx(60 / 25)
    assert ratio(fast, slow, "seconds") is None


def result_of(side: str, seed: int, seconds: float, loss: float, equal: contenders.Settings | None = None) -> dict:
    """A straight line from a loss of 9, of a side with these settings."""
    points = [
        {"seconds": second, "flops": 1e12 * second, "steps": int(second), "loss": value}
        for second, value in ((0.0, 9.0), (seconds, loss))
    ]
    facts = {"stock": side.startswith("stock"), "change": f"{side}, or a|b", "besides_embeddings": 1_234_567}
    settings = {} if equal is None else {"settings": {"equal": asdict(equal)}}
    return {"side": side, "seed": seed, "points": points, **facts, **settings}


def test_table_by_hand():
    """Guards: means, ranges and ratios of all seeds, each beside stock BERT with the same one and the best rate."""
    results = [
        result_of("ours", 1, 60.0, 3.0),
        result_of("stock-0.1", 1, 60.0, 6.0),
        result_of("stock-0.2", 1, 60.0, 5.0),
        result_of("stock-0.2", 2, 60.0, 4.0),
        result_of("ours", 2, 60.0, 3.5),
        result_of("worse", 3, 60.0, 5.5),
    ]
    stock, ours, other, worse = rows_of(by_side(results))
    assert [row.side for row in (stock, ours, other, worse)] == ["stock-0.2", "ours", "stock-0.1", "worse"]
    ratios = {1: 6 / 4, 2: 5.5 / 5}  # the losses fall by 6 and 5.5 in a minute, and stock's by 4 and 5
    assert ours.ratios == {("as_run", axis): pytest.approx(ratios) for axis in ("seconds", "flops")}
    assert ours.cells() == ["ours", "1.23", "60", "60.0", "3.250 (3.000-3.500)", "1.30 (1.10-1.50)",
                            "1.30 (1.10-1.50)", "", "", "1, 2", r"ours, or a\|b"]  # fmt: skip
    assert stock.ratios == {} and stock.cells()[4:10] == ["4.500 (4.000-5.000)", "", "", "", "", "1, 2"]
    assert other.cells()[4:10] == ["6.000", "not reached", "not reached", "", "", "1"]
    assert worse.ratios == {} and worse.cells()[5] == ""
    assert ratio_text({1: 2.0, 2: None, 3: 3.0}) == "2.50 (2.00-3.00), not reached by 1 of 3"
    lines = markdown([stock, ours]).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[1].strip("|-") == ""


def test_ratios_to_stock_bert_with_the_settings_of_the_recipe():
    """Guards: a recipe has a ratio to stock BERT as people run it, and one to that of its own settings with the best
    rate; both are of those alone."""
    usual, own = contenders.Settings(), contenders.Settings(0.0, keeps_memory=True)
    other = contenders.Settings(0.0, optimizer=contenders.BERTS | {"adam_beta2": 0.98}, keeps_memory=True)
    results = [
        result_of("stock-0.1", 1, 60.0, 7.0, usual),
        result_of("stock-0.1-own", 1, 60.0, 6.0, own),
        result_of("stock-0.2-own", 1, 60.0, 5.0, own),
        result_of("stock-0.1-other", 1, 60.0, 4.0, other),
        result_of("ours", 1, 60.0, 3.0, own),
    ]
    table = {row.side: row for row in rows_of(by_side(results))}
    assert list(table)[0] == "stock-0.1" and table["stock-0.1"].ratios == {}
    assert table["ours"].cells()[5:9] == ["3.00", "3.00", "1.50", "1.50"]  # 6 nats, beside 2 and 4
    assert table["stock-0.2-own"].cells()[5:9] == ["2.00", "2.00", "", ""]


def test_settings_that_stock_bert_has_too(data, tmp_path):
    """Guards: beside each recipe stock BERT also trains with its dropout and optimizer, and keeps freed memory;
    recipes that share them share one, and its name says what is not as people run it."""
    changes = {"adam_beta2": 0.98, "weight_decay": 0, "max_grad_norm": 2}
    recipe = write_recipe(tmp_path, **changes, config_overrides=f"{OVERRIDES},hidden_dropout_prob=0.25")
    twin = write_recipe(tmp_path, "twin", **changes, config_overrides=f"{OVERRIDES},hidden_dropout_prob=0.25")
    command = ["--output_dir", "unused", "--recipe", recipe, twin, "--stock_learning_rate", "0.003"]
    found = quality.contenders_of(quality.parsed(command), load_tokenizer(contenders.vocabulary()))
    equal = "stock-0.003-memory,weight_decay=0,adam_beta2=0.98,max_grad_norm=2,dropout=0.25"
    assert list(found) == ["stock-0.003", equal, "ours", "twin"]
    stock, record = found[equal]
    assert record["settings"]["equal"] == found["ours"][1]["settings"]["equal"]
    arguments, config = stock.arguments(tmp_path, 1), stock.config(load_tokenizer(contenders.vocabulary()))
    assert {name: getattr(arguments, name) for name in changes} == changes
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.25
    usual = found["stock-0.003"][0].arguments(tmp_path, 1)
    assert {name: getattr(usual, name) for name in contenders.BERTS} == contenders.BERTS


@pytest.mark.parametrize("keeps_memory", [True, False])
def test_stock_bert_keeps_freed_memory_where_it_is_a_setting(monkeypatch, keeps_memory):
    """Guards: glibc is told before stock BERT's model is made, or never."""
    kept = []
    monkeypatch.setattr(contenders, "keep_freed_memory", kept.append)
    monkeypatch.setattr(contenders, "bert_examples", lambda seed: 1 / 0)
    settings = contenders.Settings(keeps_memory=keeps_memory)
    stock = contenders.Stock(1, 32, 2, 64, learning_rate=0.1, batch=4, use_cpu=True, bf16=False, equal=settings)
    with pytest.raises(ZeroDivisionError):
        contenders.train_stock(None, stock, Path("unused"), 1, 1.0, [])
    assert kept == [torch.device("cpu")] * keeps_memory


@pytest.mark.parametrize(
    "losses, expected",
    [
        ({"stock-0.1": {1: 5.0, 2: 3.0}, "stock-0.2": {1: 4.5}}, "stock-0.2"),  # a mean of 4.0 has an easier seed
        ({"stock-0.1": {1: float("nan")}, "stock-0.2": {1: 5.0}}, "stock-0.2"),
        ({"stock-0.2": {1: 5.0}, "stock-0.1": {1: float("nan")}}, "stock-0.2"),
        ({"stock-0.1": {1: float("nan"), 2: 3.0}, "stock-0.2": {1: 5.0, 2: 8.5}}, "stock-0.2"),
        ({"stock-0.2": {1: 5.0}, "stock-0.1": {1: 4.0, 2: float("nan")}}, "stock-0.1"),
    ],
)
def test_best_stock_over_common_seeds(losses, expected):
    """Guards: rates are compared with the same seeds alone, and one that diverged with them is never the best."""
    results = [result_of(name, seed, 60.0, loss) for name, runs in losses.items() for seed, loss in runs.items()]
    assert best_stock(by_side(results)) == expected


def test_stock_without_a_common_seed():
    """Guards: rates that were trained with different seeds are not compared."""
    results = [result_of("stock-0.1", 1, 60.0, 3.0), result_of("stock-0.2", 2, 60.0, 5.0)]
    with pytest.raises(InputError, match="stock-0.1, stock-0.2 have no seed in common; give .* same --seeds.$"):
        rows_of(by_side(results))


def test_ratio_over_some_seeds():
    """Guards: a ratio says how many of the row's seeds it covers, in the table and in the picture."""
    results = [result_of("stock-0.1", seed, 60.0, 5.0) for seed in (1, 2)]
    results += [result_of("ours", seed, 60.0, loss) for seed, loss in ((1, 3.0), (2, 6.0), (3, 3.0))]
    _, ours = rows_of(by_side(results))
    assert ours.cells()[5] == ours.ratio_cell(("as_run", "flops")) == "1.50, not reached by 1 of 2, over 2 of 3 seeds"


def stock_record(rate: float, **changes) -> dict:
    """What is recorded of a stock BERT as people run it."""
    settings = asdict(contenders.Stock(1, 32, 2, 64, learning_rate=rate, batch=4, use_cpu=True, bf16=False)) | changes
    return {"stock": True, "settings": settings}


@pytest.mark.parametrize(
    "changes", [{"layers": 3}, {"feed_forward": 65}, {"batch": 5}, {"bf16": True}, {"use_cpu": False}]
)
def test_other_stock_in_the_folder(tmp_path, changes):
    """Guards: stock BERTs of a folder differ in the learning rate alone, whatever their names, not in precision or
    device; what differs is named."""
    file = tmp_path / "results.jsonl"
    found = {"stock-0.003": (None, stock_record(0.003))}
    earlier = {"side": "stock-0.001", "minutes": 7.0}
    file.write_text(json.dumps(earlier | stock_record(0.001)) + "\n")
    assert len(quality.earlier_results(file, found, 7.0)) == 1
    file.write_text(json.dumps(earlier | stock_record(0.001, **changes)) + "\n")
    (name,) = changes
    with pytest.raises(InputError, match=rf"stock-0.001 had other settings \({name}\); give another --output_dir"):
        quality.earlier_results(file, found, 7.0)


@pytest.mark.parametrize("bf16", [False, True])
def test_stock_trains_as_it_is_recorded(data, tmp_path, monkeypatch, bf16):
    """Guards: stock BERT trains in the precision of the hardware, on its device, and the results say which."""
    monkeypatch.setattr(quality, "device_options", lambda: {"use_cpu": True, "bf16": bf16})
    command = ["--output_dir", "unused", "--recipe", write_recipe(tmp_path)]
    found = quality.contenders_of(quality.parsed(command), load_tokenizer(contenders.vocabulary()))
    stock, record = found["stock-0.0005"]
    assert isinstance(stock, contenders.Stock) and record["settings"]["bf16"] is bf16
    arguments = stock.arguments(tmp_path / "stock", seed=1)
    assert (arguments.bf16, arguments.use_cpu) == (bf16, True)


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
        command = command_of(write_recipe(tmp_path, objective=objective, **changes))
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
    command = command_of(write_recipe(tmp_path, use_cpu=True))
    assert "use_cpu" not in read_arguments(command, ModelArguments, PretrainingDataArguments, PretrainingArguments)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"config_overrides": "hidden_size=64"}, "parameters besides the embeddings are more than stock BERT's"),
        ({"model_name_or_path": "runs/mini"}, "model_name_or_path: all begin with random weights"),
        ({"dataset_name": "sample"}, "dataset_name: all begin with random weights, on the same text"),
        ({"objective": "clm"}, "objective clm predicts no masked tokens"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 5}, "no function of"),
        ({"max_steps": None, "stages": [{"steps": 9}, {"steps": 4, "intermediate_size": 999}]}, "are more than stock"),
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


def test_trials_of_the_repository_are_comparable(data):
    """Guards: each trial can be trained beside stock BERT, and changes something."""
    command = ["--output_dir", "unused", "--trials", str(Path(quality.__file__).with_name("trials.yaml"))]
    found = quality.contenders_of(quality.parsed(command), load_tokenizer(contenders.vocabulary()))
    trials = {name: contender for name, (contender, record) in found.items() if not record["stock"]}
    assert len(trials) > 15 and ".base" not in trials
    assert len({json.dumps(asdict(trial)) for trial in trials.values()}) == len(trials)


def test_results_have_no_paths(data, tmp_path):
    """Guards: what is recorded of a recipe does not name the folders of the machine that it was trained on."""
    command = ["--output_dir", "unused", "--recipe", write_recipe(tmp_path)]
    found = quality.contenders_of(quality.parsed(command), load_tokenizer(contenders.vocabulary()))
    assert str(tmp_path) not in json.dumps([record for _, record in found.values()])


@pytest.mark.parametrize(
    "words, message", [([], "give --recipe or --trials"), (["--trial", "base"], "give --trials too")]
)
def test_nothing_to_compare(data, words, message):
    """Guards: stock BERT alone, or a trial without its file, is refused instead of trained or ignored."""
    with pytest.raises(InputError, match=message):
        quality.contenders_of(
            quality.parsed(["--output_dir", "unused", *words]), load_tokenizer(contenders.vocabulary())
        )


def test_trials_by_name(data, tmp_path):
    """Guards: one trial of a file is the recipe of its entries alone, and a wrong name or a lacking change says so."""
    entries = yaml.safe_load(Path(write_recipe(tmp_path)).read_text())
    file = tmp_path / "trials.yaml"
    trials = {"first": entries | {"change": "the first"}, "second": entries}
    file.write_text(yaml.safe_dump(trials, sort_keys=False))
    tokenizer = load_tokenizer(contenders.vocabulary())
    (name, change, *found), *others = contenders.read_trials(str(file), ["first"], tokenizer)
    assert (name, change, others) == ("first", "the first", [])
    assert tuple(found) == contenders.read_recipe(write_recipe(tmp_path), tokenizer)
    for wrong in ("second", "third"):
        with pytest.raises(InputError, match=f"trials.yaml: {wrong}: no recipe with a `change`"):
            list(contenders.read_trials(str(file), [wrong], tokenizer))


def test_parts_of_time_by_hand(data, tmp_path):
    """Guards: of a recipe with stages the final shape counts, and each stage has the time of its steps' operations."""
    changes = {"intermediate_size": 40, "max_seq_length": 64, "total_train_batch_size": 8}
    stages = [{"steps": 60}, {"steps": 40, **changes}]
    file = write_recipe(tmp_path, max_steps=None, max_seq_length=32, mlm_probability=0.25, stages=stages)
    recipe, sizes = contenders.read_recipe(file, load_tokenizer(contenders.vocabulary()))
    _, config = (
        contenders.load_config(ModelArguments(config_name="tiny", config_overrides=mapping(OVERRIDES))) for _ in "ab"
    )
    config.vocab_size = len(load_tokenizer(contenders.vocabulary()))
    first = 60 * 4 * training_flops(config, 32, 8)
    config.intermediate_size = 40
    second = 40 * 8 * training_flops(config, 64, 16)
    assert recipe.stages == [(pytest.approx(first / (first + second), rel=1e-12), 60), (1.0, 100)]
    assert sizes == contenders.parameters(contenders.MODELS["mlm+nsp"], config)
    arguments = parse(command_of(file), ModelArguments, PretrainingDataArguments, PretrainingArguments)[2]
    assert arguments.stages is not None and arguments.max_steps == -1
    assert [stage["steps"] for stage in arguments.stages] == [sides.MANY] * 2


def test_folder_with_other_files(data, tmp_path):
    """Guards: a folder that is not the benchmark's is left as it is; what a stopped call has left there is removed."""
    (tmp_path / "out" / "ours-42").mkdir(parents=True)
    with pytest.raises(InputError, match=r"out: it has no results.jsonl of this benchmark; give an --output_dir of"):
        quality.main(["--recipe", write_recipe(tmp_path), "--output_dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "ours-42").exists()


def test_fine_tuning_is_the_same_for_all(tmp_path, monkeypatch, capsys):
    """
    Guards: both tasks take the settings, which differ in the model alone, not in its dropout; what is done is not
    done again, and not shown beside results of other settings.
    """
    commands = []

    metrics = {
        TextClassification: {"eval_accuracy": 0.4, "eval_accuracy_mm": 0.5},
        QuestionAnswering: {"eval_f1": 11, "eval_exact_match": 4},
    }

    def sweep(kind, **given):
        model_args, _, training_args = make_arguments(given, *kind.arguments)
        commands.append({name: value for name, value in given.items() if "models" not in str(value)})
        assert "models" in model_args.model_name_or_path and training_args.seeds == [1, 2, 3]
        assert model_args.config_overrides == {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
        training_args.folder.mkdir(parents=True)
        write_command(training_args.folder, given)
        runs = [{name: value + seed / 100 for name, value in metrics[kind].items()} for seed in training_args.seeds]
        (training_args.folder / "results.json").write_text(json.dumps({"runs": runs}))

    monkeypatch.setenv("FIXEDBERT_DATA", "data")
    monkeypatch.setattr(quality, "in_a_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(quality, "sweep", sweep)
    for _ in range(2):
        quality.print_fine_tuned(["stock", "ours"], tmp_path / "models")
    assert len(commands) == 4 and commands[:2] == commands[2:]
    (line,) = {line for line in capsys.readouterr().out.splitlines() if line.startswith("ours")}
    assert line.split() == "ours 42.0 (41.0-43.0) 52.0 (51.0-53.0) 11.0 (11.0-11.0) 4.0 (4.0-4.0)".split()
    monkeypatch.setitem(quality.COMMON, "per_device_train_batch_size", 16)
    with pytest.raises(
        InputError, match=r"ours-mnli: fine-tuned with other settings \(per_device_train_batch_size\); remove it"
    ):
        quality.print_fine_tuned(["ours"], tmp_path / "models")


@pytest.mark.parametrize("missing", ["glue/MNLI", "squad/train-v1.1.json", "squad/dev-v1.1.json", "matplotlib"])
def test_what_is_missing_is_said_first(data, tmp_path, monkeypatch, missing):
    """Guards: what the picture and fine-tuning need is checked before anything is trained."""
    for name in {"glue/MNLI", "squad/train-v1.1.json", "squad/dev-v1.1.json"} - {missing}:
        (data / name).mkdir(parents=True)
    monkeypatch.setattr("fixedbert.support.errors.find_spec", lambda package: None if package == missing else object())
    monkeypatch.setattr(quality, "train_missing", lambda *_: pytest.fail("it trains"))
    with pytest.raises(InputError, match=missing):
        quality.main(["--fine_tune", "--recipe", write_recipe(tmp_path), "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def finished(tmp_path: Path, monkeypatch, runs: list[tuple[str, int, float]]) -> list[str]:
    """A command to fine-tune, without its seeds, in whose folder the sides with these seeds and losses are trained."""
    output = tmp_path / "out"
    command = ["--fine_tune", "--recipe", write_recipe(tmp_path), "--output_dir", str(output)]
    command += ["--minutes", "5", "--stock_shape", "1", "32", "2", "64", "--stock_learning_rate", "0.002"]
    found = quality.contenders_of(quality.parsed(command), load_tokenizer(contenders.vocabulary()))
    facts = {name: record for name, (_, record) in found.items()}
    other = facts["stock-0.002"]["settings"] | {"learning_rate": 0.003}
    facts["stock-0.003"] = facts["stock-0.002"] | {"settings": other}
    of_all = {"minutes": 5.0, "machine": "one"}
    results = [result_of(name, seed, 60.0, loss) | facts[name] | of_all for name, seed, loss in runs]
    output.mkdir()
    (output / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    for name in ("check_installed", "draw"):
        monkeypatch.setattr(quality, name, lambda *_: None)
    return command


def test_models_of_all_seeds_are_fine_tuned(data, tmp_path, monkeypatch):
    """Guards: with two seeds MNLI and SQuAD follow from the best stock BERT, as people run it and with the settings
    of the recipe, and from the recipe, of each seed."""
    losses = {"stock-0.002": 5.0, "stock-0.002-memory": 4.0, "ours": 3.0, "stock-0.003": 6.0}
    runs = [(name, seed, loss) for name, loss in losses.items() for seed in (7, 8)]
    command, fine_tuned = finished(tmp_path, monkeypatch, runs), []
    monkeypatch.setattr(quality, "print_fine_tuned", lambda names, _: fine_tuned.extend(names))
    quality.main([*command, "--seeds", "7", "8"])
    assert fine_tuned == [f"{name}-{seed}" for name in list(losses)[:3] for seed in (7, 8)]


def test_reference_without_a_seed(data, tmp_path, monkeypatch):
    """Guards: where the best stock BERT has no model of a seed, a sentence says what to add, and nothing begins."""
    losses = {"stock-0.002": 5.0, "stock-0.002-memory": 4.0, "ours": 3.0}
    runs = [(name, seed, loss) for name, loss in losses.items() for seed in (7, 8)]
    command = finished(tmp_path, monkeypatch, [*runs, ("stock-0.003", 8, 4.0), ("stock-0.003", 9, 4.0)])
    monkeypatch.setattr(quality, "print_fine_tuned", lambda *_: pytest.fail("it fine-tunes"))
    message = "stock-0.003, .* no model of seed 7 .*: add --stock_learning_rate 0.003, or give --seeds 8[.]"
    with pytest.raises(InputError, match=message):
        quality.main([*command, "--seeds", "8", "7"])


@pytest.mark.slow  # two processes, of which each imports torch
def test_small_run_from_end_to_end(data, tmp_path, capsys):
    """Guards: both train for their seconds in turns, the losses fall, table, picture and models are there; a second
    call trains what is new alone, in stages, with a second seed, and over what a stopped call has left."""
    output = tmp_path / "out"
    command = ["--minutes", "0.05", "--stock_shape", "1", "32", "2", "64", "--stock_batch_size", "4"]
    command += ["--output_dir", str(output), "--stock_learning_rate", "0.003"]
    quality.main([*command, "--recipe", write_recipe(tmp_path)])
    results = quality.read_results(output / "results.jsonl")
    assert {result["side"]: result["change"] for result in results} == {
        "stock-0.003": "transformers' BERT",
        "stock-0.003-memory": "transformers' BERT with memory",
        "ours": "A tiny one.",
    }
    for result in results:
        name, points = f"{result['side']}-42", result["points"]
        assert points[0]["seconds"] == 0 and 3 <= points[-1]["seconds"] < 4
        assert points[-1]["flops"] > 0 and points[-1]["loss"] < points[0]["loss"]
        assert (output / name / "model.safetensors").exists() and (output / name / "tokenizer.json").exists()
    assert (output / "quality.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "ratio of times" in shown and shown.count("ours-42:") >= 3  # turns
    stages = [{"steps": 60, "max_seq_length": 32}, {"steps": 40, "num_attention_heads": 4, "intermediate_size": 31}]
    grown = write_recipe(tmp_path, "grown", objective="mlm", lr_scheduler_type="warmup_stable_decay", stages=stages,
                         lr_scheduler_kwargs={"num_decay_steps": 20})  # fmt: skip
    (output / "grown-42.partial" / "checkpoint-3").mkdir(parents=True)
    (output / "grown-42").mkdir()
    quality.main([*command, "--recipe", write_recipe(tmp_path), grown, "--seeds", "42", "7"])
    more = quality.read_results(output / "results.jsonl")
    assert more[:3] == results and len(more) == 3 + 1 + 4
    rows = json.loads((output / "table.json").read_text())["rows"]
    assert {row["side"]: list(row["loss"]) for row in rows} == {
        name: ["42", "7"] for name in ("stock-0.003", "stock-0.003-memory", "ours", "grown")
    }
    assert (output / "table.md").read_text().count("\n| ") == 5
    config = json.loads((output / "grown-7" / "config.json").read_text())
    assert (config["num_attention_heads"], config["intermediate_size"]) == (4, 31)
    (run,) = [result for result in more if (result["side"], result["seed"]) == ("grown", 7)]
    seconds, flops, steps = ([point[axis] for point in run["points"]] for axis in ("seconds", "flops", "steps"))
    assert seconds == sorted(seconds) and flops == sorted(flops) and steps == sorted(steps) and seconds[-1] >= 3
    with pytest.raises(InputError, match="ours had other settings"):
        quality.main([*command, "--recipe", write_recipe(tmp_path, learning_rate=0.001)])
