"""report.html: a report on one page of its own, without any other file."""

from base64 import b64encode
from collections.abc import Iterable
from html import escape

from ..html_page import html_page, page_file
from .pictures import Picture
from .report import Report
from .report_text import Section, answers, commands, condition_lines, limits_section, table, title


def report_html(report: Report, pictures: list[Picture]) -> str:
    """Question, answers, table, pictures, commands, conditions and limits; all text of the records is escaped."""
    limits = limits_section(report)
    content = [
        f"<h1>{escape(title(report))}</h1>",
        *([f'<p class="question">{escape(report.question)}</p>'] if report.question else []),
        "<h2>Answers</h2>",
        *map(section_html, answers(report)),
        "<h2>Results</h2>",
        series_filter([*report.series]),
        table_html(table(report)),
        *map(picture_html, pictures),
        "<h2>How this was made</h2>",
        f"<pre>{escape(chr(10).join(commands(report)))}</pre>",
        *map(paragraph, condition_lines(report)),
        "<h2>What this does not show</h2>",
        list_html(limits.items),
        f"<script>{page_file('report.js')}</script>",
    ]
    return html_page(title(report), "\n".join(content))


def section_html(section: Section) -> str:
    return paragraph(section.text) + list_html(section.items)


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def list_html(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def series_filter(names: list[str]) -> str:
    """A checkbox for each series, which shows or hides its rows, where there is more than one."""
    if len(names) == 1:
        return ""
    boxes = (f'<label><input type="checkbox" checked value="{escape(name)}"> {escape(name)}</label>' for name in names)
    return f'<fieldset id="series"><legend>Series in the table</legend>{" ".join(boxes)}</fieldset>'


def table_html(rows: list[list[str]]) -> str:
    header, *others = rows
    lines = [row_html(header, "th"), *(row_html(row, "td") for row in others)]
    return f'<div class="wide"><table id="results">{"".join(lines)}</table></div>'


def row_html(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def picture_html(picture: Picture) -> str:
    data = b64encode(picture.png).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">'
    return f"<figure>{image}<figcaption>{escape(picture.caption)}</figcaption></figure>"
