"""Tests of the structure of the package: layers, imports and line budgets."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fixedbert"
COMMAND = "fixedbert_cli"  # installed next to the package
CHECKING = "TYPE_CHECKING"
SCRIPTS = {file.stem for file in ROOT.glob("*.py")} - {COMMAND} | {"benchmarks", "experiments", "soak", "tests"}

# Layers from top to bottom. A module may import from its own layer and from the layers below. A name stands for all
# modules whose names begin with it, unless a longer name matches. "" stands for fixedbert/__init__.py.
LAYERS = (
    ("__main__", COMMAND),
    ("comparison",),
    ("publishing.export",),
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
    ("model.unpadding_fixed_head_bert",),
    ("model",),
    ("support",),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}

# Maximum number of lines of Python in each directory or file.
BUDGETS = {
    "fixedbert_cli.py": 259,
    "fixedbert": 467,  # files directly in the package, without subpackages
    "fixedbert/model": 1405,
    "fixedbert/conversion": 1167,
    "fixedbert/data": 2092,
    "fixedbert/fine_tuning": 2889,
    "fixedbert/pretraining": 825,
    "fixedbert/training": 1402,
    "fixedbert/shrinking": 2291,
    "fixedbert/comparison": 956,
    "fixedbert/inspection": 668,
    "fixedbert/publishing": 903,
    "fixedbert/support": 446,
    "experiments": 3792,
    "benchmarks": 2015,
    "soak": 526,
    "tests": 14027,
}
INSTALLED_BUDGET = 15770  # all of fixedbert/ and fixedbert_cli.py, which the wheel installs


def module_of(file: Path) -> str:
    """Returns the module name without the package, such as data.store for fixedbert/data/store.py."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_of(file): file for file in PACKAGE.rglob("*.py")}
FILES |= {file.stem: file for file in ROOT.glob(f"{COMMAND}.py")}


def imports(file: Path) -> list[str]:
    """Returns the absolute names of all imports in a file, even inside functions, except those for type checkers."""
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
    """Returns the module in FILES that contains an imported name, or None for other packages."""
    first, *parts = name.split(".")
    if first == COMMAND:
        return COMMAND
    if first != "fixedbert":
        return None
    return ".".join(parts) if ".".join(parts) in FILES else ".".join(parts[:-1])


DEPENDENCIES = {module: {target_of(name) for name in imports(file)} - {None, module} for module, file in FILES.items()}


def layer_of(module: str) -> int:
    parts = module.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    name = next((prefix for prefix in prefixes if prefix in LAYER_OF), None)
    assert name is not None, f"{module} is missing from LAYERS."
    return LAYER_OF[name]


def lines_in(name: str) -> int:
    """Counts the lines in a file or directory. In "fixedbert", only top-level files are counted."""
    path = ROOT / name
    files = [path] if path.is_file() else path.glob("*.py") if name == "fixedbert" else path.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize("name", BUDGETS)
def test_line_budget(name):
    """A directory does not exceed its line budget."""
    lines, budget = lines_in(name), BUDGETS[name]
    assert lines <= budget, (
        f"{name} has {lines:,} lines, and its budget is {budget:,}. Remove something, or raise the budget in "
        "tests/test_structure.py and justify it in the commit message."
    )


def test_line_budget_of_the_wheel():
    """The installed package does not exceed its line budget."""
    lines = sum(lines_in(name) for name in BUDGETS if name.startswith("fixedbert"))
    assert lines <= INSTALLED_BUDGET, f"The wheel installs {lines:,} lines; the budget is {INSTALLED_BUDGET:,}."


def test_every_subpackage_has_a_line_budget():
    """All subpackages have a line budget."""
    subpackages = {f"fixedbert/{file.parent.name}" for file in PACKAGE.glob("*/*.py")}
    assert subpackages == {name for name in BUDGETS if name.startswith("fixedbert/")}


def test_imports_point_down():
    """All modules are in a layer and import nothing from higher layers, not even in a function."""
    gone = LAYER_OF.keys() - FILES.keys()
    assert not gone, f"LAYERS lists modules that do not exist: {', '.join(sorted(gone))}"
    pairs = sorted((module, target) for module, targets in DEPENDENCIES.items() for target in targets)
    upward = [f"{module} -> {target}" for module, target in pairs if layer_of(target) < layer_of(module)]
    assert not upward, ", ".join(upward)


def test_no_import_cycles():
    """Modules do not import each other in a cycle."""
    left = dict(DEPENDENCIES)
    while settled := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in settled:
            del left[module]
    assert not left, ", ".join(left)


def test_package_imports_no_script():
    """The package imports no scripts, tests, experiments or benchmarks, because the wheel does not contain them."""
    names = sorted((module, name) for module, file in FILES.items() for name in imports(file))
    scripts = [f"{module} -> {name}" for module, name in names if name.split(".")[0] in SCRIPTS]
    assert not scripts, ", ".join(scripts)


def test_matplotlib_is_optional():
    """All modules can be imported without matplotlib, which is an optional dependency."""
    importing = set()
    for module, file in FILES.items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            importing |= {module for name in names if name.split(".")[0] == "matplotlib"}
    assert not importing, f"import matplotlib inside functions: {', '.join(sorted(importing))}"


@pytest.mark.parametrize("part", ["configuration", "attention", "unpadding", "modeling"])
def test_model_files_need_only_transformers(part):
    """The copied model code imports only itself, torch, transformers and packages that transformers requires."""
    others = {name.split(".")[0] for name in imports(FILES[f"model.{part}_fixed_head_bert"])} - {"fixedbert"}
    assert others - set(sys.stdlib_module_names) <= {"huggingface_hub", "packaging", "torch", "transformers"}
