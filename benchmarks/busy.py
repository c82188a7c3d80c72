"""
python -m benchmarks.busy

Small pretraining steps a second, alone on this machine and with busy loops beside them, by how long threads of OpenMP
spin where they wait for each other. README.md in this folder says how to read the table.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from benchmarks.machine import description
from benchmarks.model import SHAPE, Work, build, make_batch, step
from benchmarks.turns import in_turns, ratio
from fixedbert.training.speed import keep_freed_memory

SHAPE_OF_STEP = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 4096}
WORK = Work("pretraining step", "pretraining", 1.0, shape=SHAPE | SHAPE_OF_STEP)

DEFAULT = "GOMP_SPINCOUNT=300000"  # libgomp's own
SETTINGS = (
    DEFAULT,
    "OMP_WAIT_POLICY=passive",
    *(f"GOMP_SPINCOUNT={count}" for count in (100, 1000, 3000, 10_000, 30_000, 100_000)),
)
ROW = "{:<26} {:>8} {:>18} {:>12} {:>18}"


def worker(pipe: Connection):
    """Train for the seconds that it receives, and send the steps a second, until there is nothing to receive."""
    keep_freed_memory(torch.device("cpu"))
    model, optimizer = build("fixedbert", WORK)
    batch = make_batch(WORK, [], 0)
    step(WORK, model, optimizer, batch)  # what libraries set up for themselves
    pipe.send(None)
    while seconds := pipe.recv():
        began, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            step(WORK, model, optimizer, batch)
            steps += 1
        pipe.send(steps / passed)


@contextmanager
def workers() -> Iterator[dict[str, Connection]]:
    """A process for each setting, which libgomp reads from the environment when torch is imported there."""
    context, pipes = multiprocessing.get_context("spawn"), {}
    for setting in SETTINGS:
        name, value = setting.split("=")
        for other in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            os.environ.pop(other, None)
        os.environ[name] = value
        pipes[setting], theirs = context.Pipe()
        context.Process(target=worker, args=(theirs,), daemon=True).start()
        theirs.close()  # so that a worker that ends early is an error here
        pipes[setting].recv()
    yield pipes
    for pipe in pipes.values():
        pipe.send(None)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Other programs, each of which would take a core for itself."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main():
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__)
    parser.add_argument("--loops", type=int, default=2 * cores, help="busy loops beside (default: two for each core)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each setting (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn (default: %(default)s)")
    arguments = parser.parse_args()
    threads = torch.get_num_threads()
    print(
        f"{description()}\n"
        f"steps of {WORK.batch} rows of {WORK.length}: 2 layers, width 128, vocabulary 4,096, fp32; "
        f"{arguments.rounds} rounds of {arguments.seconds:g} s\n"
        f"{arguments.loops} busy loops beside {threads} threads on {cores} cores leave these a fair share of "
        f"{min(1, cores / (threads + arguments.loops)):.2f}\n"
    )
    with workers() as pipes:

        def turn(setting: str) -> float:
            pipes[setting].send(arguments.seconds)
            return pipes[setting].recv()

        sides = {setting: lambda setting=setting: turn(setting) for setting in SETTINGS}
        alone = in_turns(sides, arguments.rounds, "alone")
        with busy_loops(arguments.loops):
            beside = in_turns(sides, arguments.rounds, "busy")
    print(ROW.format("steps a second", "alone", "of the default", "busy", "of alone"))
    for setting in SETTINGS:
        speeds = (f"{statistics.median(found[setting]):.2f}" for found in (alone, beside))
        ratios = ratio(alone[setting], alone[DEFAULT]), ratio(beside[setting], alone[setting])
        print(ROW.format(setting, next(speeds), ratios[0], next(speeds), ratios[1]))


if __name__ == "__main__":
    main()
