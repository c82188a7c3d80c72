"""Tests of the structure of the package: layers, imports and size."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fixedbert"
COMMAND = "fixedbert_cli"  # installed next to the package
CHECKING = "TYPE_CHECKING"
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
SCRIPTS = {file.stem for file in ROOT.glob("*.py")} - {COMMAND} | {"benchmarks", "experiments", "soak", "tests"}

# Folders and modules of the package from top to bottom. None imports from one above it.
LAYERS = (
    "__main__",
    COMMAND,
    "comparison",
    "exporting",
    "shrinking",
    "pretraining",
    "fine_tuning",
    "training",
    "inspection",
    "conversion",
    "publishing",
    "tasks",
    "loading",
    "data",
    "presets",
    "counts",
    "commands",
    "option_values",
    "options",
    "model",
    "support",
)
MAXIMUM_LINES = 11_250  # lines of code in the wheel, without blank lines, comments and docstrings
FROM_SIBLINGS = 36  # maximum number of names that comparison imports from other folders


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
    return LAYERS.index(module.split(".")[0])


def lines_of_code(file: Path) -> int:
    """Counts the lines of a file without blank lines, comments and docstrings."""
    text = file.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = (token for token in tokens if token.type not in NOT_CODE)
    return len({number for token in code for number in range(token.start[0], token.end[0] + 1)} - docstrings)


def test_size_of_the_wheel():
    """The package stays small. Before raising the limit, look for a feature that hardly anyone would miss."""
    lines = sum(map(lines_of_code, FILES.values()))
    assert lines <= MAXIMUM_LINES, f"The wheel has {lines:,} lines of code."


def test_imports_point_down():
    """No folder imports from a folder above it, not even in a function."""
    folders = {module.split(".")[0] for module in FILES} - {""}
    assert folders == {*LAYERS}
    upward = [
        f"{module} -> {target or 'fixedbert'}"
        for module, targets in sorted(DEPENDENCIES.items())
        for target in sorted(targets)
        if module not in ("", "__main__", COMMAND) and (not target or layer_of(target) < layer_of(module))
    ]
    assert not upward, ", ".join(upward)


def test_comparison_is_no_corridor():
    """comparison/ imports few names from other folders."""
    files = [file for module, file in FILES.items() if module.startswith("comparison.")]
    names = {name for file in files for name in imports(file) if name.startswith("fixedbert.")}
    siblings = sorted(name for name in names if name.split(".")[1] not in ("comparison", "support"))
    assert len(siblings) <= FROM_SIBLINGS, siblings


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
    at_the_top = re.compile(r"^(import|from) matplotlib", re.MULTILINE)
    importing = sorted(module for module, file in FILES.items() if at_the_top.search(file.read_text(encoding="utf-8")))
    assert not importing, f"import matplotlib inside functions: {', '.join(importing)}"


@pytest.mark.parametrize("part", ["configuration", "attention", "unpadding", "modeling"])
def test_model_files_need_only_transformers(part):
    """The copied model code imports only itself, torch, transformers and packages that transformers requires."""
    others = {name.split(".")[0] for name in imports(FILES[f"model.{part}_fixed_head_bert"])} - {"fixedbert"}
    assert others - set(sys.stdlib_module_names) <= {"huggingface_hub", "torch", "transformers"}
