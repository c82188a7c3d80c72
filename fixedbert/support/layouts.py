"""
Where a model directory keeps its files.

In a plain directory of transformers, config.json, the weights and the tokenizer are at the top. A directory of
sentence-transformers also contains modules.json, which lists the modules and their subdirectories. The first module is
the transformer. Its path is empty, or a subdirectory such as 0_Transformer in early versions.
"""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import snapshot_download
from transformers.utils import cached_file

from .errors import InputError
from .files import reading

MODULES, SETTINGS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "Transformer"
# Files with the settings of sentence-transformers, in a directory whose transformer is at the top.
SENTENCE_FILES = ("*sentence*.json", "[0-9]*_*/*")


class Module(NamedTuple):
    """A module of a sentence-transformers model: its class, its subdirectory and its entry in modules.json."""

    kind: str
    path: str
    entry: dict


def read_modules(directory: Path) -> list[Module]:
    """Returns the modules of a sentence-transformers model, or an empty list if `directory` has no modules.json."""
    file = directory / MODULES
    if not file.is_file():
        return []
    remedy = "save the model again with sentence-transformers"
    with reading(file, remedy):
        entries = json.loads(file.read_text("utf-8"))
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not (is_list and entries and all(isinstance(x.get(name), str) for x in entries for name in ("type", "path"))):
        raise InputError(f"{file}: must be a list of modules, each with a type and a path; {remedy}.")
    modules = [Module(entry["type"].rpartition(".")[2], entry["path"], entry) for entry in entries]
    if modules[0].kind != TRANSFORMER:
        raise InputError(f"{file}: the first module must be a {TRANSFORMER}, not {modules[0].kind}.")
    return modules


def transformer_directory(source: str | Path, **hub_options) -> str | Path:
    """
    Returns the directory or Hub id with the configuration, weights and tokenizer of the model `source`.

    Raises:
        InputError: If modules.json is invalid, or `source` is a module of a sentence-transformers model, because its
            pooling and settings are in the directory above.
    """
    path = Path(source)
    if path.is_dir():
        above = path.resolve().parent
        if path.resolve().name in [module.path for module in read_modules(above)]:
            raise InputError(f"{path}: only a module of a sentence-transformers model; use the whole model, {above}.")
    elif not path.exists():
        options: dict[str, Any] = {name: hub_options.get(name) for name in ("revision", "token", "cache_dir")}
        silent = {f"_raise_exceptions_for_{name}": False for name in ("missing_entries", "connection_errors")}
        file = cached_file(str(source), MODULES, **options, **silent)
        path = Path(file).parent if file else path
        if (modules := read_modules(path)) and modules[0].path:
            path = Path(snapshot_download(str(source), allow_patterns=f"{modules[0].path}/*", **options))
    modules = read_modules(path)
    return path / modules[0].path if modules and modules[0].path else source


def copy_sentence_files(source: Path, output: Path):
    """Copies the settings of a sentence-transformers model to a directory whose transformer is at the top."""
    if not (modules := read_modules(source)):
        return
    for file in source.rglob("*"):
        name = file.relative_to(source)
        if name.is_relative_to(modules[0].path):
            name = name.relative_to(modules[0].path)
        if file.is_file() and any(fnmatch(name.as_posix(), pattern) for pattern in SENTENCE_FILES):
            (output / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, output / name)
    entries = [module.entry | ({"path": ""} if module is modules[0] else {}) for module in modules]
    (output / MODULES).write_text(json.dumps(entries, indent=2) + "\n")
