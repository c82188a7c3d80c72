"""Files that others wrote: recipes, models, vocabularies, checkpoints; damaged, of another kind, or mistyped."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.study_records import RECORDS
from helpers.tiny_tasks import write_model
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from experiments.study.records import read_records
from experiments.study.studies import load_study
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.presets import preset_config
from fixedbert.support.errors import InputError
from fixedbert.support.files import reading
from fixedbert.training.arguments import CommonArguments, ModelArguments
from fixedbert.training.interruption import train
from fixedbert.training.loading import load_config, load_model
from fixedbert.training.output import check_readable, check_same_command, complete_checkpoints, output_directory
from fixedbert.training.trainer import CommonTrainer
from fixedbert_cli import main


def test_too_little_memory_is_no_damage():
    """Guards: a model that does not fit is not called damaged, and a mistake in the code is not called a bad file."""
    with pytest.raises(InputError, match="^model: there is too little memory for it .CUDA out of memory.*.$"):
        with reading("model", "get it anew"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(NameError), reading("model", "get it anew"):
        raise NameError("name 'x' is not defined")


def test_presets_have_no_weights():
    """Guards: a preset as --model_name_or_path is said with the flag that takes it."""
    with pytest.raises(InputError, match="a preset has no weights to start from; give it as `config_name`"):
        load_config(ModelArguments(model_name_or_path="mini"))


def test_configuration_does_not_choose_the_attention(tmp_path):
    """Guards: a kernel on the Hub that config.json names is not fetched: the name is dropped."""
    preset_config("tiny").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("attn_implementation", "_attn_implementation"):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: "kernels-community/flash-attn2"}))
        assert load_config(ModelArguments(config_name=str(tmp_path)))._attn_implementation is None


@pytest.mark.parametrize(
    "file, content",
    [
        ("config.json", b"[1]"),
        ("config.json", b'{"model_type": ["bert"]}'),
        ("config.json", b'{"model_type": "fixed_head_bert", "hidden_size": "wide"}'),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0" + b"{" * 16),
        ("model.safetensors", b""),
        ("pytorch_model.bin", b"\x80\x04cbuiltins\nprint\n)R."),
        ("model.safetensors.index.json", b"[]"),
        ("model.safetensors.index.json", b'{"weight_map": 5}'),
    ],
)
def test_damaged_models_are_one_sentence(tmp_path, vocabulary, file, content):
    """Guards: whatever is wrong with a file of a model, a script that loads it ends with one sentence."""
    write_model(str(tmp_path), vocabulary)
    if file != "config.json":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_bytes(content)
    arguments = ModelArguments(model_name_or_path=str(tmp_path))
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        load_model(AutoModelForMaskedLM, arguments, load_config(arguments), load_tokenizer(vocabulary))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"[PAD]\n\xff\n", "line 2: byte 1 is not UTF-8"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\n", "line 7: the token of line 6 again"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\nthe\n", "line 6: no token"),
        (b"", "line 1: no token"),
    ],
)
def test_damaged_vocabularies_are_one_sentence(tmp_path, content, message):
    """Guards: a vocabulary that is not UTF-8, or has a token twice or none in a line, is named with the line."""
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"vocab\.txt.*{message}"):
        load_tokenizer(str(tmp_path / "vocab.txt"))


def test_panic_of_a_library_is_one_sentence(tmp_path):
    """Guards: a panic in Rust, which is no Exception, does not pass the boundary of reading; Ctrl-C does."""

    class PanicException(BaseException):
        pass

    with pytest.raises(InputError, match="tokenizer.json: cannot be read .index out of bounds.; get it anew"):
        with reading("tokenizer.json", "get it anew"):
            raise PanicException("index out of bounds")
    with pytest.raises(KeyboardInterrupt), reading("tokenizer.json", "get it anew"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("content", ["[1]", '"words"', "\xff"])
def test_damaged_command_is_one_sentence(tmp_path, content):
    """Guards: command.json that holds no fields is named with what to remove."""
    (tmp_path / "command.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=rf"command\.json: .*remove {re.escape(str(tmp_path))}\.$"):
        check_same_command(tmp_path, {})


def test_folders_that_are_no_checkpoints(tmp_path):
    """Guards: checkpoint-best and the like are no checkpoints and stay as they are; the others keep their order."""
    for name in ("checkpoint-best", "checkpoint-x1", "checkpoint-10", "checkpoint-9", "checkpoint-\u0663"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{}")
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    partial = tmp_path.rename(tmp_path.with_name("out.partial"))
    for name in ("checkpoint-notes.txt", "checkpoint-8", "command.json"):
        (partial / name).write_text("{}")
    (partial / "checkpoint-11").mkdir()  # killed while it was written
    kept = {path.name for path in partial.iterdir()} - {"checkpoint-11"}
    arguments = CommonArguments(output_dir=str(partial.with_name("out")), use_cpu=True)
    with output_directory(arguments, {}) as checkpoint:
        assert checkpoint == str(partial / "checkpoint-10") and {path.name for path in partial.iterdir()} == kept


@pytest.mark.parametrize("content", ["[]", "{[}", '{"colour": 1}'])
def test_damaged_trainer_state_is_one_sentence(tmp_path, content):
    """Guards: a trainer_state.json that is none is said before Trainer uses it."""
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(InputError, match=r"trainer_state\.json: the checkpoint cannot be read"):
        check_readable(tmp_path, 1)


def test_checkpoints_are_checked_when_a_run_goes_on(tmp_path, vocabulary):
    """Guards: a bit that changed within a tensor, which safetensors loads, is found by the checksums; what Trainer
    cannot load is one sentence."""
    write_model(str(tmp_path / "model"), vocabulary)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    rows = [{"input_ids": [2, 5, 3], "labels": [-100, 6, -100]}] * 8

    def trainer(steps):
        options = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False}
        arguments = CommonArguments(str(tmp_path / "run"), max_steps=steps, save_steps=2, **options)
        return CommonTrainer(model, arguments, train_dataset=rows)

    train(once := trainer(2), None)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    once.callback_handler.on_save(
        once.args, once.state, once.control
    )  # as where a signal ends the last step of an epoch
    check_readable(checkpoint, 1)
    checksums = json.loads((checkpoint / "checksums.json").read_text())
    assert checksums.keys() == {file.name for file in checkpoint.iterdir()} - {"checksums.json"}
    whole = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = load_file(checkpoint / "model.safetensors")
    assert any(not torch.equal(damaged[name], value) for name, value in model.state_dict().items() if name in damaged)
    with pytest.raises(InputError, match="model.safetensors: the checkpoint cannot be read .it is not as it was wri"):
        check_readable(checkpoint, 1)
    (checkpoint / "model.safetensors").write_bytes(whole)
    with pytest.raises(InputError, match="rng_state_0.pth: the checkpoint cannot be read .No such file"):
        check_readable(checkpoint, 2)
    check_readable(checkpoint, 1)
    for name in ("scheduler.pt", "optimizer.pt", "rng_state.pth"):
        before = (checkpoint / name).read_bytes()
        torch.save({"colour": torch.ones(2)}, checkpoint / name)
        with pytest.raises(InputError, match="checkpoint-2: the checkpoint cannot be loaded .*; remove .*start anew"):
            train(trainer(4), str(checkpoint))
        (checkpoint / name).write_bytes(before)
    train(trainer(4), str(checkpoint))


CODE = "import sys\nopen({!r}, 'w')\n"


@pytest.fixture
def remote(tmp_path, vocabulary):
    """A directory whose config.json asks for code beside it."""
    folder = tmp_path / "remote"
    write_model(str(folder), vocabulary)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": auto_map}))
    (folder / "evil.py").write_text(CODE.format(str(tmp_path / "executed")))
    return folder


@pytest.mark.parametrize("command", ["convert", "inspect"])
def test_code_beside_a_model_is_neither_run_nor_asked_about(remote, tmp_path, monkeypatch, command):
    """Guards: convert and inspect never run code of a model, and never ask on the terminal whether to."""
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("it asked"))
    text = tmp_path / "text.txt"
    text.write_text("One.\n")
    with pytest.raises(InputError, match="remote"):
        texts = ["--validation_file", str(text)] if command == "inspect" else []
        main([command, str(remote), "--output_dir", str(tmp_path / "out"), *texts])
    assert not (tmp_path / "executed").exists() and not (tmp_path / "out").exists()


def test_convert_stays_in_its_directory(tmp_path, vocabulary):
    """Guards: convert follows no link and no index entry out of the directory, and the links of the Hub's cache."""
    folder = tmp_path / "model"
    write_model(str(folder), vocabulary)
    weights = (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(weights)
    with pytest.raises(InputError, match="model.safetensors: links out of the directory are not followed"):
        main(["convert", str(folder), "--output_dir", str(tmp_path / "out")])
    (folder / "model.safetensors").unlink()
    for name in ("../outside.safetensors", str(weights), 5):
        index = {"metadata": {}, "weight_map": {"bert.embeddings.word_embeddings.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(InputError, match="index.json: weight_map must contain file names"):
            main(["convert", str(folder), "--output_dir", str(tmp_path / "out")])
    (folder / "model.safetensors.index.json").unlink()
    (folder / "modules.json").write_text("[]")
    (folder / "1_Pooling" / "deep").mkdir(parents=True)
    for link in ("1_Pooling/deep/a.json", "1_Pooling/folder", "deep/sentence.json"):
        (folder / link).parent.mkdir(exist_ok=True)
        (folder / link).symlink_to(tmp_path if link.endswith("folder") else weights)
        with pytest.raises(InputError, match=f"{link}: links out of the directory are not followed"):
            main(["convert", str(folder), "--output_dir", str(tmp_path / "out")])
        (folder / link).unlink()
    cached = tmp_path / "models--me--mini" / "snapshots" / "0123"
    cached.parent.mkdir(parents=True)
    folder.rename(cached)
    (tmp_path / "models--me--mini" / "blobs").mkdir()
    blob = weights.rename(tmp_path / "models--me--mini" / "blobs" / "4567")
    (cached / "model.safetensors").symlink_to(Path("../../blobs") / blob.name)
    main(["convert", str(cached), "--output_dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "name, value",
    [
        ("series", None),
        ("point", "0"),
        ("learning_rate", "fast"),
        ("results", []),
        ("results", {"loss": "low"}),
        ("versions", 5),
        ("axis", "colour"),
        ("epochs", float("nan")),
    ],
)
def test_records_of_another_type_are_named(tmp_path, name, value):
    """Guards: a record without a field, or with one of another type, is named with file and line."""
    file = tmp_path / "runs.jsonl"
    good = RECORDS[0]
    for bad in ({**good, name: value}, {key: kept for key, kept in good.items() if key != name}):
        file.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
        with pytest.raises(InputError, match=r"runs\.jsonl, line 2: not the record of a run"):
            read_records([file])


@pytest.mark.parametrize("content", [b"series: {a: *b}\n", b"scales: 5\n", b"\xff", b"scales: {tiny: [1]}\n"])
def test_damaged_studies_are_one_sentence(tmp_path, content):
    """Guards: a study that is no YAML, or of other types, is named."""
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.yaml"):
        load_study(str(tmp_path / "mine.yaml"), "tiny")
