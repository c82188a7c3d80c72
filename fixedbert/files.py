"""Files and directories: one boundary for reading and one for writing; what is written appears whole."""

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError

from .errors import InputError, Stopped, note_what_is_left

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ONLY_WRITING = (*NO_SPACE, errno.EROFS)  # what reading never raises
SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps what processes share
LONGEST_REASON = 300  # characters; some libraries put the content of a file into their errors
FILE_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".bin", ".safetensors", ".pt", ".index", ".model")


def reason_of(error: BaseException) -> str:
    """The first line of what an error says; of one that only wraps another, of that."""
    if isinstance(error, StrictDataclassError):
        error = error.__cause__ or error
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    line = lines[0].rstrip(".") if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


@contextmanager
def reading(file: object, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """
    The boundary around reading one kind of file: whatever a damaged one raises becomes an InputError that names it.
    Too little memory is said as such, and mistakes in the code pass.

    Args:
        file: where, for the message.
        remedy: what to do, a clause without a full stop.
    """
    check_regular(file)
    try:
        yield
    except (InputError, NameError):
        raise
    except BaseException as error:  # every library, and every kind of damage, has its own
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of libraries in Rust
            raise
        if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the second is torch's
            raise InputError(f"{file}: there is too little memory for it ({reason_of(error)}).") from error
        raise InputError(f"{file}: {problem} ({reason_of(error)}); {remedy}.") from error


def check_regular(place: object):
    """
    Raises:
        InputError: `place`, or what is in the folder of that name, could be waited for forever: a pipe, a device, a
            socket.
    """
    place = str(place)
    files = [entry.path for entry in os.scandir(place)] if os.path.isdir(place) else [place]
    for file in files:
        if os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
            raise InputError(f"{file}: not a regular file; give one, not a pipe or a device.")


@contextmanager
def writing(folder: str | Path, remedy: str) -> Iterator[None]:
    """
    The boundary around writing below `folder`, what becomes it, and its lock: a full disk, no permission, a read-only
    file system. It can be around a whole run: errors of other files pass, unless only writing has them.

    Args:
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except Exception as error:  # of the operating system, of torch, of libraries in Rust
        number, place = failed_writing(error, Path(folder))
        if number is None:
            raise
        raise InputError(f"{place}: {not_written(place, number)}; {remedy}.") from error


def failed_writing(error: BaseException, folder: Path) -> tuple[int | None, Path]:
    """The operating system's number of an error, None if it is not of writing below `folder`; and where it arose."""
    if of_shared_memory(error):
        folder = SHARED_MEMORY
    if isinstance(error, OSError):
        file = error.filename2 or error.filename  # the second of a copy
        place = folder if file is None else Path(str(file))
        ours = file is not None and is_of(place.absolute(), folder.absolute())
        return error.errno if ours or error.errno in ONLY_WRITING else None, place
    said = str(error)
    if number := re.search(r"\(os error (\d+)\)", said):  # of libraries in Rust, in reading too
        return int(number[1]) if "serializing" in said or int(number[1]) in ONLY_WRITING else None, folder
    if number := re.search(r"shared memory.*\((\d+)\)", said):
        return int(number[1]), folder
    # torch.save does not say why.
    return errno.EIO if "inline_container.cc" in said or "PytorchStreamWriter" in said else None, folder


def is_of(place: Path, folder: Path) -> bool:
    """Whether a path is below `folder`, below what will be renamed to it, its lock, or a folder that it is in."""
    if folder.is_relative_to(place):
        return True
    own = re.compile(re.escape(folder.name) + r"(\.\d+)?(\.partial|\.lock)?")
    around = folder.parent
    return place.is_relative_to(around) and own.fullmatch(place.relative_to(around).parts[0]) is not None


def of_shared_memory(error: BaseException) -> bool:
    """Whether an error, which names no file, is of the locks or tensors that processes share."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(Path(file).name == "synchronize.py" for file in files) or "shared memory" in str(error)


def not_written(place: Path, number: int) -> str:
    """Why nothing can be written at `place`, with the free space where that is the reason."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if number in NO_SPACE or number == errno.EIO and free < 2**24:
        return f"no space left ({free / 2**30:.1f} GiB free)"
    return f"cannot be written ({os.strerror(number)})"


def write_whole(path: Path, content: str | bytes):
    """Write a file that is never seen in part."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_object(file: Path, remedy: str) -> dict:
    """
    The fields of a JSON file.

    Raises:
        InputError: it is not there, damaged, or holds something else.
    """
    with reading(file, remedy):
        found = json.loads(file.read_bytes().decode("utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no fields; {remedy}.")
    return found


@contextmanager
def new_directory(output_dir: str | Path | None) -> Iterator[Path]:
    """
    A folder to fill. It becomes `output_dir` at the end, or is removed when something fails.

    Raises:
        InputError: `output_dir` is not empty, or cannot be written.
    """
    final = output_path(output_dir)
    check_free(final)
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")  # an unfinished run of that name keeps its own
    try:
        with writing(final, "make room, or choose another output directory"):
            partial.mkdir(parents=True)
            yield partial
            replace_empty(final, partial)
    except (KeyboardInterrupt, Stopped) as error:
        note_what_is_left(error, f"nothing is left of {final}")
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def output_path(output_dir: str | Path | None) -> Path:
    """
    Raises:
        InputError: no output directory is given.
    """
    if output_dir is None:
        raise InputError("no --output_dir: say where weights and results are to go.")
    return Path(output_dir)


def check_free(final: Path):
    """
    Raises:
        InputError: the output directory exists and is not an empty directory.
    """
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"{final}: the output directory is not empty; give another one, or remove it.")


def replace_empty(final: Path, partial: Path):
    """Rename the directory `partial` to `final`, which may exist if it is empty."""
    if final.exists():
        final.rmdir()
    partial.rename(final)


def check_place(name: str, others: Iterable[str] = ()):
    """
    Raises:
        InputError: `name` is no directory, and cannot be the name of a model on the Hub, or is more likely a misspelt
            directory, or one of `others`, whose name is like it.
    """
    path = Path(name)
    if path.is_dir():
        return
    if path.is_file():
        raise InputError(f"{name}: neither a directory nor the name of a model on the Hub; give the directory.")
    around = path.parent.iterdir() if path.parent.is_dir() else ()
    around = [str(path.with_name(one.name)) for one in around if one.is_dir()]
    near = difflib.get_close_matches(name, [*others, *around], 1, cutoff=0.75)
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and path.suffix not in FILE_SUFFIXES:
        if not near or (near[0] not in others and is_on_hub(name)):
            return
    hint = f"; did you mean {near[0]}?" if near else "."
    raise InputError(f"{name}: neither a directory nor the name of a model on the Hub{hint}")


def is_on_hub(name: str) -> bool:
    """Whether the Hub, or its cache, has a model of that name; it is asked once, for at most 3 seconds."""
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return True
    try:
        HfApi().model_info(name, timeout=3)
    except Exception:  # no such model, no network, offline mode
        return False
    return True


def fingerprint_of(*parts: object) -> str:
    """A name for whatever depends on `parts` alone: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def content_hash_of(file: Path) -> str:
    """SHA-256 of a file, read in blocks: 64 hexadecimal digits."""
    found = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(2**20):
            found.update(block)
    return found.hexdigest()


def checksum_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def seal(partial: Path, file: Path):
    """Give a complete file its name, with its checksum beside it."""
    write_whole(checksum_file(file), content_hash_of(partial))
    os.replace(partial, file)


def write_sealed(file: Path, content: str):
    """Write a file that is never seen in part, with its checksum beside it."""
    write_whole(checksum_file(file), hashlib.sha256(content.encode()).hexdigest())
    write_whole(file, content)


def is_sealed(file: Path) -> bool:
    """Whether a file is there and as `seal` left it. Reads all of it."""
    if not (file.is_file() and checksum_file(file).is_file()):
        return False
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
