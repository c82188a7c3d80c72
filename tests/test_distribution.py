"""What is released: source distribution, wheel, version, and the workflow that tests them."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from helpers import ROOT

import fixedbert

NOT_SENT = (".ci/", ".gitignore")  # of the repository alone


@pytest.fixture(scope="module")
def metadata() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture
def source(tmp_path) -> Path:
    """The files under version control, or those of an unpacked distribution, in a folder of their own."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        files = {name for name in listed.splitlines() if not name.startswith(NOT_SENT)}
        assert {
            "tests/conftest.py",
            "fixedbert/recipes/mini.yaml",
            "experiments/study/studies.yaml",
            "Makefile",
        } <= files
    else:
        files = {"tests/conftest.py", "constraints.txt", "setup.cfg", "MANIFEST.in", "README.md", "run_glue.py"}
        package = [path for path in ROOT.glob("fixedbert/**/*") if path.is_file() and path.suffix != ".pyc"]
        files |= {path.relative_to(ROOT).as_posix() for path in package}
    folder = tmp_path / "source"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def build(kind: str, source: Path, output: Path) -> Path:
    code = f"from setuptools.build_meta import build_{kind}; print(build_{kind}({str(output)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return output / built.stdout.splitlines()[-1]


def test_sdist_has_every_file_of_the_repository(source, tmp_path):
    """Guards: the source distribution has what its tests read, all that is under version control."""
    files = files_of(source)
    with tarfile.open(build("sdist", source, tmp_path)) as archive:
        found = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert sorted(files - found) == []


def test_wheel_has_the_package_alone(source, tmp_path):
    """Guards: the wheel has every file of the package, recipes and tables too, and puts no script among modules."""
    with zipfile.ZipFile(build("wheel", source, tmp_path)) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name for name in files_of(source) if name.startswith("fixedbert/")}
    assert expected <= found
    assert {name.split("/")[0] for name in found - expected} <= {"fixedbert_cli.py"}


def test_version_is_the_same_everywhere():
    """Guards: package, citation and the first section of the changelog are of one version."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == fixedbert.__version__
    assert next(name for name in sections if name != "Unreleased") == fixedbert.__version__


def test_oldest_versions_are_the_bounds(metadata):
    """Guards: what `make test-oldest` installs are the bounds that setup.cfg states."""
    makefile = (ROOT / "Makefile").read_text()
    for package, version in re.findall(r"\b(torch|transformers)==([\d.]+)", makefile):
        (bound,) = re.findall(rf"^{package}>=([\d.]+)", metadata["options"]["install_requires"], re.MULTILINE)
        assert version.removesuffix(".0") == bound
    assert "torch==" in makefile and "transformers==" in makefile
    (python,) = re.findall(r"OLDEST_PYTHON \?= python([\d.]+)", makefile)
    assert metadata["options"]["python_requires"] == f">={python}"


def test_workflow_runs_targets_that_exist(metadata):
    """Guards: the hosted workflow covers `.ci/run`, the oldest and the newest versions, the released files, the pages;
    its commands are targets of the Makefile, its Pythons those of setup.cfg, its actions fixed to a major version."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    (job,) = workflow["jobs"].values()
    rows = job["strategy"]["matrix"]["include"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.target }}"]
    assert {row["target"] for row in rows} == {"lint", "test-all", "test-oldest", "test-newest", "dist", "docs"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {row["target"] for row in rows} <= set(targets)
    supported = re.findall(r"Python :: (3\.\d+)", metadata["metadata"]["classifiers"])
    assert [row["python"] for row in rows if row["target"] == "test-oldest"] == [supported[0]]
    assert {row["python"] for row in rows} == set(supported)
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
