"""Tests of the `fixedbert` command."""

import subprocess
import sys

import pytest
from helpers import ROOT, fork_server

from fixedbert_cli import COMMANDS, TASKS, main

IMPORTED = """
import sys
import fixedbert_cli
try:
    fixedbert_cli.entry_point()
except SystemExit as end:
    print(end.code, {"torch", "transformers", "fixedbert", "numpy"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    "argv, code",
    [([], 0), (["--version"], 0), (["shrnk"], 2), *(([name, "--help"], 0) for name in COMMANDS)],
    ids=lambda x: " ".join(x) if isinstance(x, list) else str(x),
)
def test_help_needs_no_imports(argv, code):
    """Help, version and errors about arguments appear without importing torch, transformers or fixedbert."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith(f"{code} set()\n"), done.stderr


@pytest.mark.parametrize(
    "argv",
    [
        "convert bert",
        "convert bert wide --output_dir out",
        "convert bert --output_dir out --attention_head 3",
        "shrink model --output_dir out --speedup 2 --params 5e6",
    ],
)
def test_invalid_arguments(argv, capsys):
    """Missing, unknown, abbreviated and contradictory arguments are reported before the command runs."""
    with pytest.raises(SystemExit, match="2"):
        main(argv.split())
    assert "error: " in capsys.readouterr().err


def test_tasks_are_commands(tmp_path, tmp_path_factory):
    """`python -m fixedbert glue` works like run_glue.py, and reports mistakes in the user's input in a single line."""

    def run(*argv: str) -> subprocess.CompletedProcess:
        return fork_server.run(ROOT / "fixedbert/__main__.py", [*argv], tmp_path, tmp_path_factory.mktemp("output"))

    for name in TASKS:
        done = run(name, "--help")
        assert done.returncode == 0 and done.stdout.startswith(f"usage: fixedbert {name} [-h]"), done.stderr
    done = run("squad", "--output_dir", "out")
    assert done.returncode == 1 and done.stderr.startswith("error: nothing to do; set --do_train")
    assert len(done.stderr.splitlines()) == 1
