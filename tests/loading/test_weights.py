"""Tests that every command refuses checkpoints with missing, unexpected or invalid weights in the base model."""

from pathlib import Path

import pytest
import torch
from helpers.outputs import configure, weights_in
from helpers.tiny_models import bert_of
from safetensors.torch import save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertTokenizer,
    PreTrainedModel,
)

from fixedbert.inspection.inspect import load_checkpoint as load_to_inspect
from fixedbert.loading.checkpoints import load_bert
from fixedbert.options import ModelOptions
from fixedbert.support.errors import InputError
from fixedbert.training.models import load_config, load_model

LAYER = "bert.encoder.layer.1."
QUERY = LAYER + "attention.self.query.weight"


@pytest.fixture
def folder(tmp_path, vocabulary):
    """Directory with a BERT for pretraining and its tokenizer."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    bert_of("ForPreTraining", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def write(folder: Path, tensors: dict[str, torch.Tensor]):
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_pickle(folder: Path, content: object):
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin")


def to_train(folder: Path, auto_class=AutoModelForSequenceClassification, train=True, **arguments) -> PreTrainedModel:
    """Loads a model in the same way as run_glue, run_squad and run_pretraining."""
    options = ModelOptions(model_name_or_path=str(folder), **arguments)
    tokenizer = BertTokenizer.from_pretrained(folder)
    return load_model(auto_class, options, load_config(options), tokenizer, train)


FLOWS = {
    "run_glue": to_train,
    "run_squad": lambda folder: to_train(folder, AutoModelForQuestionAnswering),
    "run_pretraining": lambda folder: to_train(folder, AutoModelForPreTraining),
    "convert, shrink, export": load_bert,
    "inspect": lambda folder: load_to_inspect(str(folder), 8),
}


def check_refused(place: Path, *parts: str, flows=FLOWS):
    """Asserts that each of `flows` raises an error whose message starts with `place` and contains all `parts`."""
    for name in flows:
        with pytest.raises(InputError) as error:
            FLOWS[name](place.parent if place.suffix else place)
        sentence = str(error.value)
        assert sentence.startswith(str(place)) and sentence.endswith("."), name
        assert all(part in sentence for part in parts), (name, sentence)


def test_incomplete_base_model(folder, caplog):
    """A missing layer or bias is an error. transformers logs no report itself."""
    tensors = weights_in(folder)
    for part in (LAYER, "query.bias"):
        write(folder, {name: tensor for name, tensor in tensors.items() if part not in name})
        check_refused(folder, "weights are missing for", "the file is incomplete")
    assert not caplog.records


def test_unexpected_base_model_weights(folder):
    """Relative positions and adapter weights raise an error instead of being dropped."""
    tensors = weights_in(folder)
    for extra in (LAYER + "attention.self.distance_embedding.weight", "bert.adapters.0.weight"):
        write(folder, tensors | {extra: torch.ones(3, 3)})
        check_refused(folder, f"has no parameters for {extra!r}")
    write(folder, tensors)
    configure(folder, position_embedding_type="relative_key")
    check_refused(folder, "position_embedding_type 'relative_key' is no longer supported")


def test_task_heads_may_be_missing_or_unused(folder):
    """Models load without a task head or pooler, and with another task head."""
    tensors = weights_in(folder)
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    no_pooler = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    for names in (bare, no_pooler):
        write_pickle(folder, names)
        for auto_class in (AutoModelForPreTraining, AutoModelForMaskedLM, AutoModelForQuestionAnswering):
            model = to_train(folder, auto_class)
            assert torch.equal(model.state_dict()[QUERY], tensors[QUERY])
        load_to_inspect(str(folder), 8)


def test_base_model_is_never_reinitialized(folder):
    """--ignore_mismatched_sizes never initializes weights of the base model."""
    with pytest.raises(InputError, match="layer.0.intermediate.dense.bias has shape .37,., but the configuration"):
        to_train(folder, config_overrides={"intermediate_size": 36}, ignore_mismatched_sizes=True)


def test_precision_of_the_file_is_kept(folder):
    """The model has the precision of the file or that of the configuration, whichever is higher."""
    tensors = weights_in(folder)
    half = {name: tensor.half() for name, tensor in tensors.items()}
    for dtype, weights, expected in (
        ("float16", tensors, torch.float32),
        ("float16", half, torch.float16),
        ("float32", half, torch.float32),
        ("float16", half | {QUERY: tensors[QUERY]}, torch.float32),
        ("bfloat16", half, torch.float32),  # neither can represent all numbers of the other
    ):
        configure(folder, dtype=dtype)
        write(folder, weights)
        model = load_bert(folder)
        assert model.dtype == expected and torch.equal(model.state_dict()[QUERY], weights[QUERY].to(expected))


def test_weights_are_finite_floating_point_numbers(folder):
    """Every command refuses quantized weights, which are meaningless without their scales, and NaN."""
    tensors = weights_in(folder)
    write(folder, tensors | {QUERY: tensors[QUERY].to(torch.float8_e4m3fn)})
    check_refused(folder, f"{QUERY} has dtype ", "not quantized")
    tensors[QUERY][3, 5] = float("nan")
    write(folder, tensors)
    check_refused(folder, "encoder.layer.1.attention.self.query.weight contains NaN or infinity")
