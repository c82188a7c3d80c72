"""The files of a corpus, by a path, a folder or a glob, each once."""

import fnmatch
import os
from pathlib import Path

from ..support.errors import InputError
from ..support.files import reading
from .readers import COMPRESSIONS, DAMAGED, READERS, file_format


def corpus_files(pattern: str) -> list[Path]:
    """
    The files of a path, a folder (with all below it) or, only if there is no such path, a glob, sorted.

    Links to folders are followed. A file that is reached in several ways is there once.

    Raises:
        InputError: there is none, one in another format, or a link that leads nowhere.
    """
    with reading(pattern, DAMAGED):
        start = Path(Path(pattern).anchor)
        files: dict[str, Path] = {}
        found = matches(start, Path(pattern).relative_to(start).parts)
        for file in (file for match in found for file in files_below(match)):
            own = os.path.realpath(file)
            if own not in files or os.path.abspath(file) == own:  # a file's own name comes before a link's
                files[own] = file
    if not files:
        raise InputError(f"{pattern}: no such file, and no folder or glob with {', '.join(READERS)} files in it.")
    for file in files.values():
        if not os.path.exists(file):
            raise InputError(f"{file}: a link to {os.readlink(file)}, which is not there; correct or remove it.")
        if file_format(file) not in READERS:
            raise InputError(
                f"{file}: a format that cannot be read; give {', '.join(READERS)}, also compressed "
                f"({', '.join(COMPRESSIONS)})."
            )
    return sorted(files.values())


def matches(base: Path, parts: tuple[str, ...]) -> list[Path]:
    """The paths in `base` of a glob's parts. A part that is the name of something is that, and no pattern."""
    if not parts:
        return [base]
    part, rest = parts[0], parts[1:]
    found = matches(base / part, rest) if os.path.lexists(base / part) else []
    if found or not base.is_dir():
        return found
    if part == "**":
        folders = [folder for folder in folders_below(base) if not is_hidden(folder.relative_to(base))]
        return [path for folder in folders for path in matches(folder, rest or ("*",))]
    names = [name for name in os.listdir(base) if part.startswith(".") or not name.startswith(".")]
    return [path for name in fnmatch.filter(names, part) for path in matches(base / name, rest)]


def is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def folders_below(base: Path) -> list[Path]:
    """A folder and all below it, through links too, each once: not by a link, where it can be reached without."""
    found: dict[str, Path] = {}
    folders: list[Path] = [base]
    links: list[Path] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop()
        if os.path.realpath(folder) not in found:
            found[os.path.realpath(folder)] = folder
            for entry in sorted(folder.iterdir()):
                if entry.is_dir():
                    (links if entry.is_symlink() else folders).append(entry)
    return [*found.values()]


def files_below(place: Path) -> list[Path]:
    """The files in a folder that can be part of a corpus, and links that lead nowhere, which might have been."""
    if not place.is_dir():
        return [place]
    entries = [entry for folder in folders_below(place) for entry in folder.iterdir() if not entry.is_dir()]
    return [
        entry
        for entry in entries
        if (file_format(entry) in READERS if entry.exists() else not is_hidden(entry.relative_to(place)))
    ]
