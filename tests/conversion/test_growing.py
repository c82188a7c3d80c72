"""Conversion: the function stays the same to rounding, everything new learns, what is no BERT is refused by name."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from helpers.tensorflow_checkpoint import CONFIG, google_variables, write_checkpoint
from helpers.tiny_models import BERT_HEADS, HEADS, SHAPE, B, L, bert_of, config_of, differences, inputs_of, model_of
from safetensors.torch import load_file, save_file

import fixedbert
from fixedbert import convert, to_bert
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.conversion.convert import metadata_of
from fixedbert.support.errors import InputError
from fixedbert_cli import ArgumentError, main

# (heads, size) from 4 heads of 8 in width 32: larger, more, both, neither; no size a square number times the old one
GROWN = [(4, 8), (4, 13), (9, 8), (5, 64)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("heads, size", GROWN)
@pytest.mark.parametrize("head", BERT_HEADS)
def test_bert_keeps_its_function(head, heads, size, dtype, tolerance):
    """Guards: with larger heads, more heads or both, every head class computes what BERT computed."""
    scale = {} if dtype == torch.float64 else {"initializer_range": 0.1}
    bert = bert_of(head, **scale).to(dtype)
    model = convert(bert, attention_head_size=size, num_attention_heads=heads)
    assert type(model).__name__ == f"FixedHeadBert{head}" and model.dtype == dtype
    assert (model.config.num_attention_heads, model.config.attention_head_size) == (heads, size)
    difference = differences(model, bert, inputs_of(head))
    assert difference <= tolerance
    if (heads, size) == (4, 8):
        assert difference == 0


@pytest.mark.parametrize("changes", [{}, {"head_embedding": "add"}, {"head_embedding": "mul"}, {"qk_norm": True}])
@pytest.mark.parametrize("heads, size", [(5, 13), (7, 6), (8, 9)])
def test_fixed_heads_grow(changes, heads, size):
    """Guards: every kind of attention grows, from heads that do not divide the width, shared projections too."""
    model = model_of("ForMaskedLM", **changes).double().eval()
    if changes.get("qk_norm") and size != 6:
        with pytest.raises(InputError, match="with qk_norm .* only the number of heads can grow"):
            convert(model, attention_head_size=size)
        return
    larger = convert(model, attention_head_size=size, num_attention_heads=heads)
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10


@pytest.mark.parametrize("changes", [{}, {"head_embedding": "add"}, {"head_embedding": "mul"}])
def test_layers_grow_by_themselves(changes):
    """Guards: a list of sizes, one for each layer, grows just the layers that it names, from any sizes."""
    model = model_of("ForMaskedLM", **changes).double().eval()
    first = convert(model, attention_head_size=[6, 13, 6])
    assert first.config.attention_head_size == [6, 13, 6]
    then = convert(first, attention_head_size=[7, 13, 9], num_attention_heads=7)
    for larger, sizes in ((first, [6, 13, 6]), (then, [7, 13, 9])):
        assert [layer.attention.self.attention_head_size for layer in larger.bert.encoder.layer] == sizes
        assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(first.get_parameter(name), model.get_parameter(name))
    even = convert(then, attention_head_size=13)
    assert even.config.attention_head_size == 13 and differences(even, model, inputs_of("ForMaskedLM")) <= 1e-10


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
def test_values_and_heads_of_a_layer_grow_by_themselves(sizes, shape):
    """Guards: sizes of values and numbers of heads stay each layer's own unless they are given, with one function."""
    model = model_of("ForMaskedLM", **UNEQUAL).double().eval()
    larger = convert(model, **sizes)
    config = larger.config
    assert (config.head_counts, config.head_sizes, config.value_head_sizes) == shape
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10
    assert (config.layer_attention_heads is None) == (len(set(shape[0])) == 1)
    assert (config.value_head_size is None) == (shape[1] == shape[2])


def test_values_alone_become_larger():
    """Guards: values grow for themselves, which makes two sizes of one."""
    model = model_of("ForMaskedLM").double().eval()
    larger = convert(model, value_head_size=11)
    assert (larger.config.attention_head_size, larger.config.value_head_size) == (6, 11)
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10


@pytest.mark.parametrize("how", ["add", "mul"])
def test_shared_projections_with_two_sizes_grow(how):
    """Guards: head embeddings of values grow by their own size; one size does not become two."""
    model = model_of("ForMaskedLM", head_embedding=how, value_head_size=9).double().eval()
    larger = convert(model, attention_head_size=13, num_attention_heads=7, value_head_size=11)
    assert differences(larger, model, inputs_of("ForMaskedLM")) <= 1e-10
    with pytest.raises(InputError, match="with head_embedding queries, keys and values keep one size, or keep two"):
        convert(model, attention_head_size=9)


def test_values_that_are_too_small_are_refused():
    """Guards: values cannot shrink, and the sentence names their flag."""
    model = model_of("Model", value_head_size=9)
    sentence = "5 heads of 6 with values of 8 cannot represent 5 heads of 6 with values of 9: .* `value_head_size` 9"
    with pytest.raises(InputError, match=sentence):
        convert(model, value_head_size=8)


@pytest.mark.parametrize("changes", [{}, {"head_embedding": "add", "hidden_act": "silu"}, {"qk_norm": True}, UNEQUAL])
@pytest.mark.parametrize("head", HEADS)
def test_neurons_are_added(head, changes):
    """Guards: every head class and kind of attention keeps its function with more neurons, alone and beside heads."""
    model = model_of(head, **changes).double().eval()
    for parameter in model.parameters():  # biases begin as zeros, which would hide mistakes
        torch.nn.init.normal_(parameter, std=0.5)
    for sizes in ({}, {"num_attention_heads": 7}):
        larger = convert(model, intermediate_size=53, **sizes)
        assert larger.config.intermediate_size == 53
        assert differences(larger, model, inputs_of(head)) <= 1e-10


def test_neurons_of_a_bert_are_added():
    """Guards: stock BERT gets more neurons too: old ones as they were, new ones random, with zeros behind them."""
    bert = bert_of("ForMaskedLM").double()
    larger = convert(bert, intermediate_size=53)
    assert differences(larger, bert, inputs_of("ForMaskedLM")) <= 1e-10
    old, new = bert.base_model.encoder.layer[1], larger.bert.encoder.layer[1]
    assert torch.equal(new.intermediate.dense.weight[:37], old.intermediate.dense.weight)
    assert new.intermediate.dense.weight[37:].std().item() == pytest.approx(0.5, rel=0.1)
    assert torch.equal(new.intermediate.dense.bias[:37], old.intermediate.dense.bias)
    assert torch.equal(new.output.dense.weight[:, :37], old.output.dense.weight)
    assert not new.intermediate.dense.bias[37:].any() and not new.output.dense.weight[:, 37:].any()
    assert torch.equal(new.output.dense.bias, old.output.dense.bias)


@pytest.mark.parametrize(
    "sizes", [{"intermediate_size": [4, 41, 37]}, {"intermediate_size": 39, "num_attention_heads": 7}]
)
def test_neurons_and_heads_of_each_layer_grow(sizes):
    """Guards: layers grow from their own numbers of neurons and heads, also from none, and keep the function."""
    changes = {"layer_attention_heads": [5, 0, 3], "intermediate_size": [0, 11, 37]}
    model = model_of("ForMaskedLM", **changes).double().eval()
    new = convert(model, **sizes)
    assert new.config.intermediate_size == sizes["intermediate_size"]
    assert new.config.head_counts == ([7] * 3 if "num_attention_heads" in sizes else [5, 0, 3])
    assert differences(model, new, inputs_of("ForMaskedLM")) < 1e-10
    with pytest.raises(InputError, match="intermediate_size=10 cannot represent 11 neurons"):
        convert(model, intermediate_size=[0, 10, 37])
    with pytest.raises(InputError, match="a layer without heads stays without"):
        convert(model_of("ForMaskedLM", head_embedding="add", **changes), num_attention_heads=5)
    assert convert(model, num_hidden_layers=1).config.intermediate_size == 0


def test_fewer_neurons_are_refused():
    """Guards: neurons cannot be left out without a change, and the sentence names the command that can cut them."""
    sentence = "intermediate_size=36 cannot represent 37 neurons: give so many or more, .*`fixedbert shrink`"
    with pytest.raises(InputError, match=sentence):
        convert(model_of("Model"), intermediate_size=36)


def test_list_of_sizes_fits_the_layers():
    """Guards: too few sizes, or one that is too small for its layer, are refused."""
    model = model_of("Model")
    with pytest.raises(InputError, match="2 values of attention_head_size for 3 layers"):
        convert(model, attention_head_size=[6, 13])
    with pytest.raises(InputError, match="5 heads of 5 cannot represent 5 heads of 6"):
        convert(model, attention_head_size=[6, 13, 5])


def test_unequal_layers_are_repeated_with_their_sizes(caplog):
    """Guards: depth grows with the head size of each layer that is repeated."""
    model = convert(model_of("Model", attention_head_size=[6, 7, 8]), num_hidden_layers=6)
    assert model.config.attention_head_size == [6, 6, 7, 7, 8, 8]
    model(**inputs_of("Model"))


def test_cross_attention_grows():
    """Guards: a decoder that reads an encoder keeps its function too."""
    model = model_of("LMHeadModel", add_cross_attention=True).double().eval()
    larger = convert(model, attention_head_size=13, num_attention_heads=7)
    states = torch.randn(B, 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inputs = inputs_of("LMHeadModel") | {"encoder_hidden_states": states, "use_cache": False}
    assert differences(larger, model, inputs) <= 1e-10


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForCausalLM", "ForSequenceClassification",
                                  "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"])  # fmt: skip
@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert"])
def test_roberta_keeps_its_function(family, head):
    """Guards: RoBERTa's names, its positions, which begin behind the padding's, and its classifier."""
    bert = bert_of(head, family, type_vocab_size=1).double()
    model = convert(bert, attention_head_size=13, intermediate_size=53)
    ours = "LMHeadModel" if head == "ForCausalLM" else head
    inputs = inputs_of(ours)
    ids = inputs["input_ids"]
    ids[ids == 1] = 2  # no padding among real tokens
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
def test_everything_new_learns(changes):
    """Guards: what is new gets a gradient at once on one side of every zero, and all of it within three steps."""
    model = model_of("ForMaskedLM", initializer_range=0.1, **changes).double()
    larger = convert(model, attention_head_size=13, num_attention_heads=7, intermediate_size=53).train()
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
        if name.endswith("key.bias"):  # adds the same to all scores of a query: BERT's does not learn either
            assert first[name].abs().max() < 1e-15
            continue
        moved = parameter != before[name]
        if name.endswith("head_embedding") and changes["head_embedding"] == "add":
            moved[1] = True  # that of keys, of which the same is true
        assert moved.all(), name
        if name.endswith("output.dense.weight"):
            assert (first[name] != 0).all(), name
        if name.endswith("query.weight"):  # zeros beside random keys
            assert (first[name].view(-1, 13, 32)[: 1 if changes else 5, 6:] != 0).all(), name
        seen += 1
    assert seen >= 3 * 8


def test_new_heads_differ_and_the_seed_decides():
    """Guards: heads that were added do not begin as copies of each other; the same seed gives the same numbers."""
    model = model_of("Model")
    one, same, other = (convert(model, num_attention_heads=8, seed=seed) for seed in (1, 1, 2))
    names = [name for name, _ in one.named_parameters()]
    assert all(torch.equal(one.get_parameter(name), same.get_parameter(name)) for name in names)
    query = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(one.get_parameter(query), other.get_parameter(query))
    added = one.get_parameter(query).detach().view(8, 6, 32)[5:]
    assert not torch.equal(added[0], added[1]) and added.std() == pytest.approx(0.5, rel=0.1)


def test_nothing_is_shared_with_the_model_that_was_converted():
    """Guards: training the new model leaves the old one alone, whose tensors stayed the same included."""
    bert = bert_of("ForPreTraining")
    addresses = {parameter.data_ptr() for parameter in bert.parameters()}
    for size in (8, 13):
        model = convert(bert, attention_head_size=size)
        assert not addresses & {parameter.data_ptr() for parameter in model.parameters()}
        tied = model.cls.predictions.decoder.weight
        assert tied is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("sizes", [{"attention_head_size": 7}, {"num_attention_heads": 3}])
def test_smaller_is_refused(sizes):
    """Guards: fewer or smaller heads cannot have the same function; the message says what can."""
    with pytest.raises(InputError, match="cannot represent 4 heads of 8: give `num_attention_heads` 4 or more"):
        convert(bert_of("Model"), **sizes)


@pytest.mark.parametrize("sizes", [{"attention_head_size": 0}, {"num_attention_heads": -1}, {"num_hidden_layers": 0}])
def test_counts_below_one_are_refused(sizes):
    """Guards: zero does not mean "as it was", and no model without layers comes out."""
    with pytest.raises(InputError, match="must be at least 1"):
        convert(bert_of("Model"), **sizes)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_model_without_a_pooler_stays_one(family, tmp_path):
    """Guards: encoders saved without a pooler convert, from memory and from disk, and none is invented."""
    config = getattr(transformers, f"{family}Config")(**SHAPE, num_attention_heads=4, pad_token_id=1)
    bert = getattr(transformers, f"{family}Model")(config, add_pooling_layer=False).eval()
    bert.save_pretrained(tmp_path)
    ids = inputs_of("Model")["input_ids"].clamp(min=2)
    for source in (bert, load_bert(tmp_path)):
        model = convert(source, attention_head_size=9)
        assert model.pooler is None
        assert torch.allclose(model(ids).last_hidden_state, bert(ids).last_hidden_state, atol=1e-4)


def test_attention_and_generation_settings_come_along():
    """Guards: what a model was told beside its configuration is told to the new one."""
    model = bert_of("LMHeadModel")
    model.set_attn_implementation("eager")
    model.generation_config.max_new_tokens = 77
    larger = convert(model, num_attention_heads=6)
    assert larger.config._attn_implementation == "eager" and larger.generation_config.max_new_tokens == 77


def test_class_of_the_user_is_refused_by_name():
    """Guards: a subclass with another head is no silent loss and no traceback."""

    class BertForSomething(transformers.BertModel):
        pass

    with pytest.raises(InputError, match="BertForSomething cannot be converted"):
        convert(BertForSomething(bert_of("Model").config))


def test_untied_output_keeps_its_own_weights():
    """Guards: without tied embeddings decoder and bias are those that BERT computes with."""
    bert = bert_of("ForMaskedLM", tie_word_embeddings=False)
    assert not torch.equal(bert.cls.predictions.bias, bert.cls.predictions.decoder.bias)
    assert differences(convert(bert), bert, inputs_of("ForMaskedLM")) == 0


def test_depth_changes_with_a_warning(caplog):
    """Guards: layers are repeated or left out evenly, each whole, and never silently."""
    bert = bert_of("Model")  # 3 layers
    for count, expected in ((6, [0, 0, 1, 1, 2, 2]), (2, [0, 1]), (5, [0, 0, 1, 1, 2])):
        caplog.clear()
        model = convert(bert, num_hidden_layers=count)
        assert "The function changes" in caplog.text and str(expected) in caplog.text
        for layer, source in zip(model.encoder.layer, expected, strict=True):
            for name, tensor in bert.encoder.layer[source].state_dict().items():
                assert torch.equal(layer.state_dict()[name], tensor)
        model(**inputs_of("Model"))
    caplog.clear()
    convert(bert, num_hidden_layers=3)
    assert not caplog.records


@pytest.fixture
def checkpoint(tmp_path, vocabulary):
    """A BERT for sequence classification with three labels, and its tokenizer, as transformers saves them."""
    folder = tmp_path / "bert"
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    bert = bert_of("ForSequenceClassification", vocab_size=len(tokenizer), id2label={0: "no", 1: "yes", 2: "maybe"})
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_command_writes_a_directory_like_any_other(checkpoint, tmp_path, capsys):
    """Guards: labels and tokenizer come along, the Auto classes open it, and the command says how equal it is."""
    main(
        [
            "convert",
            str(checkpoint),
            "--output_dir",
            str(tmp_path / "fixed"),
            "--attention_head_size",
            "16",
            "--num_attention_heads",
            "6",
            "--intermediate_size",
            "53",
        ]
    )
    printed = capsys.readouterr().out
    assert "4 heads of 8, feed-forward 37" in printed and "6 heads of 16, feed-forward 53" in printed
    assert float(printed.split("largest difference of outputs ")[1].split("\n")[0]) < 1e-4
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "fixed")
    assert type(model) is fixedbert.FixedHeadBertForSequenceClassification
    assert model.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    one, other = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, tmp_path / "fixed"))
    assert one("the function takes a list")["input_ids"] == other("the function takes a list")["input_ids"]

    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "same")])
    main(["convert", str(tmp_path / "same"), "--output_dir", str(tmp_path / "back"), "--bert"])
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "bert"
    one, other = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "back"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_pickled_tensors_are_read_and_become_safetensors(checkpoint, tmp_path):
    """Guards: pytorch_model.bin of older checkpoints converts, its LayerNorm's gamma and beta too."""
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    old["bert.embeddings.position_ids"] = torch.arange(11)[None]  # which older versions saved
    torch.save(old, checkpoint / "pytorch_model.bin")
    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    new = load_file(tmp_path / "fixed" / "model.safetensors")
    assert new.keys() == tensors.keys() and all(torch.equal(new[name], tensors[name]) for name in new)


@pytest.mark.parametrize(
    "saved, named, found",
    [
        ("ForPreTraining", ["BertForMaskedLM"], "ForPreTraining"),  # as bert-base has it
        ("ForPreTraining", None, "ForPreTraining"),
        ("ForMaskedLM", None, "ForMaskedLM"),
    ],
)
def test_heads_that_config_json_does_not_name_are_kept(saved, named, found, tmp_path):
    """Guards: bert-base says BertForMaskedLM and holds the next-sentence head and the pooler too: none is dropped."""
    bert_of(saved).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": named}))
    assert type(convert(load_bert(tmp_path))) is getattr(fixedbert, f"FixedHeadBert{found}")


def test_half_precision_stays_and_says_what_is_rounded(caplog):
    """Guards: bfloat16 stays bfloat16, exact where queries are scaled by a power of two, with a word where not."""
    bert = bert_of("Model").bfloat16()
    model = convert(bert, attention_head_size=32)
    assert model.dtype == torch.bfloat16 and not caplog.records
    name = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(model.get_parameter(name).view(4, 32, 32)[:, :8], 2 * bert.get_parameter(name).view(4, 8, 32))
    convert(bert, attention_head_size=16)
    assert "Queries times 1.414 are rounded to torch.bfloat16: heads of 32 would be exact" in caplog.text


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def damage(checkpoint, how, tmp_path):
    weights = checkpoint / "model.safetensors"
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(weights)
    query = "bert.encoder.layer.1.attention.self.query.weight"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "no safetensors":
        weights.write_bytes(b"<html>404</html>" * 10)
    elif how == "missing":
        save_file({name: tensor for name, tensor in tensors.items() if name != query}, weights, {"format": "pt"})
    elif how == "extra":
        save_file(tensors | {"bert.adapter.weight": torch.ones(2)}, weights, {"format": "pt"})
    elif how == "shape":
        save_file(tensors | {query: torch.ones(32, 16)}, weights, {"format": "pt"})
    elif how in ("code", "no pickle"):
        weights.unlink()
        if how == "code":
            torch.save(tensors | {"x": Malicious(tmp_path / "executed")}, checkpoint / "pytorch_model.bin")
        else:
            (checkpoint / "pytorch_model.bin").write_bytes(b"no pickle")
    elif how == "plain pickle with code":
        weights.unlink()
        (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    elif how == "no weights":
        weights.unlink()
    elif how == "gpt2":
        (checkpoint / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    elif how == "relative":
        (checkpoint / "config.json").write_text(json.dumps(config | {"position_embedding_type": "relative_key"}))
    elif how == "config":
        (checkpoint / "config.json").write_text('{"model_type": "bert", ')
    elif how == "class":
        (checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["BertWithAdapters"]}))
    elif how == "class of another kind":
        (checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["BertTokenizer"]}))
    elif how == "quantized":
        settings = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
        (checkpoint / "config.json").write_text(json.dumps(config | settings))
    elif how == "size":
        (checkpoint / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    elif how == "activation":
        (checkpoint / "config.json").write_text(json.dumps(config | {"hidden_act": "nonsense"}))
    elif how == "not finite":
        save_file({name: tensor * torch.nan for name, tensor in tensors.items()}, weights, {"format": "pt"})
    elif how == "nothing":
        shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    "how, message",
    [
        ("truncated", "the weights are damaged or incomplete"),
        ("no safetensors", "the weights are damaged or incomplete"),
        ("missing", r"no weights for 'bert.encoder.layer.1.attention.self.query.weight"),
        ("extra", r"has no place for 'bert.adapter.weight'"),
        (
            "shape",
            r"1.attention.self.query.weight has the shape \(32, 16\) where the configuration asks for \(32, 32\)",
        ),
        ("code", "the pickle is damaged or holds more than tensors; it was not run"),
        ("plain pickle with code", "the pickle is damaged or holds more than tensors"),
        ("no pickle", "the pickle is damaged or holds more than tensors"),
        ("no weights", "no file named"),
        ("gpt2", "model_type 'gpt2' is not a BERT"),
        ("relative", "position_embedding_type 'relative_key'"),
        ("config", "not a valid JSON file"),
        ("class", "BertWithAdapters cannot be converted, only Bert with one of Model, ForPreTraining"),
        ("class of another kind", "BertTokenizer cannot be converted"),
        ("quantized", "quantized weights cannot be converted"),
        ("size", "hidden_size"),
        ("activation", "nonsense"),
        ("not finite", "bert.embeddings.word_embeddings.weight is not finite everywhere"),
        ("nothing", "no such directory; give that of a model, or its name on the Hub"),
    ],
)
def test_bad_checkpoints_are_refused_in_a_sentence(checkpoint, tmp_path, how, message):
    """Guards: what cannot be converted ends with one sentence that names the place, and leaves nothing behind."""
    damage(checkpoint, how, tmp_path)
    with pytest.raises((ArgumentError, InputError), match=message) as error:
        main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    assert str(checkpoint) in str(error.value)
    assert not (tmp_path / "executed").exists()
    assert not list(tmp_path.glob("fixed*"))


def test_output_that_is_there_is_left_alone(checkpoint, tmp_path):
    """Guards: a directory with something in it is never written to."""
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed" / "mine.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="not empty"):
        main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    assert [file.name for file in (tmp_path / "fixed").iterdir()] == ["mine.txt"]


def test_unfinished_run_of_that_name_is_left_alone(checkpoint, tmp_path):
    """Guards: a conversion to runs/mini does not remove the checkpoints in runs/mini.partial."""
    (tmp_path / "fixed.partial" / "checkpoint-500").mkdir(parents=True)
    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    assert (tmp_path / "fixed.partial" / "checkpoint-500").exists()
    assert {path.name for path in tmp_path.glob("fixed*")} == {"fixed", "fixed.partial"}


def test_place_that_cannot_be_written(checkpoint, tmp_path):
    """Guards: an output under a file ends in a sentence."""
    with pytest.raises(InputError, match="cannot be written"):
        main(["convert", str(checkpoint), "--output_dir", str(checkpoint / "config.json" / "fixed")])


def test_card_that_cannot_be_read_is_said(tmp_path, caplog):
    """Guards: a licence is not lost in silence where the card of the source is damaged."""
    bert_of("ForMaskedLM").save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff\n")
    main(["convert", str(tmp_path / "bert"), "--output_dir", str(tmp_path / "out")])
    assert f"{tmp_path}/bert/README.md: the card cannot be read" in caplog.text
    assert "license: mit" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    "stated, expected, told",
    [
        ("language: zh-CN\nlicense: MIT", {"language": "zh", "license": "mit"}, ["language 'zh-CN' becomes 'zh'"]),
        (
            "language: [en, pt_BR, noinfo, null]",
            {"language": ["en", "pt"]},
            ["'noinfo' is left out", "None is left out"],
        ),
        ("language: no", {"language": "no"}, ["language False becomes 'no'"]),  # YAML's false
        ("language: English\nlicense: noinfo", {}, ["'English' is left out", "license 'noinfo' is left out"]),
        ("license: null\nlanguage: null\ndatasets: null", {}, []),
        (
            "license: Apache 2.0\ndatasets: [glue, null, a b]",
            {"license": "apache-2.0", "datasets": ["glue"]},
            ["'a b' is"],
        ),
        (
            "license: apache-2.0\nlanguage: [en, multilingual]",
            {"license": "apache-2.0", "language": ["en", "multilingual"]},
            [],
        ),
        (
            "license: {name: x}\nbase_model: [null]",
            {},
            ["license {'name': 'x'} is left out", "base_model None is left"],
        ),
    ],
)
def test_cards_have_what_the_hub_takes(tmp_path, capsys, stated, expected, told):
    """Guards: languages with regions, licences that are none and nulls of a source's card are mapped or left out."""
    (tmp_path / "README.md").write_text(f"---\n{stated}\n---\n# A model\n")
    assert metadata_of(tmp_path) == expected
    printed = capsys.readouterr().out
    assert all(part in printed for part in told) and bool(printed) == bool(told)


def test_broken_tokenizer_is_no_missing_one(checkpoint, tmp_path, caplog):
    """Guards: a directory without a tokenizer converts with a word; one with a damaged file does not."""
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer could be loaded"):
        main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "fixed")])
    assert "has no tokenizer" in caplog.text and not list((tmp_path / "fixed").glob("tokenizer*"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["convert"], "arguments are required"),
        (["convert", "x", "--output_dir", "y", "--attention_head", "3"], "unrecognized arguments: --attention_head"),
        (["convert", "x", "--output_dir", "y", "--attention_head_size", "many"], "invalid int value: 'many'"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    """Guards: a wrong command is answered in a sentence, without abbreviations that mean something else."""
    with pytest.raises(ArgumentError, match=message):
        main(arguments)


def test_commands_of_the_page_run(tmp_path, vocabulary, monkeypatch):
    """Guards: every command and the Python of docs/converting.md work in this order, on small models."""
    page = (Path(__file__).parents[2] / "docs" / "converting.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    google = bert_of("ForMaskedLM", vocab_size=len(tokenizer))
    old = bert_of("Model", vocab_size=len(tokenizer))
    for folder, model in (("bert", google), ("roberta", bert_of("ForMaskedLM", "Roberta")), ("bert_2019", old)):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    fields = json.loads(Path("bert_2019/config.json").read_text())
    del fields["model_type"], fields["architectures"]
    Path("bert_2019/config.json").write_text(json.dumps(fields))
    original = Path("uncased_L-12_H-768_A-12")
    original.mkdir()
    (original / "bert_config.json").write_text(json.dumps(CONFIG))
    shutil.copy(vocabulary, original / "vocab.txt")
    write_checkpoint(original / "bert_model.ckpt", google_variables(bert_of("ForPreTraining")))
    page = page.replace("google-bert/bert-base-uncased", "bert").replace("FacebookAI/roberta-base", "roberta")
    commands = re.findall(r"^    fixedbert (.*)$", page, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        words = [word for word in command.split() if word not in ("64", "96")]  # the little models have three layers
        main(words + ["9", "13", "8"] if words[-1] == "--attention_head_size" else words)
        assert (tmp_path / command.split()[3] / "model.safetensors").exists()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    assert names["model"].config.head_dim == 128 and names["to_bert"] is to_bert


def test_inputs_have_more_than_one_length():
    """Guards: the inputs of these tests have padding, without which positions and masks would not be seen."""
    lengths = inputs_of("Model")["attention_mask"].sum(1)
    assert len(lengths.unique()) > 2 and lengths.max() == L and config_of("Model").hidden_size == 32
