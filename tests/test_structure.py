"""The structure of the package: its layers, and imports that point down only."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fixedbert"
COMMAND = "fixedbert_cli"  # installed beside the package
CHECKING = "TYPE_CHECKING"
SCRIPTS = {file.stem for file in ROOT.glob("*.py")} - {COMMAND} | {"benchmarks", "experiments", "soak", "tests"}

# From the top down. A module imports from its own layer and those below it. A name stands for all modules that begin
# with it, where no longer one fits; "" is fixedbert/__init__.py.
LAYERS = (
    ("__main__", COMMAND),
    ("comparison",),
    ("fine_tuning", "planning", "pretraining", "shrinking"),
    ("training",),
    ("inspection", "publishing"),
    ("conversion.convert",),
    ("publishing.model_card",),
    ("",),
    ("conversion",),
    ("data",),
    ("counts", "presets"),
    ("model.modeling_fixed_head_bert",),
    ("model.attention_fixed_head_bert",),
    ("model.fast_fixed_head_bert",),
    ("model",),
    ("support",),
)
FLOORS = {name: floor for floor, names in enumerate(LAYERS) for name in names}

# The maximum number of lines of Python in each folder, or in a single file.
BUDGETS = {
    "fixedbert_cli.py": 250,
    "fixedbert": 510,  # the files at the top of the package, without its folders
    "fixedbert/model": 1290,
    "fixedbert/conversion": 1180,
    "fixedbert/data": 2150,
    "fixedbert/fine_tuning": 2240,
    "fixedbert/pretraining": 880,
    "fixedbert/training": 1230,
    "fixedbert/shrinking": 1880,
    "fixedbert/comparison": 380,
    "fixedbert/inspection": 730,
    "fixedbert/publishing": 660,
    "fixedbert/support": 440,
    "experiments": 4010,
    "benchmarks": 2160,
    "soak": 590,
    "tests": 15390,
}
INSTALLED_BUDGET = 13770  # all of fixedbert/ and fixedbert_cli.py, which the wheel installs


def module_of(file: Path) -> str:
    """data.store for fixedbert/data/store.py, "" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_of(file): file for file in PACKAGE.rglob("*.py")}
FILES |= {file.stem: file for file in ROOT.glob(f"{COMMAND}.py")}


def imports(file: Path) -> list[str]:
    """
    The absolute names of all that a file imports, wherever in it, but not for type checkers alone:
    fixedbert.support.errors.InputError, torch.
    """
    package = [*file.relative_to(ROOT).parent.parts]
    names = []
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == CHECKING)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def target_of(name: str) -> str | None:
    """The module in FILES that an imported name is, or is in."""
    first, *parts = name.split(".")
    if first == COMMAND:
        return COMMAND
    if first != "fixedbert":
        return None
    return ".".join(parts) if ".".join(parts) in FILES else ".".join(parts[:-1])


ARROWS = {module: {target_of(name) for name in imports(file)} - {None, module} for module, file in FILES.items()}


def floor_of(module: str) -> int:
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if (name := ".".join(parts[:end])) in FLOORS:
            return FLOORS[name]
    pytest.fail(f"{module} has no place: give it one in LAYERS.")


def lines_in(name: str) -> int:
    """Counts the lines of a file or of a folder with its subfolders; "fixedbert" stands for its top-level files."""
    path = ROOT / name
    files = [path] if path.is_file() else path.glob("*.py") if name == "fixedbert" else path.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize("name", BUDGETS)
def test_line_budget(name):
    """Guards: no folder grows without anybody deciding that it should."""
    lines, budget = lines_in(name), BUDGETS[name]
    assert lines <= budget, (
        f"{name} has {lines:,} lines, and its budget is {budget:,}. Remove something, or raise the budget in "
        "tests/test_structure.py and justify it in the commit message."
    )


def test_line_budget_of_the_wheel():
    """Guards: the installed package stays small, even when lines move from one folder to another."""
    lines = sum(lines_in(name) for name in BUDGETS if name.startswith("fixedbert"))
    assert lines <= INSTALLED_BUDGET, f"The wheel installs {lines:,} lines; the budget is {INSTALLED_BUDGET:,}."


def test_every_folder_has_a_line_budget():
    """Guards: a new folder of the package, or a folder that was renamed, cannot escape its budget."""
    folders = {f"fixedbert/{file.parent.name}" for file in PACKAGE.glob("*/*.py")}
    assert folders == {name for name in BUDGETS if name.startswith("fixedbert/")}


def test_layers_are_those_of_the_package():
    """Guards: a new module is given its layer, and a name without a module is taken out."""
    gone = FLOORS.keys() - FILES.keys()
    assert not gone, f"{', '.join(sorted(gone))}: no such module; take it out of LAYERS"
    assert all(floor_of(module) >= 0 for module in FILES)


def test_imports_point_down():
    """Guards: no module imports from a layer above its own, not within a function either."""
    arrows = sorted((module, target) for module, found in ARROWS.items() for target in found)
    back = [f"{module} -> {target}" for module, target in arrows if floor_of(target) < floor_of(module)]
    assert not back, ", ".join(back)


def test_there_is_no_cycle():
    """Guards: modules can be read, tested and changed one after the other, from the ground up."""
    left = dict(ARROWS)
    while settled := [module for module, found in left.items() if not found & left.keys()]:
        for module in settled:
            del left[module]
    assert not left, ", ".join(left)


def test_package_imports_no_script():
    """Guards: the package works where the scripts, the tests and the benchmarks are not."""
    found = sorted((module, name) for module, file in FILES.items() for name in imports(file))
    scripts = [f"{module} -> {name}" for module, name in found if name.split(".")[0] in SCRIPTS]
    assert not scripts, ", ".join(scripts)


def test_pictures_are_an_extra():
    """Guards: the base installation, without matplotlib, can import every module."""
    eager = []
    for module, file in FILES.items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            eager += [module for name in names if name.split(".")[0] == "matplotlib"]
    assert not eager, f"import matplotlib within the functions that draw: {', '.join(sorted(set(eager)))}"


@pytest.mark.parametrize("part", ["configuration", "attention", "fast", "modeling"])
def test_files_of_the_model_need_transformers_alone(part):
    """Guards: what is saved with a checkpoint runs wherever transformers does: it imports nothing else but itself."""
    others = {name.split(".")[0] for name in imports(FILES[f"model.{part}_fixed_head_bert"])} - {"fixedbert"}
    assert others - set(sys.stdlib_module_names) <= {"huggingface_hub", "torch", "transformers"}
