"""Tests of style rules that no linter checks."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTORIES = ("fixedbert", "tests", "benchmarks", "soak", "experiments", "docs", "model_cards")
FILES = [*ROOT.glob("*.py"), *(file for directory in DIRECTORIES for file in ROOT.glob(f"{directory}/**/*.py"))]
# Words with which incomplete sentences and noun phrases begin.
INCOMPLETE = re.compile(r"(Of|Those( of)?|That of|The same|By (its|their)|Its|Their)\b")


def test_docstrings_are_complete():
    """Docstrings begin with a complete statement."""
    incomplete = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{file.stem}.{getattr(node, 'name', '')}"
                text = ast.get_docstring(node) or ""
                incomplete |= {name: text.splitlines()[0]} if INCOMPLETE.match(text) else {}
    assert len(FILES) > 100 and not incomplete, incomplete
