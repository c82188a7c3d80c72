"""Tests that the notebooks run."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SHORTER = {  # replacements that reduce the number of steps and skip timing
    "max_steps=700": "max_steps=7",
    'output_dir="pairs"\n': 'max_steps=7, output_dir="pairs"\n',
    "speedup=1.2": "intermediate_size=256",
    "max_eval_samples=200": "max_eval_samples=2",
    '"lighter"], "data/pairs/dev.tsv"': '"lighter"], "data/pairs/dev.tsv", runtime=["torch"]',
    "[MODEL], ROWS": '[MODEL], ROWS, runtime=["torch"]',
}


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_run(file, tmp_path, monkeypatch):
    """All cells of the notebook run in an empty directory, and at least one shows a figure."""
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    notebook = nbformat.read(file, 4)
    for cell in notebook.cells:
        for old, new in SHORTER.items():
            cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
