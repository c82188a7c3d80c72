"""Configures the documentation website, which `make docs` writes to build/site."""

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.util.osutil import relative_uri

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
html_static_path, html_css_files = ["site.css"], ["site.css"]
pygments_dark_style = "github-dark"


def setup(app):
    app.add_builder(SiteBuilder, override=True)
    app.connect("doctree-resolved", link_pictures)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("build-finished", lead_to_the_front)


class SiteBuilder(StandaloneHTMLBuilder):
    """Sphinx's HTML builder, but with the front page at the root of the site although its source is in docs/."""

    def get_target_uri(self, docname, typ=None):
        return "index.html" if docname == root_doc else super().get_target_uri(docname, typ)

    def get_output_path(self, page_name, /):
        return super().get_output_path("index" if page_name == root_doc else page_name)


def lead_to_the_front(app, exception):
    """At the address that the search and older links use, writes a page that redirects to the front page."""
    page = '<!doctype html><meta http-equiv="refresh" content="0; url=../index.html">'
    (Path(app.outdir) / f"{root_doc}.html").write_text(page, encoding="utf-8")


def link_pictures(app, doctree, docname):
    """Makes each picture a link to its file, which is wider than a page."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"] in app.env.images and not isinstance(image.parent, nodes.reference):
            file = f"{app.builder.imagedir}/{app.env.images[image['uri']][1]}"
            link = nodes.reference(refuri=relative_uri(app.builder.get_target_uri(docname), file), internal=True)
            image.replace_self(link)
            link += image


def as_restructured_text(app, what, name, obj, options, lines: list[str]):
    """Converts docstrings from Markdown: `code` in single backticks and, in modules, tables and indented formulas."""
    literal, result, whole = False, [], []
    for line in lines:  # joins code that continues on the next line
        if whole and whole[-1].count("`") % 2:
            whole[-1] += " " + line.strip()
        else:
            whole.append(line)
    for line in whole:
        starts = what == "module" and line.startswith(("    ", "|"))
        if starts and not literal:
            result += ["::", ""]
        literal = starts or (literal and not line)
        if not literal:  # a bar outside of code would begin a substitution
            line = re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", line)
        result.append(f"    {line}" if literal else re.sub(r"(?<!`)`([^`]+)`(?!`)(?!_)", r"``\1``", line))
    lines[:] = result
