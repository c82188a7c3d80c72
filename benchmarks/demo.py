"""
python -m benchmarks.demo [--seeds 20] [--output_dir demo-seeds] [flags of the scripts, such as --bf16 false]

Whether `make demo` keeps its promise with every seed: scores with and without pretraining. What is done in the output
directory is not done again.
"""

import argparse
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from benchmarks.machine import description
from fixedbert.support.errors import exit_on_input_error

import run_demo  # isort: skip  # after fixedbert, which comes before torch


def scores_of(seed: int, folder: Path, flags: list[str]) -> dict[str, tuple[float, float]]:
    """Per cent with and without pretraining of a demo in `folder`."""
    found = folder / "scores.json"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        home = Path.cwd()
        os.chdir(folder)  # the demo works in demo/
        with open("demo.log", "a") as log, redirect_stdout(log):
            run_demo.run(["--seed", str(seed), *flags])
        scores = run_demo.scores()
        os.chdir(home)
        found.write_text(json.dumps(scores))
    return json.loads(found.read_text())


def main(argv: list[str]):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 1 on; default: 20")
    parser.add_argument("--output_dir", type=Path, default=Path("demo-seeds"))
    args, flags = parser.parse_known_args(argv)
    print(description(), *flags)
    rows = {}
    for seed in range(1, args.seeds + 1):
        rows[seed] = scores_of(seed, args.output_dir.resolve() / f"seed-{seed}", flags)
        if seed == 1:
            print(f"{'seed':<6}" + "".join(f"{name:>28}" for name in rows[seed]))
        print(f"{seed:<6}" + "".join(f"{a:>16.1f} / {b:>9.1f}" for a, b in rows[seed].values()), flush=True)
    least = [min(row[name][0] for row in rows.values()) for name in rows[1]]
    most = [max(row[name][1] for row in rows.values()) for name in rows[1]]
    print("worst " + "".join(f"{a:>16.1f} / {b:>9.1f}" for a, b in zip(least, most, strict=True)))


if __name__ == "__main__":
    exit_on_input_error(lambda: main(sys.argv[1:]))
