"""Documents split into sentences, on request without section headings."""

import re
from collections.abc import Iterator

import sentencex

from ..support.errors import InputError

# The languages that sentencex has rules for, and Chinese, to which its general rules apply. It treats every other code
# as English.
LANGUAGES = tuple(
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split()
)
NAMES = (  # of these languages, in their order
    "amharic arabic bulgarian bengali catalan danish german greek english spanish finnish french gujarati hindi "
    "armenian italian japanese kazakh kannada malayalam marathi burmese dutch punjabi polish portuguese russian "
    "slovak tamil telugu ukrainian chinese".split()
)
# A heading has no finite verb. English verbs and pronouns by which a short sentence is recognised:
SENTENCE_WORDS = frozenset(
    "i you he she it we they who there is are am was were be been has have had do does did can could will would shall "
    "should may might must said says came went this that not let please thank yes no".split()
)
HEADING_WORDS = 8
WORDS_OF_A_HEADING_WITH_A_STOP = 6
WRAPPED_LINE = 100  # characters; if nearly all lines are shorter, and half do not end a sentence, lines are wrapped
ENDS = (*".!?…", *"。！？．｡", *"।॥۔؟։።။")  # of sentences: European, Chinese and Japanese, of other scripts
QUOTES = "\"'”’»」』"
HEADINGS_IN_A_ROW = 3  # a section, a subsection and one below; more short lines are a list or a poem
LONGEST_PART = 50_000  # characters; after an open quotation mark the splitter's time grows with the square
END_OF_A_SENTENCE = re.compile(rf"[{re.escape(''.join(ENDS))}]\W*\s|[。！？｡]\W*")
INSIDE_A_SENTENCE = re.compile(r"[\"“”‘!?;:,|=<>{}\[\]]|\.\s")


def check_language(code: str):
    """
    Raises:
        InputError: sentencex has no rules for this language, or it is not a code of LANGUAGES.
    """
    if code not in LANGUAGES:
        codes = dict(zip([*NAMES, *LANGUAGES], [*LANGUAGES, *LANGUAGES], strict=True))
        near = codes.get(re.split("[-_]", code.lower())[0])
        hint = f"did you mean {near}? Give" if near else "give"
        raise InputError(
            f"{code!r}: no language that texts can be split in; {hint} one of {', '.join(LANGUAGES)}, or en for its "
            "general rules.",
            "language",
        )


def split_document(text: str, language: str = "en", leave_out_headings: bool = False) -> tuple[list[str], list[str]]:
    """
    The sentences of a text, none empty, and the headings left out.

    Args:
        language: one of LANGUAGES.
        leave_out_headings: a heading is a line of its own before a paragraph or at the end: "History", "History." as
            in Wikipedia's dumps, "CHAPTER I.". It is told by English words. Quotations, list items and verses are no
            headings; a few short sentences are taken for some.
    """
    text, headings = without_headings(text) if leave_out_headings else (text, [])
    lines = text.split("\n")
    # For the splitter only blank lines end a paragraph.
    text = with_headings_apart(lines) if are_wrapped(lines) else "\n\n".join(lines)
    sentences = [sentence for part in parts(text) for sentence in sentencex.segment(language, part)]
    return [sentence for sentence in sentences if not sentence.isspace()], headings


def with_headings_apart(lines: list[str]) -> str:
    """Wrapped lines as a text, with a blank line after a short one that neither ends a sentence nor goes on."""
    width = min(max(map(len, lines)), WRAPPED_LINE)
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        goes_on = len(line.strip()) > width / 2 or ends_sentence(line) or following.lstrip()[:1].islower()
        found += [line] if goes_on or not line.strip() else [line, ""]
    return "\n".join(found)


def ends_sentence(line: str) -> bool:
    return line.rstrip().rstrip(QUOTES + ")]）").endswith(ENDS)


def parts(text: str) -> Iterator[str]:
    """
    A text in parts of at most LONGEST_PART characters, cut at the end of a paragraph. A longer paragraph is cut where
    a sentence seems to end, or a word.
    """
    start = 0
    while len(text) - start > LONGEST_PART:
        end = start + LONGEST_PART
        cut = text.rfind("\n\n", start + 1, end)
        if cut > 0:
            cut = next((place for place in range(cut, end) if text[place] != "\n"), end)
        else:
            ends = [found.end() for found in END_OF_A_SENTENCE.finditer(text, start, end)]
            cut = ends[-1] if ends else text.rfind(" ", start, end) + 1 or end
        yield text[start:cut]
        start = cut
    yield text[start:]


def without_headings(text: str) -> tuple[str, list[str]]:
    """The text without headings, and these."""
    lines = text.split("\n")
    if len(lines) == 1:
        return text, []
    with_text = [number for number, line in enumerate(lines) if line and not line.isspace()]
    wrapped = are_wrapped(lines)
    dropped = []
    run: list[int] = []  # headings, if a paragraph follows
    for number in with_text:
        line = lines[number].strip()
        # Where lines are wrapped, a line next to another is part of a paragraph.
        alone = not wrapped or not (neighbour(lines, number - 1) or neighbour(lines, number + 1))
        if alone and could_be_heading(line):
            run.append(number)
            continue
        if len(run) <= HEADINGS_IN_A_ROW and (len(line) > 60 or line.endswith(":") or line.startswith("<")):
            dropped += run
        run = []
    if len(run) <= HEADINGS_IN_A_ROW and len(run) < len(with_text):
        dropped += run
    left_out = set(dropped)
    kept = (line for number, line in enumerate(lines) if number not in left_out)
    return "\n".join(kept), [lines[number].strip() for number in dropped]


def are_wrapped(lines: list[str]) -> bool:
    """Whether lines are wrapped, so that blank ones end a paragraph; else each line is a paragraph."""
    lines = [line.strip() for line in lines if line and not line.isspace()]
    if not lines:
        return False
    lengths = sorted(map(len, lines))
    whole = sum(line.endswith((*ENDS, ":", *QUOTES)) for line in lines)
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
