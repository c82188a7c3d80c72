"""Text is split into sentences."""

import textwrap
import time

import pytest

from fixedbert.data.sentences import split_document

LONG = "This paragraph is much too long to be mistaken for the heading of a section, and it goes on. It ends."


def split(text: str, language: str = "en") -> list[str]:
    return [sentence.strip() for sentence in split_document(text, language)]


def test_abbreviations_and_numbers():
    """Abbreviations and decimal points do not end a sentence, and blank text contains no sentences."""
    assert split("Dr. Smith paid 3.5 dollars. He left.") == ["Dr. Smith paid 3.5 dollars.", "He left."]
    assert split_document(" \n ") == split_document("") == []


def test_lines_are_paragraphs_unless_hard_wrapped():
    """Each line is a paragraph, unless the text is hard-wrapped."""
    lines = ["He argued, in short", f"So far as possible it was so. {LONG}", "And so on", "More of it, which goes on"]
    found = split("\n".join(lines))
    assert found[:2] == ["He argued, in short", "So far as possible it was so."] and found[-2:] == lines[-2:]
    one_a_line = ["This one is a sentence.", "Is this one?", "And the third ends here!"]
    assert split("\n".join(one_a_line)) == one_a_line
    paragraph = "\n".join(["This line goes on and on and is wrapped after some sixty characters"] * 20)
    for between in ("\n\n", "\n"):
        assert len(split(f"{paragraph}.{between}{paragraph}.")) == 2


def test_headings_in_hard_wrapped_text():
    """In hard-wrapped text, a heading is not joined with the next sentence, even without a blank line."""
    paragraph = textwrap.fill("The line goes on and on, and it is wrapped after some seventy characters " * 9, 70)
    assert split(f"{paragraph}.\nEarly years\n{paragraph}.") == [f"{paragraph}.", "Early years", f"{paragraph}."]


@pytest.mark.parametrize("unit", ["“a. B ", "« a. B", "x", "\n"])
def test_time_is_linear(unit):
    """The running time is linear in the length of the text, even if many quotations are never closed."""
    began = time.process_time()
    text = "A b. " + unit * (400_000 // len(unit))
    sentences = split_document(text)
    assert time.process_time() - began < 8
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_long_texts_are_divided_between_sentences():
    """Processing a long text in parts does not change its sentences, whether or not it has paragraphs."""
    sentence = "The cat sat down, and nobody said what it did then. "
    for text in (sentence * 3000, (sentence * 30 + "\n") * 100):
        assert split(text) == [sentence.strip()] * 3000
    assert split_document("これは文です。" * 12_000, "ja") == ["これは文です。"] * 12_000


@pytest.mark.parametrize(
    "language, lines, sentences",
    [
        ("de", ["Geschichte", "Der Herr nickte.", "Das ist der erste Satz. Das der zweite."], 4),
        ("zh", ["历史", "中国历史悠久。第二句话！真的吗？"], 4),
        ("hi", ["इतिहास", "यह एक वाक्य है। यह दूसरा है।"], 3),
        ("ur", ["تاریخ", "یہ ایک جملہ ہے۔ یہ دوسرا ہے۔"], 3),
    ],
)
def test_languages(language, lines, sentences):
    """Sentences are recognized in other languages and scripts, and no text is lost."""
    found = split_document("\n".join(lines), language)
    assert "".join("".join(found).split()) == "".join("".join(lines).split())
    assert found[0].strip() == lines[0] and len(found) == sentences
