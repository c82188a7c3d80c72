"""README and docs: links and files are there. tests/test_docs.py has their commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "model_cards" / "README.md",
    ROOT / "soak" / "README.md",
]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_somewhere(page):
    """Guards: linked files are there, and have the heading that a link names."""
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_pictures_are_shown():
    """Guards: no picture in docs/ is left behind when a page no longer shows it."""
    shown = {
        (page.parent / name).resolve()
        for page in PAGES
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    left = {file for pattern in ("*.png", "*.svg") for file in ROOT.glob(f"docs/**/{pattern}")} - shown
    assert not left, ", ".join(sorted(str(file.relative_to(ROOT)) for file in left))


def test_every_page_is_listed():
    """Guards: docs/README.md links to each page of docs/."""
    listed = set(re.findall(r"\]\(([^)#]+\.md)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert not pages - listed - {"README.md", "index.md"}


def test_files_of_the_architecture_exist():
    """Guards: each file and folder of the tables is there, and each module of the package is in one of them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {name for row in re.findall(r"^\|(.*?)\|", text, re.MULTILINE) for name in re.findall(r"`([\w./]+)`", row)}
    assert len(names) > 20
    for name in names:
        assert (ROOT / name).exists() or (ROOT / "fixedbert" / name).exists(), name
    modules = {file.name + ("/" if file.is_dir() else "") for file in (ROOT / "fixedbert").iterdir()}
    assert not {name for name in modules if not name.startswith(("_", "py.typed"))} - names
