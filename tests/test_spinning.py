"""How long threads of OpenMP spin where they wait for each other: set before torch reads it, whatever is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT

LIBGOMP = Path(torch.__file__).parent / "lib" / "libgomp.so.1"  # in the wheels for Linux

# Instead of the first import of torch, or of what imports it: load its OpenMP alone, which prints its settings.
LOADING = f"""
import ctypes, os, runpy, sys

class Loading:
    def find_spec(self, name, *_):
        if name in ("torch", "transformers", "accelerate"):
            ctypes.CDLL({str(LIBGOMP)!r})
            os._exit(0)

sys.meta_path.insert(0, Loading())
sys.argv[1:] = ["study", "heads", "--dry_run"]
"""
OURS = "100000"


def spin_count(code: str, **environment: str) -> str:
    """What OpenMP has read when torch is imported by `code`."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", LOADING + code],
        env=clean | environment | {"OMP_DISPLAY_ENV": "verbose"}, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    (line,) = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    return line.split("'")[1]


pytestmark = pytest.mark.skipif(not LIBGOMP.exists(), reason="torch has another OpenMP here")


@pytest.mark.parametrize(
    "code",
    [
        "runpy.run_path('run_pretraining.py', run_name='__main__')",
        "runpy.run_path('run_demo.py', run_name='__main__')",
        "import benchmarks.quality",
        "import fixedbert_cli; fixedbert_cli.entry_point()",
    ],
)
def test_every_start_bounds_the_spinning(code):
    """Guards: scripts, demo, benchmarks and the command set it before torch is imported."""
    assert spin_count(code) == OURS


def test_a_setting_of_the_user_wins():
    """Guards: what the environment says already of waiting stays: a count, or a policy, for which the default is 0."""
    script = "runpy.run_path('run_glue.py', run_name='__main__')"
    assert spin_count(script, GOMP_SPINCOUNT="7") == "7"
    assert spin_count(script, OMP_WAIT_POLICY="passive") == "0"


def test_the_library_leaves_the_environment_alone():
    """Guards: importing the package sets nothing for the process that imports it."""
    assert spin_count("import fixedbert") == spin_count("import torch") != OURS
