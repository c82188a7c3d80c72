"""Files and directories: one boundary for reading, one for writing, and what is written appears whole."""

import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from .errors import InputError, Stopped, note_what_is_left

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ONLY_WRITING = (*NO_SPACE, errno.EROFS)  # what reading never raises
TRIED = 2**20  # bytes
POINTER, LARGEST_POINTER = b"version https://git-lfs.github.com/spec/", 1024  # bytes, by Git LFS's specification
READ_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")  # of models and tokenizers, for torch
LONGEST_REASON = 300  # characters; the errors of some libraries quote a file


def error_reason(error: BaseException) -> str:
    """The first line of an error's message, or of its cause's where it only wraps that."""
    if isinstance(error, StrictDataclassError):
        error = error.__cause__ or error
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    line = lines[0].rstrip(".") if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


@contextmanager
def reading(file: object, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """
    The boundary around reading a file: any error that damage causes becomes an InputError that names the file. Too
    little memory is reported as that, and mistakes in the code pass.

    Args:
        file: its name, for the message.
        remedy: what to do, a clause without a full stop.
        problem: what is wrong, in a few words.
    """
    check_regular(file)
    try:
        yield
    except (InputError, NameError):
        raise
    except BaseException as error:  # of any kind, as libraries and damage vary
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of libraries in Rust
            raise
        check_pointers(file)
        if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the second is torch's
            raise InputError(f"{file}: there is too little memory for it ({error_reason(error)}).") from error
        raise InputError(f"{file}: {problem} ({error_reason(error)}); {remedy}.") from error


def check_regular(place: object):
    """
    Refuse a pipe, a device or a socket, from which a read might never return, in the place of a file or in a folder;
    and a Git LFS pointer in the place of a file. A folder may have some beside what is read.
    """
    place = str(place)
    files = [entry.path for entry in os.scandir(place)] if os.path.isdir(place) else [place]
    for file in files:
        if os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
            raise InputError(f"{file}: not a regular file; give one, not a pipe or a device.")
    if os.path.isfile(place):
        check_pointers(place)


def check_pointers(place: object):
    """
    Refuse what Git leaves in the place of a large file that was not downloaded: `place`, or a file in the folder of
    that name that transformers would read.
    """
    folder = Path(str(place))
    for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        wanted = (file == folder or file.suffix in READ_SUFFIXES) and file.is_file()
        small = wanted and file.stat().st_size <= LARGEST_POINTER and os.access(file, os.R_OK)
        if small and file.read_bytes().startswith(POINTER):
            raise InputError(f"{file}: a Git LFS pointer, not the file itself; run git lfs pull where it was cloned.")


@contextmanager
def writing(folder: str | Path, remedy: str) -> Iterator[None]:
    """
    The boundary around writing to `folder`, its partial form and its lock: a full disk, no permission or a read-only
    file system becomes an InputError. It can be around a whole run: while the folder can be written, errors of other
    files pass, unless only writing has them.

    Args:
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of any kind: torch and libraries in Rust have no errno
        folder = Path(folder)
        name = getattr(error, "filename2", None) or getattr(error, "filename", None)  # the first names a copy
        number = error.errno if isinstance(error, OSError) else None
        if name is not None and (number in ONLY_WRITING or is_of(Path(str(name)).absolute(), folder.absolute())):
            problem = problem_of(Path(str(name)), number)
            raise InputError(f"{name}: {problem}; {remedy}.") from error
        tried = try_writing(folder)
        if tried is not None or number in ONLY_WRITING:
            raise InputError(f"{folder}: {problem_of(folder, number or tried)}; {remedy}.") from error
        if isinstance(error, SafetensorError):  # it has removed its file, and with it what filled the disk
            raise InputError(f"{folder}: weights cannot be written ({error_reason(error)}); {remedy}.") from error
        raise


def is_of(place: Path, folder: Path) -> bool:
    """Whether a path is in `folder`, in its partial form, its lock, or a folder above it."""
    if folder.is_relative_to(place):
        return True
    own = re.compile(re.escape(folder.name) + r"(\.\d+)?(\.partial|\.lock)?")
    around = folder.parent
    return place.is_relative_to(around) and own.fullmatch(place.relative_to(around).parts[0]) is not None


def nearest(place: Path) -> Path:
    """What exists of a path: itself, or the first folder above."""
    return next(path for path in (place, *place.absolute().parents) if path.exists())


def try_writing(folder: Path) -> int | None:
    """The errno of writing a block into `folder`; None where that succeeds."""
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)) as file:
            file.write(bytes(TRIED))
    except OSError as error:
        return error.errno
    return None


def problem_of(place: Path, number: int | None) -> str:
    """Why `place` cannot be written, with the free space if that is the reason."""
    if number in NO_SPACE:
        return f"no space left ({shutil.disk_usage(nearest(place)).free / 2**30:.1f} GiB free)"
    return f"cannot be written ({os.strerror(number or errno.EIO)})"


def write_atomically(path: Path, content: str | bytes):
    """Write a file, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def to_json(content: object, **options) -> str:
    """JSON that any reader takes: numbers that are not finite are null."""
    return json.dumps(finite(content), allow_nan=False, **options)


def finite(content: Any) -> Any:
    """A copy of objects, lists and values, with None for numbers that are not finite."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json_object(file: Path, remedy: str) -> dict:
    """The object in a JSON file."""
    with reading(file, remedy):
        found = json.loads(file.read_bytes().decode("utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no fields; {remedy}.")
    return found


class YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which also reads 5e-5 as a number and None as null."""


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[\d.]+[eE][-+]?\d+$"), list("-+.0123456789")
)
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), ["N"])


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a YAML or JSON file that holds a mapping."""
    with reading(file, "correct the file"):
        content = yaml.load(file.read_text("utf-8"), YamlLoader)
    if not isinstance(content, dict):
        raise InputError(f"{file}: must hold a mapping from names to values.")
    return content


@contextmanager
def new_directory(output_dir: str | Path | None) -> Iterator[Path]:
    """
    A folder to fill. It becomes `output_dir` at the end, or is removed when something fails.

    Raises:
        InputError: `output_dir` is not empty, or cannot be written.
    """
    final = output_path(output_dir)
    check_output_free(final)
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")  # an unfinished run of that name keeps its own
    try:
        with writing(final, "make room, or choose another output directory"):
            partial.mkdir(parents=True)
            yield partial
            move_into_place(final, partial)
    except (KeyboardInterrupt, Stopped) as error:
        note_what_is_left(error, f"nothing is left of {final}")
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def output_path(output_dir: str | Path | None) -> Path:
    """The output directory as a path, which has to be given."""
    if output_dir is None:
        raise InputError("is missing: say where the results are to go.", "output_dir")
    return Path(output_dir)


def check_output_free(final: Path):
    """Refuse an output directory that exists and is not an empty directory."""
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"{final}: the output directory is not empty; give another one, or remove it.")


def move_into_place(final: Path, partial: Path):
    """
    Rename the directory `partial` to `final`, which may exist if it is empty. Its weights can be read by all who can
    read the directory: safetensors writes them for their owner alone.
    """
    for file in partial.rglob("*.safetensors"):
        if not file.is_symlink():
            with suppress(OSError):  # of another user's file, or a file system without modes
                file.chmod(0o666 & partial.stat().st_mode)
    if final.exists():
        final.rmdir()
    partial.rename(final)
