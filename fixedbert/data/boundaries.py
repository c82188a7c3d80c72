"""Where documents end: rows of text put together to documents, by one rule for each kind of boundary."""

import re
from collections.abc import Iterable, Iterator

from ..support.errors import InputError

DOCUMENT_BOUNDARIES = {
    "row": "a row of jsonl, csv, parquet or the Hub, or with the end of a text file",
    "line": "a line of a text file",
    "blank_line": "a blank line, an empty row",
    "column": "another value in the document column",
    "inferred": "a row that looks like the beginning of a chapter, or else 500 rows",
}
LARGEST_DOCUMENT = 2**28  # bytes; a larger one means that its boundaries were missed
INFERRED_LENGTH = 500  # sentences, about a chapter, of a document whose end cannot be seen
CHAPTER = re.compile(
    r"\W*(chapter|prologue|epilogue|preface|foreword|part|book|volume|copyright|isbn|table of contents|contents)\b",
    re.I,
)

Row = tuple[str, object]  # text, and the value of the document column
Document = str | list[str]  # text to be split into sentences, or its sentences


def documents_of(rows: Iterable[Row], boundary: str, source: str) -> Iterator[Document]:
    """
    The documents that rows make up. By "column" and "inferred" every row is a sentence.

    Args:
        boundary: one of DOCUMENT_BOUNDARIES.
        source: where the rows are from, for messages.

    Raises:
        InputError: a document is larger than LARGEST_DOCUMENT.
    """
    if boundary in ("row", "line"):
        yield from (text for text, _ in rows)
        return
    texts: list[str] = []  # of the document so far
    size, last = 0, None
    for text, value in rows:
        if boundary == "blank_line":
            ended = not text.strip()
        elif boundary == "column":
            ended = value != last
        else:
            ended = len(texts) == INFERRED_LENGTH or (len(text) < 60 and CHAPTER.match(text) is not None)
        last = value
        if ended and texts:
            yield whole(texts, boundary)
            texts, size = [], 0
        if text.strip():
            texts.append(text)
            size += len(text)
            check_document(size, source)
    if texts:
        yield whole(texts, boundary)


def whole(texts: list[str], boundary: str) -> Document:
    """A document of its lines, or of its sentences."""
    if boundary != "blank_line":
        return texts
    return "".join(text if text.endswith("\n") else text + "\n" for text in texts)


def check_document(size: int, source: object):
    """
    Raises:
        InputError: a document of `size` characters is too large.
    """
    if size > LARGEST_DOCUMENT:
        raise InputError(
            f"{source}: more than {LARGEST_DOCUMENT >> 20} MiB in one document; say what ends one in it with "
            "`document_boundary` line, blank_line or inferred."
        )
