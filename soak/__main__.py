"""
python -m soak

Runs fixedbert's commands on corrupted files, and kills and repeats commands. soak/README.md explains the trials.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from pathlib import Path

# Set before importing libraries that read these variables.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument(
        "--damages", type=int, default=20, help="number of times to corrupt each file (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=10, help="number of commands to kill (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed for all random choices (default: %(default)s)")
    parser.add_argument("--output_dir", type=Path, default=Path("soak-output"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
    output = arguments.output_dir.resolve()
    os.environ["HF_HOME"] = str(output / "home")

    from . import damage, kills
    from .runs import write_inputs

    inputs = output / "inputs"
    if not inputs.exists():
        write_inputs(inputs)
    trials: Counter[str] = Counter()
    for results in (
        damage.run(output / "damage", arguments.damages, arguments.seed),
        kills.run(output / "kills", inputs, arguments.kills, arguments.seed),
    ):
        for name, faults in results:
            trials["trials"] += 1
            trials["with faults"] += bool(faults)
            print(f"{name}: {'; '.join(faults) or 'passed'}", flush=True)
    print(f"{trials['trials']} trials, {trials['with faults']} with faults")
    sys.exit(1 if trials["with faults"] else 0)


if __name__ == "__main__":
    main()
