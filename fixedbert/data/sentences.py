"""Documents as sentences: the splitter, and section headings that belong to none."""

import re
from collections.abc import Iterator

import sentencex

# A heading has no finite verb. English ones that give a short sentence away, with the pronouns that go with them:
SENTENCE_WORDS = frozenset(
    "i you he she it we they who there is are am was were be been has have had do does did can could will would shall "
    "should may might must said says came went this that not let please thank yes no".split()
)
HEADING_WORDS = 8
WORDS_OF_A_HEADING_WITH_A_STOP = 6
WRAPPED_LINE = 100  # characters; where nearly all lines are shorter, and half end no sentence, lines were wrapped
ENDS_OF_SENTENCES = (".", "!", "?", ":", '"', "'", "”", "’")
HEADINGS_IN_A_ROW = 3  # a section, a subsection and one below; more short lines are a list or a poem
LONGEST_PART = 50_000  # characters; where quotations are left open, the splitter's time grows with the square
NEWLINES = re.compile(r"\n+")
END_OF_A_SENTENCE = re.compile(r"[.!?]\W*\s")
INSIDE_A_SENTENCE = re.compile(r"[\"“”‘!?;:,|=<>{}\[\]]|\.\s")


def split_document(text: str, language: str = "en") -> tuple[list[str], int]:
    """
    The sentences of a text, none empty, and the number of headings left out.

    A heading stands on a line of its own before a paragraph or at the end: "History", "History." as Wikipedia's dumps
    give it, "CHAPTER I.". Quotations, list items and verses are none.
    """
    text, headings = without_headings(text)
    if not are_wrapped(text.split("\n")):
        text = text.replace("\n", "\n\n")  # to the splitter only blank lines end a paragraph
    sentences = [sentence for part in parts(text) for sentence in sentencex.segment(language, part)]
    return [sentence for sentence in sentences if not sentence.isspace()], headings


def parts(text: str) -> Iterator[str]:
    """
    A text in parts of at most LONGEST_PART characters, cut where a paragraph ends; a paragraph that is longer than
    that is cut where a sentence seems to end, or a word.
    """
    start = 0
    while len(text) - start > LONGEST_PART:
        end = start + LONGEST_PART
        cut = text.rfind("\n\n", start + 1, end)
        if cut > 0:
            cut = NEWLINES.match(text, cut, end).end()
        else:
            ends = [found.end() for found in END_OF_A_SENTENCE.finditer(text, start, end)]
            cut = ends[-1] if ends else text.rfind(" ", start, end) + 1 or end
        yield text[start:cut]
        start = cut
    yield text[start:]


def without_headings(text: str) -> tuple[str, int]:
    """The text without lines that are headings, and their number."""
    lines = text.split("\n")
    if len(lines) == 1:
        return text, 0
    with_text = [number for number, line in enumerate(lines) if line and not line.isspace()]
    wrapped = are_wrapped(lines)
    dropped = []
    run = []  # headings, if a paragraph follows
    for number in with_text:
        line = lines[number].strip()
        # Where lines were wrapped, one with another next to it is part of a paragraph.
        alone = not wrapped or not (neighbour(lines, number - 1) or neighbour(lines, number + 1))
        if alone and could_be_heading(line):
            run.append(number)
            continue
        if len(run) <= HEADINGS_IN_A_ROW and (len(line) > 60 or line.endswith(":") or line.startswith("<")):
            dropped += run
        run = []
    if len(run) <= HEADINGS_IN_A_ROW and len(run) < len(with_text):
        dropped += run
    if not dropped:
        return text, 0
    left_out = set(dropped)
    return "\n".join(line for number, line in enumerate(lines) if number not in left_out), len(dropped)


def are_wrapped(lines: list[str]) -> bool:
    """Whether lines were wrapped, so that blank ones part paragraphs; else each line is a paragraph."""
    lines = [line.strip() for line in lines if line and not line.isspace()]
    if not lines:
        return False
    lengths = sorted(map(len, lines))
    whole = sum(line.endswith(ENDS_OF_SENTENCES) for line in lines)
    return lengths[-(-95 * (len(lines) - 1) // 100)] <= WRAPPED_LINE and whole < 0.5 * len(lines)


def neighbour(lines: list[str], number: int) -> bool:
    return 0 <= number < len(lines) and bool(lines[number].strip())


def could_be_heading(line: str) -> bool:
    words = line.split()
    if len(words) > HEADING_WORDS or not (line[0].isupper() or line[0].isdigit()):
        return False
    stop = line.endswith(".")
    if INSIDE_A_SENTENCE.search(line.rstrip(".")) and not line.isupper():
        return False
    if not stop:
        return line[-1].isalnum() or line[-1] == ")"
    if line.isupper():
        return True
    words = line.rstrip(".").lower().split()
    if words[-1] == "i":  # Chapter I.
        words.pop()
    verb = any(word.endswith("ed") for word in words) or not SENTENCE_WORDS.isdisjoint(words)
    return len(words) <= WORDS_OF_A_HEADING_WITH_A_STOP and not verb
