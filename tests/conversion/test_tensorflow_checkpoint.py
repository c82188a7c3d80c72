"""Google's BERT checkpoints: read as TensorFlow wrote them, whole and in place, or refused with the reason."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tensorflow_checkpoint import CONFIG, WORDS, google_variables, message, number, write_checkpoint
from helpers.tiny_models import inputs_of
from transformers import AutoTokenizer, BertConfig, BertForPreTraining

from fixedbert import FixedHeadBertForPreTraining
from fixedbert.conversion.tensorflow_checkpoint import read_bert, read_tensors
from fixedbert.support.errors import InputError
from fixedbert_cli import main

# What tf.raw_ops.SaveV2 of TensorFlow 2.21 wrote for the three variables of `test_files_of_tensorflow_are_read`.
INDEX = base64.b64decode(
    "AAAGCAEaAggBAAsLZ2xvYmFsX3N0ZXAICRIAKAg1u9efEQAMFWxheWVyL2tlcm5lbAgBEggSAggCEgIIAyAIKBg1euv1qwYFEXNjYWxlCBMSBBIC"
    "CAIgICgENZMvM00AAAAAAQAAAADuhugzAAAAAAEAAAAAwPKhsAABAm0AZwAAAAABAAAAALc/tZxsCHkOAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAV/uAiyR1R9s="
)
DATA = bytes.fromhex("07000000000000000000803f0000004000004040000080400000a0400000c040003800c0")


@pytest.fixture(scope="module")
def model() -> BertForPreTraining:
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**CONFIG)).eval()
    for parameter in model.parameters():  # biases too, which begin as zeros
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="module")
def original(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    write_checkpoint(folder / "bert_model.ckpt", google_variables(model))
    return folder


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "uncased"))


@pytest.mark.parametrize("shards, block_items", [(1, 1000), (3, 7)])
def test_read_model_is_the_one_that_was_written(folder, model, shards, block_items):
    """Guards: every parameter is in its place, none is left over; outputs are the same bits; the optimizer is not."""
    write_checkpoint(folder / "bert_model.ckpt", google_variables(model), shards, block_items)
    config, tensors = read_bert(folder)
    assert {name: getattr(config, name) for name in CONFIG} == CONFIG
    read = BertForPreTraining(config).eval()
    missing, unexpected = read.load_state_dict(tensors, strict=False)
    assert missing == ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"] and not unexpected
    read.tie_weights()
    with torch.no_grad():
        outputs, expected = (m(**inputs_of("ForPreTraining")) for m in (read, model))
    assert torch.equal(outputs.prediction_logits, expected.prediction_logits)
    assert torch.equal(outputs.seq_relationship_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize("source", ["", "bert_model.ckpt"], ids=["folder", "prefix"])
def test_command_converts_it(folder, model, vocabulary, tmp_path, source):
    """Guards: `fixedbert convert` makes a FixedHeadBert of it: larger heads, the same function, a tokenizer."""
    shutil.copy(vocabulary, folder / "vocab.txt")
    more = ["--attention_head_size", "13", "--cased"]
    main(["convert", str(folder / source), "--output_dir", str(tmp_path / "fixed"), *more])
    fixed = FixedHeadBertForPreTraining.from_pretrained(tmp_path / "fixed").eval()
    with torch.no_grad():
        outputs, expected = (m(**inputs_of("ForPreTraining")) for m in (fixed, model))
    assert torch.allclose(outputs.prediction_logits, expected.prediction_logits, rtol=1e-4, atol=1e-4)
    assert fixed.config.attention_head_size == 13
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "fixed")
    assert tokenizer.unk_token not in tokenizer.tokenize("the function")
    assert tokenizer.unk_token in tokenizer.tokenize("THE")  # not lower-cased


def test_tensors_are_float32_of_their_own(folder, model):
    """Guards: half precision is widened; tensors can be written to, and the files stay as they are."""
    variables = google_variables(model)
    write_checkpoint(folder / "bert_model.ckpt", {**variables, WORDS: variables[WORDS].astype(np.float16)})
    _, tensors = read_bert(folder)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    words = tensors["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(words, torch.from_numpy(variables[WORDS]).half().float())
    words.zero_()
    assert read_bert(folder)[1]["bert.embeddings.word_embeddings.weight"].all()


def test_files_of_tensorflow_are_read(tmp_path):
    """Guards: the bytes that TensorFlow itself wrote give its names, types, shapes and values."""
    (tmp_path / "model.index").write_bytes(INDEX)
    (tmp_path / "model.data-00000-of-00001").write_bytes(DATA)
    tensors = read_tensors(tmp_path / "model")
    assert list(tensors) == ["global_step", "layer/kernel", "layer/scale"]
    assert tensors["global_step"].dtype == np.int64 and tensors["global_step"].shape == ()
    assert tensors["global_step"] == 7
    assert tensors["layer/kernel"].dtype == np.float32 and tensors["layer/kernel"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert tensors["layer/scale"].dtype == np.float16 and tensors["layer/scale"].tolist() == [0.5, -2]


def test_long_index_and_every_type_come_back(tmp_path):
    """Guards: keys of many blocks are whole and none is lost; odd shapes and places; values stay on the disk."""
    variables = {f"scope/layer_{n}/kernel": np.full((n % 3, 2), n, np.float32) for n in range(300)}
    variables |= {"a": np.arange(3, dtype=np.float16), "b/step": np.array(2**40), "c": np.arange(5, dtype=np.int32)}
    write_checkpoint(tmp_path / "model", variables, block_items=17)
    tensors = read_tensors(tmp_path / "model")
    assert tensors.keys() == variables.keys()
    for name, array in variables.items():
        assert tensors[name].dtype == array.dtype and np.array_equal(tensors[name], array)
    assert not any(tensor.flags.owndata or tensor.flags.writeable for tensor in tensors.values())


def test_one_of_several_checkpoints_is_named(folder, model):
    """Guards: a training step's checkpoint is found; of several none is chosen silently, and its prefix is enough."""
    changed = BertForPreTraining(BertConfig(**CONFIG))
    write_checkpoint(folder / "bert_model.ckpt-1000", google_variables(changed))
    with pytest.raises(InputError, match=r"several checkpoints; give one of .*ckpt, .*/bert_model\.ckpt-1000\."):
        read_bert(folder)
    for prefix, expected in (("bert_model.ckpt", model), ("bert_model.ckpt-1000", changed)):
        assert torch.equal(
            read_bert(folder / prefix)[1]["cls.seq_relationship.weight"], expected.cls.seq_relationship.weight
        )
    (folder / "bert_model.ckpt.index").unlink()
    assert not read_bert(folder)[1]["cls.predictions.bias"].any()


def test_damaged_index_never_gives_other_values(tmp_path):
    """Guards: wherever the index is cut or a bit of it is flipped, the values are refused or the same."""
    (tmp_path / "model.data-00000-of-00001").write_bytes(DATA)
    flipped = [INDEX[:n] + bytes([INDEX[n] ^ 1 << n % 8]) + INDEX[n + 1 :] for n in range(len(INDEX))]
    for index in [INDEX[:n] for n in range(len(INDEX))] + flipped:
        (tmp_path / "model.index").write_bytes(index)
        try:
            tensors = read_tensors(tmp_path / "model")
        except InputError as error:
            assert "model.index: " in str(error)
        else:
            assert b"".join(tensor.tobytes() for tensor in tensors.values()) == DATA


def rewrite(**options):
    return lambda folder, variables: write_checkpoint(folder / "bert_model.ckpt", variables, **options)


def change(**changes):
    """Replace variables, whose names have __ for /; None takes one away."""
    changes = {name.replace("__", "/"): array for name, array in changes.items()}

    def write(folder: Path, variables: dict):
        kept = {name: array for name, array in {**variables, **changes}.items() if array is not None}
        write_checkpoint(folder / "bert_model.ckpt", kept)

    return write


def cut(suffix: str, size: int):
    def write(folder: Path, variables: dict):
        file = folder / f"bert_model.ckpt.{suffix}"
        file.write_bytes(file.read_bytes()[:size])

    return write


def configure(**changes):
    def write(folder: Path, variables: dict):
        values = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
        (folder / "bert_config.json").write_text(json.dumps(values))

    return write


def write_config(text: str):
    return lambda folder, variables: (folder / "bert_config.json").write_text(text)


def remove(name: str):
    return lambda folder, variables: (folder / name).unlink()


SHARD = "data-00000-of-00001"
ZEROS = np.zeros((98, 32), np.float32)


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (remove("bert_model.ckpt.index"), r"uncased: no checkpoint .*; give the folder"),
        (remove(f"bert_model.ckpt.{SHARD}"), rf"ckpt\.{SHARD}: cannot be read \(No such file.*; put it beside"),
        (cut(SHARD, 5000), rf"ckpt\.{SHARD}: ends after 5,000 bytes, in or before 'bert/.*; get the whole file"),
        (cut(SHARD, 0), rf"ckpt\.{SHARD}: ends after 0 bytes, .*; get the whole file"),
        (
            cut("index", 1000),
            r"ckpt\.index: damaged, or not the index of a TensorFlow .*; download it again",
        ),
        (cut("index", 0), r"ckpt\.index: damaged, or not the index"),
        (rewrite(compression=1), r"ckpt\.index: compressed, which cannot be read; write"),
        (rewrite(header=number(2, 1)), r"ckpt\.index: the values are big-endian; write"),
        (rewrite(entry=message(7, b"")), r"ckpt\.index: 'bert/embeddings/.*' is a partitioned variable; write"),
        (rewrite(entry=number(5, 1)), r"ckpt\.index: damaged"),
        (rewrite(entry=number(4, 2**63)), rf"{SHARD}: ends after"),
        (rewrite(entry=number(2, 1)), r"ckpt\.index: damaged"),
        (change(bert__table=np.zeros(3)), r"ckpt\.index: 'bert/table' is of type 2 .*; convert it to float32"),
        (change(output_bias=np.zeros(3, np.float32)), r"ckpt: 'output_bias' not in the BERT of .*config\.json; give"),
        (
            change(**{WORDS.replace("/", "__"): ZEROS}),
            rf"ckpt: '{WORDS}' is \(98, 32\), but .* implies \(99, 32\); give",
        ),
        (change(bert__pooler__dense__bias=None), r"ckpt: without 'bert/pooler/dense/bias', which .* has; give"),
        (configure(num_hidden_layers=4), r"without 'bert/encoder/layer_3/attention.* and 13 more, which"),
        (configure(num_hidden_layers=10**9), r"config\.json: no BERT can be made of it \(1,000,000,000 layers, but"),
        (configure(num_hidden_layers=2), r"ckpt: 'bert/encoder/layer_2/.* and 13 more not in the BERT of"),
        (configure(intermediate_size=38), r"layer_0/intermediate/dense/kernel' is \(32, 37\), but .* \(32, 38\)"),
        (configure(hidden_size=None, vocab_size=None), r"config\.json: without vocab_size, hidden_size; give"),
        (configure(num_attention_heads=5), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(vocab_size="many"), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(hidden_size=-32), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(hidden_act="gelly"), r"config\.json: no BERT can be made of it \(.*gelly.*\); correct it"),
        (remove("bert_config.json"), r"config\.json: cannot be read \(No such file.*\); put it beside"),
        (write_config("{'hidden_size': 32}"), r"config\.json: cannot be read \(.*\); put it beside"),
        (write_config("[32]"), r"config\.json: holds no fields; put it beside"),
    ],
)
def test_bad_checkpoints_are_refused(folder, model, damage, sentence):
    """Guards: a folder that is not a whole checkpoint of its configuration ends with one sentence that says why."""
    damage(folder, google_variables(model))
    with pytest.raises(InputError, match=sentence) as raised:
        read_bert(folder)
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")
