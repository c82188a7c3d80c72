"""The style of the sources, as far as no linter checks it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("fixedbert", "tests", "benchmarks", "soak", "experiments", "docs", "model_cards")
FILES = [*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in ROOT.glob(f"{folder}/**/*.py"))]
# Beginnings that make sense behind the name of the function only, which a reference does not print beside them.
LEANING = re.compile(r"(Of|Those( of)?|That of|The same|By (its|their)|Its|Their)\b")


def test_docstrings_can_be_read_alone():
    """Guards: no docstring leans on the name of what it describes."""
    leaning = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{file.stem}.{getattr(node, 'name', '')}"
                text = ast.get_docstring(node) or ""
                leaning |= {name: text.splitlines()[0]} if LEANING.match(text) else {}
    assert len(FILES) > 100 and not leaning, leaning
