"""
Trials of fixedbert from outside, by hand or by `make soak`, `make soak-full`:

    python -m soak run --output_dir soak-output --mutations 600 --kills 8     # a seeded share
    python -m soak run --output_dir soak-output                               # 4,000 mutations, 50 kills
    python -m soak mutate --kind "rows: csv" --number 13                      # one mutation again, with its files kept

soak/README.md says what they try and how to read the tables.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

# Before anything that reads them is imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="mutations and kills, then the tables")
    run.add_argument("--mutations", type=int, default=4000, help="how many of the 4,000")
    run.add_argument("--kills", type=int, default=50, help="runs that are killed")
    run.add_argument("--parallel", type=int, default=2, help="at once")
    mutate = commands.add_parser("mutate", help="one kind, or one mutation of it, and all that it printed")
    mutate.add_argument("--kind", required=True)
    mutate.add_argument("--number", type=int, nargs="+", required=True)
    for command in (run, mutate):
        command.add_argument("--seed", type=int, default=0, help="of all that is random")
        command.add_argument("--output_dir", type=Path, default=Path("soak-output"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and theirs, ignore it
    output = arguments.output_dir.resolve()
    os.environ |= {"HF_HOME": str(output / "home"), "HYPOTHESIS_STORAGE_DIRECTORY": str(output / "hypothesis")}
    sys.exit(globals()[arguments.command](arguments, output))


def run(arguments: argparse.Namespace, output: Path) -> int:
    from . import kills, mutations
    from .results import Results

    results, began = Results(output / "soak.jsonl"), time.monotonic()
    plan = mutations.planned(4000)[: arguments.mutations]
    mutations.run(output / "mutations", plan, results, arguments.seed, arguments.parallel)
    inputs = kills.Inputs(output / "runs")
    kills.run(inputs, arguments.kills, results, arguments.seed, arguments.parallel)
    for trial, table in (("mutation", mutations.table), ("kill", kills.table)):
        if results.of(trial):
            print("", *table(results.of(trial)), sep="\n")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes; every result: {results.file}")
    faults = [line for line in results.lines if line.get("faults") or line.get("outcome") in mutations.BAD]
    return 1 if faults else 0


def mutate(arguments: argparse.Namespace, output: Path) -> int:
    from . import mutations
    from .results import Results

    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    results = Results(folder / "soak.jsonl")
    plan = [(arguments.kind, number) for number in arguments.number]
    mutations.run(folder / "files", plan, results, arguments.seed, 1, keep=True)
    print(f"files and output: {folder / 'files'}")
    return any(line["outcome"] in mutations.BAD for line in results.lines)


if __name__ == "__main__":
    main()
