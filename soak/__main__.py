"""
Damaged files and killed commands:

    python -m soak --output_dir soak-output

soak/README.md explains the trials.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from pathlib import Path

# Read when libraries are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--damages", type=int, default=20, help="damages of each file")
    parser.add_argument("--kills", type=int, default=10, help="commands that are killed")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--output_dir", type=Path, default=Path("soak-output"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    output = arguments.output_dir.resolve()
    os.environ["HF_HOME"] = str(output / "home")

    from . import damage, kills
    from .runs import write_inputs

    inputs = output / "inputs"
    if not inputs.exists():
        write_inputs(inputs)
    trials: Counter[str] = Counter()
    for found in (
        damage.run(output / "damage", arguments.damages, arguments.seed),
        kills.run(output / "kills", inputs, arguments.kills, arguments.seed),
    ):
        for name, faults in found:
            trials["trials"] += 1
            trials["with a fault"] += bool(faults)
            print(f"{name}: {'; '.join(faults) or 'passed'}", flush=True)
    print(f"{trials['trials']} trials, {trials['with a fault']} with a fault")
    sys.exit(1 if trials["with a fault"] else 0)


if __name__ == "__main__":
    main()
