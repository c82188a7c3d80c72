"""Files and directories: one boundary for reading and one for writing; what is written appears whole."""

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from .errors import InputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST_REASON = 300  # characters; some libraries put the content of a file into their errors
FILE_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".bin", ".safetensors", ".pt", ".index", ".model")
MOST_NODES = 100_000  # of a YAML file with its aliases expanded


def reason_of(error: BaseException) -> str:
    """The first line of what an error, or the one below it, says."""
    lines = str(error.__cause__ or error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


@contextmanager
def reading(file: object, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """
    The boundary around reading one kind of file: whatever a damaged one raises becomes an InputError that names it.

    Args:
        file: where, for the message.
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:  # every library, and every kind of damage, has its own
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of libraries in Rust
            raise
        raise InputError(f"{file}: {problem} ({reason_of(error)}); {remedy}.") from error


@contextmanager
def writing(folder: str | Path, remedy: str) -> Iterator[None]:
    """
    The boundary around writing below `folder`: a full disk, no permission, a read-only file system.

    Args:
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: {not_written(Path(folder), error)}; {remedy}.") from error


def not_written(folder: Path, error: OSError) -> str:
    """Why nothing can be written below `folder`, with the free space where that is the reason."""
    if error.errno not in NO_SPACE:
        return f"cannot be written ({error.strerror or reason_of(error)})"
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return f"no space left ({shutil.disk_usage(there).free / 2**30:.1f} GiB free)"


def check_regular(file: Path):
    """
    Raises:
        InputError: it is there, but opening it could wait forever: a pipe, a device, a socket; or it is a folder.
    """
    if file.exists() and not file.is_file():
        raise InputError(f"{file}: not a regular file; give one, not a pipe, a device or a folder.")


def write_whole(path: Path, content: str | bytes):
    """Write a file that is never seen in part."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_object(file: Path, remedy: str) -> dict:
    """
    The fields of a JSON file.

    Raises:
        InputError: it is not there, damaged, or holds something else.
    """
    with reading(file, remedy):
        found = json.loads(file.read_bytes().decode("utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no fields; {remedy}.")
    return found


class PlainLoader(yaml.SafeLoader):
    """YAML of text, numbers, true, false, null, lists and mappings; no key twice, and no alias that multiplies."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]  # a date is text
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def __init__(self, stream):
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # in nodes, with aliases expanded

    def compose_node(self, parent, index):
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if not alias:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
            self.sizes[node] = 1 + sum(self.sizes[part] for part in parts)
            if self.sizes[node] > MOST_NODES:
                raise yaml.MarkedYAMLError(problem=f"more than {MOST_NODES:,} values", problem_mark=node.start_mark)
        elif node not in self.sizes:
            raise yaml.MarkedYAMLError(problem="an alias of what it is part of", problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str" and key.value != "<<":
                raise yaml.MarkedYAMLError(problem="a name is needed before the colon", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(file: Path, remedy: str) -> dict:
    """
    The entries of a YAML file, by their names.

    Raises:
        InputError: it is not there, no YAML, or holds more than PlainLoader takes, or no entries.
    """
    with reading(file, remedy):
        try:
            found = yaml.load(file.read_bytes().decode("utf-8"), PlainLoader)
        except yaml.MarkedYAMLError as error:
            raise InputError(f"{file}, line {error.problem_mark.line + 1}: {error.problem}; {remedy}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no names with values; {remedy}.")
    return found


def check_place(name: str, others: Iterable[str] = ()):
    """
    Raises:
        InputError: `name` is no directory, and cannot be the name of a model on the Hub, or is more likely a misspelt
            directory, or one of `others`, whose name is like it.
    """
    path = Path(name)
    if path.is_dir():
        return
    if path.is_file():
        raise InputError(f"{name}: neither a directory nor the name of a model on the Hub; give the directory.")
    around = path.parent.iterdir() if path.parent.is_dir() else ()
    around = [str(path.with_name(one.name)) for one in around if one.is_dir()]
    near = difflib.get_close_matches(name, [*others, *around], 1, cutoff=0.75)
    hint = f"; did you mean {near[0]}?" if near else "."
    if near or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) or path.suffix in FILE_SUFFIXES:
        raise InputError(f"{name}: neither a directory nor the name of a model on the Hub{hint}")


def fingerprint_of(*parts: object) -> str:
    """A name for whatever depends on `parts` alone: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def content_hash_of(file: Path) -> str:
    """SHA-256 of a file, read in blocks: 64 hexadecimal digits."""
    found = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(2**20):
            found.update(block)
    return found.hexdigest()


def checksum_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def seal(partial: Path, file: Path):
    """Give a complete file its name, with its checksum beside it."""
    write_whole(checksum_file(file), content_hash_of(partial))
    os.replace(partial, file)


def write_sealed(file: Path, content: str):
    """Write a file that is never seen in part, with its checksum beside it."""
    write_whole(checksum_file(file), hashlib.sha256(content.encode()).hexdigest())
    write_whole(file, content)


def is_sealed(file: Path) -> bool:
    """Whether a file is there and as `seal` left it. Reads all of it."""
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
