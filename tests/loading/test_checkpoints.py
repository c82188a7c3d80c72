"""Tests loading checkpoints other than plain BERTs: pruned models, other model families and custom task heads."""

from itertools import product
from pathlib import Path

import pytest
import torch
from helpers.outputs import configure
from helpers.tiny_models import bert_of, differences, inputs_of
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from fixedbert import FixedHeadBertForSequenceClassification
from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.loading.checkpoints import load_bert
from fixedbert.loading.families import check_length, max_tokens
from fixedbert.loading.weights import load_weights
from fixedbert.support.errors import InputError
from fixedbert_cli import main

PRUNED_HEADS = {0: [1, 2], 2: [0, 1, 2, 3]}  # indices for each layer, which has 4 heads of size 8


def write(folder: Path, tensors: dict[str, torch.Tensor], pickled: bool = False):
    (folder / "model.safetensors").unlink(missing_ok=True)
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def prune(bert: PreTrainedModel, folder: Path, neurons: dict[int, int], pickled: bool) -> PreTrainedModel:
    """Saves `bert` without PRUNED_HEADS, with `neurons` neurons per layer. Returns it with removed parts zeroed."""
    tensors = dict(bert.state_dict())
    for number, layer in enumerate(bert.base_model.encoder.layer):
        gone = PRUNED_HEADS.get(number, [])
        kept = torch.tensor([i for i in range(32) if i // 8 not in gone], dtype=torch.long)
        count = neurons.get(number, 37)
        for part, rows in {"attention.self.query": kept, "attention.self.key": kept, "attention.self.value": kept,
                           "intermediate.dense": torch.arange(count)}.items():  # fmt: skip
            for kind in ("weight", "bias"):
                name = f"bert.encoder.layer.{number}.{part}.{kind}"
                tensors[name] = tensors[name][rows].clone()
        for part, columns in {"attention.output": kept, "output": torch.arange(count)}.items():
            name = f"bert.encoder.layer.{number}.{part}.dense.weight"
            tensors[name] = tensors[name][:, columns].clone()
        with torch.no_grad():
            layer.attention.output.dense.weight.view(32, 4, 8)[:, gone] = 0
            layer.output.dense.weight[:, count:] = 0
    bert.save_pretrained(folder)
    configure(folder, pruned_heads=PRUNED_HEADS)
    write(folder, tensors, pickled)
    return bert


@pytest.mark.parametrize("pickled, neurons", [(False, {}), (True, {0: 5, 1: 0, 2: 36})])
def test_pruned_bert_equals_the_masked_model(tmp_path, neurons, pickled, capsys):
    """A BERT saved without pruned heads and neurons has the same outputs as the full model with zero weights."""
    labels = {0: "no", 1: "yes", 2: "maybe"}
    bert = bert_of("ForSequenceClassification", id2label=labels, initializer_range=0.1)
    masked = prune(bert, tmp_path / "pruned", neurons, pickled)
    counts = [neurons.get(layer, 37) for layer in range(3)]
    pruned = load_bert(tmp_path / "pruned")
    assert "pruned to 2, 4, 0 heads" in capsys.readouterr().out
    assert (pruned.config.head_counts, pruned.config.neuron_counts) == ([2, 4, 0], counts)
    assert type(pruned) is FixedHeadBertForSequenceClassification and pruned.config.id2label == labels
    assert differences(pruned, masked, inputs_of("ForSequenceClassification")) <= 1e-6
    main(["convert", str(tmp_path / "pruned"), "--output_dir", str(tmp_path / "fixed")])
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "fixed")
    assert differences(opened, masked, inputs_of("ForSequenceClassification")) <= 1e-6
    larger = to_fixed_head_bert(pruned, num_attention_heads=4, intermediate_size=37)
    assert differences(larger, masked, inputs_of("ForSequenceClassification")) <= 1e-5


def test_pruned_weights_load_without_pruned_heads_in_the_configuration(tmp_path):
    """The weights alone show what was pruned. A query size that is not a multiple of the head size is refused."""
    masked = prune(bert_of("ForSequenceClassification", initializer_range=0.1), tmp_path, {}, pickled=False)
    with pytest.raises(InputError, match="layer.0.* or run fixedbert convert if the BERT has pruned heads"):
        load_weights(type(masked), tmp_path, masked.config)  # as run_glue and inspect do
    configure(tmp_path, pruned_heads={})
    assert differences(load_bert(tmp_path), masked, inputs_of("ForSequenceClassification")) <= 1e-6
    bert = bert_of("ForSequenceClassification")
    query = "bert.encoder.layer.1.attention.self.query.weight"
    write(tmp_path, dict(bert.state_dict()) | {query: torch.ones(13, 32)})
    with pytest.raises(InputError, match=r"1.attention.self.query.weight has shape \(13, 32\)"):
        load_bert(tmp_path)


FAMILIES = {"DistilBert": {"hidden_dim": 37}, "Electra": {"embedding_size": 32}}


def model_of_family(family: str, head: str, **changes) -> PreTrainedModel:
    return bert_of(head, family, **{"initializer_range": 0.1} | FAMILIES[family] | changes)


HEADS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
CASES = [*product(["DistilBert", "Electra"], HEADS), ("DistilBert", "ForMultipleChoice"), ("Electra", "ForCausalLM")]
LANGUAGE_MODELS = [case for case in CASES if case[1] in ("ForMaskedLM", "ForCausalLM")]


@pytest.mark.parametrize(
    "family, head, tied", [*((*case, True) for case in CASES), *((*case, False) for case in LANGUAGE_MODELS)]
)
def test_distilbert_and_electra_keep_their_function(family, head, tied, tmp_path):
    """DistilBERT and ELECTRA convert and grow with the same outputs, including those for padding tokens."""
    fields = {"sinusoidal_pos_embds": True, "activation": "relu"} if family == "DistilBert" else {}
    model = model_of_family(family, head, tie_word_embeddings=tied, **fields)
    model.save_pretrained(tmp_path)
    fixed = to_fixed_head_bert(load_bert(tmp_path))
    ours = "LMHeadModel" if head == "ForCausalLM" else head
    assert type(fixed).__name__ == f"FixedHeadBert{ours}"
    every = inputs_of(ours)
    known = {name: x for name, x in every.items() if family == "Electra" or name != "token_type_ids"}
    expected = model(**known).to_tuple()
    for inputs in (known, every):  # a converted DistilBERT ignores token types
        for one, other in zip(fixed(**inputs).to_tuple(), expected, strict=True):
            assert not isinstance(one, torch.Tensor) or (one - other).abs().max() <= 1e-6
    larger = to_fixed_head_bert(
        model.double(), attention_head_size=13, num_attention_heads=5, intermediate_size=[37, 40, 53]
    )
    assert differences(larger, model, known) <= 1e-10


def test_dropout_of_distilbert():
    """DistilBERT's dropout rates for layers, attention and classifier apply to the same parts of the new model."""
    rates = {"dropout": 0.13, "attention_dropout": 0.17, "seq_classif_dropout": 0.19}
    for head, rate in (("ForSequenceClassification", 0.19), ("ForTokenClassification", 0.13)):
        fixed = to_fixed_head_bert(model_of_family("DistilBert", head, **rates))
        layer = fixed.bert.encoder.layer[0]
        dropouts = (fixed.dropout, layer.attention.self.dropout, layer.output.dropout)
        assert [dropout.p for dropout in dropouts] == [rate, 0.17, 0.13]


def test_models_without_an_equal_bert_are_refused(tmp_path):
    """A model that BERT cannot represent is refused, but its encoder can be converted without the task head."""
    model = model_of_family("Electra", "ForPreTraining")
    model.save_pretrained(tmp_path)
    for load in (lambda: load_bert(tmp_path), lambda: to_fixed_head_bert(model)):
        with pytest.raises(InputError, match="BERT has no equivalent of ElectraForPreTraining"):
            load()
    body = to_fixed_head_bert(load_bert(tmp_path, "ElectraModel"))
    assert differences(body, model.electra, inputs_of("Model")) <= 1e-6


def test_architecture_selects_the_class(tmp_path, capsys):
    """An unused pooler is dropped and listed, but a custom task head only if `architecture` names the class."""
    model = bert_of("ForMaskedLM")
    model.save_pretrained(tmp_path)
    pooler = {"bert.pooler.dense.bias": torch.ones(32), "bert.pooler.dense.weight": torch.ones(32, 32)}
    write(tmp_path, dict(model.state_dict()) | pooler, pickled=True)
    assert differences(load_bert(tmp_path), model, inputs_of("ForMaskedLM")) == 0
    assert f"not parameters of BertForMaskedLM: {', '.join(pooler)}." in capsys.readouterr().out
    extra = pooler | {"cls.species.bias": torch.ones(6)}
    write(tmp_path, dict(model.state_dict()) | extra, pickled=True)
    for name, message in (
        ("SpeciesBert", "the class SpeciesBert is not one of BertModel, BertForPreTraining, "),
        ("BertForMaskedLM", "has no parameters for 'cls.species.bias'; .* or drop"),
    ):
        configure(tmp_path, architectures=[name])
        with pytest.raises(InputError, match=f"{tmp_path}: .*{message}.*`architecture`"):
            load_bert(tmp_path)
    loaded = load_bert(tmp_path, "BertForMaskedLM")
    assert f"not parameters of BertForMaskedLM: {', '.join(extra)}." in capsys.readouterr().out
    assert differences(loaded, model, inputs_of("ForMaskedLM")) == 0
    with pytest.raises(InputError, match="weights are missing for 'classifier.bias', 'classifier.weight'"):
        load_bert(tmp_path, "BertForTokenClassification")


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "RobertaPreLayerNorm", "Bert"])
def test_maximum_number_of_tokens(family):
    """`max_tokens` is the largest number of tokens that the model accepts."""
    model = bert_of("Model", family, max_position_embeddings=14, pad_token_id=0 if family == "Bert" else 1)
    longest = max_tokens(model.config)
    assert longest == (14 if family == "Bert" else 12)
    check_length(longest, model.config)
    model(torch.full((1, longest), 2))
    with pytest.raises(InputError, match=f"reads at most {longest} tokens"):
        check_length(longest + 1, model.config)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 2))
