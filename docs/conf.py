"""The documentation as a site: `make docs` writes it into build/site."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import fixedbert

project, author, version = "fixedbert", "The fixedbert authors", fixedbert.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
# The source is the whole checkout, so that pages can link to each other as they do on the Hub and in an editor.
root_doc = "docs/index"
include_patterns = ["CONTRIBUTING.md", "CHANGELOG.md", "docs/**", "benchmarks/*.md", "model_cards/*.md", "soak/*.md"]
exclude_patterns = ["docs/README.md"]  # index.md includes it
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
html_theme, html_title, html_show_copyright = "furo", "fixedbert", False
pygments_dark_style = "github-dark"


def setup(app):
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("build-finished", lead_to_the_front)


def lead_to_the_front(app, exception):
    """The site's index.html leads to the front page, which is in docs/ as its source is."""
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">'
    (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def as_restructured_text(app, what, name, obj, options, lines: list[str]):
    """Our docstrings are Markdown: `code` in single backticks, and in modules tables and indented formulas."""
    literal, result, whole = False, [], []
    for line in lines:  # a piece of code that goes on in the next line
        if whole and whole[-1].count("`") % 2:
            whole[-1] += " " + line.strip()
        else:
            whole.append(line)
    for line in whole:
        starts = what == "module" and line.startswith(("    ", "|"))
        if starts and not literal:
            result += ["::", ""]
        literal = starts or (literal and not line)
        result.append(f"    {line}" if literal else re.sub(r"(?<!`)`([^`]+)`(?!`)(?!_)", r"``\1``", line))
    lines[:] = result
