"""Runs the Python code in model cards on long texts."""

import re
from pathlib import Path

import pytest


def run_snippet(card: Path, monkeypatch: pytest.MonkeyPatch, directory: Path) -> dict:
    """Runs the code block of a model card in a directory, with a text of 3,000 words. Returns its variables."""
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    assert '"A text."' in code
    monkeypatch.chdir(directory)
    variables: dict = {}
    exec(code.replace('"A text."', '"the cat sat " * 1000'), variables)
    return variables
