"""Entities in tagged texts, as the CoNLL script conlleval finds and counts them."""

import re
from collections.abc import Iterable, Mapping, Sequence

OUTSIDE = "O"  # the tag of words outside of entities
PREFIXED = re.compile(r"([BIMELSUW])(?:-(.*))?")  # tags of the schemes IOB1, IOB2, IOBES, BILOU and BMES
FIRST, LAST = "BSUW", "ELSUWO"  # prefixes that begin an entity, and after which the next word begins one

Entities = dict[tuple[int, int], str]  # maps the first word of each entity, and the one after its last, to its type


def split_tags(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """
    Returns the prefix and the type for each tag.

    Unless all tags except O have a prefix, they have none, and a run of words with the same tag is one entity.
    """
    found = {name: PREFIXED.fullmatch(name) for name in names if name != OUTSIDE}
    if all(found.values()):
        parts = {name: (match[1], match[2] or "") for name, match in found.items() if match}
    else:
        parts = {name: ("I", name) for name in found}
    return parts | {OUTSIDE: (OUTSIDE, ""), "": (OUTSIDE, "")}  # words without a label are in no entity


def entities_of(tags: Iterable[str], sentences: Iterable[int], parts: Mapping[str, tuple[str, str]]) -> Entities:
    """
    Returns the entities in a sequence of tags, which may be wrong, such as I-X after O or B-Y.

    Args:
        tags: The tag of each word.
        sentences: The number of the sentence of each word. No entity continues in the next sentence.
        parts: The prefix and the type for each tag, from `split_tags`.
    """
    ends: dict[int, tuple[int, str]] = {}
    begin, last_prefix, last_word = 0, OUTSIDE, ("", -1)
    for index, (tag, sentence) in enumerate(zip(tags, sentences, strict=True)):
        prefix, kind = parts[tag]
        if prefix in FIRST or last_prefix in LAST or (kind, sentence) != last_word:
            begin = index
        if prefix != OUTSIDE:
            ends[begin] = (index + 1, kind)
        last_prefix, last_word = prefix, (kind, sentence)
    return {(begin, end): kind for begin, (end, kind) in ends.items()}


def entity_scores(expected: Entities, found: Entities) -> dict[str, float]:
    """Returns precision, recall and F1. An entity is correct if its words and its type are."""
    correct = len(expected.items() & found.items())
    precision, recall = (correct / len(entities) if entities else 0.0 for entities in (found, expected))
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}
