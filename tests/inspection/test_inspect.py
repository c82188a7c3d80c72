"""Inspection: the measures equal their definitions, and are as expected for constructed heads."""

import gc
import json
import math
import weakref

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import UNEQUAL, H, P, bert_of, model_of
from PIL import Image
from transformers import AutoModel, BertTokenizer

from fixedbert import to_bert
from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.inspection.inspect import inspect
from fixedbert.inspection.recorder import Recorder
from fixedbert.support.errors import InputError
from fixedbert_cli import main

N = 11


def ids(rows: int = 13) -> torch.Tensor:
    return torch.randint(99, (rows, N), generator=torch.Generator().manual_seed(1))


def recorded(model, rows: int = 13) -> Recorder:
    recorder = Recorder(model.eval())
    for part in ids(rows).split(4):
        recorder.add_sequences(part)
    return recorder


def measure(model, rows: int = 13) -> dict[str, torch.Tensor]:
    found = recorded(model, rows).means(N)
    return {name: values for name, values in found.items() if isinstance(values, torch.Tensor)}


class Progress:
    def update(self):
        pass


@pytest.mark.parametrize("size", [P, 13])
def test_measures_equal_plain_loops(size):
    """Every measure equals its definition, computed in float64 head by head, for head sizes below and above n."""
    model = model_of("Model", attention_head_size=size, initializer_range=0.2).double()
    recorder = recorded(model)
    found = recorder.means(N)
    by_layer = {name: found.pop(name) for name in ("singular_values", "similarities")}
    model.set_attn_implementation("eager")
    outputs = model(ids(), output_attentions=True, output_hidden_states=True)
    singular_values, similarities = torch.zeros(3, H, min(size, N)), torch.zeros(3, H, H)
    condition_numbers = found.pop("condition_number")
    sums = {name: torch.zeros(3, H) for name in found}
    for number, (layer, patterns) in enumerate(zip(model.encoder.layer, outputs.attentions, strict=True)):
        attention, states = layer.attention.self, outputs.hidden_states[number]
        extremes = torch.linalg.svdvals(attention(states)[0])[:, [0, -1]]  # of the concatenated heads
        largest, smallest = extremes.T
        floored = smallest.maximum(largest * torch.finfo(torch.float32).eps)
        expected = (largest / floored).log().mean().exp().item()  # the geometric mean over sequences
        assert condition_numbers[number] == pytest.approx(expected, rel=1e-3)
        for row in range(13):
            for head in range(H):
                part = slice(head * size, (head + 1) * size)
                Q, K = (linear(states[row])[:, part] for linear in (attention.query, attention.key))
                S, pattern = Q @ K.T / size**0.5, patterns[row, head]
                centred = S - S.mean(dim=1, keepdim=True)
                assert torch.allclose(centred, pattern.log() - pattern.log().mean(dim=1, keepdim=True), atol=1e-9)
                singular = torch.linalg.svdvals(centred)
                singular_values[number, head] += singular[: min(size, N)]
                sums["rank"][number, head] += (singular > 1e-6 * singular[0]).sum()
                shares = singular / singular.sum()
                sums["effective_rank"][number, head] += torch.special.entr(shares).sum().exp().item()
                sums["entropy"][number, head] += -(pattern * pattern.log()).sum(1).mean().item()
                sums["distance"][number, head] += (
                    sum(pattern[i, j].item() * abs(i - j) for i in range(N) for j in range(N)) / N
                )
                flat = (patterns[row] - 1 / N).flatten(1)
                others = [h for h in range(H) if h != head]
                cosines = torch.cosine_similarity(flat[head], flat)
                sums["max_similarity"][number, head] += cosines[others].max().item()
                similarities[number, head] += cosines
    for name, values in sums.items():
        if name != "utilization":
            assert torch.allclose(found[name], values.double() / 13, rtol=1e-4), name
    assert torch.allclose(found["utilization"], found["effective_rank"] / min(size, N - 1))
    assert (found["rank"] <= min(size, N - 1)).all()
    assert torch.allclose(
        torch.stack(by_layer["singular_values"]), singular_values.double() / 13, rtol=1e-4, atol=1e-5
    )
    assert torch.allclose(torch.stack(by_layer["similarities"]), similarities.double() / 13, atol=1e-5)


def test_attention_over_one_sequence():
    """Recording an example returns each head's attention and ablation effects, and does not affect the measures."""
    model = model_of("Model", **UNEQUAL, initializer_range=0.2).double().eval()
    recorder = Recorder(model)
    one = ids(1)
    attention, changes = recorder.attention(one), recorder.token_changes(one, Progress())
    assert recorder.sequences == 0 and not recorder.sums
    model.set_attn_implementation("eager")
    outputs = model(one, output_attentions=True)
    for found, expected in zip(attention, outputs.attentions, strict=True):
        assert torch.allclose(found, expected[0])
    assert [of_layer.shape for of_layer in changes] == [(2, N), (5, N), (3, N)]
    whole = outputs.last_hidden_state[0]
    with torch.no_grad():
        model.encoder.layer[2].attention.output.dense.weight[:, 2 * 6 :] = 0  # the third of three heads of 6
    moved = (model(one).last_hidden_state[0] - whole).norm(dim=-1) / whole.norm(dim=-1)
    assert torch.allclose(changes[2][2], moved)


def test_layers_without_heads(tmp_path, capsys):
    """Layers without heads are omitted. Others have the same measures as in a BERT whose added heads are all zero."""
    changes = {"layer_attention_heads": [0, 5, 3], "attention_head_size": 4, "initializer_range": 0.2}
    model = model_of("Model", **changes).double().eval()
    whole = to_bert(model)
    found, expected = measure(model), measure(whole)
    for name in ("rank", "entropy", "distance", "effective_rank"):
        assert found[name].shape == (3, 5) and found[name][0].isnan().all() and found[name][2, 3:].isnan().all()
        assert torch.allclose(found[name][1], expected[name][1, :5], rtol=1e-4), name
    assert found["condition_number"].isnan().tolist() == [True, False, False]
    recorder = recorded(model)
    assert [x.shape for x in recorder.attention(ids(1))] == [(0, N, N), (5, N, N), (3, N, N)]
    assert [x.shape for x in recorder.token_changes(ids(1), Progress())] == [(0, N), (5, N), (3, N)]
    save(model_of("Model", **changes | SHAPE), tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat sat on the mat . where the dog ran .\n" * 9)
    words = ["--validation_file", f"{tmp_path / 'text.txt'}", "--max_seq_length", "11"]
    main(["inspect", f"{tmp_path / 'model'}", "--output_dir", f"{tmp_path / 'out'}", *words])
    assert "importance\n    1    0 " in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert written["condition_number"][0] is None and written["rank"][0] == [] and len(written["rank"][2]) == 3
    save(model_of("Model", layer_attention_heads=[0, 0, 0], **SHAPE), tmp_path / "none")
    with pytest.raises(InputError, match="no layer has heads"):
        main(["inspect", f"{tmp_path / 'none'}", "--output_dir", f"{tmp_path / 'no'}", *words])


def test_rank_of_constructed_heads():
    """Heads enlarged from 6 to 9 have rank 6. A head with zero queries attends uniformly and has rank 0."""
    model = to_fixed_head_bert(model_of("Model", initializer_range=0.2).double(), attention_head_size=9)
    with torch.no_grad():
        attention = model.encoder.layer[1].attention.self
        attention.query.weight[:9] = attention.query.bias[:9] = 0
    found = measure(model)
    expected = torch.full((3, H), 6.0, dtype=torch.float64)
    expected[1, 0] = 0
    assert torch.equal(found["rank"], expected)
    assert found["entropy"][1, 0] == pytest.approx(math.log(N), abs=1e-6)
    assert found["distance"][1, 0] == pytest.approx((N * N - 1) / 3 / N, abs=1e-5)
    assert found["effective_rank"][1, 0] == 1


def test_importance():
    """Importance is the effect of ablating a head. A head that the output projection ignores has importance 0."""
    model = model_of("Model").double().eval()
    with torch.no_grad():
        model.encoder.layer[2].attention.output.dense.weight[:, 3 * P : 4 * P] = 0
    importance = Recorder(model).importance(ids(), Progress())
    assert importance[2, 3] == 0 and (importance > 0).sum() == 3 * H - 1
    whole = model(ids()).last_hidden_state
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight[:, P : 2 * P] = 0
    moved = (model(ids()).last_hidden_state - whole).norm() / whole.norm()
    assert importance[0, 1] == pytest.approx(float(moved), rel=1e-5)


def test_two_models_at_once():
    """A recorder records only its own model, and does not keep the model alive."""
    one, other = (Recorder(model_of("Model", initializer_range=size).eval()) for size in (0.1, 0.5))
    one.add_sequences(ids())
    other.add_sequences(ids())
    assert one.sequences == other.sequences == 13
    assert not torch.allclose(one.means(N)["entropy"], other.means(N)["entropy"])
    gone = weakref.ref(one.model)
    del one
    gc.collect()
    assert gone() is None


@pytest.fixture
def text(tmp_path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("the function takes a list and returns one string . " * 40)
    return str(file)


def test_command(model, text, tmp_path, capsys):
    """`fixedbert inspect` prints a table and writes a page, a plot, and JSON with every measure."""
    files = ["--output_dir", str(tmp_path / "out"), "--validation_file", text]
    main(["inspect", model, *files, "--max_seq_length", "16", "--max_eval_samples", "20"])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert found["sequences"] == 20 and found["importance_sequences"] == 8 and found["head_sizes"] == [6, 6]
    for name in ("rank", "utilization", "importance", "entropy"):
        assert torch.tensor(found[name]).shape == (2, 5)
    assert "2 layers of width 32, 5 heads of size 6; 20 sequences of 16 tokens" in printed
    assert "utilization: effective rank" in printed
    with Image.open(tmp_path / "out" / "inspection.png") as picture:
        assert picture.width > 1000
    assert AutoModel.from_pretrained(model).config._attn_implementation == "sdpa"


def test_short_text(model, tmp_path):
    """A text that is too short is an error, and nothing is written."""
    (tmp_path / "text.txt").write_text("the function")
    with pytest.raises(InputError, match="shorter than 100 tokens"):
        inspect(model, tmp_path / "out", tmp_path / "text.txt", max_seq_length=100)
    assert not list(tmp_path.glob("out*"))


def test_unsuitable_models_are_rejected(text, tmp_path, vocabulary):
    """A DistilBERT that has not been converted, and an encoder with different modules, are rejected."""
    for model, message in (
        (bert_of("Model", "DistilBert", hidden_dim=37), "only encoders like BERT can be inspected"),
        (bert_of("Model", "MPNet"), "the attention cannot be recorded"),
    ):
        name = model.config.model_type
        model.save_pretrained(tmp_path / name)
        BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: {message}"):
            inspect(str(tmp_path / name), tmp_path / "out", text, max_seq_length=8)
