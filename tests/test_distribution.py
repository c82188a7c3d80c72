"""Tests of the wheel, the package version, and the supported versions of Python, torch and transformers."""

import re
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser

import yaml
from helpers import ROOT

import fixedbert


def test_wheel_contains_the_package(tmp_path):
    """The wheel contains the package with its recipes and the command, and no other files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "fixedbert", tmp_path / "fixedbert", ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "fixedbert_cli.py", "run_glue.py"):
        shutil.copy(ROOT / name, tmp_path)
    expected = {file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("fixedbert/**/*") if file.is_file()}
    code = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    with zipfile.ZipFile(tmp_path / "dist" / built.stdout.splitlines()[-1]) as archive:
        actual = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert actual == expected | {"fixedbert_cli.py"}


def test_version_is_the_same_everywhere():
    """The version is the same in the package, the citation and the first section of the changelog."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == sections[0] == fixedbert.__version__


def test_oldest_versions_are_the_bounds():
    """`make test-oldest` installs the oldest versions that setup.cfg allows."""
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    makefile = (ROOT / "Makefile").read_text()
    versions = re.findall(r"\b(torch|transformers)==([\d.]+)", makefile)
    assert {package for package, _ in versions} == {"torch", "transformers"}
    for package, version in versions:
        assert f"\n{package}>={version.removesuffix('.0')}" in metadata["options"]["install_requires"]
    (python,) = re.findall(r"OLDEST_PYTHON \?= python([\d.]+)", makefile)
    assert metadata["options"]["python_requires"] == f">={python}"
