"""The source distribution."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from launch import ROOT

NOT_SENT = (".ci/", ".gitignore")  # of the repository alone


def test_sdist_has_every_file_of_the_repository(tmp_path):
    """Guards: the source distribution has what its tests read, all that is under version control."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        files = {name for name in listed.splitlines() if not name.startswith(NOT_SENT)}
        assert {"tests/conftest.py", "recipes/mini.yaml", "fixedbert/study/studies.yaml", "Makefile"} <= files
    else:  # in an unpacked distribution, whose files are those that it has
        files = {"tests/conftest.py", "recipes/mini.yaml", "constraints.txt", "setup.cfg", "MANIFEST.in", "README.md"}
        files |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob("fixedbert/**/*.py")} | {"pyproject.toml"}
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    code = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "source", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    with tarfile.open(tmp_path / built.stdout.splitlines()[-1]) as archive:
        found = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert sorted(files - found) == []
