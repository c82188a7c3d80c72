"""Functions that run `accelerate launch`."""

import os
import subprocess
import sys

from helpers import ROOT

TWO_PROCESSES = ("--config_file", str(ROOT / "fixedbert/recipes/accelerate/cpu.yaml"), "--main_process_port", "0")


def launch(*arguments: str, **options) -> subprocess.Popen:
    """Starts `accelerate launch` with one thread per process. On machines with GPUs, pass --use_cpu to the script."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )


def finished(*processes: subprocess.Popen):
    """Waits for the processes and asserts that they succeeded."""
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output[-3000:]
