"""Scripts in processes of their own, forked from one that has imported torch and transformers: a second, not eight."""

import gc
import multiprocessing
import os
import random
import runpy
import socket
import sys
from collections.abc import Callable
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
    """Begin `python script arguments` in a folder; stdout.txt and stderr.txt in `output` are what it prints."""
    streams = [output / "stdout.txt", output / "stderr.txt"]
    process = CONTEXT.Process(target=execute, args=(script, arguments, folder, streams, environment))
    process.start()
    return process


def run(script: Path, arguments: list[str], folder: Path, output: Path) -> CompletedProcess:
    """Run a script to its end. What happens while Python starts, and as it shuts down, is left out."""
    return ended(start(script, arguments, folder, output), output)


def ended(process: BaseProcess, output: Path) -> CompletedProcess:
    """What a process has printed, at its end."""
    process.join(timeout=300)
    assert process.exitcode is not None, "the script has not ended"
    printed = [(output / name).read_text() for name in ("stdout.txt", "stderr.txt")]
    return CompletedProcess([], process.exitcode, *printed)


class Workers:
    """In the place of the context of multiprocessing with which a study starts its workers."""

    def __init__(self, method: str):
        self.Pipe = CONTEXT.Pipe

    def Process(self, target: Callable, args: tuple) -> BaseProcess:
        return CONTEXT.Process(target=work, args=(target, args))


def work(target: Callable, args: tuple):
    connection, _, _, study = args
    target(connection, os.getppid(), 1, study)  # it ends with its parent, the server; threads do not survive a fork


class Pair:
    """
    Two processes that run a script together, on one machine or two, as `accelerate launch` starts them. `settings` are
    further variables of the environment.
    """

    def __init__(self, script: Path, arguments: list[str], output: Path, machines: int = 1, **settings: str):
        self.outputs = [output / "rank-0", output / "rank-1"]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
        self.processes = []
        for number, folder in enumerate(self.outputs):
            folder.mkdir(parents=True)
            local = {"LOCAL_RANK": str(number // machines), "LOCAL_WORLD_SIZE": str(2 // machines)}
            self.processes.append(
                start(script, arguments, script.parent, folder, **address, **local, **settings, RANK=str(number))
            )

    def ended(self) -> list[CompletedProcess]:
        return [ended(*one) for one in zip(self.processes, self.outputs, strict=True)]

    def finished(self) -> str:
        """What the first process has printed, where both have done their work."""
        first, second = self.ended()
        assert (first.returncode, second.returncode) == (0, 0), f"{first.stderr[-3000:]}\n{second.stderr[-3000:]}"
        return first.stdout


def free_port() -> str:
    """A port of this machine, below those that systems hand out: no connection gets it before the listener does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 30_000)))
        return str(free.getsockname()[1])
