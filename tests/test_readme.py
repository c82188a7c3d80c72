"""The README: what it promises is there, and its Python runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import HfArgumentParser

from fixedbert.training.arguments import ModelArguments
from fixedbert.training.fine_tuning import FineTuningArguments
from fixedbert.training.glue_data import GlueDataArguments
from fixedbert.training.pretraining import PretrainingArguments
from fixedbert.training.pretraining_data import PretrainingDataArguments
from fixedbert.training.squad_data import SquadDataArguments

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FINE_TUNING = (ROOT / "docs" / "fine_tuning.md").read_text(encoding="utf-8")


def test_python_of_the_readme_runs(tmp_path):
    """Guards: the README's Python can be pasted into an empty folder."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = code.replace("fixed-512-32x128", "tiny")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_files_and_targets_of_the_readme_exist():
    """Guards: linked files, the annotated tree and the make targets are there."""
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    tree = README.split("## What is where")[1].split("## ")[0]
    names = re.findall(r"\b\w+(?:/|\.py)(?=\s)", tree)
    assert len(names) > 10
    for name in names:
        assert (ROOT / name).exists() or (ROOT / "fixedbert" / name).exists(), name
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("run_pretraining", (PretrainingDataArguments, PretrainingArguments)),
        ("run_glue", (GlueDataArguments, FineTuningArguments)),
        ("run_squad", (SquadDataArguments, FineTuningArguments)),
    ],
)
@pytest.mark.parametrize("text", [README, FINE_TUNING], ids=["README", "fine_tuning"])
def test_commands_of_the_docs_parse(script, arguments, text):
    """Guards: every flag that the README and the docs give to a script is one that it takes."""
    parser = HfArgumentParser((ModelArguments, *arguments), allow_abbrev=False)
    commands = re.findall(rf"python {script}\.py (--(?:\\\n|.)*)", text)
    assert commands or (script == "run_pretraining" and text is FINE_TUNING)
    for command in commands:
        _, unknown = parser.parse_known_args(command.replace("\\\n", " ").split())
        assert not unknown
