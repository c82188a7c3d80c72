"""Files and directories: one boundary for reading and one for writing; locks; what is written appears whole."""

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from socket import gethostname

import yaml
from safetensors import SafetensorError

from .errors import InputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ONLY_WRITING = (*NO_SPACE, errno.EROFS)  # what reading never raises
SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps what processes share
SIGN_OF_LIFE = 30  # seconds; how often a process touches the lock that it holds
LONGEST_REASON = 300  # characters; some libraries put the content of a file into their errors
FILE_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".bin", ".safetensors", ".pt", ".index", ".model")
MOST_NODES = 100_000  # of a YAML file with its aliases expanded


def reason_of(error: BaseException) -> str:
    """The first line of what an error, or the one below it, says."""
    lines = str(error.__cause__ or error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


@contextmanager
def reading(file: object, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """
    The boundary around reading one kind of file: whatever a damaged one raises becomes an InputError that names it.

    Args:
        file: where, for the message.
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:  # every library, and every kind of damage, has its own
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of libraries in Rust
            raise
        raise InputError(f"{file}: {problem} ({reason_of(error)}); {remedy}.") from error


@contextmanager
def writing(folder: str | Path, remedy: str) -> Iterator[None]:
    """
    The boundary around writing below `folder`: a full disk, no permission, a read-only file system.

    It can be around a whole run: errors that are not of writing pass.

    Args:
        remedy: what to do, a clause without a full stop.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
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
        below = file is not None and place.absolute().is_relative_to(folder.absolute())
        return error.errno if below or error.errno in ONLY_WRITING else None, place
    said = str(error)
    number = re.search(r"serializing: I/O error.*\(os error (\d+)\)|shared memory.*\((\d+)\)", said)
    if number:
        return int(number[1] or number[2]), folder
    # torch.save does not say why.
    return errno.EIO if "inline_container.cc" in said or "PytorchStreamWriter" in said else None, folder


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


@contextmanager
def locked(folder: Path, take_over: bool = False) -> Iterator[None]:
    """
    Hold `folder`, which need not be there, for this process, in a lock file beside it.

    The kernel frees the lock when the process ends, however it ends. For other machines, whose kernels know nothing of
    it, the file says who holds it, and is touched again and again.

    Args:
        take_over: take it from a process on another machine, which has to be dead.

    Raises:
        InputError: another process holds it.
    """
    path = folder.with_name(f"{folder.name}.lock")
    done = threading.Event()
    with writing(path, "choose another --output_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file, free = open_lock(path)
    HELD.add(file)
    mine = False
    try:
        check_holder(file, free, folder, take_over)
        mine = True
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        with writing(path, "make room, or choose another --output_dir"):
            os.truncate(file, 0)
            os.pwrite(file, json.dumps({"host": gethostname(), "process": os.getpid(), "since": since}).encode(), 0)
        threading.Thread(target=give_signs_of_life, args=(file, done), daemon=True).start()
        yield
    finally:
        done.set()
        if mine and is_named(file, path):
            with suppress(OSError):  # of a file system that is read-only by now
                path.unlink()
        HELD.remove(file)
        os.close(file)


def open_lock(path: Path) -> tuple[int, bool]:
    """The open lock file, and whether no living process of this machine holds it, which then this one does."""
    import fcntl  # not on Windows, where the rest of the package can be used

    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return file, False
        except BaseException:
            os.close(file)
            raise
        if is_named(file, path):
            return file, True
        os.close(file)  # its holder has removed it in between


def is_named(file: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def check_holder(file: int, free: bool, folder: Path, take_over: bool):
    """Raises InputError where a lock cannot be had: from a living process, or from another machine unless told to."""
    said = re.search(r'^{"host": "(.*)", "process": (\d+), "since": "(.*)"}$', os.pread(file, 4096, 0).decode())
    host, process, since = said.groups() if said else ("an unknown host", "?", "?")
    who = f"{folder}: another process works there (process {process} on {host}, since {since}"
    if not free:
        raise InputError(f"{who}); wait for its end, or give another --output_dir.")
    if said and host != gethostname() and not take_over:
        sign = datetime.fromtimestamp(os.fstat(file).st_mtime).astimezone().isoformat(" ", "seconds")
        raise InputError(
            f"{who}, last sign of life {sign}); if it is dead, give --take_over_output_dir, or else another "
            "--output_dir."
        )


def give_signs_of_life(file: int, done: threading.Event):
    while not done.wait(SIGN_OF_LIFE):
        with suppress(OSError):  # the run says itself what it cannot write
            os.utime(file)


def forget_locks():
    """In a process that was forked: the lock is not its own, and must not outlive the one that holds it."""
    while HELD:
        os.close(HELD.pop())


HELD: set[int] = set()  # the open lock files of this process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_locks)


def check_regular(file: Path):
    """
    Raises:
        InputError: it is there, but opening it could wait forever: a pipe, a device, a socket; or it is a folder.
    """
    if file.exists() and not file.is_file():
        raise InputError(f"{file}: not a regular file; give one, not a pipe, a device or a folder.")


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


class PlainLoader(yaml.SafeLoader):
    """YAML of text, numbers, true, false, null, lists and mappings; no key twice, and no alias that multiplies."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]  # a date is text
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def __init__(self, stream):
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # in nodes, with aliases expanded

    def compose_node(self, parent, index):
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if not alias:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
            self.sizes[node] = 1 + sum(self.sizes[part] for part in parts)
            if self.sizes[node] > MOST_NODES:
                raise yaml.MarkedYAMLError(problem=f"more than {MOST_NODES:,} values", problem_mark=node.start_mark)
        elif node not in self.sizes:
            raise yaml.MarkedYAMLError(problem="an alias of what it is part of", problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str" and key.value != "<<":
                raise yaml.MarkedYAMLError(problem="a name is needed before the colon", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(file: Path, remedy: str) -> dict:
    """
    The entries of a YAML file, by their names.

    Raises:
        InputError: it is not there, no YAML, or holds more than PlainLoader takes, or no entries.
    """
    with reading(file, remedy):
        try:
            found = yaml.load(file.read_bytes().decode("utf-8"), PlainLoader)
        except yaml.MarkedYAMLError as error:
            raise InputError(f"{file}, line {error.problem_mark.line + 1}: {error.problem}; {remedy}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{file}: holds no names with values; {remedy}.")
    return found


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
    hint = f"; did you mean {near[0]}?" if near else "."
    if near or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) or path.suffix in FILE_SUFFIXES:
        raise InputError(f"{name}: neither a directory nor the name of a model on the Hub{hint}")


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
    try:
        return checksum_file(file).read_bytes() == content_hash_of(file).encode()
    except OSError:
        return False
