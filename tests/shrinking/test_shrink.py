"""`fixedbert shrink`: pruning to each type of target, refitting, and distillation."""

import json
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from accelerate import PartialState
from helpers.outputs import same_weights, weights_in
from helpers.tiny_checkpoints import SHAPE, save, save_sentence_model
from helpers.tiny_models import model_of
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.conversion.to_bert import to_bert
from fixedbert.loading.heads import Heads
from fixedbert.options import ShrinkOptions
from fixedbert.shrinking import serving
from fixedbert.shrinking import shrink as shrinking
from fixedbert.shrinking.budget import LayerSize, Prices
from fixedbert.shrinking.context import ShrinkContext, Speedup
from fixedbert.shrinking.distillation import DistillationTrainer
from fixedbert.shrinking.fisher_information import collect_statistics, layer_sizes
from fixedbert.shrinking.layers import prune_layers, refit
from fixedbert.shrinking.shrink import layer_pruners, shrink
from fixedbert.support.errors import InputError
from fixedbert.tasks.fidelity import measure_fidelity
from fixedbert.tasks.predictions import predict
from fixedbert.training.interruption import train

SMALL = LayerSize(Heads(5, 6, 6), 37)  # layers of `small`


@pytest.fixture
def rows(texts):
    return {"train_file": str(texts / "rows.txt"), "batch_size": 13}


@pytest.fixture
def context(large, texts):
    files = [str(texts / "rows.txt")]
    return ShrinkContext.load(ShrinkOptions(model=large, output_dir="", train_file=files, batch_size=13, params=1))


def test_superfluous_heads_and_neurons_are_removed(small, large, rows, tmp_path):
    """If the target is the parameter count of the small model, pruning recovers this model's shape and outputs."""
    result = shrink(large, tmp_path / "out", params=small.num_parameters(), **rows)
    assert result.after.layers == [SMALL] * 3 and result.fidelity.divergence < 1e-6
    assert result.after.parameters == small.num_parameters() and result.folder == str(tmp_path / "out")
    pruned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(["the cat sat", "a dog"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(pruned(**inputs).logits, small(**inputs).logits, atol=1e-4)
    written = json.loads((tmp_path / "out" / "shrinking.json").read_text())
    assert written["rows"] == result.rows == 167 and (tmp_path / "out" / "shrinking.png").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| 0 | 7 heads of size 8 | 5 heads of size 6 | 48 | 37 |" in card and str(tmp_path) not in card
    *_, predictions, _, last = str(result).splitlines()
    assert re.search(r"on 33 held-out rows: 100.0% of the rows have the same prediction, KL divergence", predictions)
    lowest, highest = written["speedup_range"]
    assert lowest <= written["speedup"] <= highest and last.startswith(f"{written['speedup']:.2f} times as fast")


@pytest.mark.parametrize("problem_type, unit", [("multi_label_classification", "row"), ("regression", "score")])
def test_several_labels_and_targets(rows, tmp_path, problem_type, unit):
    """Models with several labels per text or several targets are pruned without changing their outputs or type."""
    fields = {"num_labels": 3, "problem_type": problem_type, "text_column_names": ["text"]}
    small = model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3, **fields).eval()
    large = to_fixed_head_bert(small, attention_head_size=8, num_attention_heads=7, intermediate_size=48)
    save(large, tmp_path / "large")
    result = shrink(tmp_path / "large", tmp_path / "out", params=small.num_parameters(), **rows)
    assert result.after.layers == [SMALL] * 3 and result.fidelity.divergence < 1e-6 and result.fidelity.unit == unit
    assert result.fidelity.agreement == (1.0 if unit == "row" else None)
    pruned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert all(getattr(pruned.config, name) == value for name, value in fields.items())


def test_embeddings(rows, tmp_path):
    """A model for embeddings is distilled for the similarities between texts, and reports nearest neighbours."""
    small = model_of("Model", **SHAPE, initializer_range=0.3).eval()
    large = to_fixed_head_bert(small, attention_head_size=8, num_attention_heads=7, intermediate_size=48)
    save_sentence_model(large, tmp_path / "large", "Pooling", "Normalize")
    context = ShrinkContext.load(
        ShrinkOptions(
            model=str(tmp_path / "large"), output_dir="", params=1, **rows | {"train_file": [rows["train_file"]]}
        )
    )
    embeddings = [normalize(predict(large, batch, context.loaded.pooling)[0].values) for batch in context.calibration]
    references, found = torch.cat(embeddings[::5]), context.predict(large, context.calibration[1])[0]
    expected = embeddings[1] @ references.T / (references @ references.T).std()
    assert found.kind == "classes" and torch.allclose(found.values, expected, atol=1e-4)
    result = shrink(tmp_path / "large", tmp_path / "out", params=small.num_parameters(), distil_steps=2, **rows)
    assert result.after.layers == [SMALL] * 3 and (result.fidelity.unit, result.fidelity.agreement) == ("text", 1)
    assert all(
        "build their index again" in text for text in (str(result), (tmp_path / "out" / "README.md").read_text())
    )
    assert SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True).encode(["the cat"]).shape == (1, 32)


def test_operations_are_counted_per_row(small, large, rows, tmp_path):
    """The report contains the small model's FLOPs for a row of average length if pruning recovers its shape."""
    width, tokens = small.config.hidden_size, 11
    (number, size, value_size), neurons = SMALL.heads, SMALL.neurons
    per_token = 2 * number * (size + value_size) * (2 * width + tokens) + 4 * width * neurons  # multiply and add
    result = shrink(large, tmp_path / "out", params=small.num_parameters(), **rows)
    assert (round(result.tokens), result.after.operations) == (tokens, 3 * tokens * per_token)
    assert result.after.layers == [SMALL] * 3


def test_fixed_shapes_and_empty_sublayers(large, rows, tmp_path):
    """The layers get exactly the requested sizes. A sublayer without heads or neurons keeps only its bias."""
    sizes = dict(num_attention_heads=[0, 7, 3], attention_head_size=[8, 3, 8], intermediate_size=[48, 0, 7])
    result = shrink(large, tmp_path / "out", **sizes, **rows)
    layers = result.after.layers
    assert [shape.heads.num_heads for shape in layers] == [0, 7, 3]
    assert [shape.neurons for shape in layers] == [48, 0, 7] and layers[1].heads == Heads(7, 3, 3)
    pruned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert layer_sizes(pruned) == layers
    assert "attention.output.dense.weight" not in dict(pruned.bert.encoder.layer[0].named_parameters())


def test_all_sublayers_can_be_empty(large, rows, tmp_path):
    """A model without any heads or neurons can be loaded and converted to an equivalent BERT."""
    result = shrink(large, tmp_path / "out", num_attention_heads=0, intermediate_size=0, **rows)
    assert result.after.layers == [LayerSize(Heads(0, 8, 8), 0)] * 3
    pruned = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = {"input_ids": torch.randint(5, 60, (3, 7))}
    with torch.no_grad():
        assert torch.allclose(to_bert(pruned)(**inputs).logits, pruned(**inputs).logits, atol=1e-5)


def test_several_processes_are_refused(large, rows, tmp_path, monkeypatch):
    """Several processes, which would share a directory and change distillation's batch size, are refused."""
    monkeypatch.setattr(PartialState(), "num_processes", 2)
    with pytest.raises(InputError, match="runs in a single process"):
        shrink(large, tmp_path / "out", num_attention_heads=1, **rows)
    assert not (tmp_path / "out").exists()


def test_refit_brings_hidden_states_closer(context):
    """The refit brings the hidden states for held-out rows closer to those of the original."""
    shapes = [LayerSize(Heads(3, 4, 4), 13)] * 3
    pruners = layer_pruners(context)
    pruned, refitted = (prune_layers(context.original, pruners, shapes) for _ in range(2))
    has_graph = []
    refitted.bert.encoder.layer[2].intermediate.register_forward_hook(lambda *x: has_graph.append(x[2].requires_grad))
    refit(context.original, refitted, context.calibration)
    assert has_graph and not any(has_graph)  # a graph over all layers and rows would fill the memory

    @torch.no_grad()
    def distance(model):
        changes = (model.bert(**x).last_hidden_state - context.original.bert(**x)[0] for x in context.held_out)
        return sum(float(change.square().sum()) for change in changes)

    assert distance(refitted) < 0.7 * distance(pruned)


def test_statistics_ignore_padding(context):
    """The statistics are the same for a padded batch and for its rows without padding."""
    batch = {name: x[:4] for name, x in context.calibration[5].items()}
    batch["attention_mask"] = batch["attention_mask"].clone()
    batch["attention_mask"][1, 3:] = batch["attention_mask"][3, 2:] = 0
    rows = []
    for row in range(4):
        length = int(batch["attention_mask"][row].sum())
        rows.append({name: x[row : row + 1, :length] for name, x in batch.items()})
    result = []
    for batches in ([batch] * 12, rows * 12):
        torch.manual_seed(0)
        result.append(collect_statistics(context.original, batches, [{2, 4, 8}] * 3))
    for one, other in zip(*result, strict=True):
        for name in ("heads", "neurons", "queries", "keys"):
            assert torch.allclose(getattr(one, name).uncentered, getattr(other, name).uncentered, rtol=1e-4, atol=1e-6)
        assert {*one.score_errors} == {2, 4} and all(errors.shape == (7,) for errors in one.score_errors.values())


DISTILLED = {"num_attention_heads": [2, 0, 2], "intermediate_size": 7, "learning_rate": 1e-3}


@pytest.fixture
def in_float32(monkeypatch):
    """Distils in float32, which makes results reproducible."""
    monkeypatch.setattr("fixedbert.shrinking.distillation.is_bf16_faster", lambda _: False)


def test_distillation_improves(large, rows, tmp_path, in_float32):
    """Distillation brings the predictions closer to those of the original, even if a layer has no heads."""
    result = shrink(large, tmp_path / "out", distil_steps=100, **DISTILLED, **rows)
    assert result.distil_steps == 100 and result.distilled.divergence < 0.8 * result.fidelity.divergence
    assert "after 100 distillation steps: " in str(result)
    assert not list((tmp_path / "out").glob("c*-*")) and not (tmp_path / "out" / "pruned").exists()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_distilled_in_float32(large, rows, tmp_path, monkeypatch, dtype):
    """Both models are in float32 during distillation. The new model has the dtype of the original again."""
    monkeypatch.setattr("fixedbert.shrinking.distillation.is_bf16_faster", lambda _: True)  # mixed precision
    save(AutoModelForSequenceClassification.from_pretrained(large, dtype=dtype), tmp_path / "half")
    trained = []

    def record_dtypes(trainer, checkpoint):
        train(trainer, checkpoint)
        trained.extend([trainer.model.dtype, trainer.original.dtype])

    monkeypatch.setattr(shrinking, "train", record_dtypes)
    shrink(str(tmp_path / "half"), tmp_path / "out", distil_steps=3, **DISTILLED, **rows)
    assert trained == [torch.float32] * 2
    assert {x.dtype for x in weights_in(tmp_path / "out").values()} == {getattr(torch, dtype)}


def test_distillation_resumes(large, rows, tmp_path, monkeypatch, in_float32):
    """A run that is stopped at any time uses the same pruned model when resumed, and ends with the same weights."""
    compute_loss, remove = DistillationTrainer.compute_loss, shutil.rmtree

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    def interrupt_second_step(trainer, *arguments, **options):
        return interrupt() if trainer.state.global_step else compute_loss(trainer, *arguments, **options)

    def interrupt_after_first(directory, *arguments, **options):
        remove(directory, *arguments, **options)
        if Path(directory).with_name("shrinking.json").exists():
            interrupt()

    shrink(large, tmp_path / "complete", distil_steps=3, **DISTILLED, **rows)
    for name, patched in {
        "in the second step": (DistillationTrainer, "compute_loss", interrupt_second_step),
        "after training": (DistillationTrainer, "save_state", interrupt),
        "while removing checkpoints": (shutil, "rmtree", interrupt_after_first),
    }.items():
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*patched)
            shrink(large, tmp_path / name, distil_steps=3, **DISTILLED, **rows)
        assert (tmp_path / f"{name}.partial" / "pruned").exists()
        with monkeypatch.context() as patch:
            patch.setattr(shrinking, "prune", interrupt)
            shrink(large, tmp_path / name, distil_steps=3, **DISTILLED, **rows)
        assert same_weights(tmp_path / "complete", tmp_path / name), name


def test_harmful_distillation_is_discarded(large, rows, context, tmp_path, capsys):
    """If distillation makes the predictions worse, the pruned model is written, and a message is printed."""
    options = {"num_attention_heads": 4, "intermediate_size": 13, "distil_steps": 3, "learning_rate": 0.5}
    result = shrink(large, tmp_path / "out", **options, **rows)
    assert result.distilled is None and "distillation did not help" in capsys.readouterr().out
    written = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    again = measure_fidelity(context.original, written, context.held_out)
    assert again.divergence == pytest.approx(result.fidelity.divergence, rel=1e-4)
    assert not (tmp_path / "out" / "pruned").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": 2e4, "max_train_samples": 10}, r"rows contain \d+ tokens, but a layer with 56 neurons needs"),
        ({"num_attention_heads": [7, 8, 7]}, "layer 1 with 7 heads of size 8 and 48 neurons cannot shrink to 8 heads"),
        ({"params": 1}, r"`params` 1: must be at least \d+, for the smallest possible model, and below \d+"),
    ],
)
def test_invalid_arguments(large, rows, tmp_path, options, message):
    """Too few rows and unreachable targets raise InputError, and nothing is written."""
    with pytest.raises(InputError, match=message):
        shrink(large, tmp_path / "out", **options, **rows)
    assert not list(tmp_path.glob("out*"))


def test_layers_without_heads_cannot_be_shrunk(rows, tmp_path):
    """Models with layers that have no heads raise InputError."""
    save(model_of("ForSequenceClassification", **SHAPE, layer_attention_heads=[0, 5, 5]), tmp_path / "model")
    with pytest.raises(InputError, match="a layer has no heads or no neurons"):
        shrink(tmp_path / "model", tmp_path / "out", params=1e4, **rows)


def test_several_targets(large, rows, tmp_path, monkeypatch):
    """For several speedups, statistics are collected once, and each model gets a directory and the requested dtype."""

    def price(part):
        return part if isinstance(part, int) else part.num_heads * (part.size + part.value_size)

    monkeypatch.setattr(shrinking, "prices_for", lambda context: Prices([price] * 3, context.shapes, 0.0))
    monkeypatch.setattr(ShrinkContext, "measure_speedup", lambda *_: Speedup(3.0, 2.0, 1.5, 1.4, 1.6))
    options = {"speedup": [1.2, 1.5], "dtype": "bfloat16", "unpad_inputs": True}
    collect = Mock(wraps=shrinking.collect_statistics)
    monkeypatch.setattr(shrinking, "collect_statistics", collect)
    family = shrink(large, tmp_path / "out", **options, **rows)
    assert [Path(result.folder).name for result in family.results] == ["1.2x", "1.5x"] and collect.call_count == 1
    assert family.results[0].after.parameters >= family.results[1].after.parameters
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"1.2x", "1.5x", "models.txt"}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "1.5x")
    assert model.dtype == torch.bfloat16 and model.base_model.unpad_inputs
    assert "without padding, in bfloat16" in (tmp_path / "out" / "1.5x" / "README.md").read_text()


def test_fastest_serving(context, monkeypatch):
    """Without options, the fastest way to serve the original is chosen. A dtype or padding can be requested."""
    model = context.original
    batches = serving.random_batches([{"attention_mask": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])}], 5)
    assert sorted(batches[0]["attention_mask"].sum(1).tolist()) == [1, 3]
    times = {
        (True, torch.float32): 2,
        (True, torch.bfloat16): 1,
        (False, torch.float32): 3,
        (False, torch.bfloat16): 4,
    }

    def seconds(choices, *_):
        return [[times[tuple(choice)]] for choice in choices]

    monkeypatch.setattr(serving, "has_bf16", lambda **_: True)
    monkeypatch.setattr(serving.Serving, "forward_passes", lambda choice, *_: choice)
    monkeypatch.setattr(serving, "interleaved", seconds)
    assert serving.fastest_serving(model, batches, None, None) == (True, torch.bfloat16)
    assert serving.fastest_serving(model, batches, False, None) == (False, torch.float32)
    monkeypatch.setattr(serving, "has_bf16", lambda **_: False)
    assert serving.fastest_serving(model, batches, None, None) == (True, torch.float32)
    assert serving.fastest_serving(model, batches, False, torch.bfloat16) == (False, torch.bfloat16)
