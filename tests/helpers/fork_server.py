"""Runs scripts in processes forked from a server that has imported torch, which saves 7 seconds per process."""

import contextlib
import gc
import multiprocessing
import os
import random
import runpy
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "fixedbert.pretraining.pretrain",
        "fixedbert.fine_tuning.glue",
        "fixedbert.fine_tuning.squad",
        "matplotlib.backends.backend_agg",
    ]
)


def execute(script: Path, arguments: list[str], directory: Path, streams: list[Path], environment: dict[str, str]):
    """Runs a script in this process. `streams` are the files for stdout and stderr."""
    gc.freeze()
    for descriptor, file in enumerate(streams, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(directory)
    os.environ.update(environment)
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def start(script: Path, arguments: list[str], directory: Path, output: Path, **environment: str) -> BaseProcess:
    """Starts a script in a directory. Writes its output to stdout.txt and stderr.txt in `output`."""
    streams = [output / "stdout.txt", output / "stderr.txt"]
    process = CONTEXT.Process(target=execute, args=(script, arguments, directory, streams, environment))
    process.start()
    return process


def run(script: Path, arguments: list[str], directory: Path, output: Path) -> CompletedProcess:
    """Runs a script and returns its exit status and output."""
    return ended(start(script, arguments, directory, output), output)


def ended(process: BaseProcess, output: Path) -> CompletedProcess:
    """Waits for a process and returns its exit status and output."""
    process.join(timeout=300)
    assert process.exitcode is not None, "the script did not end within 300 seconds"
    printed = [(output / name).read_text() for name in ("stdout.txt", "stderr.txt")]
    return CompletedProcess([], process.exitcode, *printed)


class Pair:
    """Two processes that run a script with distributed training. `settings` are environment variables."""

    def __init__(self, script: Path, arguments: list[str], output: Path, **settings: str):
        self.outputs = [output / "rank-0", output / "rank-1"]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
        self.processes = []
        for rank, directory in enumerate(self.outputs):
            directory.mkdir(parents=True)
            local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            self.processes.append(
                start(script, arguments, script.parent, directory, **address, **local, **settings, RANK=str(rank))
            )

    def ended(self) -> list[CompletedProcess]:
        """Waits for both processes and returns their exit status and output."""
        return [ended(*pair) for pair in zip(self.processes, self.outputs, strict=True)]

    def finished(self) -> str:
        """Asserts that both processes succeed, and returns the output of the main process."""
        first, second = self.ended()
        assert (first.returncode, second.returncode) == (0, 0), f"{first.stderr[-3000:]}\n{second.stderr[-3000:]}"
        return first.stdout


def free_port() -> str:
    """Returns a free port outside the ephemeral range, so that no outgoing connection can occupy it."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return str(port)
    raise RuntimeError("100 ports between 20000 and 30000 are in use")
