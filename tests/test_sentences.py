"""Sentences: whole ones, and no headings among them."""

import textwrap
import time

import pytest

from fixedbert.data.sentences import split_document, without_headings

LONG = "This is a paragraph that goes on for long enough that nobody takes it for the heading of a section. It ends."


def kept(text: str) -> list[str]:
    return [line.strip() for line in without_headings(text)[0].split("\n") if line.strip()]


@pytest.mark.parametrize(
    "headings",
    [
        ["Etymology and terminology."],  # as dumps of 2015 have them
        ["History.", "Early years."],
        ["History"],  # as wikimedia/wikipedia has them
        ["CHAPTER I.", "IN WHICH MUCH IS SAID, AND LITTLE DONE"],
        ["II"],
        ["Chapter I."],
        ["Presidency 1829–1837."],
    ],
)
@pytest.mark.parametrize("between", ["\n", "\n\n"])
def test_headings_are_left_out(headings, between):
    """Guards: a short line before a paragraph, or at the end, is in no sentence."""
    for after in ([LONG], []):
        text = between.join([LONG, *headings, *after])
        assert kept(text) == [LONG, *after] and without_headings(text)[1] == len(headings)


@pytest.mark.parametrize(
    "lines",
    [
        ['"Yes," he said.'],
        ["He left the room."],
        ["Soames nodded."],
        ["It rained."],
        ["Who is there?"],
        ["Grebes", "Ducks", "Geese", "Swans"],  # a list
        ["And when the pedants bade us mark", "What cold mechanic happenings", "Must come", "Our souls said"],
        ["with a small letter"],
        ["The main tools include:"],
    ],
)
def test_what_is_no_heading_stays(lines):
    """Guards: speech, short sentences, lists and verses are text."""
    assert kept("\n".join([LONG, *lines, LONG])) == [LONG, *lines, LONG]


def test_wrapped_lines_are_no_headings():
    """Guards: in text whose lines were wrapped, the short last line of a paragraph stays."""
    paragraph = "A line that was wrapped because the page was\nonly so wide, and so on to its end, which is\nNarrow"
    text = f"{paragraph}\n\n{paragraph}\n\nThe End\n\n{paragraph}"
    assert kept(text).count("Narrow") == 3 and "The End" in kept(text)
    text = f"{paragraph}\n\nThe End\n\n{textwrap.fill(LONG, 75)}\n\n{paragraph}"
    assert kept(text).count("Narrow") == 2 and "The End" not in kept(text)


def test_document_of_headings_alone_and_empty_ones():
    """Guards: nothing is left out of a single line, and nothing comes of nothing."""
    assert split_document("History") == (["History"], 0)
    assert split_document("A\nB") == split_document("A\nB", "de")
    assert split_document(" \n ") == ([], 0)


def test_sentences_are_whole():
    """Guards: abbreviations and numbers end no sentence, and a heading does not run into the next one."""
    text = f"Dr. Smith paid 3.5 dollars. He left.\nHistory.\n{LONG}"
    sentences, headings = split_document(text)
    assert [sentence.strip() for sentence in sentences][:2] == ["Dr. Smith paid 3.5 dollars.", "He left."]
    assert headings == 1 and not any("History" in sentence for sentence in sentences)


def test_lines_are_paragraphs_unless_they_were_wrapped():
    """Guards: no sentence runs over the end of a paragraph, and none ends where a line was merely wrapped."""
    lines = ["He argued, in short", f"So far as possible it was so. {LONG}", "And so on", "More of it, which goes on"]
    found = [sentence.strip() for sentence in split_document("\n".join(lines))[0]]
    assert found[:2] == ["He argued, in short", "So far as possible it was so."] and found[-2:] == lines[-2:]
    one_a_line = ["This one is a sentence.", "Is this one?", "And the third ends here!"]
    assert [sentence.strip() for sentence in split_document("\n".join(one_a_line))[0]] == one_a_line
    paragraph = "\n".join(["This line goes on and on and is wrapped after some sixty characters"] * 20)
    for between in ("\n\n", "\n"):
        assert len(split_document(f"{paragraph}.{between}{paragraph}.")[0]) == 2


def test_most_headings_of_wikipedia_are_found(real_data):
    """Guards: of 1,000 real articles nine in ten of the commonest headings are no sentence."""
    import pyarrow.parquet

    file = sorted((real_data / "wikipedia").glob("*.parquet"))[0]
    texts = pyarrow.parquet.read_table(file, columns=["text"]).column("text")[:1000].to_pylist()
    common = {"History.", "References.", "See also.", "Etymology.", "External links.", "Early life.", "Geography."}
    before = sum(line.strip() in common for text in texts for line in text.split("\n"))
    after = sum(sentence.strip() in common for text in texts for sentence in split_document(text)[0])
    assert before > 500 and after < 0.1 * before


@pytest.mark.parametrize("unit", ["“a. B ", "« a. B", "x", "\n"])
def test_time_grows_with_the_length_alone(unit):
    """Guards: quotations left open again and again take no time with the square of the length."""
    began = time.process_time()
    sentences, _ = split_document("A b. " + unit * (400_000 // len(unit)))
    assert time.process_time() - began < 8
    assert "".join("".join(sentences).split()) == "".join(("A b. " + unit * (400_000 // len(unit))).split())


def test_long_texts_are_cut_between_sentences():
    """Guards: a text of many parts has the sentences that it has as a whole, in paragraphs or not."""
    sentence = "The cat sat down, and nobody said what it did then. "
    for text in (sentence * 3000, (sentence * 30 + "\n") * 100):
        assert [part.strip() for part in split_document(text)[0]] == [sentence.strip()] * 3000
