"""The notebooks, executed in an empty directory."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
SHORTER = {  # fewer steps, and no timing
    "max_steps=700": "max_steps=7",
    'output_dir="pairs"\n': 'max_steps=7, output_dir="pairs"\n',
    "speedup=1.2": "intermediate_size=256",
    "max_samples=200": "max_samples=16, importance_samples=1",
}


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_run(file, tmp_path, monkeypatch):
    """Guards: every cell of a notebook runs, and shows a figure."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(file, 4)
    for cell in notebook.cells:
        for old, new in SHORTER.items():
            cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
