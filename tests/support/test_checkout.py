"""The package alone, as in a wheel: what only a checkout has is said to be there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from fixedbert.support.errors import InputError
from fixedbert_cli import main

records = sys.argv[1]
for words in (
    "study nearest --scale tiny --dry_run",
    f"study report {records} --output_dir out",
    "study heads --scale tiny --dry_run",
):
    try:
        main(words.split())
    except InputError as error:
        print(f"error: {error}")
"""


@pytest.mark.slow
def test_package_without_experiments(tmp_path):
    """Guards: without experiments/ studies of language models work, and each thing that needs it says so."""
    shutil.copytree(ROOT / "fixedbert", tmp_path / "fixedbert", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "fixedbert_cli.py", tmp_path)
    records = ROOT / "experiments" / "head_size" / "records" / "recall.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(records)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    named, report, *heads = done.stdout.splitlines()
    assert named.startswith("error: study nearest: there are heads, head-size, width, mhe, depth, or a YAML file")
    assert "runs of the task recall, which this installation does not have" in report
    assert "different shapes, each with" in heads[-1] and not (tmp_path / "out").exists()
    command = [sys.executable, "-m", "fixedbert", "theory", "--output_dir", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and done.stderr == (
        "error: theory: its code is in experiments/head_size of a checkout of fixedbert; run it there.\n"
    )
