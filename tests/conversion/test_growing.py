"""Tests that growing a model keeps its function up to rounding, and that all new weights learn."""

import pytest
import torch
import transformers
from helpers.tiny_models import BERT_HEADS, SHAPE, bert_of, differences, inputs_of, model_of

from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.loading.checkpoints import load_bert
from fixedbert.support.errors import InputError

# (number of heads, head size) to which 4 heads of size 8 grow. No new size is a square number times the old one.
GROWN = [(4, 8), (4, 13), (9, 8), (5, 64)]


@pytest.mark.parametrize("heads, size, dtype", [*((*sizes, torch.float64) for sizes in GROWN), (5, 64, torch.float32)])
@pytest.mark.parametrize("head", BERT_HEADS)
def test_bert_keeps_its_function(head, heads, size, dtype):
    """With more and larger heads, and then with more neurons, every model class computes the same outputs as BERT."""
    scale, tolerance = ({}, 1e-10) if dtype == torch.float64 else ({"initializer_range": 0.1}, 1e-5)
    bert = bert_of(head, **scale).to(dtype)
    model = to_fixed_head_bert(bert, attention_head_size=size, num_attention_heads=heads)
    assert type(model).__name__ == f"FixedHeadBert{head}" and model.dtype == dtype
    assert (model.config.num_attention_heads, model.config.attention_head_size) == (heads, size)
    difference = differences(model, bert, inputs_of(head))
    assert difference <= tolerance
    if (heads, size) == (4, 8):
        assert difference == 0
    wider = to_fixed_head_bert(model, intermediate_size=53)
    assert wider.config.intermediate_size == 53
    assert differences(wider, bert, inputs_of(head)) <= tolerance


SHARED = [{"head_embedding": how, **sizes} for how in ("add", "mul") for sizes in ({}, {"value_head_size": 9})]


@pytest.mark.parametrize("changes", [{}, *SHARED, {"qk_norm": True}])
@pytest.mark.parametrize("heads, size", [(5, 13), (7, 6), (8, 9)])
def test_fixed_heads_grow(changes, heads, size):
    """All types of attention grow without changing the outputs, even if the head count does not divide the width."""
    model = model_of("ForMaskedLM", **changes).double().eval()
    size = 6 if changes.get("qk_norm") else size
    values = 11 if "value_head_size" in changes else None
    larger = to_fixed_head_bert(model, attention_head_size=size, num_attention_heads=heads, value_head_size=values)
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10


@pytest.mark.parametrize("changes", [{}, {"head_embedding": "add"}, {"head_embedding": "mul"}])
def test_layers_grow_separately(changes):
    """A list with one size per layer changes only the layers whose size differs."""
    model = model_of("ForMaskedLM", **changes).double().eval()
    first = to_fixed_head_bert(model, attention_head_size=[6, 13, 6])
    then = to_fixed_head_bert(first, attention_head_size=[7, 13, 9], num_attention_heads=7)
    even = to_fixed_head_bert(then, attention_head_size=13)
    for larger, sizes in ((first, [6, 13, 6]), (then, [7, 13, 9]), (even, [13, 13, 13])):
        assert larger.config.head_sizes == sizes and differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(first.get_parameter(name), model.get_parameter(name))
    assert even.config.attention_head_size == 13


UNEQUAL = {"value_head_size": [9, 4, 6], "layer_attention_heads": [2, 5, 3]}


@pytest.mark.parametrize(
    "sizes, shape",
    [
        ({}, ([2, 5, 3], [6, 6, 6], [9, 4, 6])),
        ({"attention_head_size": 13}, ([2, 5, 3], [13, 13, 13], [9, 4, 6])),
        ({"value_head_size": [9, 5, 9]}, ([2, 5, 3], [6, 6, 6], [9, 5, 9])),
        ({"num_attention_heads": 7, "value_head_size": 9, "attention_head_size": 9}, ([7] * 3, [9] * 3, [9] * 3)),
    ],
)
def test_values_and_head_counts_grow_separately(sizes, shape):
    """The value sizes and head counts of the layers change only if new ones are passed."""
    model = model_of("ForMaskedLM", **UNEQUAL).double().eval()
    larger = to_fixed_head_bert(model, **sizes)
    config = larger.config
    assert (config.head_counts, config.head_sizes, config.value_head_sizes) == shape
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10
    assert (config.layer_attention_heads is None) == (len(set(shape[0])) == 1)
    assert (config.value_head_size is None) == (shape[1] == shape[2])


@pytest.mark.parametrize(
    "sizes", [{"intermediate_size": [4, 41, 37]}, {"intermediate_size": 39, "num_attention_heads": 7}]
)
def test_layers_without_heads_or_neurons_grow(sizes):
    """Layers with different numbers of heads and neurons, or with none, grow without changing the outputs."""
    changes = {"layer_attention_heads": [5, 0, 3], "intermediate_size": [0, 11, 37]}
    model = model_of("ForMaskedLM", **changes).double().eval()
    new = to_fixed_head_bert(model, **sizes)
    assert new.config.intermediate_size == sizes["intermediate_size"]
    assert new.config.head_counts == ([7] * 3 if "num_attention_heads" in sizes else [5, 0, 3])
    assert differences(model, new, inputs_of("ForMaskedLM")) < 1e-10


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForCausalLM", "ForSequenceClassification",
                                  "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"])  # fmt: skip
@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert"])
def test_roberta_keeps_its_function(family, head):
    """RoBERTa models keep their outputs, despite different parameter names, position ids and classifiers."""
    bert = bert_of(head, family, type_vocab_size=1).double()
    model = to_fixed_head_bert(bert, attention_head_size=13, intermediate_size=53)
    ours = "LMHeadModel" if head == "ForCausalLM" else head
    inputs = inputs_of(ours)
    ids = inputs["input_ids"]
    ids[ids == 1] = 2  # no padding within the text
    ids[inputs["attention_mask"] == 0] = 1
    inputs["token_type_ids"] = torch.zeros_like(ids)
    one, other = (network(**inputs, return_dict=True).to_tuple() for network in (bert, model))
    mask = inputs["attention_mask"].bool()
    compared = 0
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor):
            if a.shape[: mask.ndim] == mask.shape and head != "ForMultipleChoice":
                a, b = a[mask], b[mask]
            assert (a - b).abs().max() <= 1e-10
            compared += 1
    assert compared and model.config.max_position_embeddings == 11


@pytest.mark.parametrize("changes", [{}, {"head_embedding": "add"}, {"head_embedding": "mul"}])
def test_new_weights_learn(changes):
    """Zero weights get a gradient in the first step, and all new weights change within three steps."""
    model = model_of("ForMaskedLM", initializer_range=0.1, **changes).double()
    larger = to_fixed_head_bert(model, attention_head_size=13, num_attention_heads=7, intermediate_size=53).train()
    for module in larger.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    inputs = inputs_of("ForMaskedLM", labels=True)
    before = {name: parameter.detach().clone() for name, parameter in larger.named_parameters()}
    optimizer = torch.optim.SGD(larger.parameters(), lr=0.1)
    first = {}
    for step in range(3):
        optimizer.zero_grad()
        larger(**inputs).loss.backward()
        if step == 0:
            first = {name: parameter.grad.clone() for name, parameter in larger.named_parameters()}
        optimizer.step()

    old = dict(model.named_parameters())
    seen = 0
    for name, parameter in larger.named_parameters():
        if parameter.shape == old[name].shape:
            continue
        if name.endswith("key.bias"):  # shifts all scores of a query equally, so it has no gradient
            assert first[name].abs().max() < 1e-15
            continue
        moved = parameter != before[name]
        if name.endswith("head_embedding") and changes["head_embedding"] == "add":
            moved[1] = True  # key embeddings act like a bias and need not change
        assert moved.all(), name
        if name.endswith("output.dense.weight"):
            assert (first[name] != 0).all(), name
        if name.endswith("query.weight"):  # zero queries, whose keys are random
            assert (first[name].view(-1, 13, 32)[: 1 if changes else 5, 6:] != 0).all(), name
        seen += 1
    assert seen >= 3 * 8


def test_seed_determines_new_heads():
    """New heads differ from each other, and the same seed gives the same weights."""
    model = model_of("Model")
    one, same, other = (to_fixed_head_bert(model, num_attention_heads=8, seed=seed) for seed in (1, 1, 2))
    names = [name for name, _ in one.named_parameters()]
    assert all(torch.equal(one.get_parameter(name), same.get_parameter(name)) for name in names)
    query = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(one.get_parameter(query), other.get_parameter(query))
    added = one.get_parameter(query).detach().view(8, 6, 32)[5:]
    assert not torch.equal(added[0], added[1]) and added.std() == pytest.approx(0.5, rel=0.1)


def test_no_memory_is_shared():
    """The new model shares no memory with the old one, and its embeddings are tied."""
    bert = bert_of("ForPreTraining")
    addresses = {parameter.data_ptr() for parameter in bert.parameters()}
    for size in (8, 13):
        model = to_fixed_head_bert(bert, attention_head_size=size)
        assert not addresses & {parameter.data_ptr() for parameter in model.parameters()}
        tied = model.cls.predictions.decoder.weight
        assert tied is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_model_without_a_pooler_gets_none(family, tmp_path):
    """Encoders without a pooler convert from memory and from disk, and get no new pooler."""
    config = getattr(transformers, f"{family}Config")(**SHAPE, num_attention_heads=4, pad_token_id=1)
    bert = getattr(transformers, f"{family}Model")(config, add_pooling_layer=False).eval()
    bert.save_pretrained(tmp_path)
    ids = inputs_of("Model")["input_ids"].clamp(min=2)
    for source in (bert, load_bert(tmp_path)):
        model = to_fixed_head_bert(source, attention_head_size=9)
        assert model.pooler is None
        assert torch.allclose(model(ids).last_hidden_state, bert(ids).last_hidden_state, atol=1e-4)


@pytest.mark.parametrize(
    "changes, sizes, message",
    [
        ({}, {"attention_head_size": 5}, "5 heads of size 5 cannot represent 5 heads of size 6"),
        ({"value_head_size": 9}, {"value_head_size": 8}, "with values of size 8 cannot represent"),
        ({}, {"attention_head_size": [6, 13]}, "`attention_head_size` has 2 numbers for 3 layers"),
        ({}, {"intermediate_size": 36}, "`intermediate_size` must be at least 37, not 36"),
        ({"qk_norm": True}, {"attention_head_size": 13}, "a model with qk_norm cannot change"),
        ({"head_embedding": "add", "value_head_size": 9}, {"attention_head_size": 9}, "`value_head_size` must equal"),
        ({"qk_norm": True, "layer_attention_heads": [5, 0, 3]}, {"num_attention_heads": 5}, "do not match"),
    ],
)
def test_sizes_that_cannot_keep_the_function_are_refused(changes, sizes, message):
    """Sizes with which the new model could not represent the old one raise an error."""
    with pytest.raises(InputError, match=message):
        to_fixed_head_bert(model_of("Model", **changes), **sizes)
