"""Entities in sequences of tags, as in the CoNLL script conlleval."""

import pytest

from fixedbert.tasks.entities import entities_of, entity_scores, split_tags

# The cases of startOfChunk and endOfChunk in conlleval, with S as in its Python version: pairs of the previous tag and
# a tag with the same type for which a chunk begins, and for which the previous chunk ends.
BEGINS = "OB OI OE OS BB IB EB SB BS IS ES SS EE EI SE SI".split()
ENDS = "BB BS BO IB IS IO EB EI EE ES EO SB SI SE SS SO".split()


@pytest.mark.parametrize("names", ["BIESO", "BILUO"])
def test_chunks_of_conlleval(names):
    """For each pair of tags, with the same type and with different types, the chunks are those of conlleval."""
    tags = dict(zip("BIESO", names if names == "BIESO" else "BILUO", strict=True))
    parts = split_tags([f"{tag}-{kind}" if tag != "O" else tag for tag in names for kind in "XY"])
    for previous in "BIESO":
        for tag in "BIESO":
            for kind in "XY":
                words = [
                    f"{tags[previous]}-X" if previous != "O" else "O",
                    f"{tags[tag]}-{kind}" if tag != "O" else "O",
                ]
                begins = tag != "O" and (previous + tag in BEGINS or kind == "Y")
                ends = previous != "O" and (previous + tag in ENDS or kind == "Y")
                expected = {}
                if previous != "O":
                    expected[0, 1 if ends else 2] = "X"
                if begins:
                    expected[1, 2] = kind
                assert entities_of(words, [0, 0], parts) == expected, words


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("B-X I-X O I-X I-X I-Y", [(0, 2, "X"), (3, 5, "X"), (5, 6, "Y")]),  # IOB2, with two wrong sequences
        ("I-X I-X B-X O I-Y", [(0, 2, "X"), (2, 3, "X"), (4, 5, "Y")]),  # IOB1
        ("S-X B-X I-X E-X E-X", [(0, 1, "X"), (1, 4, "X"), (4, 5, "X")]),  # IOBES
        ("U-X B-X L-X I-X", [(0, 1, "X"), (1, 3, "X"), (3, 4, "X")]),  # BILOU
        ("B-X M-X E-X S-X", [(0, 3, "X"), (3, 4, "X")]),  # BMES
        ("X X O Y X", [(0, 2, "X"), (3, 4, "Y"), (4, 5, "X")]),  # no prefixes
        ("B-CELL T-CELL T-CELL O", [(0, 1, "B-CELL"), (1, 3, "T-CELL")]),  # not all tags have a prefix
        ("B I O I", [(0, 2, ""), (3, 4, "")]),  # a single type without a name
    ],
)
def test_schemes(tags, expected):
    """Entities are found in the common schemes, and in tags without prefixes."""
    words = tags.split()
    found = entities_of(words, [0] * len(words), split_tags([*words, "O"]))
    assert found == {(begin, end): kind for begin, end, kind in expected}


def test_scores_of_entities():
    """Entities count if their words and type are the same. None of them continues in the next sentence."""
    parts, sentences = split_tags(["O", "B-X", "I-X", "B-Y", "I-Y"]), [0, 0, 0, 1, 1, 1, 1]
    expected = entities_of("B-X I-X I-X I-X O B-Y B-Y".split(), sentences, parts)
    assert expected == {(0, 3): "X", (3, 4): "X", (5, 6): "Y", (6, 7): "Y"}
    found = entities_of("B-X I-X O B-X O B-Y I-Y".split(), sentences, parts)
    assert entity_scores(expected, found) == {"precision": 1 / 3, "recall": 1 / 4, "f1": pytest.approx(2 / 7)}
    assert entity_scores(expected, {}) == {"precision": 0, "recall": 0, "f1": 0} == entity_scores({}, expected)
