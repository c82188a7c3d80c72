"""Google's BERT checkpoints: read as TensorFlow wrote them, whole and in place, or refused with the reason."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import inputs_of
from transformers import AutoTokenizer, BertConfig, BertForPreTraining

from fixedbert import FixedHeadBertForPreTraining
from fixedbert.cli import main
from fixedbert.errors import InputError
from fixedbert.tensorflow_checkpoint import read_bert, read_tensors

CONFIG = {
    "attention_probs_dropout_prob": 0.2,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.3,
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 37,
    "max_position_embeddings": 11,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "type_vocab_size": 2,
    "vocab_size": 99,
}
WORDS = "bert/embeddings/word_embeddings"
# What tf.raw_ops.SaveV2 of TensorFlow 2.21 wrote for the three variables of `test_files_of_tensorflow_are_read`.
INDEX = base64.b64decode(
    "AAAGCAEaAggBAAsLZ2xvYmFsX3N0ZXAICRIAKAg1u9efEQAMFWxheWVyL2tlcm5lbAgBEggSAggCEgIIAyAIKBg1euv1qwYFEXNjYWxlCBMSBBIC"
    "CAIgICgENZMvM00AAAAAAQAAAADuhugzAAAAAAEAAAAAwPKhsAABAm0AZwAAAAABAAAAALc/tZxsCHkOAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAV/uAiyR1R9s="
)
DATA = bytes.fromhex("07000000000000000000803f0000004000004040000080400000a0400000c040003800c0")


def crc32c_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ 0x82F63B78 * (crc & 1) for crc in table]
    return table


TABLE = crc32c_table()


def checksum(data: bytes) -> bytes:
    crc = 2**32 - 1
    for byte in data:
        crc = TABLE[(crc ^ byte) % 256] ^ crc // 256
    crc ^= 2**32 - 1
    return ((crc // 2**15 + crc % 2**15 * 2**17 + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value) if value else b""


def message(field: int, content: bytes) -> bytes:
    return varint(field * 8 + 2) + varint(len(content)) + content


def block(items: list[tuple[bytes, bytes]]) -> bytes:
    """Keys without what they share with the one before; every 16th is written in full, as a restart point."""
    content, restarts, last = b"", [], b""
    for place, (key, value) in enumerate(items):
        if place % 16 == 0:
            restarts.append(len(content))
            last = b""
        shared = next((n for n, (a, b) in enumerate(zip(last, key, strict=False)) if a != b), min(len(last), len(key)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + b"".join(n.to_bytes(4, "little") for n in [*(restarts or [0]), len(restarts) or 1])


def write_table(file: Path, items: list[tuple[bytes, bytes]], block_items: int, compression: int):
    table = b""

    def add(content: bytes) -> bytes:
        nonlocal table
        handle = varint(len(table)) + varint(len(content))
        stored = content + bytes([compression])
        table += stored + checksum(stored)
        return handle

    blocks = [items[begin : begin + block_items] for begin in range(0, len(items), block_items)]
    handles = [(part[-1][0], add(block(part))) for part in blocks]
    footer = add(block([])) + add(block(handles))
    file.write_bytes(table + footer.ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little"))


def write_checkpoint(
    prefix: Path, variables: dict, shards: int = 1, block_items: int = 40, compression: int = 0, header=b"", entry=b""
):
    """
    A checkpoint in TensorFlow's format.

    Args:
        shards: the files over which the values are spread.
        block_items: as many keys are in one block of the index.
        header, entry: fields that are added to the header and to each variable's entry.
    """
    numbers = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
    data = [b""] * shards
    items = [(b"", number(1, shards) + header + message(3, number(1, 1)))]
    for place, (name, array) in enumerate(sorted(variables.items())):
        shard = place % shards
        content = np.ascontiguousarray(array).tobytes()
        shape = b"".join(message(2, number(1, size)) for size in array.shape)
        fields = number(1, numbers[str(array.dtype)]) + message(2, shape) + number(3, shard)
        fields += number(4, len(data[shard])) + number(5, len(content)) + b"\x35" + checksum(content) + entry
        items.append((name.encode(), fields))
        data[shard] += content
    for shard in range(shards):
        Path(f"{prefix}.data-{shard:05}-of-{shards:05}").write_bytes(data[shard])
    write_table(Path(f"{prefix}.index"), items, block_items, compression)


def google_variables(model: BertForPreTraining) -> dict[str, np.ndarray]:
    """A model's parameters as google-research/bert names and lays them out, and what its optimizer keeps."""
    variables = {"global_step": torch.tensor(1000)}

    def dense(scope: str, layer: torch.nn.Linear):
        variables[f"{scope}/kernel"] = layer.weight.T
        variables[f"{scope}/bias"] = layer.bias

    def norm(scope: str, layer: torch.nn.LayerNorm):
        variables[f"{scope}/LayerNorm/gamma"] = layer.weight
        variables[f"{scope}/LayerNorm/beta"] = layer.bias

    embeddings, predictions = model.bert.embeddings, model.cls.predictions
    variables[WORDS] = embeddings.word_embeddings.weight
    variables["bert/embeddings/position_embeddings"] = embeddings.position_embeddings.weight
    variables["bert/embeddings/token_type_embeddings"] = embeddings.token_type_embeddings.weight
    norm("bert/embeddings", embeddings.LayerNorm)
    for place, layer in enumerate(model.bert.encoder.layer):
        scope = f"bert/encoder/layer_{place}"
        dense(f"{scope}/attention/self/query", layer.attention.self.query)
        dense(f"{scope}/attention/self/key", layer.attention.self.key)
        dense(f"{scope}/attention/self/value", layer.attention.self.value)
        dense(f"{scope}/attention/output/dense", layer.attention.output.dense)
        norm(f"{scope}/attention/output", layer.attention.output.LayerNorm)
        dense(f"{scope}/intermediate/dense", layer.intermediate.dense)
        dense(f"{scope}/output/dense", layer.output.dense)
        norm(f"{scope}/output", layer.output.LayerNorm)
    dense("bert/pooler/dense", model.bert.pooler.dense)
    dense("cls/predictions/transform/dense", predictions.transform.dense)
    norm("cls/predictions/transform", predictions.transform.LayerNorm)
    variables["cls/predictions/output_bias"] = predictions.bias
    variables["cls/seq_relationship/output_weights"] = model.cls.seq_relationship.weight
    variables["cls/seq_relationship/output_bias"] = model.cls.seq_relationship.bias
    for slot in ("adam_m", "adam_v", "AdamWeightDecayOptimizer_1"):
        variables[f"bert/pooler/dense/bias/{slot}"] = torch.ones(32)
    return {name: tensor.detach().numpy() for name, tensor in variables.items()}


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
    main(["convert", str(folder / source), str(tmp_path / "fixed"), "--attention_head_size", "13", "--cased"])
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
        (cut("index", 1000), r"ckpt\.index: damaged, or not the index of a TensorFlow checkpoint; get it anew"),
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
        (configure(num_hidden_layers=2), r"ckpt: 'bert/encoder/layer_2/.* and 13 more not in the BERT of"),
        (configure(intermediate_size=38), r"layer_0/intermediate/dense/kernel' is \(32, 37\), but .* \(32, 38\)"),
        (configure(hidden_size=None, vocab_size=None), r"config\.json: without vocab_size, hidden_size; give"),
        (configure(num_attention_heads=5), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(vocab_size="many"), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(hidden_size=-32), r"config\.json: no BERT can be made of it \(.*\); correct it"),
        (configure(hidden_act="gelly"), r"config\.json: no BERT can be made of it \(.*gelly.*\); correct it"),
        (remove("bert_config.json"), r"config\.json: cannot be read \(No such file.*\); put it beside"),
        (write_config("{'hidden_size': 32}"), r"config\.json: not JSON \(.*\); get it anew"),
        (write_config("[32]"), r"config\.json: without vocab_size, .*; give"),
    ],
)
def test_bad_checkpoints_are_refused(folder, model, damage, sentence):
    """Guards: a folder that is not a whole checkpoint of its configuration ends with one sentence that says why."""
    damage(folder, google_variables(model))
    with pytest.raises(InputError, match=sentence) as raised:
        read_bert(folder)
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")
