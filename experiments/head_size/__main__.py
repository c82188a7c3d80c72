"""Checks the papers' theorems numerically: `python -m experiments.head_size`."""

from argparse import ArgumentParser

from experiments.head_size.theory import theory
from fixedbert.support.errors import exit_on_input_error


def main(argv: list[str] | None = None):
    parser = ArgumentParser(prog="python -m experiments.head_size", description=__doc__, allow_abbrev=False)
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[8, 16, 32], help="sequence lengths in tokens; default: 8 16 32"
    )
    parser.add_argument("--patterns", type=int, default=5, help="random patterns for each length; default: 5")
    parser.add_argument("--seed", type=int, default=0, help="random seed; default: 0")
    print(theory(**vars(parser.parse_args(argv))))


if __name__ == "__main__":
    exit_on_input_error(main)
