"""YAML of recipes and studies: plain values only, and no key twice."""

from pathlib import Path
from typing import Any

import yaml

from .errors import InputError
from .files import reading

MOST_NODES = 100_000  # of a file, with its aliases expanded


class PlainLoader(yaml.SafeLoader):
    """YAML of text, numbers, true, false, null, lists and mappings, without duplicate keys and alias bombs."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]  # a date is text
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def __init__(self, stream: str):
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # in nodes, with aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not alias:
            self.sizes[node] = 1 + sum(self.sizes[part] for part in children(node))
            if self.sizes[node] > MOST_NODES:
                raise yaml.MarkedYAMLError(problem=f"more than {MOST_NODES:,} values", problem_mark=node.start_mark)
        elif node not in self.sizes:
            raise yaml.MarkedYAMLError(problem="an alias inside its own value", problem_mark=node.start_mark)
        return node

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


def children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def read_yaml(file: Path, remedy: str) -> dict:
    """
    The mapping in a YAML file.

    Raises:
        InputError: the file does not exist, is not YAML, has what PlainLoader refuses, or is not a mapping.
    """
    with reading(file, remedy):
        try:
            found = yaml.load(file.read_bytes().decode("utf-8"), PlainLoader)
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise InputError(f"{file}{line}: {error.problem}; {remedy}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no names with values; {remedy}.")
    return found
