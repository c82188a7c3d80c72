"""Sentences: whole ones, and no headings among them."""

import textwrap
import time

import pytest

from fixedbert.data.sentences import check_language, ends_sentence, split_document, without_headings
from fixedbert.support.errors import InputError

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
        assert kept(text) == [LONG, *after] and without_headings(text)[1] == headings


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
    assert split_document("History", leave_out_headings=True) == (["History"], [])
    assert split_document("A\nB", leave_out_headings=True) == split_document("A\nB")
    assert split_document(" \n ", leave_out_headings=True) == ([], [])


def test_sentences_are_whole():
    """Guards: abbreviations and numbers end no sentence, and a heading does not run into the next one."""
    text = f"Dr. Smith paid 3.5 dollars. He left.\nHistory.\n{LONG}"
    sentences, headings = split_document(text, leave_out_headings=True)
    assert [sentence.strip() for sentence in sentences][:2] == ["Dr. Smith paid 3.5 dollars.", "He left."]
    assert headings == ["History."] and not any("History" in sentence for sentence in sentences)


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
    after = sum(sentence.strip() in common for text in texts for sentence in split_document(text, "en", True)[0])
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


@pytest.mark.parametrize(
    "language, lines, sentences",
    [
        ("en", ["History", "The church clock struck ten.", LONG], 4),
        ("de", ["Geschichte", "Der Herr nickte.", "Das ist der erste Satz. Das der zweite."], 4),
        ("ja", ["歴史", "日本の歴史は長い。これは二番目です。", "文化", "とても古い！"], 5),
        ("zh", ["历史", "中国历史悠久。第二句话！真的吗？"], 4),
        ("hi", ["इतिहास", "यह एक वाक्य है। यह दूसरा है।"], 3),
        ("ur", ["تاریخ", "یہ ایک جملہ ہے۔ یہ دوسرا ہے۔"], 3),
    ],
)
def test_headings_stay_and_are_sentences_of_their_own(language, lines, sentences):
    """Guards: unless asked for, no line is left out in any language, and no heading runs into the text below it."""
    for between in ("\n", "\n\n"):
        found, headings = split_document(between.join(lines), language)
        assert "".join("".join(found).split()) == "".join("".join(lines).split()) and headings == []
        assert found[0].strip() == lines[0] and len(found) == sentences


def test_headings_in_wrapped_text_stand_alone():
    """Guards: where lines are wrapped and no blank line follows a heading, it is no beginning of the next sentence."""
    paragraph = textwrap.fill("The line goes on and on, and it is wrapped after some seventy characters " * 9, 70)
    found = [sentence.strip() for sentence in split_document(f"{paragraph}.\nEarly years\n{paragraph}.")[0]]
    assert found == [f"{paragraph}.", "Early years", f"{paragraph}."]


def test_ends_of_sentences_in_other_scripts():
    """Guards: what ends a sentence is known for each script, also before a closing quotation mark."""
    assert all(map(ends_sentence, ["Yes.", "“Yes!”", "そうです。", "「はい。」", "हाँ।", "ہاں۔", "Այո։", "አዎ።"]))
    assert not any(map(ends_sentence, ["Yes", "歴史", "इतिहास", "", "one, ”"]))
    text = "これは文です。" * 12_000  # without a blank: cut into parts at the ends of sentences
    assert split_document(text, "ja")[0] == ["これは文です。"] * 12_000


@pytest.mark.parametrize(
    "code, hint",
    [
        ("German", "did you mean de. Give"),
        ("chinese", "did you mean zh. Give"),
        ("DE", "did you mean de. Give"),
        ("pt-BR", "did you mean pt. Give"),
        ("en_GB", "did you mean en. Give"),
        ("xx", "give"),
        ("sv", "give"),
        ("", "give"),
    ],
)
def test_unknown_languages_are_refused(code, hint):
    """Guards: a code without rules of its own is no English in silence; the likely one and the known are named."""
    with pytest.raises(
        InputError, match=f"'{code}': no language that texts can be split in; {hint} one of am.* uk, zh"
    ):
        check_language(code)
    check_language("de")
