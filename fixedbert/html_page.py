"""
Pages of HTML that need no other file and no network: the shell and the style that all share, from the folder pages/.
"""

import json
from html import escape
from importlib.resources import files
from string import Template


def html_page(title: str, body: str, style: str = "") -> str:
    """
    Args:
        title: plain text.
        body: HTML.
        style: CSS beside that of all pages.
    """
    return fill_template("shell.html", title=escape(title), style=page_file("shell.css") + style, body=body)


def fill_template(name: str, **values: str) -> str:
    """The file `name` of pages/ with HTML for each $name in it."""
    return Template(page_file(name)).substitute(values)


def page_file(name: str) -> str:
    return (files("fixedbert") / "pages" / name).read_text(encoding="utf-8")


def json_in_html(data: object) -> str:
    """
    JSON for a script element, which no text in it can end.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")
