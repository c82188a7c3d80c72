"""`fixedbert shrink`: from a model and a text to a directory like any other, its errors, and what is refused."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_models import model_of
from small_tasks import WORDS, write_model
from tensorflow_files import CONFIG, google_variables, write_checkpoint
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertTokenizer,
    RobertaConfig,
    RobertaModel,
)

import fixedbert
from fixedbert.conversion.growing import Heads
from fixedbert.shrinking.layers import errors_from_original
from fixedbert.shrinking.repair import HiddenStateTrainer
from fixedbert.shrinking.shrink import Distillation, Sizes, Text, load, making, predict, read_shrinking, shrink
from fixedbert.shrinking.text import shrinking_text
from fixedbert.support.errors import InputError, Stopped
from fixedbert_cli import main, parse


@pytest.fixture(scope="module")
def model(tmp_path_factory, vocabulary) -> str:
    folder = str(tmp_path_factory.mktemp("model"))
    write_model(folder, vocabulary)
    return folder


@pytest.fixture
def text(tmp_path) -> str:
    generator = torch.Generator().manual_seed(0)
    words = [WORDS[number] for number in torch.randint(len(WORDS), (700,), generator=generator).tolist()]
    (tmp_path / "text.txt").write_text(" ".join(words))
    return str(tmp_path / "text.txt")


def command(model, text, output, *more) -> list[str]:
    files = ["--output_dir", str(output), "--train_file", text]
    return ["shrink", model, *files, "--max_seq_length", "9", "--batch_size", "13", *more]


def test_command(model, text, tmp_path, capsys):
    """Guards: the command leaves weights, code, tokenizer, card, errors and a picture, and prints the errors."""
    main(command(model, text, tmp_path / "out", "--attention_head_size", "4", "--num_attention_heads", "5", "3"))
    printed = capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "shrinking.png"} <= names
    assert "modeling_fixed_head_bert.py" in names and not {"hidden_states", "cut"} & names
    found = read_shrinking(tmp_path / "out")
    assert [layer.after for layer in found.layers] == [Heads(5, 4, 4), Heads(3, 4, 4)]
    assert found.tokens % 9 == 0 and found.max_seq_length == 9 and found.cut
    assert f"layer 1: 5 heads of 6 -> 3 heads of 4: {found.layers[1].error:.3f} on the same inputs" in printed
    before, after = found.parameters
    assert before == fixedbert.FixedHeadBertForPreTraining.from_pretrained(model).num_parameters()
    assert f"parameters of the model: {before:,} -> {after:,}, {1 - after / before:.1%} less" in printed
    limit = "Inputs of more than 9 tokens, of the 128 that the model takes, were not in the text: their errors can be "
    limit += "larger."
    assert f"{limit} Give --max_seq_length as long as your inputs." in printed
    card = (tmp_path / "out" / "README.md").read_text()
    assert limit in card
    assert f"| 1 | 5 heads of 6 | 3 heads of 4 | {found.layers[1].scores[4]:.3f} |" in card
    assert f"| {found.layers[1].error:.3f} | {found.layers[1].from_original:.3f} |" in card
    with Image.open(tmp_path / "out" / "shrinking.png") as picture:
        assert picture.width > 1000
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and loaded.config.head_counts == [5, 3]
    assert after == fixedbert.FixedHeadBertForPreTraining.from_pretrained(tmp_path / "out").num_parameters()
    better, worse = ([layer.from_original + change for layer in found.layers] for change in (-0.1, 0.1))
    trained = replace(found, distil_steps=7, repaired=better)
    for text_of in (shrinking_text, making):
        assert "7 steps of training" in text_of(trained) and "all layers are nearer" in text_of(trained)
        assert "the errors of layers 1 are larger" in text_of(replace(trained, repaired=[better[0], worse[1]]))
    assert "steps of training" not in printed + card
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the a")["input_ids"][1:-1]


def test_dry_run_writes_nothing(model, text, tmp_path, capsys):
    """Guards: with --dry_run the predicted errors are printed, from 1 down to 0, and no directory is needed."""
    arguments = ["shrink", model, "--train_file", text, "--max_seq_length", "9", "--dry_run"]
    main(arguments)
    printed = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in printed if line.split()[:2] == ["layer", "1"])
    assert row[2] == "1.000" and row[-1] == "0.000" and len(row) == 2 + 7
    assert any(line.startswith("heads") for line in printed) and not any("cut," in line for line in printed)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    for name in ("keep", "intermediate_size", "distil_steps"):
        with pytest.raises(InputError, match=f"cuts nothing: leave out --{name}"):
            main([*arguments, f"--{name}", "1"])
    found = predict(model, Text([text], 9))
    assert not found.cut and found.layers[1].scores == pytest.approx(sorted(found.layers[1].scores, reverse=True))


@pytest.mark.parametrize("way", [{"keep": 0.5}, {"tolerance": 0.2}, {"keep": 0.5, "multiple_of": 2}])
def test_sizes_are_found(model, text, tmp_path, way):
    """Guards: --keep and --tolerance reach the files, with the share and the errors that they ask for."""
    flags = [word for name, value in way.items() for word in (f"--{name}", str(value))]
    main(command(model, text, tmp_path / "out", *flags))
    layers = read_shrinking(tmp_path / "out").layers
    if "tolerance" in way:
        assert max(layer.error for layer in layers) <= 0.2
    else:
        weights = load_file(tmp_path / "out" / "model.safetensors")
        kept = sum(x.numel() for name, x in weights.items() if "attention" in name and "LayerNorm" not in name)
        before = load_file(Path(model) / "model.safetensors")
        whole = sum(x.numel() for name, x in before.items() if "attention" in name and "LayerNorm" not in name)
        assert 0.35 < kept / whole <= 0.5
    if "multiple_of" in way:
        assert all(layer.after.size % 2 == layer.after.value_size % 2 == 0 for layer in layers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back(model, text, tmp_path, vocabulary, dtype):
    """Guards: half precision is calculated in more, and saved as it came, with what is not cut bit for bit."""
    AutoModel.from_pretrained(model, dtype=dtype).save_pretrained(tmp_path / "half")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "half")
    main(command(str(tmp_path / "half"), text, tmp_path / "out", "--attention_head_size", "4"))
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "out"))
    assert {tensor.dtype for tensor in after.values()} == {dtype}
    name = "encoder.layer.0.intermediate.dense.weight"
    assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_errors_of_half_precision_are_those_of_what_is_saved(model, text, tmp_path, vocabulary, dtype):
    """Guards: weights are rounded before errors are measured, heads and neurons: those reported are those on disk."""
    AutoModel.from_pretrained(model, dtype=dtype).save_pretrained(tmp_path / "half")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "half")
    sizes = ("--attention_head_size", "5", "--intermediate_size", "36")
    main(command(str(tmp_path / "half"), text, tmp_path / "out", *sizes))
    half, out = (AutoModel.from_pretrained(tmp_path / name).float().eval() for name in ("half", "out"))
    batches = Text([text], 9, batch_size=13).batches(BertTokenizer(vocab=vocabulary))
    reported = [layer.from_original for layer in read_shrinking(tmp_path / "out").layers]
    assert errors_from_original(out, half, batches) == pytest.approx(reported, rel=1e-4)


def stock(kind, vocabulary, folder: Path):
    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    torch.manual_seed(0)
    if kind == "bert":
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder)
    else:
        config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=40, pad_token_id=0, **shape)
        RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_stock_models(tmp_path, vocabulary, text, kind):
    """Guards: a BERT and a RoBERTa are cut as they are, and the result is a FixedHeadBert with their head."""
    stock(kind, vocabulary, tmp_path / "stock")
    main(command(str(tmp_path / "stock"), text, tmp_path / "out", "--value_head_size", "3"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["FixedHeadBertForMaskedLM" if kind == "bert" else "FixedHeadBertModel"]
    assert (config["attention_head_size"], config["value_head_size"]) == (8, 3)


@pytest.mark.parametrize(
    "more, message",
    [
        (["--attention_head_size", "8"], r"5 heads of 8 for 5 heads of 6 in layer 0: .*fixedbert convert makes heads"),
        (["--attention_head_size", "6", "7"], r"in layer 1: .*convert"),
        (["--num_attention_heads", "0"], "0 heads of 6 for 5 heads of 6 in layer 0"),
        (["--value_head_size", "1", "2", "3"], "3 values of value_head_size for 2 layers"),
        (["--intermediate_size", "38"], "`intermediate_size` 38: give 1 to 37"),
        (["--intermediate_size", "0"], "`intermediate_size` 0: give 1 to 37"),
        (["--keep", "1.5"], "`keep` 1.5: give a share between 0 and 1"),
        (["--keep", "0.001"], "`keep` leaves less than one head"),
        (["--tolerance", "0"], "`tolerance` 0.0: give a share between 0 and 1"),
        (["--keep", "0.5", "--tolerance", "0.1"], "sizes, `keep` and `tolerance` exclude each other"),
        (["--attention_head_size", "4", "--multiple_of", "2"], "`multiple_of` 2: .*with `keep` or `tolerance`"),
        ([], "nothing to cut"),
        (["--keep", "0.5", "--max_samples", "0"], "`max_samples` 0: must be at least 1"),
        (["--keep", "0.5", "--max_seq_length", "129"], "`max_seq_length` 129: the model takes 3 to 128 tokens"),
        (["--keep", "0.5", "--train_file", "nothing.txt"], "nothing.txt: no such file"),
        (["--attention_head_size", "4", "--max_samples", "2"], "layer 0: the text has 18 tokens; give 24 or more"),
        (["--intermediate_size", "9", "--max_samples", "9"], "layer 0: the text has 81 tokens; give 148 or more"),
        (["--keep", "0.5", "--seed", "1"], "--seed is for the training that --distil_steps asks for"),
        (["--keep", "0.5", "--distil_steps", "-1"], "`distil_steps` -1: give at least 1"),
        (["--keep", "0.5", "--distil_steps", "2", "--seed", "-1"], "`seed` -1: give a number from 0"),
    ],
)
def test_bad_input(model, text, tmp_path, more, message):
    """Guards: what is no cut, no text or no share ends in a sentence, and nothing is left."""
    with pytest.raises(InputError, match=message):
        main(command(model, text, tmp_path / "out", *more))
    assert not list(tmp_path.glob("out*"))


def test_too_little_text(model, tmp_path):
    """Guards: no text, or less than one sequence, is refused by name."""
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("the a")
    for name in ("empty.txt", "short.txt"):
        with pytest.raises(InputError, match=rf"{name}: shorter than 9 tokens"):
            main(command(model, str(tmp_path / name), tmp_path / "out", "--keep", "0.5"))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"head_embedding": "add"}, "all heads share one projection"),
        ({"qk_norm": True}, "queries and keys are normalised"),
        ({"is_decoder": True, "add_cross_attention": True}, "what cross-attention sees is not in the text"),
    ],
)
def test_models_that_cannot_be_cut(text, tmp_path, vocabulary, changes, reason):
    """Guards: MHE, qk_norm and cross-attention are refused with their reason, before any work."""
    head = "LMHeadModel" if "is_decoder" in changes else "Model"
    model_of(head, vocab_size=200, **changes).save_pretrained(tmp_path / "model")
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=rf"cannot be shrunk with {list(changes)[-1]}=.*: {reason}"):
        main(command(str(tmp_path / "model"), text, tmp_path / "out", "--keep", "0.5"))
    assert not list(tmp_path.glob("out*"))


def test_quantized_weights_are_refused(model, text, tmp_path):
    """Guards: a model that says it is quantized is not taken for one that is not."""
    folder = tmp_path / "quantized"
    folder.mkdir()
    for file in Path(model).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantized weights"):
        main(command(str(folder), text, tmp_path / "out", "--keep", "0.5"))


def test_tokenizer_of_another_model(model, text, tmp_path):
    """Guards: a tokenizer with more tokens than the model is refused before one of them is met."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens([f"new{number}" for number in range(9)])
    AutoModel.from_pretrained(model).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(
        InputError, match=rf"the tokenizer has {len(tokenizer)} tokens and the model {len(tokenizer) - 9}"
    ):
        main(command(str(tmp_path / "model"), text, tmp_path / "out", "--keep", "0.5"))


@pytest.mark.parametrize("head", ["ForMultipleChoice", "ForSequenceClassification"])
def test_repair_with_any_head(text, tmp_path, vocabulary, head):
    """Guards: heads that take rows of choices, or need the last layer at one token alone, can be repaired."""
    folder = tmp_path / "model"
    model_of(head, vocab_size=200, unpad_inputs=True).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    main(command(str(folder), text, tmp_path / "out", "--attention_head_size", "4", "--distil_steps", "2"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [f"FixedHeadBert{head}"]


def test_cased_tensorflow_checkpoint(tmp_path, text):
    """Guards: --cased reaches the text and the tokenizer of a TensorFlow checkpoint, which does not say."""
    folder = tmp_path / "cased"
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]) + "\n")
    write_checkpoint(folder / "bert_model.ckpt", google_variables(BertForPreTraining(BertConfig(**CONFIG))))
    main(command(str(folder), text, tmp_path / "out", "--attention_head_size", "4", "--cased"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("A D", add_special_tokens=False)["input_ids"] == [31, 34]
    with pytest.raises(InputError, match="35% of its tokens never come, such as 'A', 'B', 'C'"):
        load(folder)


def test_text_is_read_no_further_than_needed(tmp_path, model):
    """Guards: a text file is read by lines, so that one of any size costs what is taken of it."""
    (tmp_path / "long.txt").write_bytes(b"the function takes a string\n" * 99 + b"\xff\n" * 9)
    text, tokenizer = Text([str(tmp_path / "long.txt")], 9, most=3, batch_size=2), AutoTokenizer.from_pretrained(model)
    assert [ids.shape for ids in text.batches(tokenizer)] == [(2, 9), (1, 9)]
    with pytest.raises(InputError, match="long.txt, line 100: .* not UTF-8"):
        list(Text([str(tmp_path / "long.txt")], 9).batches(tokenizer))


def test_output_directory_that_is_there(model, text, tmp_path):
    """Guards: nothing is overwritten."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("kept")
    for more in ([], ["--distil_steps", "2"]):
        with pytest.raises(InputError, match="the output directory is not empty"):
            main(command(model, text, tmp_path / "out", "--keep", "0.5", *more))
    assert (tmp_path / "out" / "file").read_text() == "kept"


def test_interruption_of_a_cut_leaves_nothing(model, text, tmp_path, monkeypatch):
    """Guards: Ctrl-C while layers are cut leaves no directory and no hidden states."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fixedbert.shrinking.layers.LayerByLayer.cut_feed_forward", interrupt)
    for more in ([], ["--distil_steps", "2"]):
        with pytest.raises(KeyboardInterrupt) as error:
            main(command(model, text, tmp_path / "out", "--attention_head_size", "4", *more))
        assert "nothing is left" in vars(error.value)["left"]
        assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["text.txt"]


def distilled(model, text, output, steps=9) -> dict[str, torch.Tensor]:
    """The weights after a repair of `steps`."""
    shrink(model, output, Text([text], 9, batch_size=13), Sizes(3), Distillation(steps, learning_rate=3e-3, seed=1))
    return load_file(output / "model.safetensors")


def test_repair(model, text, tmp_path):
    """Guards: training brings the attention nearer to the original's, leaves the rest alone, and the card says so."""
    copied = shutil.copytree(model, tmp_path / "model")
    config = json.loads((copied / "config.json").read_text()) | {"hidden_dropout_prob": 0.1}
    (copied / "config.json").write_text(json.dumps(config))
    weights = distilled(copied, text, tmp_path / "out", steps=40)
    found = read_shrinking(tmp_path / "out")
    assert found.distil_steps == 40
    before = [layer.from_original for layer in found.layers]
    assert all(after < 0.9 * cut for after, cut in zip(found.repaired, before, strict=True))
    original = load_file(Path(model) / "model.safetensors")
    for name in weights:
        assert torch.equal(weights[name], original[name]) is ("encoder" not in name), name
    card = (tmp_path / "out" / "README.md").read_text()
    assert "40 steps of training" in card and f"| {found.repaired[1]:.3f} |" in card
    config = fixedbert.FixedHeadBertConfig.from_pretrained(tmp_path / "out")
    assert config.hidden_dropout_prob == 0.1 and config.head_sizes == [3, 3]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not {"cut", "hidden_states"} & names and not any(name.startswith("checkpoint") for name in names)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_repair_keeps_the_precision(model, text, tmp_path, dtype):
    """Guards: a model is repaired in its precision, or in float32 for half, and what is not trained keeps its bits."""
    original = AutoModelForMaskedLM.from_pretrained(model, dtype=torch.float64)
    original.base_model.embeddings.LayerNorm.weight.data += 1e-12
    original.to(dtype).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "model")
    weights = distilled(str(tmp_path / "model"), text, tmp_path / "out", steps=2)
    before = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {dtype}
    assert all(torch.equal(weights[name], before[name]) for name in before if "embeddings" in name)


def test_interrupted_repair_goes_on(model, text, tmp_path, monkeypatch):
    """Guards: a repair that was stopped ends with the weights and errors of one that was not; other flags do not."""
    whole = distilled(model, text, tmp_path / "whole")
    step = HiddenStateTrainer.training_step
    calls = []

    def stop_in_fourth(self, *args, **kwargs):
        calls.append(None)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(HiddenStateTrainer, "training_step", stop_in_fourth)
    with pytest.raises(Stopped) as error:
        distilled(model, text, tmp_path / "out")
    assert re.search("the same command goes on from .*checkpoint-4", vars(error.value)["left"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="an unfinished run with other arguments"):
        distilled(model, text, tmp_path / "out", steps=8)
    again = distilled(model, text, tmp_path / "out")
    assert len(calls) == 9
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert read_shrinking(tmp_path / "out") == read_shrinking(tmp_path / "whole")


def test_loss_of_repair_is_the_relative_error(model, text, tmp_path):
    """Guards: the loss is the mean over layers of two relative squared errors, and zero for the model itself."""
    model = model_of("Model", hidden_dropout_prob=0.1).eval()
    args = replace(Distillation(3).arguments(tmp_path, 4), bf16=False)
    trainer = HiddenStateTrainer(model, model_of("Model"), args=args, train_dataset=[])
    ids = torch.randint(99, (5, 7), generator=torch.Generator().manual_seed(0))
    model.train()
    assert trainer.compute_loss(model, {"input_ids": ids}).item() == 0  # without dropout, too
    with torch.no_grad():
        model.encoder.layer[1].attention.output.dense.bias += 0.3
        wanted, outputs = model_of("Model").eval(), {}
        for name, one in (("after", model), ("before", wanted)):
            attention = []
            handles = [
                layer.attention.output.dense.register_forward_hook(lambda _, __, y, kept=attention: kept.append(y))
                for layer in one.encoder.layer
            ]
            states = one(ids, output_hidden_states=True).hidden_states[1:]
            outputs[name] = [*attention, *states]
            for handle in handles:
                handle.remove()
    pairs = zip(outputs["after"], outputs["before"], strict=True)
    expected = sum(float((a - b).square().sum() / b.square().sum()) for a, b in pairs) / 3
    assert trainer.compute_loss(model, {"input_ids": ids}).item() == pytest.approx(expected, rel=1e-5)


def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "shrinking.md").read_text(encoding="utf-8")


def test_commands_of_the_page_are_taken():
    """Guards: every flag of the commands in docs/shrinking.md is one that the command takes."""
    commands = re.findall(r"^    fixedbert (shrink .*)$", page(), re.MULTILINE)
    assert len(commands) >= 9
    for words in commands:
        parse(words.split())


def test_python_of_the_page_runs(model, text, tmp_path, monkeypatch, capsys):
    """Guards: the Python of docs/shrinking.md predicts, cuts, and shows the errors of all layers."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    changes = {"all-MiniLM-L6-v2": model, "wikipedia/": text, "=128": "=9", "[16]": "[3]", "=16": "=3"}
    for old, new in changes.items():
        code = code.replace(old, new)
    exec(code, {})
    assert len(capsys.readouterr().out.splitlines()) == 4 and (tmp_path / "halves" / "config.json").exists()
