"""`fixedbert shrink`: from a model and rows of its task to a lighter directory, and what is refused."""

import json
import platform
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fixedbert.shrinking.repair import Repair, RepairTrainer
from helpers.tiny_checkpoints import SHAPE, WORDS, save
from helpers.tiny_models import model_of
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fixedbert
from fixedbert.conversion.growing import Heads
from fixedbert.conversion.to_bert import to_bert
from fixedbert.shrinking.budget import Shape
from fixedbert.shrinking.calibration import Rows, masked
from fixedbert.shrinking.latency import LatencyTable, machine_name
from fixedbert.shrinking.layers import refit, shapes_of, statistics
from fixedbert.shrinking.predictions import Comparison, answering, compare
from fixedbert.shrinking.report import Shrinking, judgement, shrinking_text, verdict
from fixedbert.shrinking.shrink import Target, Work, budget_of, latencies, shrink_to, with_shapes
from fixedbert.support.errors import InputError
from fixedbert_cli import main

OLD = Shape(Heads(5, 6, 6), 37)  # of small_models


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """200 texts of two to fifteen words, one in a line; and the same as pairs without labels."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("texts")
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 15))) for _ in range(200)]
    (folder / "rows.txt").write_text("\n".join(lines) + "\n")
    pairs = [f"{one},{other}" for one, other in zip(lines[::2], lines[1::2], strict=True)]
    (folder / "pairs.csv").write_text("\n".join(["sentence1,sentence2", *pairs]) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A classifier whose answers differ from text to text, made larger by conversion: 7 heads of 8, 48 neurons."""
    small = model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3).eval()
    folder = tmp_path_factory.mktemp("models") / "large"
    save(fixedbert.convert(small, attention_head_size=8, num_attention_heads=7, intermediate_size=48), folder)
    return folder


def rows(texts, **changes):
    return Rows(**{"files": [str(texts / "rows.txt")], "batch_size": 13} | changes)


def test_what_conversion_added_is_cut_again(model, texts, tmp_path):
    """Guards: with the parameters of the smaller model as the target, its very shape and function are found."""
    small = model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3).eval()
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(params=small.num_parameters()))
    assert found.after == [OLD] * 3 and found.predicted < 1e-9 and found.comparison.divergence < 1e-6
    assert found.parameters[1] == small.num_parameters()
    cut = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")(
        ["the cat sat", "a dog"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.allclose(cut(**inputs).logits, small(**inputs).logits, atol=1e-4)
    written = json.loads((tmp_path / "out" / "shrinking.json").read_text())
    assert written["rows"] == found.rows == 167 and (tmp_path / "out" / "shrinking.png").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| 0 | 7 heads of 8 | 5 heads of 6 | 48 | 37 |" in card and str(tmp_path) not in card
    assert "100.0% are the original's" in shrinking_text(found)


def test_operations_are_those_of_a_row(model, texts, tmp_path):
    """Guards: `flops` counts those of a whole row: with those of the smaller model its very shape is found."""
    small = model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3).eval()
    width, tokens = small.config.hidden_size, 11
    (number, size, value_size), neurons = OLD.heads, OLD.neurons
    of_token = 2 * number * (size + value_size) * (2 * width + tokens) + 4 * width * neurons  # multiply and add
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(flops=3 * tokens * of_token))
    assert (found.tokens, found.operations[1], found.after) == (tokens, 3 * tokens * of_token, [OLD] * 3)
    with pytest.raises(InputError, match="nothing to cut"):
        shrink_to(model, tmp_path / "no", rows(texts), Target(flops=found.operations[0]))


def test_a_speed_is_met_by_the_table(model, texts, tmp_path, monkeypatch):
    """Guards: cuts are chosen by the table of times, and again where the clock of the whole model says less."""
    clock = iter(range(10**9))
    monkeypatch.setattr("fixedbert.shrinking.latency.time.perf_counter", lambda: next(clock) * 1e-3)
    wholes = iter([(3.0, 2.0, 1.5), (3.0, 1.5, 2.0), (3.0, 1.5, 2.0)])
    monkeypatch.setattr("fixedbert.shrinking.shrink.duration", lambda *_: 3.0)
    monkeypatch.setattr("fixedbert.shrinking.shrink.ratio", lambda *_: next(wholes))
    table = tmp_path / "table.json"
    prices = [
        (h, p, v, h * (p + v) * 1e-2) for h in range(8) for p in (2, 4, 6, 8) for v in (2, 4, 6, 8) if h or p == v == 8
    ]
    monkeypatch.setattr("fixedbert.shrinking.latency.machine_name", lambda: "a machine")
    LatencyTable("a machine", 32, [(13, 7)], prices, [(n, n * 1e-2) for n in range(49)], 1e-2).write(table)
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(speedup=2.0), table)
    assert found.speedup == 2.0 and not found.table_of
    assert found.by_table > 2.0  # the first choice was slower on the clock than by the table: more went


def test_times_of_a_busier_hour_are_scaled(monkeypatch):
    """Guards: milliseconds are of the clock now: where a table is 1.6 times too slow throughout, so is the budget."""
    table = LatencyTable("a machine", 32, [(13, 7)], [], [], 0.2)
    monkeypatch.setattr("fixedbert.shrinking.latency.machine_name", lambda: "a machine")
    monkeypatch.setattr("fixedbert.shrinking.shrink.duration", lambda *_: 3.0)
    monkeypatch.setattr("fixedbert.shrinking.shrink.shapes_of_batches", lambda _: [(13, 7)])
    work = SimpleNamespace(table=table, model=SimpleNamespace(device=None), rows=[], timed=lambda _: None)
    assert budget_of(work, Target(milliseconds=1500), 4.6, 0.1) == pytest.approx((2.4, 0.2))
    assert budget_of(work, Target(speedup=2.0), 4.6, 0.1) == pytest.approx((2.4, 0.2))
    with pytest.raises(InputError, match="the model takes 3 seconds, and the target is 3.5: nothing to cut"):
        budget_of(work, Target(milliseconds=3500), 4.6, 0.1)


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (Comparison(0.01, 0.975, "classes"), "Nearly all answers stayed"),
        (Comparison(0.01, 0.9, "labels"), "Most answers stayed: compare both models on rows with labels"),
        (Comparison(0.01, 0.89, "classes"), "Many answers changed: train it with distil_steps, or ask for less"),
        (
            Comparison(0.01, 1.0, "classes", None, 1),
            "The original gives one answer to all rows: that it stays says noth",
        ),
        (Comparison(0.03, None, "numbers", 2.0), "Nearly all answers stayed"),  # 0.06 of a variance of 4
        (Comparison(0.03, None, "numbers", 0.7), "Many answers changed: train it with distil_steps, or ask for less"),
        (Comparison(0.05, None, "embeddings"), "Most answers stayed: compare both models on rows with labels"),
        (Comparison(0.2, None, "states"), "Nearly all answers stayed"),  # of 11 tokens
    ],
)
def test_what_is_said_of_the_answers(comparison, said):
    """Guards: whether the answers stayed is said in words, from how many are others, or how much of their variance."""
    found = Shrinking("m", 167, 11.0, [OLD], [OLD], 0.0, comparison, (2, 1), (2, 1), (2.0, 1.0), 2.0)
    assert judgement(found).startswith(said)
    assert ", where 3 were asked for" in verdict(replace(found, asked=3.0))
    assert "asked for" not in verdict(replace(found, asked=2.1))  # clocks scatter by as much
    harmed = replace(found, distil_steps=7)  # by a training that was not written
    assert "more distil_steps or another learning_rate" in judgement(harmed) or not said.startswith("Many")


def test_a_table_of_another_machine(model, texts, tmp_path, capsys):
    """Guards: a cut is chosen by another machine's times alone, and the report says whose they are."""
    sizes = (2, 4, 6, 8)
    prices = [(h, p, v, h * (p + v) * 1e-2) for h in range(8) for p in sizes for v in sizes if h or p == v == 8]
    table = LatencyTable("a server", 32, [(13, 7)], prices, [(n, n * 1e-2) for n in range(49)], 0.5)
    table.write(tmp_path / "table.json")
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(speedup=2.0), tmp_path / "table.json")
    assert "measured for batches of 13 x 7 tokens, while these rows make 13 x " in capsys.readouterr().out
    seconds = 0.5 + sum(table.of_heads()[x.heads] + table.of_neurons()[x.neurons] for x in found.after)
    assert found.by_table == pytest.approx((0.5 + 3 * (1.12 + 0.48)) / seconds) and 2.0 <= found.by_table < 2.1
    said = f"{found.by_table:.2f} times as fast as the original on a server, as its table predicts ("
    assert said in shrinking_text(found) and said in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(InputError, match="the least that can be left takes 0.5 seconds, .* at most 10.60 times less"):
        shrink_to(model, tmp_path / "no", rows(texts), Target(speedup=11.0), tmp_path / "table.json")


def test_machines_are_told_apart_by_their_processor(tmp_path, monkeypatch):
    """Guards: a table of a machine with as many cores, but another processor, is another machine's."""
    monkeypatch.setattr("fixedbert.shrinking.latency.CPUINFO", tmp_path / "cpuinfo")
    assert platform.machine() in machine_name() or platform.processor() in machine_name()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Fast One @ 5 GHz\n")
    table = LatencyTable(machine_name(), 32, [(13, 7)], [], [], 0.0)
    assert ", A Fast One @ 5 GHz, " in table.machine and table.is_of_this_machine
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Slow One\n")
    assert not table.is_of_this_machine


def test_times_are_measured_and_kept(model, texts, tmp_path):
    """Guards: without a file the parts are measured, empty ones too, and written for the next run."""
    work = Work.load(model, rows(texts))
    table = latencies(work, tmp_path / "table.json")
    assert table.of_heads().keys() >= {Heads(7, 8, 8), Heads(0, 8, 8)} and len(table.of_neurons()) == 49
    assert all(seconds > 0 for *_, seconds in (*table.heads, *table.neurons))
    again = latencies(work, tmp_path / "table.json")
    assert again.of_heads() == table.of_heads() and again.machine == table.machine


def test_sizes_by_hand_and_empty_sublayers(model, texts, tmp_path):
    """Guards: sizes of each layer are met; without heads or neurons a layer is a constant, fitted to the text."""
    sizes = dict(num_attention_heads=[0, 7, 3], attention_head_size=[8, 2, 8], intermediate_size=[48, 0, 7])
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(**sizes))
    assert [shape.heads.number for shape in found.after] == [0, 7, 3]
    assert [shape.neurons for shape in found.after] == [48, 0, 7] and found.after[1].heads == Heads(7, 2, 2)
    cut = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert shapes_of(cut) == found.after
    assert "attention.output.dense.weight" not in dict(cut.bert.encoder.layer[0].named_parameters())


def test_nothing_is_left_of_the_layers(model, texts, tmp_path):
    """Guards: without any head or neuron a model computes constants, opens again, and has its twin among BERTs."""
    found = shrink_to(model, tmp_path / "out", rows(texts), Target(num_attention_heads=0, intermediate_size=0))
    assert found.after == [Shape(Heads(0, 8, 8), 0)] * 3
    cut = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = {"input_ids": torch.randint(5, 60, (3, 7))}
    with torch.no_grad():
        assert torch.allclose(to_bert(cut)(**inputs).logits, cut(**inputs).logits, atol=1e-5)


def test_a_refit_brings_answers_nearer(model, texts):
    """Guards: hidden states of a cut model are nearer to the original's after the refit than before."""
    work = Work.load(model, rows(texts))
    costs, shape = work.costs(), Shape(Heads(3, 4, 4), 13)
    cut, fitted = (with_shapes(work.model, costs, [shape] * 3) for _ in range(2))
    refit(work.model, fitted, work.rows)

    def distance(one):
        with torch.no_grad():
            states = ((m.bert(**batch).last_hidden_state for m in (one, work.model)) for batch in work.held_out)
            return sum(float((own - right).square().sum()) for own, right in states)

    assert distance(fitted) < 0.7 * distance(cut)


def test_padding_counts_nowhere(model, texts):
    """Guards: sums over rows are those of rows one by one, without padding."""
    work = Work.load(model, rows(texts))
    batch = work.rows[5]
    batch = {name: x[:4] for name, x in batch.items()} | {"attention_mask": batch["attention_mask"][:4].clone()}
    batch["attention_mask"][1, 3:] = batch["attention_mask"][3, 2:] = 0
    singles = []
    for row in range(4):
        real = int(batch["attention_mask"][row].sum())
        singles.append({name: x[row : row + 1, :real] for name, x in batch.items()})
    found = []
    for given in ([batch] * 12, singles * 12):
        torch.manual_seed(0)
        found.append(statistics(work.model, given, answering(work.model)))
    (together, tokens), (apart, same) = found
    assert tokens == same
    for one, other in zip(together, apart, strict=True):
        for name in ("heads", "neurons", "queries", "keys"):
            assert torch.allclose(getattr(one, name).about_zero, getattr(other, name).about_zero, rtol=1e-4, atol=1e-6)
        for size, errors in one.score_errors.items():
            assert errors.shape == (7,) and (size == 8) == bool((errors == 0).all())


def test_rows_of_every_kind(texts, tmp_path):
    """Guards: texts, pairs with their segments and without labels, running text with masks, all within the length."""
    classifier, masked_lm, encoder = (
        model_of(head, **SHAPE).eval() for head in ("ForSequenceClassification", "ForMaskedLM", "Model")
    )
    save(classifier, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")

    def batches(model, given, pooled=False):
        return given.batches(model, tokenizer, given.read(model, tokenizer, pooled, given.most))

    pairs = batches(classifier, Rows(files=[str(texts / "pairs.csv")], batch_size=13, length=17, most=50))
    assert sum(len(batch["input_ids"]) for batch in pairs) == 50
    assert all(batch["input_ids"].shape[1] <= 17 and batch["token_type_ids"].sum() for batch in pairs)
    lengths = [batch["input_ids"].shape[1] for batch in pairs]
    assert lengths == sorted(lengths)
    running = batches(masked_lm, rows(texts, length=11, most=26))
    assert [batch["input_ids"].shape for batch in running] == [(13, 11)] * 2
    for batch in running:
        places = batch["places"]
        assert places.any(dim=1).all() and (batch["input_ids"][places] == tokenizer.mask_token_id).all()
        assert not places[:, [0, -1]].any()  # [CLS] and [SEP]
    with pytest.raises(InputError, match="this model takes running text, of the column text"):
        batches(masked_lm, rows(texts, files=["a.csv"], text_columns=("a",)))
    embedded = batches(encoder, rows(texts), pooled=True)
    assert sum(len(batch["input_ids"]) for batch in embedded) == 200
    apart = batches(encoder, rows(texts, files=[str(texts / "pairs.csv")]), pooled=True)
    assert sum(len(batch["input_ids"]) for batch in apart) == 200  # each text of 100 pairs has its own embedding
    assert not any(batch["token_type_ids"].any() for batch in apart)
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([[2, 7, 8, 3]] * 2000)
    share = masked({"input_ids": ids}, tokenizer, generator)["places"].float().mean() * 2
    assert 0.5 <= share <= 0.6  # one of two at least


@pytest.mark.parametrize("stopped", [None, "the second step", "the end", "tidying up"])
def test_repair_brings_answers_nearer_and_continues(model, texts, tmp_path, monkeypatch, stopped):
    """Guards: training after a deep cut, of a layer without heads too, brings the answers nearer; one that was broken
    off, in the second step, after the last or when the rest is removed, goes on with the same cut, to the same
    weights."""
    target = Target(num_attention_heads=[2, 0, 2], intermediate_size=7)
    repair = Repair(150, learning_rate=1e-3)
    monkeypatch.setattr("fixedbert.shrinking.repair.has_bf16", lambda _: False)

    def run(folder):
        return shrink_to(model, folder, rows(texts), target, repair=repair)

    whole = run(tmp_path / "whole")
    assert whole.distil_steps == 150 and whole.repaired.divergence < 0.8 * whole.comparison.divergence
    assert not list((tmp_path / "whole").glob("c*-*")) and not (tmp_path / "whole" / "cut").exists()

    def broken_off(*_, **__):
        raise KeyboardInterrupt

    def in_the_second_step(trainer, *arguments, **options):
        return broken_off() if trainer.state.global_step else compute_loss(trainer, *arguments, **options)

    def after_the_first(folder, *arguments, **options):
        remove(folder, *arguments, **options)
        if Path(folder).with_name("shrinking.json").exists():
            broken_off()

    if stopped:
        compute_loss, remove = RepairTrainer.compute_loss, shutil.rmtree
        place = {
            "the second step": (RepairTrainer, "compute_loss", in_the_second_step),
            "the end": (RepairTrainer, "save_state", broken_off),
            "tidying up": (shutil, "rmtree", after_the_first),
        }[stopped]
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*place)
            run(tmp_path / "again")
        assert (tmp_path / "again.partial" / "cut").exists()
        monkeypatch.setattr("fixedbert.shrinking.shrink.lighter", broken_off)
        run(tmp_path / "again")
        one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("task", "names", "refused"),
    [
        (
            "stsb",
            None,
            "its labels are numbers, and the model's are LABEL_0, LABEL_1, LABEL_2: give the rows",
        ),
        ("rte", ["entailment", "neutral", "contradiction"], "entailment, not_entailment, and the model's are entail"),
        ("qqp", ["no", "yes"], "its labels are not_duplicate, duplicate, and the model's are no, yes"),
        ("cola", [], "its labels are unacceptable, acceptable, and the model's are numbers"),
        ("mnli", ["Contradiction", "neutral", "entailment"], None),
        ("sst2", ["0", "1"], None),
        ("stsb", [], None),
    ],
)
def test_a_task_that_is_not_the_models(task, names, refused):
    """Guards: a task of GLUE with other labels is refused, by name or by number; another order is not."""
    model = model_of("ForSequenceClassification", num_labels=3 if names is None else max(1, len(names)))
    if names:
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: number for number, name in enumerate(names)}
    given = Rows(task_name=task.upper(), data_dir="glue")
    if refused is None:
        return given.check_labels(model.config, "SequenceClassification")
    with pytest.raises(InputError, match=f"{task.upper()}: .*{refused}"):
        given.check_labels(model.config, "SequenceClassification")


def test_rows_that_cut_and_rows_that_compare_are_others(model, texts):
    """Guards: answers are compared on rows that the model is neither cut by nor trained on, with few rows too."""
    for most, sizes in ((26, (26, 4, 146)), (39, (39, 6, 144)), (100, (100, 16, 134))):
        work = Work.load(model, rows(texts, most=most), training=150)
        parts = [[row for batch in part for row in plain(batch)] for part in (work.rows, work.held_out, work.examples)]
        assert tuple(map(len, parts)) == sizes
        assert not {*parts[1]} & {*parts[0], *parts[2]}


def plain(batch):
    """Token ids of rows, without padding."""
    return [
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def test_a_task_is_compared_on_its_validation_rows(texts, tmp_path):
    """Guards: of a task of GLUE the training rows cut, and those of its dev set compare."""
    classifier = model_of("ForSequenceClassification", **SHAPE, id2label={0: "unacceptable", 1: "acceptable"})
    save(classifier, tmp_path / "model")
    lines = (texts / "rows.txt").read_text().splitlines()
    folder = tmp_path / "glue/CoLA"
    folder.mkdir(parents=True)
    for name, part in (("train", lines[:120]), ("dev", lines[120:])):
        (folder / f"{name}.tsv").write_text("".join(f"a\t{n % 2}\t\t{line}\n" for n, line in enumerate(part)))
    given = Rows(task_name="cola", data_dir=str(tmp_path / "glue"), batch_size=13, most=90)
    work = Work.load(tmp_path / "model", given)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    dev = {tuple(tokenizer(line)["input_ids"]) for line in lines[120:]}
    compared = [row for batch in work.held_out for row in plain(batch)]
    assert len(compared) == 15 and {*compared} <= dev
    assert sum(len(batch["input_ids"]) for batch in work.rows) == 90


def test_labels_are_not_read_as_texts(model, texts, tmp_path):
    """Guards: a column of labels is no text; where its name is another, the columns with texts can be named."""
    lines = (texts / "rows.txt").read_text().splitlines()
    kinds = [f"{line},{'pos' if number % 2 else 'neg'}" for number, line in enumerate(lines)]
    found = []
    for name, columns in (("label", None), ("kind", ("text",))):
        (tmp_path / "rows.csv").write_text("\n".join([f"text,{name}", *kinds]) + "\n")
        given = rows(texts, files=[str(tmp_path / "rows.csv")], text_columns=columns)
        found.append(list(given.raw_texts()))
    assert found[0] == found[1] == [(line,) for line in lines]


def test_training_that_does_harm_is_left_out(model, texts, tmp_path, capsys):
    """Guards: where answers are farther off after the training, the model is written as it was before, and said."""
    target = Target(num_attention_heads=4, intermediate_size=13)
    found = shrink_to(model, tmp_path / "trained", rows(texts), target, repair=Repair(3, learning_rate=0.5))
    assert found.repaired is None and "give a lower `learning_rate`" in capsys.readouterr().out
    written = AutoModelForSequenceClassification.from_pretrained(tmp_path / "trained").eval()
    work = Work.load(model, rows(texts), training=3 * 13)
    again = compare(work.model, written, work.held_out, work.ask)
    assert again.divergence == pytest.approx(found.comparison.divergence, rel=1e-4)
    assert not (tmp_path / "trained" / "cut").exists()


REFUSED = {
    "give one of `speedup`": lambda f: Target(),
    "give one of `speedup`, ": lambda f: Target(speedup=2.0, params=1e6),
    "0.9: give more than 1": lambda f: Target(speedup=0.9),
    "give `task_name` or `train_file`": lambda f: Rows(),
    "is the folder of a GLUE task": lambda f: Rows(files=["a.txt"], data_dir="glue"),
    "are one or two, of tables": lambda f: Rows(task_name="mnli", text_columns=("a",)),
    "are one or two, of tables in `train_file`": lambda f: Rows(files=["a.csv", "a.txt"], text_columns=("a",)),
    "0: must be at least 1": lambda f: Rows(files=["a.txt"], most=0),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_arguments_that_make_no_sense(sentence):
    """Guards: each is one sentence, before anything is loaded."""
    with pytest.raises(InputError, match=sentence):
        REFUSED[sentence](None)


def test_what_cannot_be_done_is_said(model, texts, tmp_path):
    """Guards: too few rows, sizes that are no cut, a target out of reach, a table of another model; nothing stays."""
    empty = model_of("ForSequenceClassification", **SHAPE, layer_attention_heads=[0, 0, 0], intermediate_size=0)
    wide = LatencyTable("a machine", 64, [(1, 7)], [], [], 0.0)
    wide.write(tmp_path / "wide.json")
    (tmp_path / "none.json").write_text("[]")
    (tmp_path / "odd.json").write_text(json.dumps(json.loads((tmp_path / "wide.json").read_text()) | {"inputs": 7}))
    LatencyTable("a machine", 32, [(1, 7)], [], [], 0.0).write(tmp_path / "empty.json")
    LatencyTable("a machine", 32, [(1, 7)], [(7, 8, 8, 1.0)], [(48, 1.0)], 0.0).write(tmp_path / "coarse.json")
    cases = {
        "200 rows are too few: give 400 or more": (rows(texts, batch_size=200), Target(params=2e4), None),
        "rows to cut by have .* tokens, too few for 56 neurons: give about": (
            rows(texts, batch_size=5, most=10),
            Target(params=2e4),
            None,
        ),
        "layer 1: 8 heads of 8 .*shrinking leaves at most": (rows(texts), Target(num_attention_heads=[7, 8, 7]), None),
        f"the least that can be left takes {empty.num_parameters()} parameters, .* 1000: at most .* times less": (
            rows(texts),
            Target(params=1000),
            None,
        ),
        "the model takes .* parameters, and the target is 1e\\+09: nothing to cut": (
            rows(texts),
            Target(params=1e9),
            None,
        ),
        "12 rows are too few: give 26 or more": (rows(texts, most=12), Target(params=2e4), None),
        "a/none.json: the folder is not there": (rows(texts), Target(speedup=2.0), "a/none.json"),
        "`latency_table` is for `speedup` or `milliseconds`": (rows(texts), Target(params=2e4), "wide.json"),
        "coarse.json: lacks cuts of layers of 7 heads of 8 and 48 neurons": (
            rows(texts),
            Target(speedup=2.0),
            "coarse.json",
        ),
        "measured for a width of 64, not of 32": (rows(texts), Target(speedup=2.0), "wide.json"),
        "empty.json: lacks cuts of layers of 7 heads of 8": (rows(texts), Target(speedup=2.0), "empty.json"),
        "odd.json: not a table of latencies: 'int' object is not": (rows(texts), Target(speedup=2.0), "odd.json"),
        "none.json: ": (rows(texts), Target(speedup=2.0), "none.json"),
        "2: the model takes 3 to 23 tokens": (rows(texts, length=2), Target(params=2e4), None),
    }
    for sentence, (given, target, table) in cases.items():
        with pytest.raises(InputError, match=sentence):
            shrink_to(model, tmp_path / "out", given, target, table and tmp_path / table)
        assert not list(tmp_path.glob("out*"))


def test_the_command(model, texts, tmp_path, capsys):
    """Guards: flags reach the work, and the last lines say what was reached and what comes next."""
    words = f"shrink {model} --output_dir {tmp_path / 'out'} --train_file {texts / 'pairs.csv'} --batch_size 13"
    main([*words.split(), "--intermediate_size", "13"])
    *_, answers, _, last, _, first, then, place = capsys.readouterr().out.strip().splitlines()
    assert re.search(r"on \d+ rows that it was not cut by, [\d.]+% are the original's, KL", answers)
    assert "times as fast as the original. " in last
    assert first.startswith(f"  fixedbert compare {model} {tmp_path / 'out'} --validation_file FILE ")
    assert then == f"  fixedbert export {tmp_path / 'out'} --output_dir {tmp_path / 'out'}-onnx --int8"
    assert place == f"The result is in {tmp_path / 'out'}."
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.intermediate_size == 13
