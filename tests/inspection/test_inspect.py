"""Inspection: the measures of models whose heads are known, and of nothing else."""

import gc
import json
import math
import re
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import UNEQUAL, H, P, bert_of, model_of
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    BertTokenizer,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)
from transformers.testing_utils import CaptureLogger
from transformers.utils import logging

from fixedbert import convert, to_bert
from fixedbert.data.sequences import read_sequences
from fixedbert.inspection.inspect import inspect
from fixedbert.inspection.picture import draw
from fixedbert.inspection.recorder import Recorder
from fixedbert.inspection.results import Inspection, suggestion
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
def test_measures_are_those_of_plain_loops(size):
    """Guards: every measure against its definition, head by head in float64, for heads smaller and larger than n."""
    model = model_of("Model", attention_head_size=size, initializer_range=0.2).double()
    recorder = recorded(model)
    found = recorder.means(N)
    by_layer = {name: found.pop(name) for name in ("singular_values", "likeness")}
    model.set_attn_implementation("eager")
    outputs = model(ids(), output_attentions=True, output_hidden_states=True)
    singular_values, likeness = torch.zeros(3, H, min(size, N)), torch.zeros(3, H, H)
    sums = {name: torch.zeros(3, H) for name in found if name != "condition"}
    for number, (layer, patterns) in enumerate(zip(model.encoder.layer, outputs.attentions, strict=True)):
        attention, states = layer.attention.self, outputs.hidden_states[number]
        for row in range(13):
            for head in range(H):
                part = slice(head * size, (head + 1) * size)
                Q, K = (linear(states[row])[:, part] for linear in (attention.query, attention.key))
                S, pattern = Q @ K.T / size**0.5, patterns[row, head]
                centred = S - S.mean(dim=1, keepdim=True)
                assert torch.allclose(centred, pattern.log() - pattern.log().mean(dim=1, keepdim=True), atol=1e-9)
                for prefix, matrix in (("", S), ("pattern_", centred)):
                    singular = torch.linalg.svdvals(matrix)
                    sums[f"{prefix}rank"][number, head] += (singular > 1e-6 * singular[0]).sum()
                    if prefix:
                        singular_values[number, head] += singular[: min(size, N)]
                    shares = singular / singular.sum()
                    sums[f"effective_{prefix}rank"][number, head] += torch.special.entr(shares).sum().exp().item()
                sums["entropy"][number, head] += -(pattern * pattern.log()).sum(1).mean().item()
                sums["distance"][number, head] += (
                    sum(pattern[i, j].item() * abs(i - j) for i in range(N) for j in range(N)) / N
                )
                flat = (patterns[row] - 1 / N).flatten(1)
                others = [h for h in range(H) if h != head]
                cosines = torch.cosine_similarity(flat[head], flat)
                sums["similarity"][number, head] += cosines[others].max().item()
                likeness[number, head] += cosines
    for name, values in sums.items():
        if name != "ceiling":
            assert torch.allclose(found[name], values.double() / 13, rtol=1e-4), name
    assert torch.allclose(found["ceiling"], found["effective_pattern_rank"] / min(size, N - 1))
    assert (found["pattern_rank"] <= min(size, N - 1)).all()
    assert torch.allclose(
        torch.stack(by_layer["singular_values"]), singular_values.double() / 13, rtol=1e-4, atol=1e-5
    )
    assert torch.allclose(torch.stack(by_layer["likeness"]), likeness.double() / 13, atol=1e-5)


def test_attention_over_one_sequence():
    """Guards: attention and changes of an example are those of the layers' own heads, and leave the measures alone."""
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
    """Guards: of a layer without heads nothing is shown, and the others' measures are those of a layer that is there
    but silent."""
    changes = {"layer_attention_heads": [0, 5, 3], "attention_head_size": 4, "initializer_range": 0.2}
    model = model_of("Model", **changes).double().eval()
    whole = to_bert(model)
    found, expected = measure(model), measure(whole)
    for name in ("rank", "entropy", "distance", "effective_pattern_rank"):
        assert found[name].shape == (3, 5) and found[name][0].isnan().all() and found[name][2, 3:].isnan().all()
        assert torch.allclose(found[name][1], expected[name][1, :5], rtol=1e-4), name
    assert found["condition"].isnan().tolist() == [True, False, False]
    recorder = recorded(model)
    assert [x.shape for x in recorder.attention(ids(1))] == [(0, N, N), (5, N, N), (3, N, N)]
    assert [x.shape for x in recorder.token_changes(ids(1), Progress())] == [(0, N), (5, N), (3, N)]
    save(model_of("Model", **changes | SHAPE), tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat sat on the mat . where the dog ran .\n" * 9)
    words = ["--validation_file", f"{tmp_path / 'text.txt'}", "--max_seq_length", "11"]
    main(["inspect", f"{tmp_path / 'model'}", "--output_dir", f"{tmp_path / 'out'}", *words])
    assert "    0      no heads\n    1    0 " in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert written["condition"][0] is None and written["rank"][0] == [] and len(written["rank"][2]) == 3
    save(model_of("Model", layer_attention_heads=[0, 0, 0], **SHAPE), tmp_path / "none")
    with pytest.raises(InputError, match="no layer has heads to look at"):
        main(["inspect", f"{tmp_path / 'none'}", "--output_dir", f"{tmp_path / 'no'}", *words])


def test_rank_of_constructed_heads():
    """Guards: heads of 6 in a place for 13 have rank 6 and no more; a head without queries is uniform, of rank 0."""
    model = convert(model_of("Model", initializer_range=0.2).double(), attention_head_size=9)
    with torch.no_grad():
        attention = model.encoder.layer[1].attention.self
        attention.query.weight[:9] = attention.query.bias[:9] = 0
    found = measure(model)
    expected = torch.full((3, H), 6.0, dtype=torch.float64)
    expected[1, 0] = 0
    assert torch.equal(found["rank"], expected) and torch.equal(found["pattern_rank"], expected)
    assert found["entropy"][1, 0] == pytest.approx(math.log(N), abs=1e-6)
    assert found["distance"][1, 0] == pytest.approx((N * N - 1) / 3 / N, abs=1e-5)
    assert found["effective_rank"][1, 0] == 1


def test_twins_and_silent_heads():
    """Guards: two heads with the same weights are alike, and a head that the output ignores has no importance."""
    model = model_of("Model").double().eval()
    with torch.no_grad():
        layer = model.encoder.layer[2].attention
        for linear in (layer.self.query, layer.self.key):
            linear.weight[P : 2 * P], linear.bias[P : 2 * P] = linear.weight[:P], linear.bias[:P]
        layer.output.dense.weight[:, 3 * P : 4 * P] = 0
    recorder = Recorder(model)
    recorder.add_sequences(ids())
    similarity = recorder.means(N)["similarity"][2]
    assert similarity[0] == pytest.approx(1, abs=1e-6) and similarity[1] == pytest.approx(1, abs=1e-6)
    assert similarity[2:].max() < 0.999

    importance = recorder.importance(ids(), Progress())
    assert importance[2, 3] == 0 and (importance > 0).sum() == 3 * H - 1
    whole = model(ids()).last_hidden_state
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight[:, P : 2 * P] = 0
    moved = (model(ids()).last_hidden_state - whole).norm() / whole.norm()
    assert importance[0, 1] == pytest.approx(float(moved), rel=1e-5)


def test_head_with_added_embeddings_is_silent_as_a_whole():
    """Guards: importance also counts what the embedding of a head's values adds."""
    model = model_of("Model", head_embedding="add").double().eval()
    recorder = Recorder(model)
    whole = model(ids()).last_hidden_state

    importance = recorder.importance(ids(), Progress())
    with torch.no_grad():
        model.encoder.layer[1].attention.output.dense.weight[:, P : 2 * P] = 0
    moved = (model(ids()).last_hidden_state - whole).norm() / whole.norm()
    assert importance[1, 1] == pytest.approx(float(moved), rel=1e-5)


def test_two_models_at_once():
    """Guards: an inspection sees its own model only, and does not keep it alive."""
    one, other = (Recorder(model_of("Model", initializer_range=size).eval()) for size in (0.1, 0.5))
    one.add_sequences(ids())
    other.add_sequences(ids())
    assert one.sequences == other.sequences == 13
    assert not torch.allclose(one.means(N)["entropy"], other.means(N)["entropy"])
    gone = weakref.ref(one.model)
    del one
    gc.collect()
    assert gone() is None


def test_stock_bert_and_its_conversion_look_the_same():
    """Guards: the same numbers for transformers' BERT and the FixedHeadBert with its function."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    bert = BertModel(BertConfig(vocab_size=99, max_position_embeddings=N, initializer_range=0.2, **shape)).double()
    one, other = measure(bert), measure(convert(bert))
    assert one.keys() == other.keys()
    for name in one:
        assert torch.allclose(one[name], other[name], rtol=1e-6), name


def test_layers_with_heads_of_their_own_size():
    """Guards: the share of the size in use is that of each layer's own heads."""
    model = model_of("Model", attention_head_size=[3, 13, 6], initializer_range=0.2).double()
    found = measure(model)
    most = torch.tensor([3, N - 1, 6])
    assert (found["rank"].max(dim=1).values <= torch.tensor([3, N, 6])).all()
    assert torch.allclose(found["ceiling"], found["effective_pattern_rank"] / most[:, None])


def test_layers_with_heads_of_their_own_number():
    """Guards: the measures of a layer's heads are those of the layer alone, NaN where it has no more heads, and the
    importance of a head is what its values in the output do."""
    model = model_of("Model", **UNEQUAL, initializer_range=0.2).double().eval()
    found = measure(model)
    for name, values in found.items():
        if name != "condition":
            assert torch.equal(values.isnan().sum(dim=1), torch.tensor([3, 0, 2])), name
            assert values[0, :2].isfinite().all() and values[2, :3].isfinite().all()
    model.set_attn_implementation("eager")
    patterns = model(ids(), output_attentions=True).attentions[2]  # (B, 3, n, n)
    entropy = torch.special.entr(patterns).sum(-1).mean(dim=(0, 2))
    assert torch.allclose(found["entropy"][2, :3], entropy, rtol=1e-6)
    whole = model(ids()).last_hidden_state
    importance = Recorder(model).importance(ids(), Progress())
    assert torch.equal(importance.isnan(), found["entropy"].isnan())
    with torch.no_grad():
        model.encoder.layer[2].attention.output.dense.weight[:, 2 * 6 :] = 0  # the third of three heads of 6
    moved = (model(ids()).last_hidden_state - whole).norm() / whole.norm()
    assert importance[2, 2] == pytest.approx(float(moved), rel=1e-5)


def test_single_head_beside_more():
    """Guards: the only head of a layer is like no other."""
    found = measure(model_of("Model", layer_attention_heads=[1, 5, 5]).double())
    assert found["similarity"][0, 0] == 0 and (found["similarity"][1:] != 0).all()


def test_condition_number_of_the_heads_output():
    """Guards: it is the ratio of the singular values of the concatenated heads, a geometric mean over sequences."""
    model = model_of("Model").double().eval()
    found = measure(model)["condition"]
    outputs = []
    hook = model.encoder.layer[0].attention.self.register_forward_hook(lambda *x: outputs.append(x[2][0]))
    model.set_attn_implementation("eager")
    model(ids())
    hook.remove()
    singular = torch.linalg.svdvals(outputs[0])
    floored = singular[:, -1].maximum(singular[:, 0] * torch.finfo(torch.float32).eps)
    assert found[0] == pytest.approx(float((singular[:, 0] / floored).log().mean().exp()), rel=1e-3)


def inspection_of(ceiling, sizes: list[int], can_grow: bool = True) -> Inspection:
    """An inspection of sequences of 128 tokens with these shares, and nothing else measured."""
    measures = ("rank", "effective_rank", "pattern_rank", "effective_pattern_rank", "entropy", "distance")
    empty = dict.fromkeys((*measures, "similarity", "condition", "importance"), torch.zeros(3, 2))
    empty |= {"singular_values": [], "likeness": [], "examples": [], "compared": None}
    return Inspection("m", 3, 2, [2, 2, 2], sizes, can_grow, 64, 128, 1, 1, ceiling=torch.tensor(ceiling), **empty)


def test_picture_of_unequal_layers(tmp_path, monkeypatch):
    """Guards: a long list of sizes stays within its panel, and leaves the others their width."""
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *args, **kwargs: figures.append(figure))
    found = replace(inspection_of([[0.5, 0.5]] * 3, [32, 32, 32]), condition=torch.tensor([2.0, 3.0, 5.0]))
    draw(found, tmp_path / "plain.png")
    draw(replace(found, head_sizes=list(range(20, 36))), tmp_path / "long.png")
    for figure in figures:
        figure.draw_without_rendering()
    plain, long = (figure.axes[0].get_position().width for figure in figures)
    assert long > 0.8 * plain


def test_heads_at_their_ceiling_are_named():
    """Guards: the suggestion names the layers whose heads are full, and calls for nothing where none are."""
    ceiling = [[0.9, 0.8], [0.2, 0.9], [0.85, 0.85]]
    text = suggestion(inspection_of(ceiling, [32, 32, 32]))
    assert "In layers 0, 2 the mean effective rank is 80% or more" in text
    assert "convert m --output_dir OUTPUT --attention_head_size 64 32 64`" in text
    assert "neither shown nor ruled out" in suggestion(inspection_of([[0.0, 0.0]] * 3, [32, 32, 32]))
    assert "larger add nothing" in suggestion(inspection_of(ceiling, [128] * 3))
    assert "convert" not in suggestion(inspection_of(ceiling, [32, 32, 32], can_grow=False))
    mixed = suggestion(inspection_of(ceiling, [128, 32, 16]))  # the first has all it can use
    assert "In layers 2 the mean" in mixed
    assert "--attention_head_size 128 32 32`" in mixed


def test_sequences_are_whole_and_in_order(tmp_path, vocabulary):
    """Guards: sequences are cut from the text without gaps, framed, all of one length, the rest left out."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    (tmp_path / "a.txt").write_text("the a function takes returns list string file read write what does")
    batches = list(read_sequences([str(tmp_path / "a.txt")], tokenizer, 7, 2))
    rows = torch.cat(batches)
    assert [len(batch) for batch in batches] == [2] and rows.shape == (2, 7)
    assert tokenizer.decode(rows[0]) == "[CLS] the a function takes returns [SEP]"
    assert tokenizer.decode(rows[1]) == "[CLS] list string file read write [SEP]"


@pytest.fixture
def text(tmp_path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("the function takes a list and returns one string . " * 40)
    return str(file)


def test_command(model, text, tmp_path, capsys):
    """Guards: `fixedbert inspect` leaves a table, a JSON with every measure of every head, a picture and a page."""
    files = ["--output_dir", str(tmp_path / "out"), "--validation_file", text]
    main(["inspect", model, *files, "--max_seq_length", "16", "--max_samples", "20"])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert found["sequences"] == 20 and found["sequences for importance"] == 8 and found["head sizes"] == [6, 6]
    for name in ("rank", "ceiling", "importance", "entropy"):
        assert torch.tensor(found[name]).shape == (2, 5)
    assert "2 layers of width 32, 5 heads of 6; 20 sequences of 16 tokens" in printed
    assert len(printed.splitlines()) == 1 + 2 + 2 * 6 + 2 + 1  # what tokenizing did, too, and where the result is
    with Image.open(tmp_path / "out" / "inspection.png") as picture:
        assert picture.width > 1000
    assert AutoModel.from_pretrained(model).config._attn_implementation == "sdpa"


def test_results_are_data(model, text, tmp_path):
    """Guards: what Python gets is what the file has, with the sizes that say how to read it."""
    found = inspect(model, tmp_path / "out", text, max_seq_length=16, max_samples=20, importance_samples=3)
    saved = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert (found.model, found.layers, found.heads, found.head_sizes, found.width) == (model, 2, 5, [6, 6], 32)
    assert (found.max_seq_length, found.sequences, found.importance_sequences) == (16, 20, 3)
    assert found.can_grow
    assert found.condition.shape == (2,)
    measures = [name for name, value in vars(found).items() if isinstance(value, torch.Tensor)]
    assert len(measures) == 10
    for name in measures:
        assert saved[name] == getattr(found, name).tolist(), name


def test_python_of_the_page_runs(model, text, tmp_path, monkeypatch, capsys):
    """Guards: the Python of docs/inspecting.md shows a share for each layer."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "inspecting.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code.replace("all-MiniLM-L6-v2", model).replace("wikipedia/", text), names)
    assert names["found"].sequences == 3
    assert capsys.readouterr().out.count("tensor(") == 2


def test_files_of_unequal_heads(text, tmp_path, vocabulary):
    """Guards: inspection.json is plain JSON with lists of a layer's own heads; the picture leaves the rest blank."""
    shape = {"vocab_size": len(BertTokenizer(vocab=vocabulary)), "max_position_embeddings": 16}
    model_of("Model", **UNEQUAL, **shape).save_pretrained(tmp_path / "model")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "model")
    found = inspect(str(tmp_path / "model"), tmp_path / "out", text, max_seq_length=16, max_samples=5)
    written = (tmp_path / "out" / "inspection.json").read_text()
    saved = json.loads(written, parse_constant=pytest.fail)
    assert saved["heads by layer"] == [2, 5, 3] and saved["heads"] == 5
    assert [len(row) for row in saved["importance"]] == [len(row) for row in saved["rank"]] == [2, 5, 3]
    assert saved["entropy"][2] == found.entropy[2, :3].tolist() and len(saved["condition"]) == 3
    with Image.open(tmp_path / "out" / "inspection.png") as picture:
        assert picture.width > 1000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--max_seq_length", "100"], "shorter than 100 tokens"),
        (["--max_seq_length", "1000"], r"model\d+ takes 3 to 128 tokens"),
        (["--validation_file", "nothing.txt"], "nothing.txt: no such file"),
        (["--max_samples", "0"], "must be at least 1"),
        (["--batch_size", "-1"], "must be at least 1"),
    ],
)
def test_bad_input(model, tmp_path, arguments, message):
    """Guards: text that is too short or missing, or a length without positions, ends in a sentence."""
    (tmp_path / "text.txt").write_text("the function")
    with pytest.raises(InputError, match=message):
        files = ["--output_dir", str(tmp_path / "out"), "--validation_file", str(tmp_path / "text.txt")]
        main(["inspect", model, *files, *arguments])
    assert not list(tmp_path.glob("out*"))


def test_model_without_all_weights_is_refused(model, text, tmp_path):
    """Guards: heads of random weights are never shown as those of a model."""
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for 'encoder\.layer\.1\.attention\.self\.key\.weight'"):
        inspect(str(folder), tmp_path / "out", text, max_seq_length=8)


@pytest.mark.parametrize("name", ["attention.self.key", "intermediate.dense"])
def test_heads_that_are_not_finite_are_refused(model, text, tmp_path, name):
    """Guards: weights so large that products overflow are named, and no page with gaps is written."""
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights[f"bert.encoder.layer.0.{name}.weight"].fill_(3e38)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="what its heads do is not finite"):
        inspect(str(folder), tmp_path / "out", text, max_seq_length=8, max_samples=2)
    assert not (tmp_path / "out").exists()


def test_heads_that_an_encoder_lacks_are_not_reported(model, text, tmp_path):
    """Guards: a checkpoint with a prediction head is inspected without transformers' report of weights left over."""
    assert any(name.startswith("cls.") for name in load_file(Path(model) / "model.safetensors"))
    before = logging.get_verbosity()
    with CaptureLogger(logging.get_logger("transformers.modeling_utils")) as said:
        inspect(model, tmp_path / "out", text, max_seq_length=8, max_samples=1)
    assert not said.out and logging.get_verbosity() == before


def test_positions_of_a_roberta(text, tmp_path, vocabulary):
    """Guards: positions that RoBERTa keeps for padding are not for tokens."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=18, pad_token_id=0, **shape)
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    tokenizer.save_pretrained(tmp_path / "roberta")
    with pytest.raises(InputError, match="roberta takes 3 to 17 tokens"):
        inspect(str(tmp_path / "roberta"), tmp_path / "out", text, max_seq_length=18)
    inspect(str(tmp_path / "roberta"), tmp_path / "out", text, max_seq_length=17, max_samples=5)


def test_encoder_with_other_modules_is_refused(text, tmp_path, vocabulary):
    """Guards: an encoder in layers whose attention has other names than BERT's ends in a sentence."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    MPNetModel(MPNetConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path / "mpnet")
    tokenizer.save_pretrained(tmp_path / "mpnet")
    with pytest.raises(InputError, match="mpnet: its attention cannot be seen"):
        inspect(str(tmp_path / "mpnet"), tmp_path / "out", text, max_seq_length=8)


def test_decoder_is_refused(text, tmp_path, vocabulary):
    """Guards: a causal model, whose patterns are half empty, is refused by name; for a DistilBERT there is a way."""
    model_of("LMHeadModel").save_pretrained(tmp_path / "decoder")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "decoder")
    bert_of("Model", "DistilBert", hidden_dim=37).save_pretrained(tmp_path / "distilbert")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "distilbert")
    for name, end in (
        ("decoder", r"can be inspected\."),
        ("distilbert", "inspected; put it through fixedbert convert"),
    ):
        with pytest.raises(InputError, match=f"{name}: only encoders like BERT.*{end}"):
            inspect(str(tmp_path / name), tmp_path / "out", text, max_seq_length=8)
