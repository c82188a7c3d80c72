"""Google's original BERT checkpoints, as TensorFlow 1 wrote them, read without TensorFlow."""

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from ..support.errors import InputError, listed
from ..support.files import read_object, reading, reason_of

logger = logging.getLogger(__name__)

MAGIC = bytes.fromhex("57fb808b247547db")  # the last bytes of a table
DTYPES = {1: "<f4", 3: "<i4", 9: "<i8", 19: "<f2"}  # by number in tensorflow/core/framework/types.proto
OPTIMIZER = re.compile(r"(^|/)(adam_[mv]|AdamWeightDecayOptimizer(_\d+)?|global_step)(/|$)")
TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
         "max_position_embeddings", "type_vocab_size")  # fmt: skip
# Fields of Google's later configurations that its own model does not read.
UNUSED = {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
          "pooler_size_per_head", "pooler_type"}  # fmt: skip
RENAMED = (  # from transformers' names to Google's, applied in order
    (r"_embeddings\.weight$", "_embeddings"),
    (r"LayerNorm\.weight$", "LayerNorm.gamma"),
    (r"LayerNorm\.bias$", "LayerNorm.beta"),
    (r"seq_relationship\.weight$", "seq_relationship.output_weights"),
    (r"(predictions|seq_relationship)\.bias$", r"\1.output_bias"),
    (r"\.weight$", ".kernel"),
    (r"\.layer\.", ".layer_"),
    (r"\.", "/"),
)


def read_bert(path: Path) -> tuple[BertConfig, dict[str, torch.Tensor]]:
    """
    The configuration and the parameters of a checkpoint of https://github.com/google-research/bert.

    Args:
        path: the folder of bert_config.json and a checkpoint or, if there are several, the prefix of one, such as
            folder/bert_model.ckpt-1000.

    Returns:
        The configuration, and the parameters in float32, with the names and shapes of transformers'
        BertForPreTraining. Variables of the optimizer are left out, and so are the weight and bias of
        cls.predictions.decoder, which `tie_weights` takes from the word embeddings and cls.predictions.bias.

    Raises:
        InputError: a file is missing or cannot be read, or the parameters do not match bert_config.json.
    """
    prefix = checkpoint_prefix(path)
    config_file = prefix.with_name("bert_config.json")
    arrays = {name: array for name, array in read_tensors(prefix).items() if not OPTIMIZER.search(name)}
    config, shapes = read_bert_config(config_file, len(arrays))
    names = {name: google_name(name) for name in shapes}
    advice = f"give it the {config_file.name} it was trained with, and a checkpoint of the pretraining"
    if unknown := sorted(arrays.keys() - set(names.values())):
        raise InputError(f"{prefix}: {listed(unknown)} not in the BERT of {config_file}; {advice}.")
    if missing := [name for name in names.values() if name not in arrays]:
        raise InputError(f"{prefix}: without {listed(missing)}, which the BERT of {config_file} has; {advice}.")
    tensors = {}
    for name, google in names.items():
        kernel = google.endswith("/kernel")  # (inputs, outputs), the transpose of torch's
        shape = shapes[name][::-1] if kernel else shapes[name]
        array = arrays[google]
        if array.shape != shape:
            raise InputError(f"{prefix}: {google!r} is {array.shape}, but {config_file} implies {shape}; {advice}.")
        tensors[name] = torch.from_numpy(np.array(array.T if kernel else array, np.float32, order="C"))
    return config, tensors


def read_tensors(prefix: Path) -> dict[str, np.ndarray]:
    """
    The variables of a TensorFlow checkpoint, by name, as read-only arrays that are memory-mapped.

    The format is described in tensorflow/core/util/tensor_bundle and tensorflow/core/protobuf/tensor_bundle.proto; its
    index is a table of LevelDB (doc/table_format.md there). Only the checksums of the index are verified: the values'
    would take minutes.

    Args:
        prefix: the path of bert_model.ckpt.index without .index.

    Raises:
        InputError: a file is missing, incomplete or of another format, or not supported: a compressed index,
            big-endian values, variables in slices, other types than float32, float16, int32 and int64.
    """
    file = Path(f"{prefix}.index")
    with reading(file, "download it again", "damaged, or not the index of a TensorFlow checkpoint"):
        return map_entries(prefix, dict(table_items(file.read_bytes(), file)), file)


def map_entries(prefix: Path, entries: dict[bytes, bytes], file: Path) -> dict[str, np.ndarray]:
    """The variables of a checkpoint's index, memory-mapped."""
    header, _ = message_fields(entries.pop(b""))
    if header.get(2):
        raise InputError(f"{file}: the values are big-endian; write the checkpoint on a little-endian machine.")
    shards: dict[str, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, value in entries.items():
        if key.startswith(b"\0"):  # a slice of a variable, whose own entry is refused
            continue
        name = key.decode()
        entry, parts = message_fields(value)
        if 7 in parts:
            raise InputError(f"{file}: {name!r} is a partitioned variable; write the checkpoint without partitioning.")
        kind, begin, size = entry.get(1, 0), entry.get(4, 0), entry.get(5, 0)
        if kind not in DTYPES:
            types = "float32, float16, int32 or int64"
            raise InputError(f"{file}: {name!r} is of type {kind} of types.proto; convert it to {types}.")
        dtype = np.dtype(DTYPES[kind])
        _, dims = message_fields(b"".join(parts.get(2, [])))
        shape = tuple(message_fields(dim)[0].get(1, 0) for dim in dims.get(2, []))
        if size != math.prod(shape) * dtype.itemsize:
            raise ValueError("size and shape of an entry differ")
        data_file = f"{prefix}.data-{entry.get(3, 0):05}-of-{header.get(1, 0):05}"
        if data_file not in shards:
            shards[data_file] = map_file(Path(data_file))
        data = shards[data_file]
        if begin + size > len(data):
            raise InputError(
                f"{data_file}: ends after {len(data):,} bytes, in or before {name!r}, which ends at {begin + size:,};"
                " get the whole file."
            )
        arrays[name] = data[begin : begin + size].view(dtype).reshape(shape)
    return arrays


def map_file(file: Path) -> np.ndarray:
    with reading(file, "put it beside the .index file"):
        empty = not file.stat().st_size  # which cannot be mapped
        return np.empty(0, np.uint8) if empty else np.asarray(np.memmap(file, np.uint8, "r"))


def table_items(table: bytes, file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table, in order. Its footer ends with the handles of two blocks and the magic."""
    if len(table) < 48 or not table.endswith(MAGIC):
        raise ValueError("bad magic")
    footer = table[-48:]
    _, at = varint(footer, 0)
    _, at = varint(footer, at)  # of the block of meta data, which is empty
    for _, handle in block_items(table, footer[at:], file):
        yield from block_items(table, handle, file)


def block_items(table: bytes, handle: bytes, file: Path) -> Iterator[tuple[bytes, bytes]]:
    begin, at = varint(handle, 0)
    size, _ = varint(handle, at)
    block = table[begin : begin + size + 5]  # one byte of compression, four of checksum
    if len(block) < size + 5 or masked_crc32c(block[:-4]) != int.from_bytes(block[-4:], "little"):
        raise ValueError("bad checksum")
    if block[-5]:
        raise InputError(f"{file}: compressed, which cannot be read; write the checkpoint with TensorFlow's Saver.")
    end = size - 4 - 4 * int.from_bytes(block[-9:-5], "little")  # restart points follow, and their number
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        length, at = varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared + length
        yield key, block[at - length : at]


def message_fields(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """The fields of a protocol buffer, by number: the last value of each varint, and all values of the others."""
    numbers: dict[int, int] = {}  # zeros are not written
    parts: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            numbers[tag >> 3], at = varint(message, at)
        else:
            size, at = varint(message, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            parts.setdefault(tag >> 3, []).append(message[at : at + size])
            at += size
    if numbers.keys() & parts.keys():
        raise ValueError("a field has values of two types")
    return numbers, parts


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, in bytes of seven bits, the lowest first, and the position after it."""
    value = shift = 0
    while data[at] & 128:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def checkpoint_prefix(path: Path) -> Path:
    if Path(f"{path}.index").is_file():
        return Path(path)
    found = sorted(str(file).removesuffix(".index") for file in Path(path).glob("*.index"))
    if not found:
        raise InputError(f"{path}: no checkpoint (bert_model.ckpt.index); give the folder that has its files.")
    if len(found) > 1:
        raise InputError(f"{path}: several checkpoints; give one of {', '.join(found)}.")
    return Path(found[0])


def read_bert_config(file: Path, variables: int) -> tuple[BertConfig, dict[str, tuple[int, ...]]]:
    """The configuration, and the shapes of the parameters by transformers' names, of a checkpoint's `variables`."""
    values = read_object(file, "put it beside the checkpoint, as it came")
    missing = [name for name in SIZES if name not in values]
    if missing:
        raise InputError(f"{file}: without {', '.join(missing)}; give the file that came with the checkpoint.")
    unknown = sorted(values.keys() - {field.name for field in fields(BertConfig)} - UNUSED)
    if unknown:
        logger.warning("%s: not a field of BERT, and without effect: %s", file, listed(unknown))
    try:
        config = BertConfig(**values)
        if config.num_hidden_layers > variables:  # shapes of a billion layers would take days
            raise ValueError(f"{config.num_hidden_layers:,} layers, but the checkpoint has {variables} variables")
        with torch.device("meta"):
            parameters = BertForPreTraining(config).state_dict()
    except Exception as error:  # of any kind, for an unusable value
        raise InputError(f"{file}: no BERT can be made of it ({reason_of(error)}); correct it.") from error
    return config, {name: tuple(tensor.shape) for name, tensor in parameters.items() if name not in TIED}


def google_name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
