"""Changes the bytes of files, or their content: JSON and YAML files stay valid."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import yaml

CUT = ("missing", "empty", "truncated", "a directory", "a FIFO", "a symbolic link to itself")  # always detectable


def damage(file: Path, rng: random.Random) -> str:
    """Replaces a file or changes its content, and returns a description."""
    content = file.read_bytes()
    replacements: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "empty": lambda: file.write_bytes(b""),
        "a directory": file.mkdir,
        "a FIFO": lambda: os.mkfifo(file),
        "a symbolic link to itself": lambda: file.symlink_to(file.name),
    }
    file.unlink()
    if rng.random() < 0.3 or not content:
        name = rng.choice([*replacements])
        replacements[name]()
        return name
    change = CONTENTS.get(file.suffix, change_bytes) if rng.random() < 0.5 else change_bytes
    name, content = change(content, rng)
    file.write_bytes(content)
    return name


def change_bytes(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    at = rng.randrange(len(content))
    before, block, after = content[:at], content[at : at + 64], content[at + 64 :]
    flipped = bytes([block[0] ^ 1 << rng.randrange(8)])
    changes = {
        "a flipped bit": before + flipped + block[1:] + after,
        "truncated": before,
        "beginning removed": block + after,
        "a removed block": before + after,
        "a block of zeros": before + bytes(len(block)) + after,
        "a block of noise": before + rng.randbytes(len(block)) + after,
        "a repeated block": before + block + block + after,
        "not UTF-8": before + b"\xff\xfe" + block + after,
        "a byte order mark": b"\xef\xbb\xbf" + content,
        "CRLF": content.replace(b"\n", b"\r\n"),
    }
    name = rng.choice(list(changes))
    return name, changes[name]


def change_tree(tree: object, rng: random.Random) -> str:
    """Removes, renames or replaces an entry in nested dicts and lists in place, and returns a description."""
    entries = []

    def walk(node):
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(node, dict):
                entries.append((node, key))
            if isinstance(value, dict | list) and key != "auto_map":  # transformers does not check these class names
                walk(value)

    walk(tree)
    node, key = rng.choice(entries)
    change = rng.choice(("removed", "renamed", "replaced", "replaced"))
    if change == "removed":
        del node[key]
    elif change == "renamed" and isinstance(node, dict):
        node[f"{key}_"] = node.pop(key)
    else:
        node[key] = rng.choice((None, True, -1, 0.5, 10**30, "", "text", [], [[]], {"a": 1}))
        return f"{key} becomes {node[key]!r}"
    return f"{key} {change}"


def change_json(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = json.loads(content)
    return change_tree(tree, rng), json.dumps(tree).encode()


def change_json_lines(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = content.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    name, line = change_json(lines[number], rng)
    lines[number] = line + b"\n"
    return name, b"".join(lines)


def change_yaml(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = yaml.safe_load(content)
    return change_tree(tree, rng), yaml.dump(tree).encode()


CONTENTS = {
    ".json": change_json,
    ".jsonl": change_json_lines,
    ".yaml": change_yaml,
}
