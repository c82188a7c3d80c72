"""
python -m benchmarks.gpu [--output_json FILE]

Compares every attention backend with eager attention in float64, then times pretraining steps. On a CPU, compares
only the backends, on small inputs. Exits with status 1 if a result is wrong. See machines.md in this directory.
"""

import argparse
import json
import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import torch
import transformers
from tqdm import tqdm

from benchmarks.backends import agreement_lines
from benchmarks.paired import description, gpus
from benchmarks.pretraining_steps import speed_lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--output_json", type=Path, help="file to which all results are written")
    arguments = parser.parse_args(argv)
    transformers.utils.logging.set_verbosity_error()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = [description(), *(gpus() or ["no GPU: only the backends are compared, on small inputs"])]
    print("\n".join(machine) + "\n")
    lines = []
    for line in chain(agreement_lines(device), speed_lines(device)):
        tqdm.write(str(line))
        lines.append(line)
    wrong = [line.title for line in lines if line.right is False]
    print(f"\nwrong: {'; '.join(wrong)}" if wrong else "\nnothing is wrong")
    if arguments.output_json:
        record = {"machine": machine, "lines": [asdict(line) for line in lines]}
        arguments.output_json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
