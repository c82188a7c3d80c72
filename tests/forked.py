"""Scripts in processes of their own, forked from one that has imported torch and transformers: a second, not eight."""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["fixedbert.training.arguments", "fixedbert.fine_tuning.sweep", "fixedbert.fine_tuning.questions"]
)


def execute(script: Path, arguments: list[str], folder: Path, streams: list[Path]):
    for number, file in enumerate(streams, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def start(script: Path, arguments: list[str], folder: Path, output: Path) -> BaseProcess:
    """Begin `python script arguments` in a folder; stdout.txt and stderr.txt in `output` are what it prints."""
    streams = [output / "stdout.txt", output / "stderr.txt"]
    process = CONTEXT.Process(target=execute, args=(script, arguments, folder, streams))
    process.start()
    return process


def run(script: Path, arguments: list[str], folder: Path, output: Path) -> CompletedProcess:
    """Run a script to its end. What happens while Python starts, and as it shuts down, is left out."""
    process = start(script, arguments, folder, output)
    process.join(timeout=120)
    assert process.exitcode is not None, "the script has not ended"
    printed = [(output / name).read_text() for name in ("stdout.txt", "stderr.txt")]
    return CompletedProcess([script, *arguments], process.exitcode, *printed)
