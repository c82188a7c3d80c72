"""Tests of links and lists in the documentation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *(file for folder in ("benchmarks", "model_cards", "soak") for file in sorted(ROOT.glob(f"{folder}/*.md"))),
]


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links(page):
    """All linked files and headings exist."""
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_listed():
    """docs/README.md lists all pages with their titles, in the same order as the table of contents of the website."""
    docs = ROOT / "docs"
    listed = re.findall(r"^- \[(.+)\]\(([^)]+\.md)\)", (docs / "README.md").read_text("utf-8"), re.MULTILINE)
    pages = {*PAGES} - {ROOT / "README.md", docs / "README.md", docs / "index.md"}
    assert sorted((docs / name).resolve() for _, name in listed) == sorted(pages)
    for title, name in listed:
        assert (docs / name).read_text("utf-8").startswith(f"# {title}\n"), name
    contents = re.findall(r"^(?!```|:)\S+$", (docs / "index.md").read_text("utf-8"), re.MULTILINE)
    assert [f"{name}.md" for name in contents] == [name for _, name in listed]


def test_files_of_the_architecture_exist():
    """All files listed in docs/architecture.md exist, and all modules and subpackages are listed."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {name for row in re.findall(r"^\|(.*?)\|", text, re.MULTILINE) for name in re.findall(r"`([\w./]+)`", row)}
    assert len(names) > 20
    for name in names:
        assert (ROOT / name).exists() or (ROOT / "fixedbert" / name).exists(), name
    modules = {file.name + ("/" if file.is_dir() else "") for file in (ROOT / "fixedbert").iterdir()}
    assert not {name for name in modules if not name.startswith(("_", "py.typed"))} - names
