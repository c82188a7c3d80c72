"""Splits text into sentences."""

import re
from collections.abc import Iterator

import sentencex

MAX_WRAPPED_LINE = 100  # characters
TERMINATORS = (*".!?…", *"。！？．｡", *"।॥۔؟։።።")  # European scripts, Chinese and Japanese, other scripts
QUOTES = "\"'”’»」』"
MAX_PART = 50_000  # characters; the run time of sentencex is quadratic if a quotation is never closed
SENTENCE_END = re.compile(rf"[{re.escape(''.join(TERMINATORS))}]\W*\s|[。！？｡]\W*")


def split_document(text: str, language: str = "en") -> list[str]:
    """
    Splits a text into sentences and returns those that are not blank.

    Sentences never cross the end of a paragraph. Each line is a paragraph unless the text looks hard-wrapped. In a
    hard-wrapped text, a paragraph ends at a blank line or after a short line such as a heading.

    Args:
        language: A code of the option `language`.
    """
    lines = text.split("\n")
    # For sentencex, only a blank line ends a paragraph.
    text = separate_short_lines(lines) if is_hard_wrapped(lines) else "\n\n".join(lines)
    sentences = [sentence for part in split_into_parts(text) for sentence in sentencex.segment(language, part)]
    return [sentence for sentence in sentences if not sentence.isspace()]


def is_hard_wrapped(lines: list[str]) -> bool:
    """Returns True if 95% of the lines have at most MAX_WRAPPED_LINE characters and most do not end a sentence."""
    lines = [line.strip() for line in lines if line and not line.isspace()]
    if not lines:
        return False
    lengths = sorted(map(len, lines))
    complete = sum(line.endswith((*TERMINATORS, ":", *QUOTES)) for line in lines)
    return lengths[-(-95 * (len(lines) - 1) // 100)] <= MAX_WRAPPED_LINE and complete < 0.5 * len(lines)


def separate_short_lines(lines: list[str]) -> str:
    """Joins the lines of a text, with a blank line after each heading: a short line that is not part of a sentence."""
    width = min(max(map(len, lines)), MAX_WRAPPED_LINE)
    separated = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        continues = len(line.strip()) > width / 2 or ends_sentence(line) or following.lstrip()[:1].islower()
        separated += [line] if continues or not line.strip() else [line, ""]
    return "\n".join(separated)


def ends_sentence(line: str) -> bool:
    return line.rstrip().rstrip(QUOTES + ")]）").endswith(TERMINATORS)


def split_into_parts(text: str) -> Iterator[str]:
    """
    Splits a text into parts of at most MAX_PART characters.

    A part ends at the end of a paragraph if possible, otherwise at the end of a sentence, or else at a space.
    """
    start = 0
    while len(text) - start > MAX_PART:
        end = start + MAX_PART
        cut = text.rfind("\n\n", start + 1, end)
        if cut > 0:
            cut = next((position for position in range(cut, end) if text[position] != "\n"), end)
        else:
            ends = [match.end() for match in SENTENCE_END.finditer(text, start, end)]
            cut = ends[-1] if ends else text.rfind(" ", start, end) + 1 or end
        yield text[start:cut]
        start = cut
    yield text[start:]
