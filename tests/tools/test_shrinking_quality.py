"""The benchmark of what shrinking costs: measurements that do not go together stay apart."""

import json
from argparse import Namespace

import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.shrinking_quality import conditions, cut_by_weights, earlier_records
from fixedbert.conversion.growing import convert, heads_of


def test_a_folder_of_other_conditions_is_refused(tmp_path):
    """Guards: records of another model, text or distillation, or that do not say, are not continued in silence."""
    file = tmp_path / "results.jsonl"
    asked = {"model": str(tmp_path / "mini"), "max_seq_length": 32, "tokens": 999, "distil_steps": 7}
    assert earlier_records(file, Namespace(**asked)) == []
    records = [{**conditions(Namespace(**asked), method), "method": method} for method in ("text", "distilled")]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert earlier_records(file, Namespace(**asked)) == records
    assert earlier_records(file, Namespace(**asked | {"distil_steps": None})) == records
    for name, other in {"tokens": 1000, "max_seq_length": 64, "model": str(tmp_path / "tiny")}.items():
        with pytest.raises(SystemExit, match=rf"results.jsonl, line 1: {name} is {asked[name]} and not {other}"):
            earlier_records(file, Namespace(**asked | {name: other}))
    with pytest.raises(SystemExit, match="line 2: distil_steps is 7 and not 8; give another --output_dir"):
        earlier_records(file, Namespace(**asked | {"distil_steps": 8}))
    file.write_text(json.dumps(records[0]) + "\n" + json.dumps({"model": asked["model"], "method": "text"}) + "\n")
    with pytest.raises(SystemExit, match="line 2: max_seq_length is not there and not 32; give another --output_dir"):
        earlier_records(file, Namespace(**asked))


def encoder(hidden_size: int, heads: int):
    """A FixedHeadBert of one layer, its attention, and its projections by name."""
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden_size, "num_attention_heads": heads, "intermediate_size": 13}
    model = convert(BertModel(BertConfig(vocab_size=99, num_hidden_layers=1, **sizes)))
    attention = model.encoder.layer[0].attention
    return model, attention, dict(attention.get_submodule("self").named_children())


@torch.no_grad()
@pytest.mark.parametrize("changes", [{"value_size": 3}, {"number": 2}])
def test_cut_by_weights_keeps_what_biases_of_values_add(changes):
    """Guards: what attention gives where all inputs are zero, its biases alone, is the same after the cut."""
    model, attention, parts = encoder(35, 5)
    for part in parts.values():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.bias)
    expected = attention.output.dense(parts["value"].bias)
    (old,) = heads_of(model.config)
    cut_by_weights(model, [old._replace(**changes)])
    attention = model.encoder.layer[0].attention
    torch.testing.assert_close(attention.output.dense(attention.get_submodule("self").value.bias), expected)


@torch.no_grad()
def test_cut_by_weights_counts_the_bias_of_queries():
    """Guards: of two directions the one that a query's bias uses is kept, though its weights are the smaller."""
    model, _, parts = encoder(2, 1)
    parts["query"].weight.copy_(torch.diag(torch.tensor([0.1, 1.0])))
    parts["query"].bias.copy_(torch.tensor([10.0, 0.0]))
    parts["key"].weight.copy_(torch.eye(2))
    (old,) = heads_of(model.config)
    cut_by_weights(model, [old._replace(size=1)])
    cut = model.encoder.layer[0].attention.get_submodule("self")
    scores = cut.query.bias @ cut.key.weight  # of this query with each input, before it is divided by the root of 1
    torch.testing.assert_close(scores, torch.tensor([10 / 2**0.5, 0.0]))
