"""Checkpoints in TensorFlow's format, written without TensorFlow: its own reader takes them."""

from pathlib import Path

import numpy as np
import torch
from transformers import BertForPreTraining

WORDS = "bert/embeddings/word_embeddings"
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
