"""Runs scripts in processes forked from one that has imported torch, which saves seven seconds per process."""

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


def execute(script: Path, arguments: list[str], folder: Path, streams: list[Path], environment: dict[str, str]):
    gc.freeze()
    for number, file in enumerate(streams, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def start(script: Path, arguments: list[str], folder: Path, output: Path, **environment: str) -> BaseProcess:
    """Starts `python script arguments` in a folder. Its output goes to stdout.txt and stderr.txt in `output`."""
    streams = [output / "stdout.txt", output / "stderr.txt"]
    process = CONTEXT.Process(target=execute, args=(script, arguments, folder, streams, environment))
    process.start()
    return process


def run(script: Path, arguments: list[str], folder: Path, output: Path) -> CompletedProcess:
    """Runs a script to its end."""
    return ended(start(script, arguments, folder, output), output)


def ended(process: BaseProcess, output: Path) -> CompletedProcess:
    """Waits for a process and returns its output."""
    process.join(timeout=300)
    assert process.exitcode is not None, "the script has not ended"
    printed = [(output / name).read_text() for name in ("stdout.txt", "stderr.txt")]
    return CompletedProcess([], process.exitcode, *printed)


class Pair:
    """Two distributed processes that run a script. `settings` are environment variables."""

    def __init__(self, script: Path, arguments: list[str], output: Path, **settings: str):
        self.outputs = [output / "rank-0", output / "rank-1"]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
        self.processes = []
        for number, folder in enumerate(self.outputs):
            folder.mkdir(parents=True)
            local = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": "2"}
            self.processes.append(
                start(script, arguments, script.parent, folder, **address, **local, **settings, RANK=str(number))
            )

    def ended(self) -> list[CompletedProcess]:
        return [ended(*one) for one in zip(self.processes, self.outputs, strict=True)]

    def finished(self) -> str:
        """Waits until both processes have succeeded and returns what the first one printed."""
        first, second = self.ended()
        assert (first.returncode, second.returncode) == (0, 0), f"{first.stderr[-3000:]}\n{second.stderr[-3000:]}"
        return first.stdout


def free_port() -> str:
    """Returns a free port below the ephemeral range, so that no other connection takes it first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 30_000)))
        return str(free.getsockname()[1])
