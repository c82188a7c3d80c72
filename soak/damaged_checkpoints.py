"""Damage to checkpoints. Each function changes a directory, after the outputs of its model are known."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from . import made_checkpoints
from .made_checkpoints import Checkpoint, change_json, write_weights

Damage = Callable[[Path, random.Random, Checkpoint], object]


def stored(directory: Path) -> dict[str, Tensor]:
    files = [*directory.glob("*.safetensors"), *directory.glob("*.bin")]
    parts = [load_file(file) if file.suffix == ".safetensors" else torch.load(file) for file in files]
    return {name: tensor for part in parts for name, tensor in part.items()}


def on_tensors(change: Callable[[dict[str, Tensor], random.Random], dict[str, Tensor]]) -> Damage:
    def damage(directory: Path, rng: random.Random, checkpoint: Checkpoint):
        write_weights(directory, change(stored(directory), rng), checkpoint.format)

    return damage


def layer_name(tensors: dict[str, Tensor], rng: random.Random) -> str:
    return rng.choice([name for name in tensors if "layer.1." in name or "layers.1." in name] or [*tensors])


def with_nan(tensors, rng):
    names = [name for name in tensors if name.endswith("weight") and "pooler" not in name]
    name = rng.choice(names)
    tensors[name] = tensors[name].clone()
    tensors[name].flatten()[rng.randrange(tensors[name].numel())] = rng.choice([float("nan"), float("inf")])
    return tensors


def without(tensors, rng):
    del tensors[layer_name(tensors, rng)]
    return tensors


def without_head(tensors, rng):
    names = [name for name in tensors if any(part in name for part in ("classifier", "qa_outputs", "cls.", "lm_head"))]
    del tensors[rng.choice(names)]
    return tensors


def with_other_head(tensors, rng):
    return tensors | {"cls.species.weight": torch.ones(3, 32), "cls.species.bias": torch.ones(3)}


def with_extra_layer(tensors, rng):
    return tensors | {
        name.replace("layer.1.", "layer.2."): x.clone() for name, x in tensors.items() if "layer.1." in name
    }


def wrong_shape(tensors, rng):
    name = layer_name(tensors, rng)
    return tensors | {name: tensors[name][:-1].clone()}


def quantized(tensors, rng):
    name = rng.choice([name for name in tensors if tensors[name].ndim == 2])
    return tensors | {name: tensors[name].to(torch.int8)}


def prefixed(prefix: str):
    return on_tensors(lambda tensors, rng: {prefix + name: tensor for name, tensor in tensors.items()})


def pickled(content: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(directory: Path, rng: random.Random, checkpoint: Checkpoint):
        tensors = stored(directory)
        write_weights(directory, {}, "pickle")
        torch.save(content(tensors), directory / "pytorch_model.bin")

    return damage


def truncated(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = rng.choice([*directory.glob("*.safetensors"), *directory.glob("*.bin")])
    file.write_bytes(file.read_bytes()[: rng.choice([0, 3, 100, file.stat().st_size - 30])])


def missing_shard(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    rng.choice([*directory.glob("*-of-*")]).unlink()


def damaged_index(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    (file,) = directory.glob("*.index.json")
    file.write_text(
        rng.choice(["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"x": 3}}', file.read_text()[:-9]])
    )


def lfs_pointer(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = rng.choice([*directory.glob("*.safetensors"), *directory.glob("*.bin"), directory / "config.json"])
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 17\n")


def no_weights(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    write_weights(directory, {}, "pickle")
    (directory / "pytorch_model.bin").unlink()


def config_text(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = directory / "config.json"
    file.write_text(
        rng.choice(["", "[]", "null", "{}", file.read_text()[:-20], '{"model_type": 3}', '{"model_type": "brt"}'])
    )


def config_field(values: dict[str, list]) -> Damage:
    def damage(directory: Path, rng: random.Random, checkpoint: Checkpoint):
        name = rng.choice([*values])
        aliases = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                   "intermediate_size": "hidden_dim", "hidden_act": "activation"}  # fmt: skip
        stored_name = aliases.get(name, name) if checkpoint.family == "distilbert" else name
        change_json(directory / "config.json", {stored_name: rng.choice(values[name])})

    return damage


def vocabulary(change: Callable[[list[str]], list[str] | str]) -> Damage:
    def damage(directory: Path, rng: random.Random, checkpoint: Checkpoint):
        file = directory / "vocab.txt"
        lines = change(file.read_text().splitlines())
        file.write_bytes((lines if isinstance(lines, str) else "\n".join(lines) + "\n").encode())

    return damage


def tokenizer_text(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = directory / "tokenizer.json"
    file.write_text(rng.choice(["", "[]", "{}", file.read_text()[:-30], file.read_text()[: rng.randrange(400)]]))


def larger_tokenizer(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["[X1]", "[X2]"])
    tokenizer.save_pretrained(directory)


def no_tokenizer(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "added_tokens.json",
    ):
        (directory / name).unlink(missing_ok=True)


def modules_text(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = directory / "modules.json"
    modules = json.loads(file.read_text())
    kind = {**modules[0], "type": "sentence_transformers.models.CLIPModel"}
    absent = {**modules[-1], "path": "7_Pooling", "type": "sentence_transformers.models.Pooling"}
    file.write_text(
        rng.choice(
            ["", "{}", "[]", "[3]", file.read_text()[:-9], json.dumps([kind]), json.dumps([modules[0], absent])]
        )
    )


def pooling_text(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    file = directory / "1_Pooling/config.json"
    file.write_text(
        rng.choice(
            ["", "[]", '{"pooling_mode": 3}', '{"pooling_mode": {}}', '{"pooling_mode": "sum"}', file.read_text()[:-5]]
        )
    )


def parent_lost(directory: Path, rng: random.Random, checkpoint: Checkpoint):
    """The Transformer's directory alone."""
    for file in (directory / "0_Transformer").iterdir():
        shutil.copy(file, directory / file.name)


def always(made: dict) -> bool:
    return True


HEADS_BY_NAME = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def has_vocab(made: dict) -> bool:
    return made["files"] == "vocab.txt"


def has_modules(made: dict) -> bool:
    return made["layout"] != "plain"


def of_bert(made: dict) -> bool:
    return made["family"] in ("bert", "roberta", "xlm-roberta", "camembert", "electra") and made["layout"] != "nested"


WRONG = {
    "hidden_size": [48, 31, "32", None, -32, 0], "num_hidden_layers": [1, 3, "2", None, -1],
    "num_attention_heads": [3, 0, -4, "4", None], "vocab_size": [3, 9999, None, "100"],
    "intermediate_size": [38, None, "37"], "max_position_embeddings": [7, 100, None], "hidden_act": ["glue", 3, None],
}  # fmt: skip
DAMAGE: dict[str, tuple[Damage, Callable[[dict], bool]]] = {
    "NaN or infinity": (on_tensors(with_nan), always),
    "a weight is missing": (on_tensors(without), always),
    "the head is missing": (on_tensors(without_head), lambda made: made["head"] in HEADS_BY_NAME),
    "another head": (on_tensors(with_other_head), always),
    "a third layer": (on_tensors(with_extra_layer), of_bert),
    "a wrong shape": (on_tensors(wrong_shape), always),
    "int8 weights": (on_tensors(quantized), always),
    "prefix module.": (prefixed("module."), always),
    "prefix model.": (prefixed("model."), always),
    "state_dict inside a pickle": (pickled(lambda x: {"state_dict": x, "epoch": 3}), always),
    "model inside a pickle": (pickled(lambda x: {"model": x, "optimizer": {"lr": 0.1}}), always),
    "list in a pickle": (pickled(lambda x: [*x.values()]), always),
    "number beside tensors": (pickled(lambda x: {**x, "epoch": 3}), always),
    "pickled class": (pickled(lambda x: Path("x")), always),
    "truncated weights": (truncated, always),
    "missing shard": (missing_shard, lambda made: "shards" in made["format"]),
    "damaged index": (damaged_index, lambda made: "shards" in made["format"]),
    "LFS pointer": (lfs_pointer, always),
    "no weights": (no_weights, always),
    "config.json": (config_text, always),
    "a field of config.json": (config_field(WRONG), of_bert),
    "duplicate token": (vocabulary(lambda x: [*x[:-1], x[9]]), has_vocab),
    "empty vocab.txt": (vocabulary(lambda x: ""), has_vocab),
    "no [UNK]": (vocabulary(lambda x: [token for token in x if token != "[UNK]"]), has_vocab),
    "trailing blanks": (
        vocabulary(lambda x: [f"{token} " if i > 4 else token for i, token in enumerate(x)]),
        has_vocab,
    ),
    "counts": (vocabulary(lambda x: [f"{token}\t{i}" for i, token in enumerate(x)]), has_vocab),
    "blank line": (vocabulary(lambda x: [*x[:9], "", *x[9:]]), has_vocab),
    "CRLF": (vocabulary(lambda x: "\r\n".join(x) + "\r\n"), has_vocab),
    "no final line end": (vocabulary(lambda x: "\n".join(x)), has_vocab),
    "tokenizer.json": (tokenizer_text, lambda made: not has_vocab(made)),
    "more tokens": (larger_tokenizer, lambda made: not made["added"]),
    "no tokenizer": (no_tokenizer, always),
    "modules.json": (modules_text, has_modules),
    "1_Pooling/config.json": (pooling_text, lambda made: bool(made["modes"])),
}
HARMLESS_DAMAGE = ("CRLF", "no final line end")
EITHER_DAMAGE = ("a field of config.json", "a wrong shape", "state_dict inside a pickle", "model inside a pickle")


def draw(rng: random.Random) -> Checkpoint:
    """Draws a checkpoint at random, so that about a third of them are damaged."""
    checkpoint = made_checkpoints.draw(rng)
    able = [name for name, (_, applies) in DAMAGE.items() if applies(vars(checkpoint))]
    return replace(checkpoint, damage=rng.choice(able) if rng.random() < 0.35 else "")


def damage(checkpoint: Checkpoint, directory: Path, rng: random.Random):
    """Damages a checkpoint as it says."""
    change, _ = DAMAGE[checkpoint.damage]
    is_in_body = checkpoint.damage not in ("modules.json", "1_Pooling/config.json")
    change(directory / "0_Transformer" if checkpoint.layout == "nested" and is_in_body else directory, rng, checkpoint)
