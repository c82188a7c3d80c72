"""Runs the `fixedbert` command for `python -m fixedbert` and `accelerate launch -m fixedbert`."""

from fixedbert_cli import entry_point

if __name__ == "__main__":
    entry_point()
