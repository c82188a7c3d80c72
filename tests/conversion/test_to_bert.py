"""The stock twin: a BERT of transformers of the same width computes what the model computes."""

import json

import pytest
import torch
import transformers
from helpers.tiny_models import HEADS, bert_of, config_of, inputs_of, model_of

from fixedbert import convert, to_bert
from fixedbert.conversion.to_bert import bert_head_count
from fixedbert.support.errors import InputError
from fixedbert_cli import main

SAME_WIDTH = {
    "zero heads": {"attention_head_size": 4},
    "larger heads": {"num_attention_heads": 3},
    "every layer its own": {
        "num_attention_heads": 4,
        "layer_attention_heads": [4, 1, 2],
        "attention_head_size": [6, 8, 3],
        "value_head_size": [3, 8, 5],
    },
    "add": {"attention_head_size": 4, "head_embedding": "add"},
    "mul": {"attention_head_size": 4, "head_embedding": "mul"},
    "add, values of their own": {"attention_head_size": 4, "head_embedding": "add", "value_head_size": 3},
}


def random_model(head: str, **changes):
    """In float64, without a parameter that is zero or one, which would hide mistakes."""
    model = model_of(head, **changes).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
def assert_twins(model, twin, inputs: dict):
    """Outputs of the twin are those of the model."""
    assert type(twin).__module__.startswith("transformers.models.bert")
    outputs = (network(**inputs, return_dict=True).to_tuple() for network in (model, twin))
    pairs = [(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, torch.Tensor)]
    assert pairs
    assert all((a - b).abs().max() <= 1e-10 for a, b in pairs)


@pytest.mark.parametrize("changes", SAME_WIDTH.values(), ids=SAME_WIDTH)
def test_twin_of_the_same_width(changes):
    """Guards: zero heads, larger heads, unequal layers and values and shared projections all become BERT's heads."""
    model = random_model("ForPreTraining", **changes)
    assert_twins(model, to_bert(model), inputs_of("ForPreTraining"))


@pytest.mark.parametrize("head", HEADS)
def test_twin_of_every_head(head):
    """Guards: every head class has its twin."""
    model = random_model(head, attention_head_size=4)
    assert_twins(model, to_bert(model), inputs_of(head))


def test_all_hidden_states_and_attentions():
    """Guards: each layer by itself has the hidden states, and the heads the probabilities of before."""
    model = random_model("Model", attention_head_size=4).eval()
    twin = to_bert(model)
    for network in (model, twin):
        network.set_attn_implementation("eager")
    inputs = inputs_of("Model") | {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        one, other = model(**inputs), twin(**inputs)
    for a, b in zip(one.hidden_states, other.hidden_states, strict=True):
        assert (a - b).abs().max() <= 1e-10
    for a, b in zip(one.attentions, other.attentions, strict=True):
        assert b.shape[1] == 8 and (a - b[:, :5]).abs().max() <= 1e-10


def test_twin_without_a_pooler():
    """Guards: none is invented."""
    config = config_of("Model", attention_head_size=4)
    model = type(model_of("Model"))(config, add_pooling_layer=False).double().eval()
    twin = to_bert(model)
    assert twin.pooler is None
    assert_twins(model, twin, inputs_of("Model"))


def test_twin_of_what_was_a_roberta():
    """Guards: of a RoBERTa with more heads the twin is a BERT."""
    model = convert(bert_of("ForSequenceClassification", "Roberta").double(), num_attention_heads=4)
    assert_twins(model, to_bert(model), inputs_of("ForSequenceClassification"))


@pytest.mark.parametrize(
    ("heads", "size", "expected"), [(4, 8, 4), (3, 8, 4), (5, 4, 8), (3, 2, 4), (1, 32, 1), (1, 9, 1)]
)
def test_fewest_heads(heads, size, expected):
    """Guards: of all twins with as many parameters the one that computes the fewest scores is taken."""
    assert bert_head_count(config_of("Model", num_attention_heads=heads, attention_head_size=size)) == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_attention_heads": 5}, "no BERT of width 32 has at least 5 heads of size 6"),
        ({"num_attention_heads": 1, "attention_head_size": 33}, "no BERT of width 32 has at least 1 heads of size 33"),
        ({"num_attention_heads": 4, "value_head_size": 9}, "no BERT of width 32 has at least 4 heads of size 9"),
        ({"num_attention_heads": 4, "qk_norm": True}, "qk_norm"),
        ({"num_attention_heads": 4, "pooler_hidden_act": "relu"}, "pooler_hidden_act"),
    ],
)
def test_models_without_an_equal_bert_are_refused(changes, message):
    """Guards: heads that no BERT of this width can hold, qk_norm and a different pooler raise an error."""
    with pytest.raises(InputError, match=message):
        to_bert(model_of("Model", **changes))


@pytest.mark.parametrize("changes", [{}, {"num_attention_heads": 3}], ids=["heads", "dimensions"])
def test_what_was_added_stays_zero_in_training(changes):
    """Guards: a twin of the same width trains as the model does: what was added gets no gradient."""
    model = random_model("ForSequenceClassification", attention_head_size=4, **changes)
    twin = to_bert(model)
    inputs = inputs_of("ForSequenceClassification", labels=True)
    for network in (model, twin):
        network(**inputs).loss.backward()
    heads, size = model.config.num_attention_heads, 4
    new_heads = twin.config.num_attention_heads
    scale = (32 / new_heads / size) ** 0.5  # of queries, whose gradient is divided by it
    for one, other in zip(model.bert.encoder.layer, twin.bert.encoder.layer, strict=True):
        for part, divisor in (("query.weight", scale), ("query.bias", scale), ("key.weight", 1), ("value.weight", 1)):
            old = one.attention.self.get_parameter(part).grad.view(heads, size, -1) / divisor
            new = other.attention.self.get_parameter(part).grad.view(new_heads, 32 // new_heads, -1).clone()
            assert (new[:heads, :size] - old).abs().max() <= 1e-10 and old.any()
            new[:heads, :size] = 0
            assert not new.any()
        output = other.attention.output.dense.weight.grad.view(32, new_heads, -1).clone()
        output[:, :heads, :size] = 0
        assert not output.any()


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "ForSequenceClassification"])
def test_round_trip_is_exact(head):
    """Guards: BERT to FixedHeadBert and back is BERT, bit for bit, with its configuration."""
    bert = bert_of(head)
    back = to_bert(convert(bert))
    assert type(back) is type(bert)
    assert back.state_dict().keys() == bert.state_dict().keys()
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in bert.state_dict().items())
    of_saving = {"architectures": None, "dtype": None}
    assert back.config.to_diff_dict() | of_saving == bert.config.to_diff_dict() | of_saving


def test_command_writes_the_twin_of_a_sentence_model(tmp_path, vocabulary, capsys):
    """Guards: the twin of a sentence-transformers model has its modules and gives its embeddings."""
    source, twin = tmp_path / "model", tmp_path / "twin"
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    model_of("Model", vocab_size=len(tokenizer), attention_head_size=4).save_pretrained(source)
    tokenizer.save_pretrained(source)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling")])
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    main(["convert", str(source), "--output_dir", str(twin), "--bert"])
    difference = capsys.readouterr().out.split("largest difference between outputs ")[1].split("\n")[0]
    assert float(difference) < 1e-4
    sentence_transformers = pytest.importorskip("sentence_transformers")
    embeddings = [
        sentence_transformers.SentenceTransformer(str(place), device="cpu").encode(["one two", "three"])
        for place in (source, twin)
    ]
    assert embeddings[1].shape == (2, 32) and abs(embeddings[0] - embeddings[1]).max() < 1e-5
