"""Mutations of files: in place of a file, of its bytes, and by its format. Each names what it did."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.torch
import torch
import yaml

from .grammar import drawn, json_values, label_column, texts, type_of

QUADRATIC = "\u201ca. B ' " * 4000


# In place of the file


def missing(file: Path):
    file.unlink()


def empty(file: Path):
    file.unlink()
    file.write_bytes(b"")


def directory(file: Path):
    file.unlink()
    file.mkdir()


def fifo(file: Path):
    file.unlink()
    os.mkfifo(file)


def link_to_itself(file: Path):
    file.unlink()
    file.symlink_to(file.name)


def link_to_the_file(file: Path):
    moved = file.rename(file.with_name("elsewhere"))
    file.symlink_to(moved.name)


def endless(file: Path):
    file.unlink()
    file.symlink_to("/dev/zero")


PLACES = (missing, empty, directory, fifo, link_to_itself, link_to_the_file, endless)


# Of its bytes


def damaged(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    at, size = rng.randrange(len(content) + 1), min(rng.choice((1, 7, 64, 1000)), max(len(content) // 2, 1))
    before, block, after = content[:at], content[at : at + size], content[at + size :]
    end = content[at:]
    bits = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 8)) if content else 0):
        bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
    changes = {
        "bits flipped": bytes(bits),
        "cut off": before,
        "beginning cut off": end,
        "a block removed": before + after,
        "a block of zeros": before + bytes(len(block)) + after,
        "a block of noise": before + rng.randbytes(len(block)) + after,
        "a block twice": before + block + block + after,
        "noise put in": before + rng.randbytes(size) + end,
        "noise at the end": content + rng.randbytes(size),
        "NUL put in": before + b"\0" + end,
        "not UTF-8": before + rng.choice((b"\xff\xfe", b"\xe9", b"\xed\xa0\xbd")) + end,
        "byte order mark": rng.choice((b"\xef\xbb\xbf", b"\xff\xfe")) + content,
        "CRLF": content.replace(b"\n", b"\r\n"),
    }
    what = rng.choice(sorted(changes))
    return what, changes[what]


# By its format


def changed_tree(tree: object, rng: random.Random) -> tuple[str, object]:
    """A tree of objects and lists, as JSON and YAML hold them, with one change; the name says where and which."""
    places = [((), None)]  # (path, holder)

    def walk(node, path):
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in inner:
            places.append(((*path, key), node))
            walk(value, (*path, key))

    walk(tree, ())
    path, holder = rng.choice(places[1:] or places) if rng.random() < 0.95 else places[0]
    field = ".".join("*" if isinstance(key, int) else str(key) for key in path) or "all"
    value = drawn(json_values, rng.getrandbits(32))
    if holder is None:
        return f"all becomes {type_of(value)}", value
    key, what = path[-1], rng.choice(("value", "value", "value", "gone", "renamed", "twice", "deep"))
    if what == "gone":
        holder.pop(key)
        return f"{field} gone", tree
    if what == "renamed" and isinstance(holder, dict):
        holder[f"{key}_{rng.randrange(9)}"] = holder.pop(key)
        return f"{field} renamed", tree
    if what == "twice" and isinstance(holder, list):
        holder.append(holder[key])
        return f"{field} twice", tree
    if what == "deep":
        for _ in range(300):
            value = [value]
        holder[key] = value
        return f"{field} deep", tree
    holder[key] = value
    return f"{field} becomes {type_of(value)}", tree


def json_text(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    what = rng.choice(("tree",) * 6 + ("keys twice", "very deep", "digits"))
    if what == "keys twice":
        names = re.findall(rb'"(\w+)": ', content)
        return what, content.replace(b"{", b'{"%s": 1, ' % rng.choice(names or [b"a"]), 1)
    if what == "very deep":
        return what, b"[" * 100_000 + b"]" * 100_000
    if what == "digits":
        return what, content.replace(b"1", b"9" * 5000, 1)
    what, tree = changed_tree(json.loads(content), rng)
    return what, json.dumps(tree).encode()


def json_lines(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = content.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    what = rng.choice(("tree",) * 6 + ("line twice", "two in a line", "blank line"))
    if what == "tree":
        what, tree = json_text(lines[number], rng)
        lines[number] = tree + b"\n"
    else:
        lines[number] = {"line twice": lines[number] * 2, "two in a line": lines[number].rstrip() * 2 + b"\n"}.get(
            what, b" \n" + lines[number]
        )
    return what, b"".join(lines)


def yaml_text(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = yaml.safe_load(content)
    name = next(iter(tree))
    special = {
        "a date": b"%s: 2026-11-22\n" % name.encode(),
        "very deep": f"{name}: ".encode() + b"[" * 5000 + b"]" * 5000,
        "keys twice": content + f"\n{name}: other\n".encode(),
        "a tag that runs code": f"{name}: !!python/object/apply:os.system ['touch ran']\n".encode(),
        "a key that is no text": content + b"\n? [1, 2]\n: 3\n7: 1\n",
        "a tab": b"\t" + content,
        "a loop": f"{name}: &a [*a]\n".encode(),
        "binary": f"{name}: !!binary aGVsbG8=\n".encode(),
    }
    what = rng.choice(("tree",) * 12 + tuple(special))
    if what != "tree":
        return what, special[what]
    what, tree = changed_tree(tree, rng)
    return what, yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


def table_text(delimiter: str) -> Callable:
    """Changes of csv or tsv in which no field of the valid file is quoted."""

    def change(content: bytes, rng: random.Random) -> tuple[str, bytes]:
        rows = [line.split(delimiter) for line in content.decode().splitlines()]
        row = rng.randrange(1, len(rows))
        what = rng.choice(("a field more", "a field less", "cell", "cell", "labels", "labels", "columns of one name",
                           "a quote", "header gone", "column renamed", "many quotation marks"))  # fmt: skip
        if what == "a field more":
            rows[row].append("more")
        elif what == "a field less":
            rows[row].pop(rng.randrange(len(rows[row])))
        elif what == "cell":
            column = rng.randrange(len(rows[row]))
            rows[row][column] = drawn(texts, rng.getrandbits(32))
            what = f"{rows[0][column]} becomes {type_of(rows[row][column])}"
        elif what == "labels":
            what, cells = drawn(label_column(len(rows) - 1), rng.getrandbits(32))
            for cell, fields in zip(cells, rows[1:], strict=True):
                fields[-1] = cell
            what = f"labels: {what}"
        elif what == "header gone":
            rows.pop(0)
        elif what == "column renamed":
            column = rng.randrange(len(rows[0]))
            what = f"column {rows[0][column]} renamed"
            rows[0][column] += "s"
        else:
            at, cell = {
                "columns of one name": (0, rows[0][-1]),
                "a quote": (row, '"' + rows[row][0]),
                "many quotation marks": (row, QUADRATIC),
            }[what]
            rows[at][0] = cell
        return what, "\n".join(map(delimiter.join, rows)).encode("utf-8", "surrogatepass") + b"\n"

    return change


def plain_text(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = content.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    changes = {
        "line twice": lines[number] * 2,
        "line gone": b"",
        "long line": lines[number].rstrip() * 10_000 + b"\n",
        "many quotation marks": QUADRATIC.encode() + b"\n",
        "half a surrogate pair": b"\xed\xa0\xbd\n",
        "other text": drawn(texts, rng.getrandbits(32)).encode("utf-8", "surrogatepass") + b"\n",
        "control characters": bytes(range(1, 32)) + b"\n",
    }
    what = rng.choice(sorted(changes))
    lines[number] = changes[what]
    return what, b"".join(lines)


def parquet_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    name = rng.choice(table.column_names)
    place, values = table.column_names.index(name), table[name].to_pylist()
    columns = {
        "numbers": pyarrow.array(range(len(values))),
        "lists": pyarrow.array([[str(value)] for value in values]),
        "objects": pyarrow.array([{"a": str(value)} for value in values]),
        "bytes": pyarrow.array([b"\xff" + str(value).encode() for value in values], pyarrow.binary()),
        "dates": pyarrow.array([0] * len(values), pyarrow.timestamp("ns")),
        "nothing": pyarrow.nulls(len(values)),
        "a missing one": pyarrow.array([None, *map(str, values[1:])]),
        "fractions": pyarrow.array([0.5 + number for number in range(len(values))]),
        "a dictionary": pyarrow.array(list(map(str, values))).dictionary_encode(),
    }
    what = rng.choice((*columns, "gone", "name", "no rows"))
    if what == "gone":
        table = table.remove_column(place)
    elif what == "name":
        table = table.rename_columns([f"{name}s" if column == name else column for column in table.column_names])
    elif what == "no rows":
        table = table.slice(0, 0)
    else:
        table = table.set_column(place, name, columns[what])
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return f"{name}: {what}", sink.getvalue().to_pybytes()


def arrow_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The values of one column of a store's shard or of features changed, in the bytes of a valid file."""
    source = pyarrow.BufferReader(content)
    opened = pyarrow.ipc.open_file(source) if content.startswith(b"ARROW1") else pyarrow.ipc.open_stream(source)
    table = opened.read_all().combine_chunks()
    what = rng.choice(("a row less", "rows turned round", "column gone", "a row twice"))
    if what == "column gone":
        table = table.remove_column(rng.randrange(table.num_columns))
    else:
        rows = list(range(len(table)))
        rows = {"a row less": rows[:-1], "rows turned round": rows[::-1]}.get(what, [*rows, 0])
        table = table.take(rows).combine_chunks()
    sink = pyarrow.BufferOutputStream()
    new = pyarrow.ipc.new_file if content.startswith(b"ARROW1") else pyarrow.ipc.new_stream
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return what, sink.getvalue().to_pybytes()


def npy_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    found = np.load(io.BytesIO(content))
    what = rng.choice(("a row less", "rows turned round", "another type", "a number changed", "pickled"))
    changed = found.copy()
    changed[rng.choice(found.dtype.names)][rng.randrange(len(found))] = rng.choice((-1, 1, 10**6, 2**31 - 1))
    arrays = {"a row less": found[:-1], "rows turned round": found[::-1], "another type": np.arange(len(found))}
    arrays |= {"a number changed": changed, "pickled": np.array([{"a": 1}] * len(found), dtype=object)}
    out = io.BytesIO()
    np.save(out, arrays[what], allow_pickle=True)
    return what, out.getvalue()


def plan_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    numbers = np.frombuffer(content[: len(content) // 4 * 4], "i4").copy()
    numbers[rng.randrange(len(numbers))] = rng.choice((-1, 0, 10**6, 2**31 - 1, 1))
    return "a number changed", numbers.tobytes() + content[len(numbers) * 4 :]


def changed_tensor(tensor: torch.Tensor, rng: random.Random) -> tuple[str, object]:
    changes = {
        "NaN": torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor,
        "of another shape": tensor.reshape(-1)[:-1],
        "without values": tensor[:0] if tensor.dim() else tensor,
        "transposed": tensor.mT if tensor.dim() > 1 else tensor[None],
        "of whole numbers": tensor.long(),
        "of half precision": tensor.half(),
        "of complex numbers": tensor.to(torch.complex64),
    }
    what = rng.choice(sorted(changes))
    return what, changes[what].contiguous()


def safetensors_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    what = rng.choice(("header", "header", "length", "tensor", "tensor", "gone", "more"))
    if what == "header":
        what, tree = changed_tree(json.loads(content[8 : 8 + length]), rng)
        header = json.dumps(tree).encode()
        return f"header: {what.split('.')[-1]}", struct.pack("<Q", len(header)) + header + content[8 + length :]
    if what == "length":
        return "length of the header", struct.pack("<Q", rng.choice((0, 1, 2**63, length + 1, 10**9))) + content[8:]
    tensors = safetensors.torch.load(content)
    name = rng.choice(sorted(tensors))
    if what == "tensor":
        what, tensors[name] = changed_tensor(tensors[name], rng)
        what = f"a tensor {what}"
    elif what == "gone":
        del tensors[name]
    else:
        tensors[f"{name}.more"] = torch.zeros(3)
    return f"tensors: {what}", safetensors.torch.save(tensors, {"format": "pt"})


class RunsCode:
    def __reduce__(self):
        return os.system, ("touch ran",)


def torch_file(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A pickle with other objects in its tree, or one that runs code."""
    tree = torch.load(io.BytesIO(content), weights_only=False)
    what = rng.choice(("tree", "tree", "tree", "code", "plain pickle", "tensor"))
    out = io.BytesIO()
    if what == "code":
        torch.save({"a": RunsCode()}, out)
    elif what == "plain pickle":
        out.write(pickle.dumps({"a": RunsCode()}))
    elif what == "tensor" and isinstance(tree, dict):
        names = [name for name, value in tree.items() if isinstance(value, torch.Tensor)]
        name = rng.choice(names or list(tree))
        what, tree[name] = changed_tensor(tree[name] if names else torch.zeros(3, 2), rng)
        what = f"a tensor {what}"
        torch.save(tree, out)
    else:
        what, tree = changed_tree(tree, rng) if isinstance(tree, dict | list) else ("all becomes text", "text")
        torch.save(tree, out)
    return what, out.getvalue()


def compressed(form: str, suffix: str) -> Callable:
    pack, unpack = {
        ".gz": (gzip.compress, gzip.decompress),
        ".bz2": (bz2.compress, bz2.decompress),
        ".xz": (lzma.compress, lzma.decompress),
    }[suffix]

    def change(content: bytes, rng: random.Random) -> tuple[str, bytes]:
        if rng.random() < 0.05:
            return "bomb", BOMB if suffix == ".gz" else pack(b" " * 2**20)
        inner = FORMS[form] if rng.random() < 0.7 else damaged
        what, content = inner(unpack(content), rng)
        return f"inside: {what}", pack(content)

    return change


# 1 GiB in one line, in members of 4 MiB.
BOMB = gzip.compress(b'{"text": "') + gzip.compress(b"x" * 2**22) * 256 + gzip.compress(b'"}\n')
FORMS: dict[str, Callable[[bytes, random.Random], tuple[str, bytes]]] = {
    "bytes": damaged,
    "json": json_text,
    "jsonl": json_lines,
    "yaml": yaml_text,
    "csv": table_text(","),
    "tsv": table_text("\t"),
    "text": plain_text,
    "parquet": parquet_file,
    "arrow": arrow_file,
    "npy": npy_file,
    "plan": plan_file,
    "safetensors": safetensors_file,
    "torch": torch_file,
}
FORMS |= {"txt.gz": compressed("text", ".gz"), "jsonl.gz": compressed("jsonl", ".gz")}
FORMS |= {"txt.bz2": compressed("text", ".bz2"), "csv.xz": compressed("csv", ".xz")}


def mutate(file: Path, form: str, number: int, seed: str) -> str:
    """Mutation `number` of a file: first each of PLACES, then bytes and format in turn. Returns its name."""
    if number < len(PLACES):
        PLACES[number](file)
        return PLACES[number].__name__.replace("_", " ")
    rng = random.Random(f"{seed} {number}")
    content = file.read_bytes()
    what, content = (FORMS[form] if number % 2 else damaged)(content, rng)
    file.unlink()  # others may have it open
    file.write_bytes(content)
    return what
