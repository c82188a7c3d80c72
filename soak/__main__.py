"""
python -m soak GENERATOR

Generates inputs, runs fixedbert's commands on them and compares the results with the known truth. soak/README.md
describes the generators.
"""

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path

# Set before importing libraries that read these variables.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
GENERATORS = ("corpora", "options", "rows", "checkpoints", "faults")


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("generator", choices=GENERATORS)
    parser.add_argument("--cases", type=int, default=100, help="number of cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    parser.add_argument("--case", type=int, help="run only the case with this number")
    parser.add_argument("--output_dir", type=Path, default=Path("soak-output"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
    directory = arguments.output_dir.resolve() / arguments.generator
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HOME"] = str(directory / "home")

    from .trials import run

    generator = importlib.import_module(f"soak.{arguments.generator}")
    generator.prepare(directory / "inputs")
    cases = range(arguments.cases) if arguments.case is None else range(arguments.case, arguments.case + 1)
    sys.exit(1 if run(generator.trial, cases, arguments.seed, directory) else 0)


if __name__ == "__main__":
    main()
