"""Functions to read and write files: errors that name the file, atomic writes, output directories and locks."""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from traceback import extract_tb
from typing import Any

import yaml
from filelock import SoftFileLock, Timeout
from huggingface_hub.errors import HFValidationError, StrictDataclassError

from .errors import InputError

LFS_POINTER, LFS_POINTER_SIZE = b"version https://git-lfs.github.com/spec/", 1024  # prefix; maximum size in bytes
# What the user can do about errors that only writing raises, and about errors that writing also raises.
WRITE_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "make the disk writable",
}
REMEDIES = WRITE_REMEDIES | dict.fromkeys((errno.EACCES, errno.EPERM), "change the permissions")
LOCK_TIMEOUT = 0.2  # seconds, enough for a second attempt after the lock of a dead process has been removed


def error_reason(error: BaseException) -> str:
    """
    Returns the first line of an error's message, or the error's type. Replaces backticks, which mark arguments.

    Skips lines that end with a colon, such as OpenVINO's "Exception from src/core.cpp:132:", if another line follows.
    """
    while error.__cause__ is not None and (
        isinstance(error, StrictDataclassError) or type(error).__module__.startswith("torch.onnx")
    ):  # these errors only name the step that failed
        error = error.__cause__
    if isinstance(error, EOFError):
        return "the file ends too early"
    text = str(getattr(error, "strerror", None) or error)
    lines = [*filter(None, map(str.strip, text.splitlines()))] or [type(error).__name__]
    reason = next((line for line in lines if not line.endswith(":")), lines[0])
    return reason.rstrip(".").replace("`", "'")[:300]


@contextmanager
def reading(path: object, remedy: str = "", problem: str = "cannot be read") -> Iterator[None]:
    """
    Context manager that turns any error while reading a file or directory into an InputError.

    Args:
        path: The file, directory or Hub id at the start of the message.
        remedy: What the user can do about the error, without a final period.
        problem: A description of the problem.
    """
    try:
        check_regular(Path(str(path)))
        yield
    except InputError:
        raise
    except Exception as error:  # libraries raise many types of errors for a corrupted file
        if isinstance(error, OSError) and error.errno in WRITE_REMEDIES:  # from copying or caching what was read
            raise write_problem(error, "the disk", WRITE_REMEDIES[error.errno]) from error
        for file in Path(str(path)).glob("*"):
            check_regular(file)
        if not Path(str(path)).exists():
            if "couldn't connect" in str(error):
                problem, remedy = "no such directory, and the Hub cannot be reached", ""
            elif isinstance(error, HFValidationError) or isinstance(error.__cause__, HFValidationError):
                raise InputError(f"{path}: no such directory, and not a Hub id.") from error
        remedy = "" if isinstance(error, FileNotFoundError) else remedy and f"; {remedy}"
        raise InputError(f"{path}: {problem} ({error_reason(error)}){remedy}.") from error


def check_regular(file: Path):
    """Raises InputError if `file` is a pipe or device, which could block forever, or a Git LFS pointer."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise InputError(f"{file}: not a regular file; remove it, or replace it by a file.")
    if file.is_file() and file.stat().st_size <= LFS_POINTER_SIZE and file.read_bytes().startswith(LFS_POINTER):
        raise InputError(f"{file}: this is a Git LFS pointer; run git lfs pull in the repository.")


def to_csv(rows: Iterable[Iterable]) -> str:
    """Returns rows as csv. Unlike Python's csv.writer, it quotes carriage returns, with which readers end a row."""

    def cell(value: object) -> str:
        text = str(value)
        return '"' + text.replace('"', '""') + '"' if re.search('[",\r\n]', text) else text

    return "".join(",".join(map(cell, row)) + "\n" for row in rows)


@contextmanager
def writing(directory: str | Path, remedy: str) -> Iterator[None]:
    """
    Context manager that turns errors while writing to `directory` into InputErrors.

    These are errors from a full disk or missing permissions anywhere, and all errors in the directory or its parents.

    Args:
        remedy: What else the user can do, beginning with "or" or "and".
    """
    try:
        yield
    except Exception as error:
        problem = write_error(error, directory)
        if problem is None:
            raise
        file, path = (f"{os.path.abspath(name)}{os.sep}" for name in (str(problem.filename), directory))
        is_here = problem.filename is not None and (file.startswith(path[:-1]) or path.startswith(file))
        if problem.errno not in REMEDIES and not is_here:
            raise
        advice = REMEDIES.get(problem.errno or 0, "check the path")
        raise write_problem(problem, directory, f"{advice}, {remedy}") from error


def write_error(error: Exception, directory: str | Path) -> OSError | None:
    """Returns an error as an OSError if writing a file in `directory` may have caused it, and None otherwise."""
    if isinstance(error, OSError):
        return error
    if match := re.search(r"\(os error (\d+)\)", str(error)):  # from safetensors and tokenizers
        return OSError(int(match[1]), os.strerror(int(match[1])), str(directory))
    frames = extract_tb(error.__traceback__)
    if isinstance(error, RuntimeError) and frames and frames[-1].filename.endswith("torch/serialization.py"):
        return OSError(errno.ENOSPC, "a file cannot be written", str(directory))  # torch.save gives no reason
    return None


def write_problem(error: OSError, place: object, remedy: str) -> InputError:
    """Returns an error that names the file, or `place` if the file is unknown."""
    return InputError(f"{error.filename2 or error.filename or place}: {error.strerror}; {remedy}.")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, which is renamed to `path` at the end, or removed on error."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes):
    """Writes a file so that an incomplete file never appears at `path`."""
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def to_json(content: object, **options) -> str:
    """Returns standard JSON, with null for NaN and infinity. `options` are passed to json.dumps."""
    return json.dumps(finite(content), allow_nan=False, **options)


def finite(content: Any) -> Any:
    """Returns a copy of JSON-like data (nested dicts and lists) in which None replaces NaN and infinity."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def short_name(model: str) -> str:
    """Returns the last component of an absolute path. Returns a Hub id or a relative path unchanged."""
    return Path(model).name if Path(model).is_absolute() else model


def read_json_object(file: Path, remedy: str = "") -> dict:
    """Reads a JSON file that contains an object. Raises InputError, with `remedy` in its message, if it is invalid."""
    with reading(file, remedy):
        content = json.loads(file.read_text("utf-8"))
        if not isinstance(content, dict):
            raise TypeError("expected a JSON object")
        return content


class YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader, except that it rejects duplicate keys, and parses 5e-5 as a number and None as null."""

    def compose_mapping_node(self, anchor):
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: duplicate key {key.value!r}")
            seen.add((key.tag, str(key.value)))
        return node


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[\d.]+[eE][-+]?\d+$"), list("-+.0123456789")
)
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), ["N"])


def parse_yaml(text: str) -> dict[str, Any]:
    """Parses a mapping in YAML or JSON. Raises ValueError if the text is invalid."""
    try:
        content = yaml.load(text, YamlLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("expected a mapping from names to values")
    return content


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a mapping from a YAML or JSON file. Raises InputError if the file is invalid."""
    with reading(file):
        return parse_yaml(file.read_text("utf-8"))


@contextmanager
def new_directory(output_dir: str | Path) -> Iterator[Path]:
    """
    Context manager that yields a temporary directory, renamed to `output_dir` at the end, or removed on error.

    Raises:
        InputError: If `output_dir` is not empty or not writable.
    """
    final = output_path(output_dir)
    check_output_free(final)
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")  # NAME.partial may be an unfinished run
    with writing(final, "or choose a different output directory"):
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process with the same number, as in containers
        partial.mkdir(parents=True)
        try:
            yield partial
            move_into_place(final, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def output_path(output_dir: str | Path | None) -> Path:
    """Returns the output directory as a Path, or the target if it is a link. Raises InputError if it is None."""
    if output_dir is None:
        raise InputError("is required.", "output_dir")
    path = Path(output_dir)
    is_link = os.path.islink(path) and os.path.exists(path)
    return path.resolve() if path.name in ("", "..") or is_link else path


def check_output_free(final: Path):
    """Raises InputError if the output path exists, unless it is an empty directory that can be replaced."""
    with writing(final, "or choose a different output directory"):
        if os.path.lexists(final) and (not final.is_dir() or any(final.iterdir())):
            raise InputError(f"{final}: the output directory is not empty; choose a different one, or remove it.")
    if os.path.ismount(final) or Path.cwd().is_relative_to(final.resolve()):
        raise InputError(f"{final}: cannot be replaced, because it is in use; choose a new directory inside it.")


def move_into_place(final: Path, partial: Path):
    """Renames `partial` to `final`, replacing an empty directory, and gives weight files the default permissions."""
    for file in partial.rglob("*.safetensors"):  # safetensors creates files that only the owner can read
        with suppress(OSError):
            file.chmod(0o666 & partial.stat().st_mode)
    if final.exists():
        final.rmdir()
    partial.rename(final)


@contextmanager
def directory_lock(directory: Path, take_over: bool = False) -> Iterator[None]:
    """
    Context manager that locks `directory`, which need not exist, with the file `directory`.lock.

    The lock of a dead process on this machine is removed. With `take_over`, the lock of a process on a different
    machine is also removed. The caller must make sure that the other process is dead.

    Raises:
        InputError: If a different process holds the lock.
    """
    file = Path(f"{os.path.abspath(directory)}.lock")
    lock = SoftFileLock(file, timeout=LOCK_TIMEOUT)
    with writing(directory, "or choose a different `output_dir`"):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            process, host, *_ = [*file.read_text(errors="replace").split(), "?", "?"]
            if not take_over or host == gethostname():
                raise InputError(
                    f"{directory}: in use by process {process} on {host}; choose a different `output_dir`, or set "
                    "`take_over_output_dir` if that process is dead."
                ) from error
            file.unlink(missing_ok=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
