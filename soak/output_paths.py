"""Output paths that are in use, unusual or impossible."""

import os
from pathlib import Path


def occupied_paths(directory: Path) -> dict[str, tuple[str, dict[str, str | None]]]:
    """
    Returns, for each kind of output path, the path and the files to create before the run. None is a directory, and
    "-> target" is a symbolic link.
    """
    return {
        "a file": ("out", {"out": "mine"}),
        "an empty directory": ("out", {"out": None}),
        "a directory with a file": ("out", {"out/mine": "mine"}),
        "a link to an empty directory": ("out", {"target": None, "out": "-> target"}),
        "a link to a directory with a file": ("out", {"target/mine": "mine", "out": "-> target"}),
        "a link to nothing": ("out", {"out": "-> target"}),
        "a link to itself": ("out", {"out": "-> out"}),
        "a link to a directory on its way": ("way/out", {"target": None, "way": "-> target"}),
        "below a file": ("rows.csv/out", {}),
        "deep below a file": ("rows.csv/deep/out", {}),
        "below a new directory": ("new/deep/out", {}),
        "with a slash": ("out/", {}),
        "absolute": (f"{directory}/out", {}),
        "through a parent": ("new/../out", {}),
        "the current directory": (".", {}),
        "the parent directory": ("..", {}),
        "a hidden name": (".out", {}),
        "a name with blanks": ("my out", {}),
        "a long name": ("o" * 250, {}),
        "a very long name": ("o" * 300, {}),
        "an input directory": ("model", {}),
        "below an input directory": ("model/out", {}),
        "someone's OUTPUT.partial": ("out", {"out.partial/mine": "mine", "out.partial/checkpoint-3/mine": "mine"}),
        "a file as OUTPUT.partial": ("out", {"out.partial": "mine"}),
        "a link as OUTPUT.partial": ("out", {"target/mine": "mine", "out.partial": "-> target"}),
        "an empty OUTPUT.partial": ("out", {"out.partial": None}),
        "a file as OUTPUT.lock": ("out", {"out.lock": "mine"}),
        "a directory as OUTPUT.lock": ("out", {"out.lock/mine": "mine"}),
        "no permission": ("/proc/out", {}),
    }


def create(directory: Path, files: dict[str, str | None]):
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            file.mkdir()
        elif content.startswith("-> "):
            file.symlink_to(content.removeprefix("-> "))
        else:
            file.write_text(content)


def snapshot(directory: Path) -> dict[str, object]:
    """Returns the content of all files, the targets of links, and the names of directories."""
    entries: dict[str, object] = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            entry = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            entries[str(path.relative_to(directory))] = entry
    return entries
