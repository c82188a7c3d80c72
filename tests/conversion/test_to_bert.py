"""Tests the conversion of a FixedHeadBert to a transformers BERT with the same outputs."""

import pytest
import torch
import transformers
from helpers.tiny_checkpoints import save_sentence_model
from helpers.tiny_models import HEADS, inputs_of, model_of

from fixedbert import to_bert
from fixedbert.support.errors import InputError
from fixedbert_cli import main

SAME_WIDTH = {
    "zero heads": {"attention_head_size": 4},
    "larger heads": {"num_attention_heads": 3},
    "unequal layers": {
        "num_attention_heads": 4,
        "layer_attention_heads": [4, 1, 2],
        "attention_head_size": [6, 8, 3],
        "value_head_size": [3, 8, 5],
    },
    "add": {"attention_head_size": 4, "head_embedding": "add"},
    "mul": {"attention_head_size": 4, "head_embedding": "mul"},
    "add, different value size": {"attention_head_size": 4, "head_embedding": "add", "value_head_size": 3},
}


def random_model(head: str, **changes):
    """Returns a float64 model with random values for all parameters, because zeros and ones would hide mistakes."""
    model = model_of(head, **changes).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
def assert_equal_outputs(model, bert, inputs: dict):
    """Asserts that `bert` is a transformers BERT with the same outputs as `model`."""
    assert type(bert).__module__.startswith("transformers.models.bert")
    outputs = (network(**inputs, return_dict=True).to_tuple() for network in (model, bert))
    pairs = [(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, torch.Tensor)]
    assert pairs
    assert all((a - b).abs().max() <= 1e-10 for a, b in pairs)


@pytest.mark.parametrize("changes", SAME_WIDTH.values(), ids=SAME_WIDTH)
def test_every_kind_of_attention_becomes_bert(changes):
    """Smaller and larger heads, unequal layers, value sizes and shared projections all convert to BERT's heads."""
    model = random_model("ForPreTraining", **changes)
    assert_equal_outputs(model, to_bert(model), inputs_of("ForPreTraining"))


@pytest.mark.parametrize("head", HEADS)
def test_every_task_head_becomes_bert(head):
    """Models with any task head become a BERT with the same outputs."""
    model = random_model(head, attention_head_size=4)
    assert_equal_outputs(model, to_bert(model), inputs_of(head))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_attention_heads": 5}, "5 heads of size 6 do not fit in a BERT of width 32"),
        ({"num_attention_heads": 4, "qk_norm": True}, "qk_norm"),
        ({"num_attention_heads": 4, "pooler_hidden_act": "relu"}, "pooler_hidden_act"),
    ],
)
def test_models_without_an_equal_bert_are_refused(changes, message):
    """Too many heads for the width, qk_norm and an unsupported pooler activation raise an error."""
    with pytest.raises(InputError, match=message):
        to_bert(model_of("Model", **changes))


@pytest.mark.parametrize("changes", [{}, {"num_attention_heads": 3}], ids=["heads", "dimensions"])
def test_added_weights_stay_zero_in_training(changes):
    """Added weights get no gradient, so the BERT trains like the original model."""
    model = random_model("ForSequenceClassification", attention_head_size=4, **changes)
    bert = to_bert(model)
    inputs = inputs_of("ForSequenceClassification", labels=True)
    for network in (model, bert):
        network(**inputs).loss.backward()
    heads, size = model.config.num_attention_heads, 4
    new_heads = bert.config.num_attention_heads
    scale = (32 / new_heads / size) ** 0.5  # divides the gradients of the queries
    for one, other in zip(model.bert.encoder.layer, bert.bert.encoder.layer, strict=True):
        for part, divisor in (("query.weight", scale), ("query.bias", scale), ("key.weight", 1), ("value.weight", 1)):
            old = one.attention.self.get_parameter(part).grad.view(heads, size, -1) / divisor
            new = other.attention.self.get_parameter(part).grad.view(new_heads, 32 // new_heads, -1).clone()
            assert (new[:heads, :size] - old).abs().max() <= 1e-10 and old.any()
            new[:heads, :size] = 0
            assert not new.any()
        output = other.attention.output.dense.weight.grad.view(32, new_heads, -1).clone()
        output[:, :heads, :size] = 0
        assert not output.any()


def test_command_converts_a_sentence_transformers_model(tmp_path, vocabulary, capsys):
    """A sentence-transformers model keeps its modules and its embeddings."""
    source, bert = tmp_path / "model", tmp_path / "bert"
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    model = model_of("Model", vocab_size=len(tokenizer), attention_head_size=4)
    save_sentence_model(model, source, "Pooling", settings={"max_seq_length": 11})
    tokenizer.save_pretrained(source)
    main(["convert", str(source), "--output_dir", str(bert), "--bert"])
    difference = capsys.readouterr().out.split("largest difference between outputs ")[1].split("\n")[0]
    assert float(difference) < 1e-4
    sentence_transformers = pytest.importorskip("sentence_transformers")
    embeddings = [
        sentence_transformers.SentenceTransformer(str(directory), device="cpu").encode(["one two", "three"])
        for directory in (source, bert)
    ]
    assert embeddings[1].shape == (2, 32) and abs(embeddings[0] - embeddings[1]).max() < 1e-5
