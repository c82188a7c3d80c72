"""YAML of recipes and studies: names with plain values, and no name twice."""

import json
from pathlib import Path
from typing import Any

import yaml

from .errors import InputError
from .files import reading


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader for plain values alone, in which a date is text, and a key is a text that is there once."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # no bytes or sets
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
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
    """The mapping in a YAML file, of values that PlainLoader takes."""
    with reading(file, remedy):
        try:
            found = yaml.load(file.read_bytes().decode("utf-8"), PlainLoader)
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise InputError(f"{file}{line}: {error.problem}; {remedy}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no names with values; {remedy}.")
    return found


def flags(entries: dict) -> list[str]:
    """A recipe on the command line: `--name value` for every entry, with all values of a list; None is left out."""
    words = []
    for name, value in entries.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *map(word, values)]
    return words


def word(value: object) -> str:
    """A value on the command line; a whole number as that, which parsers of numbers make a float."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
