"""Tables of results, as aligned text, as Markdown and in files. The first row of a table is its header."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import to_csv

Table = Sequence[Sequence[object]]


def aligned(table: Table) -> str:
    """Formats a table as text. Columns of numbers are right-aligned, the others left-aligned."""
    columns = []
    for header, *values in zip(*table, strict=True):
        cells = [str(header), *map(str, values)]
        align = str.rjust if all(re.fullmatch(r"[-+.,e\d]*", cell) for cell in cells[1:]) else str.ljust
        columns.append([align(cell, max(map(len, cells))) for cell in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def markdown_table(table: Table) -> str:
    header, *rows = table
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (header, ["---"] * len(header), *rows))


def markdown_report(result: Any) -> str:
    """Returns the text of a result with its `table` in Markdown, for notebooks."""
    text = str(result).replace(aligned(result.table), markdown_table(result.table))
    return text.replace("\n", "  \n")  # keeps the line breaks of notes


def write_table(table: Table, file: Path):
    """Writes a table to FILE.csv and FILE.md."""
    file.with_name(f"{file.name}.csv").write_text(to_csv(table), encoding="utf-8")
    file.with_name(f"{file.name}.md").write_text(markdown_table(table) + "\n", encoding="utf-8")
