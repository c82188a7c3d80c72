"""What a function does in a forked child with limits: same, clear, raw, hang, crash or other."""

import dataclasses
import hashlib
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig

from fixedbert.support.errors import exit_on_input_error

SECONDS = 30  # for one mutation; most take a tenth of a second, a resumed run three
MEMORY = 2 * 2**30  # bytes, on top of what the parent has
LONGEST = 1500  # characters of a message
FORK = multiprocessing.get_context("fork")


class Verdict(NamedTuple):
    """`outcome` is loaded, clear, raw, hang or crash; `said` the message, or the digest of what is loaded."""

    outcome: str
    said: str


class Job(NamedTuple):
    """
    A function that is called in `folder`, an empty directory; `names` are what a message may call the file.

    `prepare` is called before: what it raises is a defect of the harness.
    """

    name: tuple
    folder: Path
    prepare: Callable[[], list[str]]
    load: Callable[[], object]


def verdicts(jobs: Iterable[Job], parallel: int = 2, seconds: float = SECONDS) -> Iterator[tuple[Job, Verdict, str]]:
    """Each job in a child of its own: the job, the verdict, and what `prepare` said that it did."""
    jobs, busy = iter(jobs), {}
    while True:
        while len(busy) < parallel and (job := next(jobs, None)) is not None:
            ours, theirs = FORK.Pipe(duplex=False)
            child = FORK.Process(target=work, args=(job, theirs))
            child.start()
            theirs.close()
            busy[child.sentinel] = job, child, ours, time.monotonic() + seconds
        if not busy:
            return
        wait(busy, timeout=1)
        for sentinel, (job, child, pipe, deadline) in list(busy.items()):
            late = time.monotonic() >= deadline
            if child.is_alive() and not late:
                continue
            busy.pop(sentinel)
            end_group(child.pid)
            child.join()
            heard = list(received(pipe))
            change = heard[0] if heard else ""
            if len(heard) > 1:
                yield job, Verdict(*heard[1]), change
            elif late and heard:
                yield job, Verdict("hang", f"more than {seconds:g} s"), change
            elif not heard:
                raise RuntimeError(f"{job.name}: the trial could not be made; {job.folder}.log says why")
            else:
                yield job, Verdict("crash", how_it_ended(child.exitcode)), change


def received(pipe) -> Iterator:
    try:
        while True:
            yield pipe.recv()
    except EOFError:
        return


def end_group(leader: int):
    """Kill what a child has left behind; each leads a group of its own."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def how_it_ended(exitcode: int) -> str:
    return signal.Signals(-exitcode).name if exitcode < 0 else f"exit status {exitcode}, without a word"


def work(job: Job, pipe):
    os.setsid()
    job.folder.mkdir(parents=True)
    os.chdir(job.folder)
    heard = os.open(f"../{job.folder.name}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, heard), (2, heard)):
        os.dup2(descriptor, stream)
    change, names = job.prepare()
    pipe.send(change)
    limit_memory(MEMORY)
    verdict = outcome_of(job.load, names)
    limit_memory(None)
    pipe.send(tuple(verdict))


def limit_memory(more: int | None):
    """Let this process have so many bytes more than now; None lifts the limit."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft = resource.RLIM_INFINITY if more is None else pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))


def outcome_of(load: Callable[[], object], names: list[str]) -> Verdict:
    """What `load` does, as a user of a script sees it; a message that is no clear sentence about `names` is raw."""
    loaded = []
    try:
        exit_on_input_error(lambda: loaded.append(load()))
    except SystemExit as end:
        said = end.code if isinstance(end.code, str) else f"exit status {end.code}"
        fault = fault_of(said, names)
        return Verdict("raw", f"{fault}: {said[:300]}") if fault else Verdict("clear", said)
    except BaseException as error:
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        said = " ".join(str(error).split())[:300]
        return Verdict("raw", f"{type(error).__name__}: {said} [{' '.join(places[-6:])}]")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Verdict("loaded", digest(loaded))


def fault_of(said: str, names: list[str]) -> str | None:
    """Why a message is not one clear sentence that names the file."""
    if not said.startswith("error: "):
        return "not an error's sentence"
    if "\n" in said.strip():
        return "more than one line"
    if len(said) > LONGEST:
        return f"{len(said):,} characters"
    if not any(name in said for name in names):
        return f"names none of {', '.join(names)}"
    return None


def digest(value: object) -> str:
    """A name for what was loaded: the same for the same tensors, numbers and texts."""
    content = hashlib.sha256()
    feed(content, value)
    return content.hexdigest()[:16]


def feed(content, value: object):
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        content.update(f"{value.dtype} {tuple(value.shape)}".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        content.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, PreTrainedConfig):
        feed(content, value.to_dict())
    elif dataclasses.is_dataclass(value):
        feed(content, vars(value))
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            content.update(repr(key).encode("utf-8", "surrogatepass") + b"=")
            feed(content, value[key])
    elif isinstance(value, list | tuple):
        content.update(f"[{len(value)}]".encode())
        for part in value:
            feed(content, part)
    else:
        content.update(repr(value).encode("utf-8", "surrogatepass") + b";")
